/*
 * Microsoft's example programs as Windows runs them: ports of CreateIoCompletionPort, packets taken with
 * GetQueuedCompletionStatusEx and with ProcessSocketNotifications itself. Built with MinGW, and run
 * beside socknotify.dll.
 */
#include "loopback.hpp"

namespace {

constexpr int messages = 10;
constexpr int message_size = 4;
constexpr LONG server_clients = 100;
constexpr int server_threads = 16;
constexpr ULONG_PTR stop_key = ~static_cast<ULONG_PTR>(0);

struct Client {
    sockaddr_in server;
    int type;
};

DWORD WINAPI run_client(void *context) {
    Client client = *static_cast<Client *>(context);
    SOCKET socket = make_socket(client.type);
    require(connect(socket, reinterpret_cast<sockaddr *>(&client.server), sizeof client.server) == 0,
            "connect");
    for (int sent = 0; sent < messages; sent += 1) {
        require(send(socket, "ping", message_size, 0) == message_size, "send");
    }
    closesocket(socket);
    return 0;
}

/* One thread and one connection, level-triggered and persistent. */
void poll_replacement() {
    SOCKET listener = make_socket(SOCK_STREAM);
    Client client = {bind_to_loopback(listener), SOCK_STREAM};
    require(listen(listener, 1) == 0, "listen");
    HANDLE thread = start(run_client, &client);
    SOCKET connection = accept(listener, nullptr, nullptr);
    HANDLE port = make_port();
    require(apply(port, enable(connection, as_key(connection),
                               SOCK_NOTIFY_REGISTER_EVENT_IN | SOCK_NOTIFY_REGISTER_EVENT_HANGUP,
                               SOCK_NOTIFY_TRIGGER_LEVEL)) == ERROR_SUCCESS,
            "ENABLE");
    long total = 0;
    for (bool connected = true; connected;) {
        OVERLAPPED_ENTRY entry = next(port);
        require(entry.lpOverlapped == nullptr, "a notification has no OVERLAPPED");
        require((SocketNotificationRetrieveEvents(&entry) & SOCK_NOTIFY_EVENT_ERR) == 0, "no ERR");
        char buffer[8];
        int length = recv(static_cast<SOCKET>(entry.lpCompletionKey), buffer, sizeof buffer, 0);
        require(length >= 0, "recv");
        total += length;
        connected = length > 0;
    }
    require(total == messages * message_size, "every byte");
    remove_and_wait(port, connection);
    join(thread);
    closesocket(connection);
    closesocket(listener);
    CloseHandle(port);
    std::puts("poll replacement: ok");
}

/* Datagrams, edge-triggered. */
void edge_triggered_udp() {
    SOCKET server = make_socket(SOCK_DGRAM);
    u_long non_blocking = 1;
    ioctlsocket(server, FIONBIO, &non_blocking);
    HANDLE port = make_port();
    require(apply(port, enable(server, as_key(server), SOCK_NOTIFY_REGISTER_EVENT_IN,
                               SOCK_NOTIFY_TRIGGER_EDGE)) == ERROR_SUCCESS,
            "ENABLE");
    Client client = {bind_to_loopback(server), SOCK_DGRAM};
    HANDLE thread = start(run_client, &client);
    for (int total = 0; total < messages;) {
        OVERLAPPED_ENTRY entry = next(port);
        require((SocketNotificationRetrieveEvents(&entry) & SOCK_NOTIFY_EVENT_IN) != 0, "IN");
        char buffer[512];
        while (recv(server, buffer, sizeof buffer, 0) >= 0) {
            total += 1;
        }
        require(WSAGetLastError() == WSAEWOULDBLOCK, "drained");
    }
    remove_and_wait(port, server);
    join(thread);
    closesocket(server);
    CloseHandle(port);
    std::puts("edge-triggered UDP: ok");
}

struct Server {
    HANDLE port;
    SOCKET listener;
    volatile LONG64 bytes;
    volatile LONG gone;
};

struct Peer {
    SOCKET socket;
};

SOCK_NOTIFY_REGISTRATION turn(SOCKET socket, void *key) {
    return enable(socket, key, SOCK_NOTIFY_REGISTER_EVENT_IN | SOCK_NOTIFY_REGISTER_EVENT_HANGUP,
                  SOCK_NOTIFY_TRIGGER_ONESHOT | SOCK_NOTIFY_TRIGGER_LEVEL);
}

/* A thread registers and dequeues in one call, or dequeues with the system's own. */
DWORD serve(Server &server, bool in_one_call) {
    SOCK_NOTIFY_REGISTRATION again[8];
    UINT32 count = 0;
    for (;;) {
        OVERLAPPED_ENTRY entries[3];
        ULONG received = 0;
        if (in_one_call) {
            UINT32 taken = 0;
            require(ProcessSocketNotifications(server.port, count, count > 0 ? again : nullptr,
                                               patience, 3, entries, &taken) == ERROR_SUCCESS,
                    "ProcessSocketNotifications");
            received = taken;
        } else {
            if (count > 0) {
                require(ProcessSocketNotifications(server.port, count, again, 0, 0, nullptr,
                                                   nullptr) == ERROR_SUCCESS,
                        "ProcessSocketNotifications");
            }
            require(GetQueuedCompletionStatusEx(server.port, entries, 3, &received, patience, FALSE),
                    "GetQueuedCompletionStatusEx");
        }
        for (UINT32 index = 0; index < count; index += 1) {
            require(again[index].registrationResult == ERROR_SUCCESS, "registrationResult");
        }
        count = 0;
        bool stop = false;
        for (ULONG index = 0; index < received; index += 1) {
            OVERLAPPED_ENTRY &entry = entries[index];
            if (entry.lpCompletionKey == stop_key) {
                stop = true;
            } else if (entry.lpCompletionKey == 0) {
                SOCKET accepted = accept(server.listener, nullptr, nullptr);
                require(accepted != INVALID_SOCKET, "accept");
                again[count++] = turn(accepted, new Peer{accepted});
                again[count++] = turn(server.listener, nullptr);
            } else {
                Peer *peer = reinterpret_cast<Peer *>(entry.lpCompletionKey);
                if (SocketNotificationRetrieveEvents(&entry) & SOCK_NOTIFY_EVENT_REMOVE) {
                    closesocket(peer->socket);
                    delete peer;
                    stop |= InterlockedIncrement(&server.gone) == server_clients;
                    continue;
                }
                char buffer[512];
                int length = recv(peer->socket, buffer, sizeof buffer, 0);
                if (length > 0) {
                    InterlockedAdd64(&server.bytes, length);
                    again[count++] = turn(peer->socket, peer);
                } else {
                    again[count++] = entry_for(peer->socket, SOCK_NOTIFY_OP_REMOVE);
                }
            }
        }
        if (stop) {
            require(PostQueuedCompletionStatus(server.port, 0, stop_key, nullptr), "post");
            return 0;
        }
    }
}

DWORD WINAPI serve_in_one_call(void *server) {
    return serve(*static_cast<Server *>(server), true);
}

DWORD WINAPI serve_with_the_systems(void *server) {
    return serve(*static_cast<Server *>(server), false);
}

void multi_threaded_tcp() {
    Server server = {make_port(), make_socket(SOCK_STREAM), 0, 0};
    Client client = {bind_to_loopback(server.listener), SOCK_STREAM};
    require(listen(server.listener, SOMAXCONN) == 0, "listen");
    require(apply(server.port, turn(server.listener, nullptr)) == ERROR_SUCCESS, "ENABLE");
    HANDLE threads[server_threads];
    for (int index = 0; index < server_threads; index += 1) {
        threads[index] = start(index % 2 ? serve_in_one_call : serve_with_the_systems, &server);
    }
    HANDLE clients[server_clients];
    for (HANDLE &thread : clients) {
        thread = start(run_client, &client);
    }
    for (HANDLE thread : clients) {
        join(thread);
    }
    for (HANDLE thread : threads) {
        join(thread);
    }
    require(server.bytes == server_clients * messages * message_size, "every byte");
    closesocket(server.listener);
    CloseHandle(server.port);
    std::puts("multi-threaded TCP: ok");
}

/* A level that goes on to hold is one packet in the queue, and another when that was taken. */
void persistent_level() {
    HANDLE port = make_port();
    Pair pair = connect_pair();
    require(apply(port, enable(pair.ours, as_key(1), SOCK_NOTIFY_REGISTER_EVENT_IN,
                               SOCK_NOTIFY_TRIGGER_LEVEL)) == ERROR_SUCCESS,
            "ENABLE");
    require(send(pair.theirs, "x", 1, 0) == 1, "send");
    for (int round = 0; round < 5; round += 1) {
        require(count_after(port, 60) <= 1, "one packet");
    }
    OVERLAPPED_ENTRY entry = next(port);
    UINT32 count = 0;
    for (int round = 0; round < 100; round += 1) {
        require(ProcessSocketNotifications(port, 0, nullptr, patience, 1, &entry, &count) ==
                    ERROR_SUCCESS,
                "again at once");
    }
    remove_and_wait(port, pair.ours);
    closesocket(pair.ours);
    closesocket(pair.theirs);
    CloseHandle(port);
    std::puts("persistent level: ok");
}

/* Operations of the program's own on the same port. */
void other_packets() {
    HANDLE port = make_port();
    Pair pair = connect_pair();
    require(CreateIoCompletionPort(reinterpret_cast<HANDLE>(pair.ours), port, 7, 0) == port,
            "associate");
    require(apply(port, enable(pair.ours, as_key(8), SOCK_NOTIFY_REGISTER_EVENT_IN,
                               SOCK_NOTIFY_TRIGGER_ONESHOT | SOCK_NOTIFY_TRIGGER_LEVEL)) ==
                ERROR_SUCCESS,
            "ENABLE");
    OVERLAPPED overlapped = {};
    char bytes[] = "seven";
    WSABUF buffer = {5, bytes};
    WSASend(pair.ours, &buffer, 1, nullptr, 0, &overlapped, nullptr);
    OVERLAPPED_ENTRY entry = next(port);
    require(entry.lpCompletionKey == 7 && entry.lpOverlapped == &overlapped &&
                entry.dwNumberOfBytesTransferred == 5,
            "the operation's packet");
    send(pair.theirs, "x", 1, 0);
    entry = next(port);
    require(entry.lpCompletionKey == 8 && entry.lpOverlapped == nullptr &&
                entry.dwNumberOfBytesTransferred == SOCK_NOTIFY_EVENT_IN,
            "the notification");
    closesocket(pair.ours);
    closesocket(pair.theirs);
    CloseHandle(port);
    std::puts("other packets: ok");
}

DWORD WINAPI wait_for_the_end(void *port) {
    OVERLAPPED_ENTRY entry;
    ULONG count = 0;
    BOOL taken = GetQueuedCompletionStatusEx(port, &entry, 1, &count, patience, FALSE);
    return taken ? ERROR_SUCCESS : GetLastError();
}

void errors_and_ends() {
    HANDLE port = make_port();
    SOCKET socket = make_socket(SOCK_DGRAM);
    bind_to_loopback(socket);
    const int once = SOCK_NOTIFY_TRIGGER_ONESHOT | SOCK_NOTIFY_TRIGGER_LEVEL;
    SOCK_NOTIFY_REGISTRATION good = enable(socket, as_key(1), SOCK_NOTIFY_REGISTER_EVENT_IN, once);
    UINT32 count = 0;
    OVERLAPPED_ENTRY entry;
    require(ProcessSocketNotifications(port, 1, &good, 5, 0, nullptr, nullptr) ==
                ERROR_INVALID_PARAMETER,
            "no room and a time-out");
    require(ProcessSocketNotifications(port, 1, nullptr, 0, 0, nullptr, nullptr) ==
                ERROR_INVALID_PARAMETER,
            "no registrations");
    require(ProcessSocketNotifications(INVALID_HANDLE_VALUE, 1, &good, 0, 0, nullptr, nullptr) ==
                ERROR_INVALID_HANDLE,
            "no port");
    require(apply(port, entry_for(socket, SOCK_NOTIFY_OP_REMOVE)) == ERROR_NOT_FOUND, "not there");
    require(apply(port, entry_for(socket, 3)) == ERROR_INVALID_PARAMETER, "two operations");
    require(apply(port, entry_for(1234560, SOCK_NOTIFY_OP_DISABLE)) == WSAENOTSOCK, "no socket");
    require(ProcessSocketNotifications(port, 1, &good, 20, 1, &entry, &count) == WAIT_TIMEOUT,
            "nothing comes");
    require(good.registrationResult == ERROR_SUCCESS, "it was applied");
    good.completionKey = as_key(2);
    require(apply(port, good) == ERROR_INVALID_PARAMETER, "another key");
    HANDLE other = make_port();
    require(apply(other, good) == ERROR_INVALID_PARAMETER, "another port");
    /* What a port was closed with is free for another one. */
    HANDLE waiting = start(wait_for_the_end, port);
    Sleep(50);
    CloseHandle(port);
    require(apply(other, good) == ERROR_SUCCESS, "free again");
    /* Wine releases nobody who waits in a port that is closed, with or without this library. */
    if (GetProcAddress(GetModuleHandleA("ntdll.dll"), "wine_get_version") == nullptr) {
        require(WaitForSingleObject(waiting, patience) == WAIT_OBJECT_0, "released");
        DWORD code = 0;
        GetExitCodeThread(waiting, &code);
        require(code != ERROR_SUCCESS && code != WAIT_TIMEOUT, "abandoned");
    }
    CloseHandle(waiting);
    closesocket(socket);
    CloseHandle(other);
    std::puts("errors and ends: ok");
}

} // namespace

int main() {
    WSADATA data;
    require(WSAStartup(MAKEWORD(2, 2), &data) == 0, "WSAStartup");
    poll_replacement();
    edge_triggered_udp();
    multi_threaded_tcp();
    persistent_level();
    other_packets();
    errors_and_ends();
    return 0;
}
