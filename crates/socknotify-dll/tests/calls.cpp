/*
 * What each call sees, however the program mixes them: all that is ready when it is made, soon what another
 * thread has left, and nothing of a port or a socket that was closed.
 */
#include "imports.hpp"
#include "loopback.hpp"

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace {

/* Whether to require that things are soon: on a machine with nothing else to do. */
bool is_timed = false;

std::vector<Pair> connect_pairs(int number) {
    std::vector<Pair> pairs;
    for (int index = 0; index < number; index += 1) {
        pairs.push_back(connect_pair());
    }
    return pairs;
}

void close_pairs(std::vector<Pair> &pairs) {
    for (Pair pair : pairs) {
        close_pair(pair);
    }
}

/* Two sockets are ready: both come, whether the call would wait or not. */
void all_that_is_ready_comes() {
    for (DWORD time : {0, 1000}) {
        for (int trigger : {once, level, edge}) {
            HANDLE port = make_port();
            std::vector<Pair> pairs = connect_pairs(2);
            for (Pair pair : pairs) {
                require_applied(port, enable(pair.ours, as_key(pair.ours), in, trigger));
            }
            for (Pair pair : pairs) {
                send_one(pair.theirs);
                wait_until_readable(pair.ours);
            }
            /* An edge is seen by a thread of the system's pool, which may be late. */
            UINT32 count = take(port, time).count;
            while (trigger == edge && count < 2) {
                Taken more = take(port, patience);
                require(more.error == ERROR_SUCCESS, "the other edge");
                count += more.count;
            }
            require(count == 2, "both");
            close_pairs(pairs);
            CloseHandle(port);
        }
    }
    std::puts("all that is ready comes: ok");
}

/* Persistent levels that nobody serves come with each look. */
void levels_come_with_each_look() {
    constexpr int number = 70;
    constexpr int looks = 20;
    HANDLE port = make_port();
    std::vector<Pair> pairs = connect_pairs(number);
    for (Pair pair : pairs) {
        require_applied(port, enable(pair.ours, as_key(pair.ours), out, level));
    }
    for (int look = 0; look < looks; look += 1) {
        require(take(port, 0).count == number, "all of them");
    }
    close_pairs(pairs);
    CloseHandle(port);
    std::puts("levels come with each look: ok");
}

/* With one more for each look, the first comes each time. */
void levels_come_as_they_are_added() {
    constexpr UINT32 number = 70;
    HANDLE port = make_port();
    std::vector<Pair> pairs = connect_pairs(number);
    for (UINT32 look = 0; look < number; look += 1) {
        SOCK_NOTIFY_REGISTRATION added = enable(pairs[look].ours, as_key(look), out, level);
        Taken taken = {};
        taken.error =
            ProcessSocketNotifications(port, 1, &added, 0, 128, taken.entries, &taken.count);
        require(taken.error == ERROR_SUCCESS && added.registrationResult == ERROR_SUCCESS, "add");
        require(taken.count == look + 1, "all that were added");
    }
    close_pairs(pairs);
    CloseHandle(port);
    std::puts("levels come as they are added: ok");
}

/* What holds at ENABLE is in the port when the call returns: the system's calls see it. */
void what_holds_is_there_at_once() {
    HANDLE port = make_port();
    std::vector<Pair> pairs = connect_pairs(20);
    for (int trigger : {once, level}) {
        for (Pair pair : pairs) {
            require_applied(port, enable(pair.ours, as_key(pair.ours), out, trigger));
            Taken taken = dequeue(port, 0);
            require(taken.error == ERROR_SUCCESS && taken.events() == out, "OUT");
            require(taken.entries[0].lpCompletionKey == pair.ours, "its key");
            require_applied(port, entry_for(pair.ours, SOCK_NOTIFY_OP_REMOVE));
            taken = dequeue(port, 0);
            require(taken.error == ERROR_SUCCESS && taken.events() == SOCK_NOTIFY_EVENT_REMOVE,
                    "REMOVE");
        }
    }
    close_pairs(pairs);
    CloseHandle(port);
    std::puts("what holds is there at once: ok");
}

/* As above, with many in one call. */
void what_holds_of_many_is_there_at_once() {
    constexpr UINT32 number = 100;
    HANDLE port = make_port();
    std::vector<Pair> pairs = connect_pairs(number);
    std::vector<SOCK_NOTIFY_REGISTRATION> batch;
    for (Pair pair : pairs) {
        batch.push_back(enable(pair.ours, as_key(pair.ours), out, once));
    }
    for (int round = 0; round < 5; round += 1) {
        require(ProcessSocketNotifications(port, number, batch.data(), 0, 0, nullptr, nullptr) ==
                    ERROR_SUCCESS,
                "enable");
        require(dequeue(port, 0).count == number, "all of them");
    }
    close_pairs(pairs);
    CloseHandle(port);
    std::puts("what holds of many is there at once: ok");
}

/* Packets of the program's own that are always there. */
void others_hide_nothing_for_long() {
    constexpr int rounds = 40;
    constexpr ULONG_PTR own = 1;
    for (int trigger : {once, level, edge}) {
        for (int others : {0, 1, 2, 4}) {
            HANDLE port = make_port();
            std::vector<Pair> pairs = connect_pairs(3);
            u_long yes = 1;
            for (Pair pair : pairs) {
                ioctlsocket(pair.ours, FIONBIO, &yes);
                require_applied(port, enable(pair.ours, as_key(pair.ours), in, trigger));
            }
            for (int index = 0; index < others; index += 1) {
                PostQueuedCompletionStatus(port, 0, own, nullptr);
            }
            double begin = now();
            for (int round = 0; round < rounds; round += 1) {
                Pair &pair = pairs[static_cast<std::size_t>(round) % pairs.size()];
                send_one(pair.theirs);
                for (;;) {
                    DWORD bytes = 0;
                    ULONG_PTR key = 0;
                    OVERLAPPED *overlapped = nullptr;
                    require(GetQueuedCompletionStatus(port, &bytes, &key, &overlapped, patience),
                            "a notification");
                    if (key == own) {
                        PostQueuedCompletionStatus(port, 0, own, nullptr);
                        SwitchToThread();
                        continue;
                    }
                    char buffer[8];
                    bool any = false;
                    while (recv(key, buffer, sizeof buffer, 0) > 0) {
                        any = true;
                    }
                    if (trigger == once) {
                        require_applied(port, enable(key, as_key(key), in, once));
                    }
                    if (any && key == pair.ours) {
                        break;
                    }
                }
            }
            double mean = (now() - begin) / rounds;
            std::printf("trigger %d, %d others: %.1f ms\n", trigger, others, mean);
            require(!is_timed || mean < 150, "not hidden for long");
            close_pairs(pairs);
            CloseHandle(port);
        }
    }
    std::puts("others hide nothing for long: ok");
}

/* With a packet of the program's own in the queue, too. */
void nothing_follows_disable_or_remove() {
    HANDLE port = make_port();
    Pair pair = connect_pair();
    send_one(pair.theirs);
    wait_until_readable(pair.ours);
    for (auto call : {take, dequeue}) {
        for (int operation : {SOCK_NOTIFY_OP_DISABLE, SOCK_NOTIFY_OP_REMOVE}) {
            PostQueuedCompletionStatus(port, 0, 1, nullptr);
            require_applied(port, enable(pair.ours, as_key(7), in, level));
            require_applied(port, entry_for(pair.ours, static_cast<UINT8>(operation)));
            Sleep(50);
            ULONG own = 0;
            ULONG told = 0;
            ULONG removed = 0;
            for (Taken taken = call(port, 0); taken.error == ERROR_SUCCESS; taken = call(port, 0)) {
                for (UINT32 index = 0; index < taken.count; index += 1) {
                    require(removed == 0 || taken.entries[index].lpCompletionKey == 1, "REMOVE is the last one");
                    own += taken.entries[index].lpCompletionKey == 1;
                    told += taken.entries[index].dwNumberOfBytesTransferred == in;
                    removed += (taken.entries[index].dwNumberOfBytesTransferred & SOCK_NOTIFY_EVENT_REMOVE) != 0;
                }
            }
            require(own == 1 && told <= 1, "what was queued");
            require(removed == (operation == SOCK_NOTIFY_OP_REMOVE ? 1 : 0), "REMOVE, if it was asked for");
            require(count_after(port, 50) == 0, "nothing more");
        }
    }
    close_pair(pair);
    CloseHandle(port);
    std::puts("nothing follows disable or remove: ok");
}

struct Leaving {
    HANDLE port;
    Taken (*call)(HANDLE, DWORD);
};

DWORD WINAPI take_until_closed(void *context) {
    Leaving &leaving = *static_cast<Leaving *>(context);
    Taken taken = leaving.call(leaving.port, INFINITE);
    return taken.error == ERROR_SUCCESS ? 1000 + taken.count : taken.error;
}

/* Whoever waits in a port that is closed, in whichever call, leaves at once with an error, and takes nothing from the
 * next one. */
void closing_a_port_releases_its_threads() {
    int same = 0;
    double longest = 0;
    long_waits().systems = lead("NtRemoveIoCompletionEx", count_long_waits);
    for (int round = 0; round < 4; round += 1) {
        HANDLE port = make_port();
        require(take(port, 0).error == WAIT_TIMEOUT, "the library knows it");
        Leaving leaving[4];
        HANDLE threads[4];
        for (std::size_t index = 0; index < 4; index += 1) {
            leaving[index] = {port, index % 2 ? take : dequeue};
            threads[index] = start(take_until_closed, &leaving[index]);
        }
        /* A program must not close a port that a thread is only about to use. */
        wait_until_they_wait(4);
        double begin = now();
        CloseHandle(port);
        HANDLE next = make_port();
        same += next == port;
        for (ULONG_PTR key = 1; key <= 5; key += 1) {
            PostQueuedCompletionStatus(next, 0, key, nullptr);
        }
        for (HANDLE thread : threads) {
            DWORD outcome = 0;
            require(WaitForSingleObject(thread, patience) == WAIT_OBJECT_0, "a thread leaves");
            require(GetExitCodeThread(thread, &outcome), "GetExitCodeThread");
            SetLastError(outcome);
            require(outcome == ERROR_ABANDONED_WAIT_0, "with that error");
            CloseHandle(thread);
        }
        longest = std::max(longest, now() - begin);
        require(dequeue(next, 0).count == 5, "what is the next port's");
        CloseHandle(next);
    }
    lead("NtRemoveIoCompletionEx", long_waits().systems);
    std::printf("closing a port releases its threads: ok (%.1f ms at most; %d of 4 values used again)\n", longest,
                same);
}

struct Waiting {
    HANDLE port;
    HANDLE begun;
};

DWORD WINAPI wait_for_a_level(void *context) {
    Waiting &waiting = *static_cast<Waiting *>(context);
    SetEvent(waiting.begun);
    require(take(waiting.port, patience).count == 1, "the level");
    return 0;
}

DWORD WINAPI wait_for_remove(void *context) {
    Waiting &waiting = *static_cast<Waiting *>(context);
    SetEvent(waiting.begun);
    Taken taken = dequeue(waiting.port, patience);
    require(taken.error == ERROR_SUCCESS && taken.count == 1, "a packet");
    require(taken.events() == SOCK_NOTIFY_EVENT_REMOVE, "REMOVE");
    return 0;
}

/* A level that one thread has taken, and does not serve, goes to another that waits when the first one dequeues again, also from
 * another port. */
void a_level_goes_to_the_next_thread() {
    HANDLE port = make_port();
    HANDLE elsewhere = make_port();
    Pair pair = connect_pair();
    Pair other = connect_pair();
    require_applied(elsewhere, enable(other.ours, as_key(2), in, once));
    for (int round = 0; round < 15; round += 1) {
        require_applied(port, enable(pair.ours, as_key(1), in, level));
        Waiting waiting = {port, CreateEventA(nullptr, TRUE, FALSE, nullptr)};
        HANDLE thread = start(wait_for_a_level, &waiting);
        WaitForSingleObject(waiting.begun, patience);
        /* Either of them takes it first. */
        send_one(pair.theirs);
        require(take(port, patience).count == 1, "the level");
        require(take(elsewhere, 0).error == WAIT_TIMEOUT, "nothing elsewhere");
        join(thread);
        require_applied(port, entry_for(pair.ours, SOCK_NOTIFY_OP_DISABLE));
        receive_all(pair.ours);
        while (take(port, 0).error == ERROR_SUCCESS) {
        }
        CloseHandle(waiting.begun);
    }
    close_pair(pair);
    close_pair(other);
    CloseHandle(port);
    CloseHandle(elsewhere);
    std::puts("a level goes to the next thread: ok");
}

/* There is nothing to be received. A program that asks for hang-ups and ignores errors sees it, too. */
void a_failed_connect_is_an_error_and_a_hangup() {
    SOCKET refusing = make_socket(SOCK_STREAM);
    sockaddr_in address = bind_to_loopback(refusing);
    for (int trigger : {once, level, edge}) {
        for (bool is_early : {false, true}) {
            for (bool by_system : {false, true}) {
                if (trigger == edge && !is_early) {
                    /* It may have failed before. */
                    continue;
                }
                HANDLE port = make_port();
                SOCKET client = make_socket(SOCK_STREAM);
                u_long yes = 1;
                ioctlsocket(client, FIONBIO, &yes);
                SOCK_NOTIFY_REGISTRATION all = enable(client, as_key(3), in | out | hangup, trigger);
                if (is_early) {
                    require_applied(port, all);
                }
                int outcome = connect(client, reinterpret_cast<sockaddr *>(&address), sizeof address);
                require(outcome != 0 && WSAGetLastError() == WSAEWOULDBLOCK, "connect");
                if (!is_early) {
                    require_applied(port, all);
                }
                Taken taken = by_system ? dequeue(port, patience) : take(port, patience);
                require(taken.error == ERROR_SUCCESS && taken.count == 1, "a notification");
                require(taken.events() == (SOCK_NOTIFY_EVENT_ERR | SOCK_NOTIFY_EVENT_HANGUP), "ERR and HANGUP");
                closesocket(client);
                CloseHandle(port);
            }
        }
    }
    closesocket(refusing);
    std::puts("a failed connect is an error and a hangup: ok");
}

/* A socket that blocks does so until it is connected. */
void an_edge_leaves_connect_alone() {
    SOCKET listener = make_socket(SOCK_STREAM);
    sockaddr_in address = bind_to_loopback(listener);
    require(listen(listener, 4) == 0, "listen");
    for (int round = 0; round < 4; round += 1) {
        HANDLE port = make_port();
        SOCKET client = make_socket(SOCK_STREAM);
        require_applied(port, enable(client, as_key(4), in | out, edge));
        require(dequeue(port, 0).error == WAIT_TIMEOUT, "nothing before it");
        require(connect(client, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0,
                "connect blocks, and succeeds");
        require(take(port, patience).events() == out, "OUT");
        SOCKET theirs = accept(listener, nullptr, nullptr);
        send_one(theirs);
        require(take(port, patience).events() & in, "IN");
        receive_all(client);
        send_one(theirs);
        require(take(port, patience).events() & in, "IN again");
        closesocket(theirs);
        closesocket(client);
        CloseHandle(port);
    }
    closesocket(listener);
    std::puts("an edge leaves connect alone: ok");
}

/* A socket that was never registered has nothing of the closed one whose value it got. */
void a_new_socket_is_not_registered() {
    HANDLE port = make_port();
    int same = 0;
    for (int round = 0; round < 60; round += 1) {
        Pair pair = connect_pair();
        send_one(pair.theirs);
        wait_until_readable(pair.ours);
        require_applied(port, enable(pair.ours, as_key(7), in, level));
        require(dequeue(port, patience).events() == in, "IN");
        /* About when it is told again. */
        double begin = now();
        while (now() - begin < 3.0 + round / 30.0) {
        }
        SOCKET closed = pair.ours;
        close_pair(pair);
        Pair next = connect_pair();
        send_one(next.ours);
        send_one(next.theirs);
        same += next.ours == closed || next.theirs == closed;
        /* One that was queued may come, and a level would come again and again. */
        Sleep(10);
        dequeue(port, 0);
        Sleep(20);
        require(dequeue(port, 0).error == WAIT_TIMEOUT, "nothing of the closed one's");
        require(apply(port, entry_for(next.ours, SOCK_NOTIFY_OP_REMOVE)) == ERROR_NOT_FOUND &&
                    apply(port, entry_for(next.theirs, SOCK_NOTIFY_OP_REMOVE)) == ERROR_NOT_FOUND,
                "it is not registered");
        close_pair(next);
    }
    CloseHandle(port);
    std::printf("a new socket is not registered: ok (%d of 60 values used again)\n", same);
}

/* A closed socket's packet that waits is not the new one's, though value and key are the same. */
void a_new_socket_begins_anew() {
    HANDLE port = make_port();
    int same = 0;
    for (int round = 0; round < 20; round += 1) {
        Pair pair = connect_pair();
        require_applied(port, enable(pair.ours, as_key(7), out, once));
        SOCKET closed = pair.ours;
        close_pair(pair);
        Pair next = connect_pair();
        if (next.ours == closed) {
            same += 1;
            send_one(next.theirs);
            wait_until_readable(next.ours);
            require_applied(port, enable(next.ours, as_key(7), in, once));
            Taken taken = take(port, patience);
            require(taken.count == 1 || (taken.count == 2 && taken.events() == out), "the closed one's may come");
            require(SocketNotificationRetrieveEvents(&taken.entries[taken.count - 1]) == in, "the new one's");
            require(dequeue(port, 0).error == WAIT_TIMEOUT, "nothing else");
        } else {
            dequeue(port, 0);
        }
        close_pair(next);
    }
    CloseHandle(port);
    std::printf("a new socket begins anew: ok (%d of 20 values used again)\n", same);
}

enum Waits { with_the_handle, with_a_duplicate, with_a_late_duplicate };

/* A thread waits before there are sockets, or with another handle, and whoever registers them takes each packet first: the
   thread is told of what is in no packet. */
void a_thread_that_waits_already_is_told(Waits waits) {
    for (int round = 0; round < 3; round += 1) {
        HANDLE port = make_port();
        HANDLE waits_in = port;
        if (waits == with_a_late_duplicate) {
            require(take(port, 0).error == WAIT_TIMEOUT, "the library knows it");
        }
        if (waits != with_the_handle) {
            HANDLE process = GetCurrentProcess();
            require(DuplicateHandle(process, port, process, &waits_in, 0, FALSE, DUPLICATE_SAME_ACCESS), "DuplicateHandle");
        }
        Pair pair = connect_pair();
        Waiting waiting = {waits_in, CreateEventA(nullptr, TRUE, FALSE, nullptr)};
        HANDLE thread = start(wait_for_remove, &waiting);
        require(WaitForSingleObject(waiting.begun, patience) == WAIT_OBJECT_0, "a thread begins");
        Sleep(100);
        require(SuspendThread(thread) == 0, "SuspendThread");
        send_one(pair.theirs);
        wait_until_readable(pair.ours);
        SOCK_NOTIFY_REGISTRATION entry = enable(pair.ours, as_key(pair.ours), in, once);
        OVERLAPPED_ENTRY taken;
        UINT32 count = 0;
        DWORD error = ProcessSocketNotifications(port, 1, &entry, patience, 1, &taken, &count);
        require(error == ERROR_SUCCESS && count == 1, "IN");
        require(ResumeThread(thread) == 1, "ResumeThread");
        /* It is not armed: there is no poll whose packet could wake the thread. */
        require_applied(port, entry_for(pair.ours, SOCK_NOTIFY_OP_REMOVE));
        join(thread);
        CloseHandle(waiting.begun);
        close_pair(pair);
        if (waits != with_the_handle) {
            CloseHandle(waits_in);
        }
        CloseHandle(port);
    }
    const char *names[] = {"", ", with a duplicate", ", with a duplicate made later"};
    std::printf("a thread that waits already is told%s: ok\n", names[waits]);
}

using Query = LONG(NTAPI *)(HANDLE, INT, void *, ULONG, ULONG *);
Query systems_query = nullptr;
HANDLE to_close = nullptr;

/* The library has its own handle of the port by then, and does not yet know the port. */
LONG NTAPI close_and_query(HANDLE port, INT kind, void *information, ULONG length, ULONG *returned) {
    if (to_close != nullptr) {
        CloseHandle(to_close);
        to_close = nullptr;
    }
    return systems_query(port, kind, information, length, returned);
}

/* A port is closed while sockets are first registered with it: the next one with the handle's value is another. */
void a_new_port_is_not_the_closed_one() {
    systems_query = lead("NtQueryIoCompletion", close_and_query);
    HANDLE other = make_port();
    for (bool is_another_known : {false, true}) {
        if (is_another_known) {
            require(take(other, 0).error == WAIT_TIMEOUT, "the library knows one");
        }
        int same = 0;
        for (int round = 0; round < 20; round += 1) {
            HANDLE closed = make_port();
            to_close = closed;
            DWORD error = take(closed, 0).error;
            require(error == ERROR_INVALID_HANDLE || error == ERROR_ABANDONED_WAIT_0, "it is closed");
            HANDLE port = make_port();
            same += port == closed;
            require(PostQueuedCompletionStatus(port, 1, 2, nullptr), "PostQueuedCompletionStatus");
            Taken taken = dequeue(port, patience);
            require(taken.error == ERROR_SUCCESS && taken.entries[0].lpCompletionKey == 2, "a packet of the new one");
            CloseHandle(port);
        }
        require(same > 0, "a value is used again");
    }
    CloseHandle(other);
    std::puts("a new port is not the closed one: ok");
}

/* Without room, the system's call is wrong, and says so. */
void no_room_is_an_invalid_parameter() {
    HANDLE port = make_port();
    OVERLAPPED_ENTRY entry;
    ULONG count = 0;
    require(take(port, 0).error == WAIT_TIMEOUT, "the library knows it");
    require(!GetQueuedCompletionStatusEx(port, &entry, 0, &count, 0, FALSE), "no room");
    require(GetLastError() == ERROR_INVALID_PARAMETER, "ERROR_INVALID_PARAMETER");
    CloseHandle(port);
    std::puts("no room is an invalid parameter: ok");
}

/* Whatever handle of a port a program dequeues with, also one that sockets were never registered with. */
void a_duplicate_delivers() {
    HANDLE port = make_port();
    HANDLE process = GetCurrentProcess();
    HANDLE same = nullptr;
    require(DuplicateHandle(process, port, process, &same, 0, FALSE, DUPLICATE_SAME_ACCESS), "DuplicateHandle");
    Pair pair = connect_pair();
    require_applied(port, enable(pair.ours, as_key(pair.ours), in, once));
    send_one(pair.theirs);
    Taken taken = dequeue(same, patience);
    require(taken.error == ERROR_SUCCESS && taken.count == 1, "one");
    require(taken.entries[0].lpCompletionKey == pair.ours && taken.events() == SOCK_NOTIFY_EVENT_IN, "its IN");
    close_pair(pair);
    CloseHandle(same);
    CloseHandle(port);
    std::puts("a duplicate delivers: ok");
}

} // namespace

int main(int count, char **) {
    is_timed = count > 1;
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    WSADATA data;
    require(WSAStartup(MAKEWORD(2, 2), &data) == 0, "WSAStartup");
    all_that_is_ready_comes();
    levels_come_with_each_look();
    levels_come_as_they_are_added();
    what_holds_is_there_at_once();
    what_holds_of_many_is_there_at_once();
    others_hide_nothing_for_long();
    nothing_follows_disable_or_remove();
    closing_a_port_releases_its_threads();
    a_level_goes_to_the_next_thread();
    a_failed_connect_is_an_error_and_a_hangup();
    an_edge_leaves_connect_alone();
    a_new_socket_is_not_registered();
    a_new_socket_begins_anew();
    a_thread_that_waits_already_is_told(with_the_handle);
    a_thread_that_waits_already_is_told(with_a_duplicate);
    a_thread_that_waits_already_is_told(with_a_late_duplicate);
    a_new_port_is_not_the_closed_one();
    a_duplicate_delivers();
    no_room_is_an_invalid_parameter();
    return 0;
}
