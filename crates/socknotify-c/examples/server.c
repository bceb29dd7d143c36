/*
 * Many threads, one port, many connections.
 *
 * Every registration is one-shot and level-triggered: the thread that dequeues a notification has that
 * socket to itself until it enables it again. A connection's memory is freed when its last
 * notification, REMOVE, was dequeued, because then no other thread holds one.
 *
 * The call that waits for the next notifications also enables the sockets that this thread has served.
 * That is right because nobody but this thread removes them meanwhile. Where others may, as where they
 * write to connections, do as answers.c does.
 */
#include <socknotify.h>

#include "traffic.h"

#define THREADS 16
#define CLIENTS 100
#define AT_ONCE 3

/* The key of the packet that tells a thread to end. */
#define STOP UINTPTR_MAX

/* What a completion key points to. */
struct peer {
    int fd;
    int listens;
};

struct server {
    sn_port port;
    pthread_mutex_t lock;
    /* Under the lock. */
    long bytes;
    int gone;
};

static void enable(sn_registration *registration, struct peer *peer) {
    memset(registration, 0, sizeof *registration);
    registration->socket = (sn_socket)peer->fd;
    registration->completionKey = peer;
    registration->eventFilter = SOCK_NOTIFY_REGISTER_EVENT_IN;
    registration->operation = SOCK_NOTIFY_OP_ENABLE;
    registration->triggerFlags = SOCK_NOTIFY_TRIGGER_ONESHOT | SOCK_NOTIFY_TRIGGER_LEVEL;
}

static struct peer *accept_peer(const struct peer *listener) {
    struct peer *peer = (struct peer *)malloc(sizeof *peer);
    require(peer != NULL, "memory");
    peer->fd = (int)accept(listener->fd, NULL, NULL);
    peer->listens = 0;
    require(peer->fd >= 0, "accept");
    return peer;
}

static void stop_a_thread(const struct server *server) {
    require(sn_post(server->port, 0, STOP, NULL) == SN_SUCCESS, "post");
}

/* The last notification of a connection has come. */
static void forget_peer(struct server *server, struct peer *peer) {
    close_socket(peer->fd);
    free(peer);
    pthread_mutex_lock(&server->lock);
    server->gone += 1;
    int all_gone = server->gone == CLIENTS;
    pthread_mutex_unlock(&server->lock);
    if (all_gone) {
        stop_a_thread(server);
    }
}

/* Receive once, and say in the registration what comes next. */
static void serve_peer(struct server *server, struct peer *peer, sn_registration *registration) {
    char buffer[512];
    ssize_t length = recv(peer->fd, buffer, sizeof buffer, 0);
    enable(registration, peer);
    if (length <= 0) {
        registration->operation = SOCK_NOTIFY_OP_REMOVE;
        return;
    }
    pthread_mutex_lock(&server->lock);
    server->bytes += length;
    pthread_mutex_unlock(&server->lock);
}

static void *serve(void *context) {
    struct server *server = (struct server *)context;
    /* Accepting takes two: for the connection, and for the listener again. */
    sn_registration again[2 * AT_ONCE];
    uint32_t count = 0;
    for (;;) {
        sn_entry entries[AT_ONCE];
        uint32_t received;
        require(sn_process(server->port, count, count == 0 ? NULL : again, PATIENCE_MS, AT_ONCE,
                           entries, &received) == SN_SUCCESS,
                "process");
        while (count > 0) {
            count -= 1;
            require(again[count].registrationResult == SN_SUCCESS, "a registration");
        }
        int stop = 0;
        for (uint32_t index = 0; index < received; index += 1) {
            if (entries[index].lpCompletionKey == STOP) {
                stop = 1;
                continue;
            }
            struct peer *peer = (struct peer *)entries[index].lpCompletionKey;
            if (peer->listens) {
                enable(&again[count++], accept_peer(peer));
                enable(&again[count++], peer);
            } else if (entries[index].dwNumberOfBytesTransferred & SOCK_NOTIFY_EVENT_REMOVE) {
                forget_peer(server, peer);
            } else {
                serve_peer(server, peer, &again[count++]);
            }
        }
        if (stop) {
            /* Each thread passes the word on to the next. */
            stop_a_thread(server);
            return NULL;
        }
    }
}

int main(void) {
    start_sockets();
    struct server server = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct peer listener = {.fd = (int)socket(AF_INET, SOCK_STREAM, 0), .listens = 1};
    require(listener.fd >= 0, "a listener");
    struct sockaddr_in address = bind_to_loopback(listener.fd);
    require(listen(listener.fd, CLIENTS) == 0, "listen");

    require(sn_create_port(0, &server.port) == SN_SUCCESS, "a port");
    sn_registration registration;
    enable(&registration, &listener);
    require(sn_process(server.port, 1, &registration, 0, 0, NULL, NULL) == SN_SUCCESS, "register");
    require(registration.registrationResult == SN_SUCCESS, "the registration");

    pthread_t threads[THREADS];
    for (int index = 0; index < THREADS; index += 1) {
        require(pthread_create(&threads[index], NULL, serve, &server) == 0, "a thread");
    }
    struct client clients[CLIENTS];
    for (int index = 0; index < CLIENTS; index += 1) {
        start_client(&clients[index], address, SOCK_STREAM);
    }
    for (int index = 0; index < CLIENTS; index += 1) {
        join_client(&clients[index]);
    }
    for (int index = 0; index < THREADS; index += 1) {
        require(pthread_join(threads[index], NULL) == 0, "join");
    }
    require(sn_close_port(server.port) == SN_SUCCESS, "close");
    close_socket(listener.fd);

    printf("received %ld bytes from %d clients\n", server.bytes, server.gone);
    require(server.bytes == (long)CLIENTS * MESSAGES * MESSAGE_SIZE, "the total");
    return EXIT_SUCCESS;
}
