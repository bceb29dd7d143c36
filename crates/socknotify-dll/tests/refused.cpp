/*
 * Packets that the system refuses to queue, and polls that it refuses to begin, for want of memory: what they would have
 * told is told later.
 *
 * The library's calls of PostQueuedCompletionStatus and NtDeviceIoControlFile are led here, through the list of functions that it imports.
 */
#include "imports.hpp"
#include "loopback.hpp"

#include <initializer_list>

namespace {

using Control = LONG(NTAPI *)(HANDLE, HANDLE, void *, void *, void *, ULONG, void *, ULONG, void *, ULONG);
using Post = BOOL(WINAPI *)(HANDLE, DWORD, ULONG_PTR, OVERLAPPED *);

Post systems = nullptr;
volatile LONG to_refuse = 0;
volatile LONG refused = 0;

BOOL WINAPI post_or_refuse(HANDLE port, DWORD bytes, ULONG_PTR key, OVERLAPPED *overlapped) {
    if (InterlockedDecrement(&to_refuse) >= 0) {
        InterlockedIncrement(&refused);
        SetLastError(ERROR_NO_SYSTEM_RESOURCES);
        return FALSE;
    }
    InterlockedIncrement(&to_refuse);
    return systems(port, bytes, key, overlapped);
}

Control systems_control = nullptr;
volatile LONG polls_to_refuse = 0;
volatile LONG polls_refused = 0;

/* In place of other polls, those that wait for the closing of a socket alone. */
volatile bool are_closing_refused = false;

bool only_closing(const void *poll) {
    constexpr ULONG local_close = 0x20;
    return static_cast<const ULONG *>(poll)[6] == local_close;
}

/* A poll that would wait. */
LONG NTAPI control_or_refuse(HANDLE device, HANDLE event, void *routine, void *context, void *outcome, ULONG code,
                             void *from, ULONG from_length, void *to, ULONG to_length) {
    constexpr ULONG poll = 0x12024;
    constexpr LONG insufficient_resources = static_cast<LONG>(0xC000009A);
    if (code == poll && context != nullptr && only_closing(from) == are_closing_refused) {
        if (InterlockedDecrement(&polls_to_refuse) >= 0) {
            InterlockedIncrement(&polls_refused);
            return insufficient_resources;
        }
        InterlockedIncrement(&polls_to_refuse);
    }
    return systems_control(device, event, routine, context, outcome, code, from, from_length, to, to_length);
}

/* Refuse the next packets of the library. */
void refuse(LONG number) {
    refused = 0;
    InterlockedExchange(&to_refuse, number);
}

struct Waiting {
    HANDLE port;
    Taken (*call)(HANDLE, DWORD);
    Taken taken;
};

DWORD WINAPI wait_in(void *context) {
    Waiting &waiting = *static_cast<Waiting *>(context);
    waiting.taken = waiting.call(waiting.port, patience);
    return 0;
}

/* A thread that waits, in a port that the library knows. */
HANDLE start_waiting(Waiting &waiting) {
    require(take(waiting.port, 0).error == WAIT_TIMEOUT, "nothing yet");
    HANDLE thread = start(wait_in, &waiting);
    wait_until_they_wait(1);
    return thread;
}

/* The packet that wakes the thread is refused. */
void removals_come_later() {
    for (auto call : {take, dequeue}) {
        HANDLE port = make_port();
        Pair pair = connect_pair();
        require_applied(port, enable(pair.ours, as_key(7), in, once));
        Waiting waiting = {port, call, {}};
        HANDLE thread = start_waiting(waiting);
        refuse(3);
        require_applied(port, entry_for(pair.ours, SOCK_NOTIFY_OP_REMOVE));
        join(thread);
        require(refused == 3, "packets were refused");
        Taken &taken = waiting.taken;
        require(taken.count == 1 && taken.events() == SOCK_NOTIFY_EVENT_REMOVE, "REMOVE");
        require(taken.entries[0].lpCompletionKey == 7, "its key");
        require(call(port, 100).error == WAIT_TIMEOUT, "it is the last one");
        /* The socket is free. */
        require_applied(port, enable(pair.ours, as_key(8), out, once));
        require(call(port, patience).entries[0].lpCompletionKey == 8, "the new key");
        close_pair(pair);
        CloseHandle(port);
    }
    std::puts("removals that were refused: ok");
}

/* What holds at ENABLE is posted for the thread that waits. */
void levels_come_later() {
    for (auto call : {take, dequeue}) {
        for (int trigger : {once, level}) {
            HANDLE port = make_port();
            Pair pair = connect_pair();
            Waiting waiting = {port, call, {}};
            HANDLE thread = start_waiting(waiting);
            refuse(2);
            require_applied(port, enable(pair.ours, as_key(7), out, trigger));
            join(thread);
            require(refused == 2, "packets were refused");
            require(waiting.taken.count == 1 && waiting.taken.events() == SOCK_NOTIFY_EVENT_OUT, "the level");
            close_pair(pair);
            CloseHandle(port);
        }
    }
    std::puts("levels that were refused: ok");
}

/* The polls that arm it again are refused for a while: it comes again, and can be enabled again. */
void what_was_armed_comes_again() {
    for (auto call : {take, dequeue}) {
        for (int trigger : {level, edge}) {
            HANDLE port = make_port();
            Pair pair = connect_pair();
            require_applied(port, enable(pair.ours, as_key(7), in, trigger));
            for (int round = 0; round < 3; round += 1) {
                send_one(pair.theirs);
                wait_until_readable(pair.ours);
                Taken taken = call(port, patience);
                require(taken.count == 1 && taken.events() == in, "it comes");
                receive_all(pair.ours);
                /* One call tries three times, unless the machine holds it up until its time is over. */
                double begin = now();
                do {
                    polls_refused = 0;
                    InterlockedExchange(&polls_to_refuse, 3);
                    call(port, 50);
                } while (polls_refused < 3 && now() - begin < patience);
                require(polls_refused == 3, "polls were refused");
                InterlockedExchange(&polls_to_refuse, 0);
            }
            InterlockedExchange(&polls_to_refuse, 1);
            DWORD result = apply(port, enable(pair.ours, as_key(7), in | out, trigger));
            require(result == ERROR_SUCCESS || result == ERROR_NO_SYSTEM_RESOURCES, "ENABLE says so, or it comes");
            InterlockedExchange(&polls_to_refuse, 0);
            require_applied(port, enable(pair.ours, as_key(7), in | out, trigger));
            require(call(port, patience).events() & out, "it is registered");
            close_pair(pair);
            CloseHandle(port);
        }
    }
    std::puts("polls that were refused: ok");
}

/* Another thread waits while a known socket is enabled, and its poll is refused. */
void what_is_enabled_beside_a_thread_that_waits_comes() {
    for (auto call : {take, dequeue}) {
        for (int trigger : {once, level, edge}) {
            HANDLE port = make_port();
            Pair pair = connect_pair();
            require_applied(port, enable(pair.ours, as_key(7), in, trigger));
            send_one(pair.theirs);
            wait_until_readable(pair.ours);
            require(call(port, patience).count == 1, "it comes");
            receive_all(pair.ours);
            require_applied(port, entry_for(pair.ours, SOCK_NOTIFY_OP_DISABLE));
            Waiting waiting = {port, call, {}};
            HANDLE thread = start_waiting(waiting);
            polls_refused = 0;
            InterlockedExchange(&polls_to_refuse, 1);
            require_applied(port, enable(pair.ours, as_key(7), in | out, trigger));
            require(polls_refused == 1, "a poll was refused");
            double begin = now();
            send_one(pair.theirs);
            join(thread);
            require(waiting.taken.count >= 1, "it comes");
            /* Before it times out, the call looks once more. */
            require(now() - begin < patience / 2, "and not only at the end");
            close_pair(pair);
            CloseHandle(port);
        }
    }
    std::puts("what is enabled beside a thread that waits: ok");
}

/* Now and then it is found out whether the number is still that of the socket, for which there may be no memory. */
void what_is_checked_goes_on() {
    are_closing_refused = true;
    for (int trigger : {level, edge}) {
        HANDLE port = make_port();
        Pair pair = connect_pair();
        require_applied(port, enable(pair.ours, as_key(7), in, trigger));
        InterlockedExchange(&polls_to_refuse, 1);
        for (int round = 0; round < 130; round += 1) {
            send_one(pair.theirs);
            wait_until_readable(pair.ours);
            require(take(port, patience).count == 1, "it comes");
            receive_all(pair.ours);
        }
        InterlockedExchange(&polls_to_refuse, 0);
        close_pair(pair);
        CloseHandle(port);
    }
    are_closing_refused = false;
    std::puts("what is checked: ok");
}

} // namespace

int main() {
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    WSADATA data;
    require(WSAStartup(MAKEWORD(2, 2), &data) == 0, "WSAStartup");
    systems = lead("PostQueuedCompletionStatus", post_or_refuse);
    systems_control = lead("NtDeviceIoControlFile", control_or_refuse);
    long_waits().systems = lead("NtRemoveIoCompletionEx", count_long_waits);
    removals_come_later();
    what_was_armed_comes_again();
    levels_come_later();
    what_is_enabled_beside_a_thread_that_waits_comes();
    what_is_checked_goes_on();
    return 0;
}
