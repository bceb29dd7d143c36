/*
 * How long a notification takes, beside `select` and beside the least that it can take here: a poll of the
 * driver that ends in one port, and a thread that sends it on to another. The ways take turns, so that what else
 * the machine does concerns them alike.
 */
#include "loopback.hpp"

#include <winternl.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <vector>

namespace {

constexpr std::size_t rounds = 100;

/* The driver's poll, for one socket. */
struct Poll {
    LARGE_INTEGER timeout;
    ULONG count;
    ULONG exclusive;
    HANDLE socket;
    ULONG events;
    LONG status;
};

using Control = LONG(NTAPI *)(HANDLE, HANDLE, void *, void *, IO_STATUS_BLOCK *, ULONG, void *, ULONG, void *,
                              ULONG);
using Open = LONG(NTAPI *)(HANDLE *, ACCESS_MASK, OBJECT_ATTRIBUTES *, IO_STATUS_BLOCK *, LARGE_INTEGER *, ULONG,
                           ULONG, ULONG, ULONG, void *, ULONG);

template <typename Function> Function system_function(const char *name) {
    FARPROC found = GetProcAddress(GetModuleHandleA("ntdll.dll"), name);
    require(found != nullptr, name);
    return reinterpret_cast<Function>(reinterpret_cast<void (*)()>(found));
}

struct Driver {
    HANDLE device;
    IO_STATUS_BLOCK outcome;
    Poll poll;

    explicit Driver(HANDLE port) : device(), outcome(), poll() {
        WCHAR name[] = L"\\Device\\Afd\\Latency";
        UNICODE_STRING string = {sizeof name - sizeof *name, sizeof name, name};
        OBJECT_ATTRIBUTES attributes = {};
        attributes.Length = sizeof attributes;
        attributes.ObjectName = &string;
        LONG status = system_function<Open>("NtCreateFile")(&device, SYNCHRONIZE, &attributes, &outcome, nullptr,
                                                            0, FILE_SHARE_READ | FILE_SHARE_WRITE, 1, 0, nullptr,
                                                            0);
        require(status >= 0, "NtCreateFile");
        require(CreateIoCompletionPort(device, port, 1, 0) == port, "CreateIoCompletionPort");
    }

    /* For what can be received. */
    void begin(SOCKET socket) {
        constexpr ULONG receive = 0x1, disconnect = 0x8, abort = 0x10, poll_code = 0x12024;
        poll.timeout.QuadPart = 0x7fffffffffffffff;
        poll.count = 1;
        poll.socket = reinterpret_cast<HANDLE>(socket);
        poll.events = receive | disconnect | abort;
        static const Control control = system_function<Control>("NtDeviceIoControlFile");
        LONG status = control(device, nullptr, nullptr, &outcome, &outcome, poll_code, &poll, sizeof poll, &poll,
                              sizeof poll);
        require(status >= 0, "the driver's poll");
    }
};

struct Relay {
    HANDLE from;
    HANDLE to;
};

/* Send on what comes, until an empty packet does. */
DWORD WINAPI send_on(void *context) {
    Relay &relay = *static_cast<Relay *>(context);
    for (;;) {
        OVERLAPPED_ENTRY entry = next(relay.from);
        if (entry.lpOverlapped == nullptr) {
            return 0;
        }
        PostQueuedCompletionStatus(relay.to, 1, entry.lpCompletionKey, nullptr);
    }
}

struct Way {
    const char *name;
    Pair pair;
    std::function<void()> wait;
    std::vector<double> times;

    double median() {
        std::sort(times.begin(), times.end());
        return times[times.size() / 2];
    }
};

} // namespace

int main() {
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    WSADATA data;
    require(WSAStartup(MAKEWORD(2, 2), &data) == 0, "WSAStartup");
    Pair pair = connect_pair();
    Sender sender = {pair.theirs, CreateEventA(nullptr, FALSE, FALSE, nullptr), 0};
    HANDLE sending = start(send_soon, &sender);

    HANDLE alone = make_port();
    Driver polling(alone);
    Relay relay = {make_port(), make_port()};
    Driver relayed(relay.from);
    HANDLE sending_on = start(send_on, &relay);
    HANDLE port = make_port();
    SOCKET ours = pair.ours;

    std::vector<Way> ways;
    ways.push_back({"select", pair, [ours] {
                        fd_set readable;
                        FD_ZERO(&readable);
                        FD_SET(ours, &readable);
                        require(select(0, &readable, nullptr, nullptr, nullptr) == 1, "select");
                    },
                    {}});
    ways.push_back({"a poll that ends in a port", pair, [&] {
                        polling.begin(ours);
                        next(alone);
                    },
                    {}});
    ways.push_back({"and a thread that sends it on", pair, [&] {
                        relayed.begin(ours);
                        next(relay.to);
                    },
                    {}});
    ways.push_back({"ProcessSocketNotifications", pair, [&] {
                        SOCK_NOTIFY_REGISTRATION entry = enable(ours, as_key(1), in, once);
                        OVERLAPPED_ENTRY taken;
                        UINT32 count = 0;
                        DWORD error = ProcessSocketNotifications(port, 1, &entry, patience, 1, &taken, &count);
                        require(error == ERROR_SUCCESS && count == 1, "ProcessSocketNotifications");
                    },
                    {}});
    ways.push_back({"ENABLE, and the system's call", pair, [&] {
                        require_applied(port, enable(ours, as_key(1), in, once));
                        next(port);
                    },
                    {}});
    /* Levels are armed again by the call that dequeues. */
    Pair others[] = {connect_pair(), connect_pair()};
    HANDLE levels[] = {make_port(), make_port()};
    for (std::size_t index : {std::size_t{0}, std::size_t{1}}) {
        require_applied(levels[index], enable(others[index].ours, as_key(1), in, level));
    }
    ways.push_back({"a level, and the system's call", others[0], [&] {
                        DWORD events = 0;
                        ULONG_PTR key = 0;
                        OVERLAPPED *none = nullptr;
                        require(GetQueuedCompletionStatus(levels[0], &events, &key, &none, patience),
                                "GetQueuedCompletionStatus");
                    },
                    {}});
    ways.push_back({"a level, and its Ex", others[1], [&] {
                        OVERLAPPED_ENTRY taken;
                        ULONG count = 0;
                        require(GetQueuedCompletionStatusEx(levels[1], &taken, 1, &count, patience, FALSE) && count == 1,
                                "GetQueuedCompletionStatusEx");
                    },
                    {}});
    /* What else the machine does can take long. */
    bool are_near = false;
    for (int tries = 0; !are_near && tries < 3; tries += 1) {
        for (Way &way : ways) {
            way.times.clear();
        }
        for (std::size_t round = 0; round < rounds; round += 1) {
            for (Way &way : ways) {
                sender.socket = way.pair.theirs;
                SetEvent(sender.go);
                way.wait();
                way.times.push_back(now() - sender.sent);
                receive_all(way.pair.ours);
            }
        }
        are_near = true;
        for (std::size_t index = 0; index < ways.size(); index += 1) {
            double median = ways[index].median();
            std::printf("%-30s %.2f ms, %.1f of select; at worst %.2f ms\n", ways[index].name, median,
                        median / ways[0].median(), ways[index].times.back());
            are_near = are_near && (index < 3 || median < 3 * ways[2].median());
        }
    }
    require(are_near, "near the least that there is");

    sender.socket = INVALID_SOCKET;
    SetEvent(sender.go);
    join(sending);
    PostQueuedCompletionStatus(relay.from, 0, 0, nullptr);
    join(sending_on);
    return 0;
}
