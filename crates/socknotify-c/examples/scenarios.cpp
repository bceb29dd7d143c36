/*
 * The three programs again, in C++ and with the names of the Windows headers.
 *
 * Everything that concerns the port has its Windows name. Threads are the C++ library's and sockets the
 * system's, because they are not part of the interface.
 */
#define SOCKNOTIFY_WIN32_NAMES
#include <socknotify.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "traffic.h"

namespace {

constexpr UINT32 server_threads = 16;
constexpr UINT32 server_clients = 100;
constexpr ULONG at_once = 3;
constexpr ULONG_PTR stop_key = static_cast<ULONG_PTR>(-1);

/* A port that is closed with its scope. */
class Port {
public:
    Port() : handle_(CreateIoCompletionPort(INVALID_HANDLE_VALUE, NULL, 0, 0)) {
        require(handle_ != NULL, "CreateIoCompletionPort");
    }
    ~Port() { require(CloseHandle(handle_) == TRUE, "CloseHandle"); }
    Port(const Port &) = delete;
    Port &operator=(const Port &) = delete;

    HANDLE handle() const { return handle_; }

    /* Apply one registration, and dequeue nothing. */
    void apply(SOCK_NOTIFY_REGISTRATION registration) const {
        DWORD error = ProcessSocketNotifications(handle_, 1, &registration, 0, 0, NULL, NULL);
        require(error == ERROR_SUCCESS, "ProcessSocketNotifications");
        require(registration.registrationResult == ERROR_SUCCESS, "registrationResult");
    }

    OVERLAPPED_ENTRY next() const {
        OVERLAPPED_ENTRY entry;
        ULONG received = 0;
        require(GetQueuedCompletionStatusEx(handle_, &entry, 1, &received, PATIENCE_MS, FALSE) == TRUE,
                "GetQueuedCompletionStatusEx");
        require(received == 1, "one entry");
        return entry;
    }

    /* For a port that has no other registration. */
    void remove_and_wait(SOCKET socket) const {
        SOCK_NOTIFY_REGISTRATION registration = {};
        registration.socket = socket;
        registration.operation = SOCK_NOTIFY_OP_REMOVE;
        apply(registration);
        OVERLAPPED_ENTRY entry;
        do {
            entry = next();
        } while ((SocketNotificationRetrieveEvents(&entry) & SOCK_NOTIFY_EVENT_REMOVE) == 0);
    }

private:
    HANDLE handle_;
};

/* A socket that is closed with its scope. */
class Socket {
public:
    explicit Socket(SOCKET value) : value_(value) {
        require(value_ != INVALID_SOCKET, "a socket");
    }
    ~Socket() { close_socket(descriptor()); }
    Socket(const Socket &) = delete;
    Socket &operator=(const Socket &) = delete;

