/*
 * What has a bound: the packets in the queue, what a port takes, and how long the process lives.
 */
#include "loopback.hpp"

#include <psapi.h>
#include <winternl.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

namespace {

template <typename Function> Function system_function(const char *name) {
    FARPROC found = GetProcAddress(GetModuleHandleA("ntdll.dll"), name);
    require(found != nullptr, name);
    return reinterpret_cast<Function>(reinterpret_cast<void (*)()>(found));
}

/* The number of packets in the queue. */
LONG depth_of(HANDLE port) {
    using Query = LONG(NTAPI *)(HANDLE, int, LONG *, ULONG, ULONG *);
    static const Query query = system_function<Query>("NtQueryIoCompletion");
    LONG depth = 0;
    require(query(port, 0, &depth, sizeof depth, nullptr) >= 0, "NtQueryIoCompletion");
    return depth;
}

/* A datagram socket that has something to receive. */
SOCKET make_ready() {
    SOCKET made = make_socket(SOCK_DGRAM);
    sockaddr_in address = bind_to_loopback(made);
    require(sendto(made, "x", 1, 0, reinterpret_cast<sockaddr *>(&address), sizeof address) == 1, "sendto");
    return made;
}

std::vector<SOCKET> make_many_ready(std::size_t number) {
    std::vector<SOCKET> sockets;
    for (std::size_t index = 0; index < number; index += 1) {
        sockets.push_back(make_ready());
    }
    return sockets;
}

void close_all(const std::vector<SOCKET> &sockets) {
    for (SOCKET socket : sockets) {
        closesocket(socket);
    }
}

/* Levels that hold all the time, a server that is slow, and stops once for longer than a second: whichever call it
 * dequeues with, each socket has one packet in the queue at most, and the program's own packets come in time. */
void the_queue_is_bounded() {
    constexpr std::size_t number = 60;
    constexpr ULONG_PTR own = 1;
    for (bool by_system : {false, true}) {
        HANDLE port = make_port();
        std::vector<SOCKET> sockets = make_many_ready(number);
        for (SOCKET socket : sockets) {
            require_applied(port, enable(socket, as_key(socket), in, level));
        }
        LONG deepest = 0;
        LONG others = 1;
        int rounds_of_own = 0;
        int longest = 0;
        int since = 0;
        PostQueuedCompletionStatus(port, 0, own, nullptr);
        double begin = now();
        for (int round = 0; round < 100 || now() - begin < 3000; round += 1) {
            Taken taken = {};
            ULONG count = 0;
            if (by_system) {
                require(GetQueuedCompletionStatusEx(port, taken.entries, 16, &count, patience, FALSE), "dequeue");
            } else {
                UINT32 received = 0;
                require(ProcessSocketNotifications(port, 0, nullptr, patience, 16, taken.entries, &received) ==
                            ERROR_SUCCESS,
                        "dequeue");
                count = received;
            }
            since += 1;
            for (ULONG index = 0; index < count; index += 1) {
                if (taken.entries[index].lpCompletionKey == own) {
                    longest = std::max(longest, since);
                    since = 0;
                    rounds_of_own += 1;
                    PostQueuedCompletionStatus(port, 0, own, nullptr);
                }
            }
            deepest = std::max(deepest, depth_of(port));
            Sleep(round == 10 ? 1200 : 8);
        }
        std::printf("by %s: %ld packets at most, own ones after %d calls at most\n", by_system ? "the system" : "the library",
                    deepest, longest);
        require(deepest <= static_cast<LONG>(number) + others, "one packet for each");
        require(rounds_of_own > 5, "own packets come");
        /* Each socket once, and some rounds of grace. */
        require(longest <= static_cast<int>(number / 16) + 10, "in turn");
        close_all(sockets);
        CloseHandle(port);
    }
    std::puts("the queue is bounded: ok");
}

/* A socket that is ready is enabled with one filter and another, and nobody dequeues. */
void enabling_queues_one_packet() {
    for (int trigger : {once, level, edge}) {
        HANDLE port = make_port();
        SOCKET socket = make_ready();
        for (int round = 0; round < 200; round += 1) {
            require_applied(port, enable(socket, as_key(socket), round % 2 ? in : in | out, trigger));
            require(depth_of(port) <= 1, "one packet");
        }
        require(take(port, patience).events() == in, "it comes, as it is wanted");
        closesocket(socket);
        CloseHandle(port);
    }
    std::puts("enabling queues one packet: ok");
}

/* The same for a socket that is not ready, and for one that is disabled in between. */
void enabling_what_waits_queues_little() {
    for (int trigger : {once, level, edge}) {
        HANDLE port = make_port();
        Pair pair = connect_pair();
        for (int round = 0; round < 200; round += 1) {
            require_applied(port, enable(pair.ours, as_key(pair.ours), round % 2 ? in : in | hangup, trigger));
            require(depth_of(port) <= 1, "one packet");
            if (round % 3 == 0) {
                require_applied(port, entry_for(pair.ours, SOCK_NOTIFY_OP_DISABLE));
            }
        }
        require(take(port, 0).error == WAIT_TIMEOUT, "nothing comes");
        send_one(pair.theirs);
        require(take(port, patience).events() == in, "it comes, as it is wanted");
        close_pair(pair);
        CloseHandle(port);
    }
    std::puts("enabling what waits queues little: ok");
}

DWORD WINAPI wait_in_another(void *context) {
    ULONG_PTR key;
    OVERLAPPED *overlapped;
    DWORD count;
    GetQueuedCompletionStatus(*static_cast<HANDLE *>(context), &count, &key, &overlapped, INFINITE);
    return 0;
}

/* A port has two handles, and threads wait on ports without sockets, as those of a thread pool do. */
void waiters_elsewhere_queue_nothing() {
    HANDLE port = make_port();
    HANDLE second = nullptr;
    require(DuplicateHandle(GetCurrentProcess(), port, GetCurrentProcess(), &second, 0, FALSE, DUPLICATE_SAME_ACCESS),
            "DuplicateHandle");
    HANDLE another = make_port();
    HANDLE thread = start(wait_in_another, &another);
    Sleep(200);
    SOCKET socket = make_socket(SOCK_DGRAM);
    bind_to_loopback(socket);
    for (int round = 0; round < 200; round += 1) {
        require_applied(port, enable(socket, as_key(socket), in, once));
        require(depth_of(port) <= 2, "few packets");
    }
    PostQueuedCompletionStatus(another, 0, 0, nullptr);
    join(thread);
    closesocket(socket);
    CloseHandle(another);
    CloseHandle(second);
    CloseHandle(port);
    std::puts("waiters elsewhere queue nothing: ok");
}

struct Closing {
    std::vector<SOCK_NOTIFY_REGISTRATION> batch;
    HANDLE registered;
    HANDLE go;
    double took;
};

/* Wine has a poll end in the thread that began it: that is this one, too. */
DWORD WINAPI register_and_close(void *context) {
    Closing &closing = *static_cast<Closing *>(context);
    HANDLE port = make_port();
    UINT32 number = static_cast<UINT32>(closing.batch.size());
    require(ProcessSocketNotifications(port, number, closing.batch.data(), 0, 0, nullptr, nullptr) == ERROR_SUCCESS,
            "enable");
    SetEvent(closing.registered);
    WaitForSingleObject(closing.go, patience);
    double begin = now();
    CloseHandle(port);
    closing.took = now() - begin;
    return 0;
}

/* The longest of so many calls on another port, and of those that a thread that closes one leaves time for. */
double longest_call(HANDLE port, SOCKET socket, int calls) {
    double longest = 0;
    for (int call = 0; call < calls; call += 1) {
        double begin = now();
        require_applied(port, enable(socket, as_key(1), in, once));
        require(take(port, patience).count == 1, "the other port's");
        longest = std::max(longest, now() - begin);
    }
    return longest;
}

/* A port with many sockets is closed, while calls on another one go on. Returns how much longer the longest of these took than
 * the longest of as many without the closing. */
double delay_by_closing(const std::vector<SOCKET> &sockets, HANDLE other, SOCKET one, int trigger) {
    Closing closing = {{}, CreateEventA(nullptr, TRUE, FALSE, nullptr), CreateEventA(nullptr, TRUE, FALSE, nullptr), 0};
    for (SOCKET socket : sockets) {
        closing.batch.push_back(enable(socket, as_key(socket), in, trigger));
    }
    HANDLE thread = start(register_and_close, &closing);
    require(WaitForSingleObject(closing.registered, patience) == WAIT_OBJECT_0, "the sockets are registered");
    double during = 0;
    int calls = 0;
    SetEvent(closing.go);
    /* Another thread may do the rest, later. */
    for (double begin = now(); WaitForSingleObject(thread, 0) == WAIT_TIMEOUT || now() - begin < 300; calls += 1) {
        during = std::max(during, longest_call(other, one, 1));
    }
    CloseHandle(thread);
    CloseHandle(closing.registered);
    CloseHandle(closing.go);
    double without = longest_call(other, one, calls);
    std::printf("closing took %.1f ms; %d calls meanwhile, %.1f ms at most; as many without it, %.1f ms\n", closing.took,
                calls, during, without);
    return during - without;
}

/* If closing held up the others, one call would take as long as it in each round. What else the machine does spoils some
 * rounds. */
void closing_blocks_nobody() {
    constexpr std::size_t number = 1000;
    constexpr double goal = 5;
    HANDLE other = make_port();
    SOCKET one = make_ready();
    std::vector<SOCKET> sockets;
    for (std::size_t index = 0; index < number; index += 1) {
        SOCKET socket = make_socket(SOCK_DGRAM);
        bind_to_loopback(socket);
        sockets.push_back(socket);
    }
    for (int trigger : {once, level, edge}) {
        double least = delay_by_closing(sockets, other, one, trigger);
        for (int round = 1; round < 10 && least > goal; round += 1) {
            least = std::min(least, delay_by_closing(sockets, other, one, trigger));
        }
        require(least <= goal, "no call on another port waits more than 5 ms longer");
    }
    close_all(sockets);
    closesocket(one);
    CloseHandle(other);
    std::puts("closing blocks nobody: ok");
}

SIZE_T memory_of_this_process() {
    PROCESS_MEMORY_COUNTERS counters;
    require(K32GetProcessMemoryInfo(GetCurrentProcess(), &counters, sizeof counters), "GetProcessMemoryInfo");
    return counters.PagefileUsage;
}

/* A port of the library has no thread, whose stack would be larger, and no packets or sockets of its own. */
void ports_are_cheap() {
    constexpr int number = 200;
    constexpr SIZE_T smallest_stack = 65536;
    std::vector<HANDLE> ports;
    SOCKET socket = make_socket(SOCK_DGRAM);
    bind_to_loopback(socket);
    SIZE_T memory = 0;
    double begin = 0;
    for (int index = 0; index <= number; index += 1) {
        HANDLE port = make_port();
        require(apply(port, entry_for(socket, SOCK_NOTIFY_OP_DISABLE)) == ERROR_SUCCESS, "the library knows it");
        ports.push_back(port);
        if (index == 0) {
            /* What is made once. */
            memory = memory_of_this_process();
            begin = now();
        }
    }
    double took = (now() - begin) / number;
    SIZE_T memory_each = (memory_of_this_process() - memory) / number;
    begin = now();
    for (HANDLE port : ports) {
        CloseHandle(port);
    }
    double closing = (now() - begin) / (number + 1);
    closesocket(socket);
    std::printf("a port takes %lu bytes; it is made in %.2f ms, and closed in %.2f ms\n",
                static_cast<unsigned long>(memory_each), took, closing);
    require(memory_each < smallest_stack, "memory");
    std::puts("ports are cheap: ok");
}

DWORD WINAPI end_later(void *) {
    Sleep(100);
    std::puts("the last thread ends");
    ExitThread(0);
}

/* The process with this argument has a port, sockets, and one thread that ends. */
void live_as_long_as_a_thread() {
    HANDLE port = make_port();
    for (int trigger : {once, level, edge}) {
        SOCKET socket = make_ready();
        require_applied(port, enable(socket, as_key(socket), in, trigger));
        require(take(port, patience).count == 1, "it works");
        receive_all(socket);
    }
    start(end_later, nullptr);
    ExitThread(0);
}

void the_process_ends_with_its_last_thread() {
    char path[MAX_PATH];
    require(GetModuleFileNameA(nullptr, path, sizeof path) > 0, "the program's path");
    std::string line = std::string("\"") + path + "\" last-thread";
    STARTUPINFOA startup = {};
    startup.cb = sizeof startup;
    PROCESS_INFORMATION process;
    require(CreateProcessA(nullptr, &line[0], nullptr, nullptr, FALSE, 0, nullptr, nullptr, &startup, &process),
            "CreateProcess");
    DWORD outcome = WaitForSingleObject(process.hProcess, patience);
    if (outcome != WAIT_OBJECT_0) {
        TerminateProcess(process.hProcess, 1);
    }
    require(outcome == WAIT_OBJECT_0, "it ends");
    CloseHandle(process.hThread);
    CloseHandle(process.hProcess);
    std::puts("the process ends with its last thread: ok");
}

} // namespace

int main(int count, char **arguments) {
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    WSADATA data;
    require(WSAStartup(MAKEWORD(2, 2), &data) == 0, "WSAStartup");
    if (count > 1 && std::strcmp(arguments[1], "last-thread") == 0) {
        live_as_long_as_a_thread();
    }
    if (count > 1 && std::strcmp(arguments[1], "timed") == 0) {
        closing_blocks_nobody();
        return 0;
    }
    the_queue_is_bounded();
    enabling_queues_one_packet();
    enabling_what_waits_queues_little();
    waiters_elsewhere_queue_nothing();
    ports_are_cheap();
    the_process_ends_with_its_last_thread();
    return 0;
}
