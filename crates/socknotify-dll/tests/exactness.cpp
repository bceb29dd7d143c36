/*
 * What a kernel that has the function does: one packet for each registration, none lost, and none after the last.
 */
#include "loopback.hpp"

#include <initializer_list>
#include <vector>

namespace {

/* Time for a packet to get into the queue. If it is not there by then, the test shows less. */
void settle() {
    Sleep(40);
}

Taken take_one(HANDLE port) {
    Taken taken = take(port, patience);
    require(taken.error == ERROR_SUCCESS && taken.count == 1, "one packet");
    return taken;
}

/* Until REMOVE has come, which is the last. */
void wait_for_removal(HANDLE port, Taken (*call)(HANDLE, DWORD)) {
    Taken taken;
    do {
        taken = call(port, patience);
        require(taken.error == ERROR_SUCCESS, "REMOVE comes");
    } while (!(SocketNotificationRetrieveEvents(&taken.entries[taken.count - 1]) &
               SOCK_NOTIFY_EVENT_REMOVE));
}

void require_nothing(HANDLE port) {
    Taken taken = take(port, 60);
    require(taken.error == WAIT_TIMEOUT && taken.count == 0, "nothing");
}

/* What becomes true while a packet waits comes with it, or with the next one. */
void merging() {
    HANDLE port = make_port();
    for (int trigger : {once, level}) {
        Pair pair = connect_pair();
        require_applied(port, enable(pair.ours, as_key(1), in | out | hangup, trigger));
        settle();
        send_one(pair.theirs);
        wait_until_readable(pair.ours);
        UINT32 first = take_one(port).events();
        require((first & out) != 0 && (first & ~(in | out)) == 0, "what held when it was queued");
        if (trigger == once) {
            require_nothing(port);
            require_applied(port, enable(pair.ours, as_key(1), in | out | hangup, trigger));
        }
        require(take_one(port).events() == (in | out), "both");
        require_applied(port, entry_for(pair.ours, SOCK_NOTIFY_OP_REMOVE));
        wait_for_removal(port, take);
        close_pair(pair);
    }
    require_nothing(port);
    CloseHandle(port);
    std::puts("merging: ok");
}

/* A level that has fallen while its packet was queued is told once at most, and told when it holds again. */
void a_level_that_fell() {
    HANDLE port = make_port();
    Pair pair = connect_pair();
    require_applied(port, enable(pair.ours, as_key(1), in, level));
    for (int round = 0; round < 5; round += 1) {
        send_one(pair.theirs);
        wait_until_readable(pair.ours);
        settle();
        receive_all(pair.ours);
        Taken taken = take(port, 60);
        require(taken.count <= 1, "what was queued");
        require_nothing(port);
    }
    send_one(pair.theirs);
    require(take_one(port).events() == in, "it holds again");
    close_pair(pair);
    CloseHandle(port);
    std::puts("a level that fell: ok");
}

/* ENABLE while a packet waits makes no second one. */
void enabling_twice() {
    HANDLE port = make_port();
    Pair pair = connect_pair();
    send_one(pair.theirs);
    wait_until_readable(pair.ours);
    for (int round = 0; round < 3; round += 1) {
        require_applied(port, enable(pair.ours, as_key(1), in, once));
        settle();
    }
    require(take_one(port).events() == in, "one");
    require_nothing(port);
    require_applied(port, enable(pair.ours, as_key(1), in, once));
    take_one(port);
    require_nothing(port);
    for (int round = 0; round < 3; round += 1) {
        require_applied(port, enable(pair.ours, as_key(1), in, level));
        settle();
    }
    require(dequeue(port, patience).count == 1, "one, of the system's call");
    require_applied(port, entry_for(pair.ours, SOCK_NOTIFY_OP_DISABLE));
    /* One that was queued may come. */
    take(port, 60);
    require_nothing(port);
    close_pair(pair);
    CloseHandle(port);
    std::puts("enabling twice: ok");
}

/* REMOVE comes with what waits, is the last one, and until then nothing is registered. */
void removing() {
    HANDLE port = make_port();
    Pair pair = connect_pair();
    send_one(pair.theirs);
    for (int round = 0; round < 3; round += 1) {
        require_applied(port, enable(pair.ours, as_key(round), in, level));
        settle();
        SOCK_NOTIFY_REGISTRATION removal = entry_for(pair.ours, SOCK_NOTIFY_OP_REMOVE);
        OVERLAPPED_ENTRY entry;
        UINT32 count = 0;
        require(ProcessSocketNotifications(port, 1, &removal, patience, 1, &entry, &count) ==
                        ERROR_SUCCESS &&
                    removal.registrationResult == ERROR_SUCCESS && count == 1,
                "removed and taken at once");
        require(SocketNotificationRetrieveEvents(&entry) & SOCK_NOTIFY_EVENT_REMOVE, "REMOVE");
        require(entry.lpCompletionKey == static_cast<ULONG_PTR>(round), "its key");
        require_nothing(port);
    }
    require_applied(port, enable(pair.ours, as_key(1), in, once));
    require_applied(port, entry_for(pair.ours, SOCK_NOTIFY_OP_REMOVE));
    require(apply(port, enable(pair.ours, as_key(1), in, once)) == ERROR_INVALID_PARAMETER &&
                apply(port, enable(pair.ours, as_key(2), in, once)) == ERROR_INVALID_PARAMETER,
            "still being removed");
    require(apply(port, entry_for(pair.ours, SOCK_NOTIFY_OP_REMOVE)) == ERROR_NOT_FOUND, "removed");
    HANDLE other = make_port();
    require(apply(other, enable(pair.ours, as_key(2), in, once)) == ERROR_INVALID_PARAMETER,
            "another port's");
    wait_for_removal(port, dequeue);
    require_applied(other, enable(pair.ours, as_key(2), in, once));
    require(take_one(other).entries[0].lpCompletionKey == 2, "with another port and key");
    close_pair(pair);
    CloseHandle(other);
    CloseHandle(port);
    std::puts("removing: ok");
}

/* One at a time, beside operations of the program's own on the same socket and the same port. */
void one_at_a_time() {
    HANDLE port = make_port();
    Pair pair = connect_pair();
    require(CreateIoCompletionPort(HANDLE(pair.ours), port, 7, 0) == port, "associate");
    char byte = 0;
    WSABUF buffer = {1, &byte};
    DWORD flags = 0;
    OVERLAPPED receiving = {};
    require(WSARecv(pair.ours, &buffer, 1, nullptr, &flags, &receiving, nullptr) != 0 &&
                WSAGetLastError() == WSA_IO_PENDING,
            "WSARecv");
    require_applied(port, enable(pair.ours, as_key(8), out, once));
    DWORD bytes = 0;
    ULONG_PTR key = 0;
    OVERLAPPED *overlapped = nullptr;
    require(GetQueuedCompletionStatus(port, &bytes, &key, &overlapped, patience), "dequeue");
    require(bytes == out && key == 8 && overlapped == nullptr, "the notification");
    send_one(pair.theirs);
    require(GetQueuedCompletionStatus(port, &bytes, &key, &overlapped, patience), "dequeue");
    require(bytes == 1 && key == 7 && overlapped == &receiving && byte == 'x', "the operation");
    require(!GetQueuedCompletionStatus(port, &bytes, &key, &overlapped, 20) &&
                GetLastError() == WAIT_TIMEOUT && overlapped == nullptr,
            "nothing more");
    /* An operation that fails is one whatever call it comes out of. */
    require(WSARecv(pair.ours, &buffer, 1, nullptr, &flags, &receiving, nullptr) != 0, "WSARecv");
    CancelIoEx(HANDLE(pair.ours), &receiving);
    Taken taken = take_one(port);
    require(taken.entries[0].lpCompletionKey == 7 && taken.entries[0].lpOverlapped == &receiving &&
                static_cast<LONG>(taken.entries[0].Internal) < 0,
            "it was cancelled");
    close_pair(pair);
    CloseHandle(port);
    std::puts("one at a time: ok");
}

/* Packets of the program's own that look like notifications, and with values of all kinds. */
void packets_alike() {
    HANDLE port = make_port();
    Pair pair = connect_pair();
    send_one(pair.theirs);
    require_applied(port, enable(pair.ours, as_key(5), in, once));
    settle();
    for (ULONG_PTR value : {ULONG_PTR(0), ULONG_PTR(1), ~ULONG_PTR(0)}) {
        OVERLAPPED *overlapped = reinterpret_cast<OVERLAPPED *>(value);
        require(PostQueuedCompletionStatus(port, in, 5, nullptr), "post");
        require(PostQueuedCompletionStatus(port, static_cast<DWORD>(value), value, overlapped), "post");
        require(PostQueuedCompletionStatus(port, 0x80, 5, overlapped), "post");
    }
    Taken taken = take(port, patience);
    UINT32 count = taken.count;
    while (count < 10) {
        count += take(port, patience).count;
    }
    require(count == 10, "all of them");
    require_applied(port, enable(pair.ours, as_key(5), in, once));
    require(take_one(port).events() == in, "the registration is there still");
    close_pair(pair);
    CloseHandle(port);
    std::puts("packets alike: ok");
}

/* Sockets with one key, and with none. */
void keys_in_common() {
    HANDLE port = make_port();
    Pair pairs[6];
    for (int index = 0; index < 6; index += 1) {
        pairs[index] = connect_pair();
        send_one(pairs[index].theirs);
        void *key = index < 3 ? nullptr : as_key(9);
        require_applied(port, enable(pairs[index].ours, key, in, once));
    }
    int without = 0;
    int with = 0;
    while (without + with < 6) {
        Taken taken = take(port, patience);
        require(taken.error == ERROR_SUCCESS, "take");
        for (UINT32 index = 0; index < taken.count; index += 1) {
            (taken.entries[index].lpCompletionKey == 0 ? without : with) += 1;
        }
    }
    require(without == 3 && with == 3, "each once");
    require_nothing(port);
    for (Pair pair : pairs) {
        close_pair(pair);
    }
    CloseHandle(port);
    std::puts("keys in common: ok");
}

/* Sockets that are closed without REMOVE leave nothing to those that get their values. */
void closing() {
    HANDLE ports[] = {make_port(), make_port()};
    for (int round = 0; round < 40; round += 1) {
        HANDLE port = ports[round % 2];
        Pair pair = connect_pair();
        send_one(pair.theirs);
        wait_until_readable(pair.ours);
        int trigger = round % 3 == 0 ? once : level;
        require_applied(port, enable(pair.ours, as_key(1000 + round), in, trigger));
        for (;;) {
            Taken taken = round % 5 == 0 ? dequeue(port, patience) : take(port, patience);
            require(taken.error == ERROR_SUCCESS, "take");
            if (taken.entries[taken.count - 1].lpCompletionKey == ULONG_PTR(1000 + round)) {
                break;
            }
        }
        close_pair(pair);
    }
    for (HANDLE port : ports) {
        CloseHandle(port);
    }
    std::puts("closing: ok");
}

void many_sockets() {
    constexpr int number = 1000;
    HANDLE port = make_port();
    SOCKET sender = make_socket(SOCK_DGRAM);
    std::vector<SOCKET> sockets;
    std::vector<sockaddr_in> addresses;
    for (int index = 0; index < number; index += 1) {
        SOCKET socket = make_socket(SOCK_DGRAM);
        sockets.push_back(socket);
        addresses.push_back(bind_to_loopback(socket));
        require_applied(port, enable(socket, as_key(index), in, index % 2 ? once : level));
    }
    for (sockaddr_in &address : addresses) {
        sendto(sender, "x", 1, 0, reinterpret_cast<sockaddr *>(&address), sizeof address);
    }
    std::vector<bool> told(number);
    for (int count = 0; count < number;) {
        OVERLAPPED_ENTRY entries[64];
        UINT32 taken = 0;
        require(ProcessSocketNotifications(port, 0, nullptr, patience, 64, entries, &taken) ==
                    ERROR_SUCCESS,
                "take");
        for (UINT32 index = 0; index < taken; index += 1) {
            ULONG_PTR key = entries[index].lpCompletionKey;
            require(!told[key], "once");
            told[key] = true;
            receive_all(sockets[key]);
            count += 1;
        }
    }
    require_nothing(port);
    std::vector<SOCK_NOTIFY_REGISTRATION> removals;
    for (SOCKET socket : sockets) {
        removals.push_back(entry_for(socket, SOCK_NOTIFY_OP_REMOVE));
    }
    require(ProcessSocketNotifications(port, number, removals.data(), 0, 0, nullptr, nullptr) ==
                ERROR_SUCCESS,
            "REMOVE");
    for (int count = 0; count < number;) {
        Taken taken = dequeue(port, patience);
        require(taken.error == ERROR_SUCCESS, "each REMOVE comes");
        count += static_cast<int>(taken.count);
    }
    for (SOCKET socket : sockets) {
        closesocket(socket);
    }
    closesocket(sender);
    CloseHandle(port);
    std::puts("many sockets: ok");
}

void wrong_calls() {
    HANDLE port = make_port();
    HANDLE event = CreateEventA(nullptr, TRUE, FALSE, nullptr);
    SOCKET socket = make_socket(SOCK_DGRAM);
    SOCK_NOTIFY_REGISTRATION good = enable(socket, nullptr, in, once);
    OVERLAPPED_ENTRY entry;
    UINT32 count = 0;
    for (HANDLE handle : {HANDLE(nullptr), HANDLE(INVALID_HANDLE_VALUE), event, HANDLE(socket)}) {
        require(ProcessSocketNotifications(handle, 1, &good, 0, 0, nullptr, nullptr) ==
                    ERROR_INVALID_HANDLE,
                "no port");
    }
    struct {
        UINT32 registrations;
        SOCK_NOTIFY_REGISTRATION *registration;
        UINT32 time;
        ULONG room;
        OVERLAPPED_ENTRY *entries;
        UINT32 *received;
    } wrong[] = {
        {1, nullptr, 0, 0, nullptr, nullptr}, {0, &good, 0, 1, &entry, &count},
        {1, &good, 1, 0, nullptr, nullptr},   {1, &good, INFINITE, 0, nullptr, nullptr},
        {1, &good, 0, 1, nullptr, &count},    {1, &good, 0, 1, &entry, nullptr},
        {1, &good, 0, 0, &entry, nullptr},    {1, &good, 0, 0, nullptr, &count},
    };
    for (auto &call : wrong) {
        require(ProcessSocketNotifications(port, call.registrations, call.registration, call.time,
                                           call.room, call.entries,
                                           call.received) == ERROR_INVALID_PARAMETER,
                "wrong arguments");
    }
    require(apply(port, entry_for(socket, SOCK_NOTIFY_OP_DISABLE)) == ERROR_SUCCESS &&
                apply(port, entry_for(socket, SOCK_NOTIFY_OP_REMOVE)) == ERROR_NOT_FOUND,
            "nothing was applied");
    require(ProcessSocketNotifications(port, 0, nullptr, 0, 0, nullptr, nullptr) == ERROR_SUCCESS,
            "nothing to do");
    for (DWORD time : {0, 1, 20}) {
        LARGE_INTEGER begin, end, frequency;
        QueryPerformanceFrequency(&frequency);
        QueryPerformanceCounter(&begin);
        require(take(port, time).error == WAIT_TIMEOUT, "a time-out");
        QueryPerformanceCounter(&end);
        require((end.QuadPart - begin.QuadPart) * 1000 >= LONGLONG(time) * frequency.QuadPart,
                "not early");
    }
    /* Two handles of one port are that port. */
    HANDLE same = nullptr;
    HANDLE process = GetCurrentProcess();
    require(DuplicateHandle(process, port, process, &same, 0, FALSE, DUPLICATE_SAME_ACCESS),
            "DuplicateHandle");
    require_applied(port, good);
    require_applied(same, good);
    CloseHandle(port);
    require_applied(same, good);
    closesocket(socket);
    CloseHandle(same);
    CloseHandle(event);
    std::puts("wrong calls: ok");
}

constexpr int talkers = 8;
constexpr int rounds = 60;
constexpr ULONG_PTR ball = 1;
constexpr ULONG_PTR stop = 2;

struct Hall {
    HANDLE port;
    int trigger;
    bool plays;
    Pair pairs[talkers];
};

DWORD WINAPI talk(void *context) {
    SOCKET socket = *static_cast<SOCKET *>(context);
    for (int round = 0; round < rounds; round += 1) {
        char answer;
        send_one(socket);
        require(recv(socket, &answer, 1, 0) == 1, "an answer");
    }
    return 0;
}

/* Answer whoever talks; and toss packets of the program's own back, so that the queue is never empty. */
DWORD WINAPI answer(void *context) {
    Hall &hall = *static_cast<Hall *>(context);
    for (;;) {
        OVERLAPPED_ENTRY entries[3];
        ULONG count = 0;
        require(GetQueuedCompletionStatusEx(hall.port, entries, 3, &count, patience, FALSE), "dequeue");
        for (ULONG index = 0; index < count; index += 1) {
            ULONG_PTR key = entries[index].lpCompletionKey;
            if (key == stop) {
                PostQueuedCompletionStatus(hall.port, 0, stop, nullptr);
                return 0;
            }
            if (key == ball) {
                PostQueuedCompletionStatus(hall.port, 0, ball, nullptr);
                SwitchToThread();
                continue;
            }
            SOCKET socket = static_cast<SOCKET>(key);
            char buffer[8];
            int length;
            while ((length = recv(socket, buffer, sizeof buffer, 0)) > 0) {
                for (int sent = 0; sent < length; sent += 1) {
                    send_one(socket);
                }
            }
            require(WSAGetLastError() == WSAEWOULDBLOCK, "drained");
            if (hall.trigger == once) {
                require_applied(hall.port, enable(socket, as_key(socket), in, once));
            }
        }
    }
}

/* None is lost, however they are taken, and however many others there are. */
void none_lost() {
    for (int trigger : {once, level, edge}) {
        for (bool plays : {false, true}) {
            DWORD begin = GetTickCount();
            Hall hall = {};
            hall.port = make_port();
            hall.trigger = trigger;
            for (Pair &pair : hall.pairs) {
                pair = connect_pair();
                u_long yes = 1;
                ioctlsocket(pair.ours, FIONBIO, &yes);
                require_applied(hall.port, enable(pair.ours, as_key(pair.ours), in, trigger));
            }
            HANDLE answering[4];
            for (HANDLE &thread : answering) {
                thread = start(answer, &hall);
            }
            for (int index = 0; plays && index < 3; index += 1) {
                PostQueuedCompletionStatus(hall.port, 0, ball, nullptr);
            }
            HANDLE talking[talkers];
            for (int index = 0; index < talkers; index += 1) {
                talking[index] = start(talk, &hall.pairs[index].theirs);
            }
            for (HANDLE thread : talking) {
                join(thread);
            }
            PostQueuedCompletionStatus(hall.port, 0, stop, nullptr);
            for (HANDLE thread : answering) {
                join(thread);
            }
            for (Pair pair : hall.pairs) {
                close_pair(pair);
            }
            CloseHandle(hall.port);
            std::printf("none lost (trigger %d%s): ok, %lu ms\n", trigger, plays ? ", among others" : "",
                        GetTickCount() - begin);
        }
    }
}

DWORD WINAPI wait_for_ever(void *port) {
    for (;;) {
        dequeue(port, INFINITE);
    }
}

DWORD WINAPI take_for_ever(void *port) {
    for (;;) {
        take(port, INFINITE);
    }
}

/* Nobody waits for threads that wait. */
void leave_threads_behind() {
    HANDLE port = make_port();
    Pair pair = connect_pair();
    require_applied(port, enable(pair.ours, as_key(1), in, level));
    start(wait_for_ever, port);
    start(take_for_ever, port);
    send_one(pair.theirs);
    settle();
}

} // namespace

int main() {
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    WSADATA data;
    require(WSAStartup(MAKEWORD(2, 2), &data) == 0, "WSAStartup");
    merging();
    a_level_that_fell();
    enabling_twice();
    removing();
    one_at_a_time();
    packets_alike();
    keys_in_common();
    closing();
    many_sockets();
    wrong_calls();
    none_lost();
    leave_threads_behind();
    return 0;
}