    SOCKET value() const { return value_; }
    int descriptor() const { return static_cast<int>(value_); }

private:
    SOCKET value_;
};

SOCK_NOTIFY_REGISTRATION enable(SOCKET socket, PVOID key, int filter, int trigger) {
    SOCK_NOTIFY_REGISTRATION registration = {};
    registration.socket = socket;
    registration.completionKey = key;
    registration.eventFilter = static_cast<UINT16>(filter);
    registration.operation = SOCK_NOTIFY_OP_ENABLE;
    registration.triggerFlags = static_cast<UINT8>(trigger);
    return registration;
}

PVOID as_key(SOCKET socket) {
    return reinterpret_cast<PVOID>(socket);
}

/* One thread and one connection, level-triggered. Returns the bytes received. */
long poll_replacement() {
    Socket listener(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address = bind_to_loopback(listener.descriptor());
    require(listen(listener.descriptor(), 1) == 0, "listen");
    client client;
    start_client(&client, address, SOCK_STREAM);
    Socket connection(accept(listener.descriptor(), NULL, NULL));

    Port port;
    port.apply(enable(connection.value(), as_key(connection.value()),
                      SOCK_NOTIFY_EVENT_IN | SOCK_NOTIFY_EVENT_HANGUP, SOCK_NOTIFY_TRIGGER_LEVEL));
    long total = 0;
    for (bool connected = true; connected;) {
        OVERLAPPED_ENTRY entry = port.next();
        UINT32 events = SocketNotificationRetrieveEvents(&entry);
        SOCKET ready = static_cast<SOCKET>(entry.lpCompletionKey);
        require((events & SOCK_NOTIFY_EVENT_ERR) == 0, "the connection");
        char buffer[512];
        ssize_t length = recv(static_cast<int>(ready), buffer, sizeof buffer, 0);
        require(length >= 0, "receive");
        total += length;
        connected = length > 0;
    }
    port.remove_and_wait(connection.value());
    join_client(&client);
    return total;
}

/* Datagrams, edge-triggered. Returns how many were received. */
int edge_triggered() {
    Socket server(socket(AF_INET, SOCK_DGRAM, 0));
    do_not_block(server.descriptor());
    Port port;
    port.apply(enable(server.value(), as_key(server.value()), SOCK_NOTIFY_EVENT_IN,
                      SOCK_NOTIFY_TRIGGER_EDGE));
    client client;
    start_client(&client, bind_to_loopback(server.descriptor()), SOCK_DGRAM);

    int total = 0;
    while (total < MESSAGES) {
        OVERLAPPED_ENTRY entry = port.next();
        require((SocketNotificationRetrieveEvents(&entry) & SOCK_NOTIFY_EVENT_IN) != 0, "IN");
        /* Until the edge has fallen, no other one can be seen. */
        char buffer[512];
        while (recv(server.descriptor(), buffer, sizeof buffer, 0) >= 0) {
            total += 1;
        }
        require(would_block(), "receive");
    }
    port.remove_and_wait(server.value());
    join_client(&client);
    return total;
}

/* What a completion key of the server points to. */
struct Peer {
    Peer(SOCKET socket, bool listens) : socket(socket), listens(listens) {}
    Socket socket;
    bool listens;
};

/*
 * ENABLE waits for the next call of the thread that has served a connection: nobody else removes that
 * meanwhile. Where others may, do as answers.c does.
 */
class Server {
public:
    explicit Server(SOCKET listener) : listener_(listener, true) {
        port_.apply(turn(listener_));
    }

    void run() {
        SOCK_NOTIFY_REGISTRATION again[2 * at_once];
        UINT32 count = 0;
        for (bool stopped = false; !stopped;) {
            OVERLAPPED_ENTRY entries[at_once];
            UINT32 received = 0;
            DWORD error = ProcessSocketNotifications(port_.handle(), count,
                                                     count == 0 ? NULL : again, PATIENCE_MS,
                                                     at_once, entries, &received);
            require(error == ERROR_SUCCESS, "ProcessSocketNotifications");
            for (UINT32 index = 0; index < count; index += 1) {
                require(again[index].registrationResult == ERROR_SUCCESS, "registrationResult");
            }
            count = 0;
            for (UINT32 index = 0; index < received; index += 1) {
                if (entries[index].lpCompletionKey == stop_key) {
                    stopped = true;
                    continue;
                }
                Peer *peer = reinterpret_cast<Peer *>(entries[index].lpCompletionKey);
                UINT32 events = SocketNotificationRetrieveEvents(&entries[index]);
                if (peer->listens) {
                    again[count++] = turn(accept_peer());
                    again[count++] = turn(*peer);
                } else if (events & SOCK_NOTIFY_EVENT_REMOVE) {
                    forget(peer);
                } else {
                    again[count++] = serve(*peer);
                }
            }
        }
        post_stop();
    }

    long bytes() const { return bytes_; }
    UINT32 gone() const { return gone_; }

private:
    static SOCK_NOTIFY_REGISTRATION turn(Peer &peer) {
        return enable(peer.socket.value(), &peer, SOCK_NOTIFY_EVENT_IN | SOCK_NOTIFY_EVENT_HANGUP,
                      SOCK_NOTIFY_TRIGGER_ONESHOT | SOCK_NOTIFY_TRIGGER_LEVEL);
    }

    Peer &accept_peer() {
        return *new Peer(accept(listener_.socket.descriptor(), NULL, NULL), false);
    }

    SOCK_NOTIFY_REGISTRATION serve(Peer &peer) {
        SOCK_NOTIFY_REGISTRATION next = turn(peer);
        char buffer[512];
        ssize_t length = recv(peer.socket.descriptor(), buffer, sizeof buffer, 0);
        if (length > 0) {
            bytes_ += length;
        } else {
            next.operation = SOCK_NOTIFY_OP_REMOVE;
        }
        return next;
    }

    /* The last notification of a connection has come. */
    void forget(Peer *peer) {
        delete peer;
        if (++gone_ == server_clients) {
            post_stop();
        }
    }

    /* Each thread that stops passes the word on. */
    void post_stop() {
        require(PostQueuedCompletionStatus(port_.handle(), 0, stop_key, NULL) == TRUE,
                "PostQueuedCompletionStatus");
    }

    Port port_;
    Peer listener_;
    std::atomic<long> bytes_{0};
    std::atomic<UINT32> gone_{0};
};

/* Many threads and many connections, one-shot. Returns the bytes received. */
long multi_threaded() {
    int listener = static_cast<int>(socket(AF_INET, SOCK_STREAM, 0));
    require(listener >= 0, "a listener");
    sockaddr_in address = bind_to_loopback(listener);
    require(listen(listener, server_clients) == 0, "listen");
    Server server(static_cast<SOCKET>(listener));

    std::vector<std::thread> threads;
    for (UINT32 index = 0; index < server_threads; index += 1) {
        threads.emplace_back([&server] { server.run(); });
    }
    std::vector<client> clients(server_clients);
    for (client &client : clients) {
        start_client(&client, address, SOCK_STREAM);
    }
    for (client &client : clients) {
        join_client(&client);
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    require(server.gone() == server_clients, "all clients");
    return server.bytes();
}

} // namespace

int main() {
    start_sockets();
    long polled = poll_replacement();
    std::printf("poll replacement: %ld bytes\n", polled);
    require(polled == long{MESSAGES} * MESSAGE_SIZE, "the total");

    int datagrams = edge_triggered();
    std::printf("edge-triggered: %d datagrams\n", datagrams);
    require(datagrams == MESSAGES, "the total");

    long served = multi_threaded();
    std::printf("multi-threaded: %ld bytes from %u clients\n", served, server_clients);
    require(served == long{server_clients} * MESSAGES * MESSAGE_SIZE, "the total");
}
