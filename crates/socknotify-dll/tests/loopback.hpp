/*
 * What the programs need besides the function itself: ports, sockets on loopback, threads, and a way to
 * give up.
 */
#ifndef LOOPBACK_HPP
#define LOOPBACK_HPP

#include <socknotify.h>

#include <cstdio>
#include <cstdlib>

namespace {

/* Longer than anything takes on a busy machine. */
constexpr DWORD patience = 300000;

constexpr int in = SOCK_NOTIFY_REGISTER_EVENT_IN;
constexpr int out = SOCK_NOTIFY_REGISTER_EVENT_OUT;
constexpr int hangup = SOCK_NOTIFY_REGISTER_EVENT_HANGUP;
constexpr int level = SOCK_NOTIFY_TRIGGER_LEVEL;
constexpr int once = SOCK_NOTIFY_TRIGGER_ONESHOT | SOCK_NOTIFY_TRIGGER_LEVEL;
constexpr int edge = SOCK_NOTIFY_TRIGGER_EDGE;

inline void require(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "failed: %s (%lu)\n", what, GetLastError());
        std::exit(1);
    }
}

inline HANDLE make_port() {
    HANDLE port = CreateIoCompletionPort(INVALID_HANDLE_VALUE, nullptr, 0, 0);
    require(port != nullptr, "CreateIoCompletionPort");
    return port;
}

inline SOCKET make_socket(int type) {
    SOCKET made = socket(AF_INET, type, 0);
    require(made != INVALID_SOCKET, "socket");
    return made;
}

inline sockaddr_in bind_to_loopback(SOCKET socket) {
    sockaddr_in address = {};
    int length = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    require(bind(socket, reinterpret_cast<sockaddr *>(&address), length) == 0, "bind");
    require(getsockname(socket, reinterpret_cast<sockaddr *>(&address), &length) == 0,
            "getsockname");
    return address;
}

inline SOCK_NOTIFY_REGISTRATION entry_for(SOCKET socket, UINT8 operation) {
    SOCK_NOTIFY_REGISTRATION registration = {};
    registration.socket = socket;
    registration.operation = operation;
    return registration;
}

inline SOCK_NOTIFY_REGISTRATION enable(SOCKET socket, void *key, int filter, int trigger) {
    SOCK_NOTIFY_REGISTRATION registration = entry_for(socket, SOCK_NOTIFY_OP_ENABLE);
    registration.completionKey = key;
    registration.eventFilter = static_cast<UINT16>(filter);
    registration.triggerFlags = static_cast<UINT8>(trigger);
    return registration;
}

inline void *as_key(SOCKET socket) {
    return reinterpret_cast<void *>(socket);
}

/* Apply one entry, and say what came of it. */
inline DWORD apply(HANDLE port, SOCK_NOTIFY_REGISTRATION registration) {
    DWORD error = ProcessSocketNotifications(port, 1, &registration, 0, 0, nullptr, nullptr);
    require(error == ERROR_SUCCESS, "ProcessSocketNotifications");
    return registration.registrationResult;
}

inline OVERLAPPED_ENTRY next(HANDLE port) {
    OVERLAPPED_ENTRY entry;
    ULONG count = 0;
    require(GetQueuedCompletionStatusEx(port, &entry, 1, &count, patience, FALSE) && count == 1,
            "GetQueuedCompletionStatusEx");
    return entry;
}

/* How many packets are there, after this long. */
inline ULONG count_after(HANDLE port, DWORD time) {
    Sleep(time);
    OVERLAPPED_ENTRY entries[128];
    ULONG count = 0;
    return GetQueuedCompletionStatusEx(port, entries, 16, &count, 0, FALSE) ? count : 0;
}

inline void remove_and_wait(HANDLE port, SOCKET socket) {
    require(apply(port, entry_for(socket, SOCK_NOTIFY_OP_REMOVE)) == ERROR_SUCCESS, "REMOVE");
    OVERLAPPED_ENTRY entry;
    do {
        entry = next(port);
    } while ((SocketNotificationRetrieveEvents(&entry) & SOCK_NOTIFY_EVENT_REMOVE) == 0);
    require(count_after(port, 50) == 0, "REMOVE is the last word");
}

inline HANDLE start(LPTHREAD_START_ROUTINE routine, void *context) {
    HANDLE thread = CreateThread(nullptr, 0, routine, context, 0, nullptr);
    require(thread != nullptr, "CreateThread");
    return thread;
}

inline void join(HANDLE thread) {
    require(WaitForSingleObject(thread, patience) == WAIT_OBJECT_0, "a thread ends");
    CloseHandle(thread);
}

struct Pair {
    SOCKET ours;
    SOCKET theirs;
};

inline Pair connect_pair() {
    SOCKET listener = make_socket(SOCK_STREAM);
    sockaddr_in address = bind_to_loopback(listener);
    require(listen(listener, 1) == 0, "listen");
    Pair pair;
    pair.theirs = make_socket(SOCK_STREAM);
    require(connect(pair.theirs, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0,
            "connect");
    pair.ours = accept(listener, nullptr, nullptr);
    require(pair.ours != INVALID_SOCKET, "accept");
    closesocket(listener);
    return pair;
}

/* What one call has taken. */
struct Taken {
    DWORD error;
    UINT32 count;
    OVERLAPPED_ENTRY entries[128];

    UINT32 events() { return SocketNotificationRetrieveEvents(&entries[0]); }
};

inline Taken take(HANDLE port, DWORD time) {
    Taken taken = {};
    taken.count = 77;
    taken.error = ProcessSocketNotifications(port, 0, nullptr, time, 128, taken.entries, &taken.count);
    return taken;
}

/* As the system's call has it. */
inline Taken dequeue(HANDLE port, DWORD time) {
    Taken taken = {};
    ULONG count = 0;
    BOOL any = GetQueuedCompletionStatusEx(port, taken.entries, 128, &count, time, FALSE);
    taken.error = any ? ERROR_SUCCESS : GetLastError();
    taken.count = count;
    return taken;
}

inline void require_applied(HANDLE port, SOCK_NOTIFY_REGISTRATION registration) {
    require(apply(port, registration) == ERROR_SUCCESS, "registrationResult");
}

/* Another thread may be sending, and then the socket is busy for a moment. */
inline void send_one(SOCKET socket) {
    int sent = send(socket, "x", 1, 0);
    while (sent < 0 && WSAGetLastError() == WSAEWOULDBLOCK) {
        SwitchToThread();
        sent = send(socket, "x", 1, 0);
    }
    require(sent == 1, "send");
}

/* In milliseconds. */
inline double now() {
    LARGE_INTEGER count, frequency;
    QueryPerformanceFrequency(&frequency);
    QueryPerformanceCounter(&count);
    return static_cast<double>(count.QuadPart) * 1000 / static_cast<double>(frequency.QuadPart);
}

struct Sender {
    SOCKET socket;
    HANDLE go;
    double sent;
};

/* A thread that sends whenever it is told to, and notes when. It ends without a socket. */
inline DWORD WINAPI send_soon(void *context) {
    Sender &sender = *static_cast<Sender *>(context);
    while (WaitForSingleObject(sender.go, patience) == WAIT_OBJECT_0) {
        if (sender.socket == INVALID_SOCKET) {
            return 0;
        }
        /* Whoever is to be woken waits by then. */
        Sleep(3);
        sender.sent = now();
        send_one(sender.socket);
    }
    return 1;
}

inline void wait_until_readable(SOCKET socket) {
    WSAPOLLFD poll = {socket, POLLRDNORM, 0};
    require(WSAPoll(&poll, 1, patience) == 1, "WSAPoll");
}

inline void receive_all(SOCKET socket) {
    char buffer[64];
    require(recv(socket, buffer, sizeof buffer, 0) > 0, "recv");
}

inline void close_pair(Pair pair) {
    closesocket(pair.ours);
    closesocket(pair.theirs);
}

} // namespace

#endif // LOOPBACK_HPP
