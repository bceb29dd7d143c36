/*
 * Other threads write to connections, and end them.
 *
 * Some threads receive questions. Others find the answers, which may take long, and write them. So any
 * thread may arm a connection or remove it, at any time. What is right then:
 *
 * - ENABLE and REMOVE are applied at once, under the connection's lock. An ENABLE that is kept for the
 *   next call may come after another thread's REMOVE: by then a new connection can have the number of the
 *   descriptor, and would be armed under the key of the old one.
 * - REMOVE is asked for once, and nothing is armed after it. Who dequeues its notification closes.
 * - Another thread may still hold an earlier notification. So what a key refers to is used again, and not
 *   freed: the lock is there, and a notification of the connection before is one too many, no more.
 */
#include <socknotify.h>

#include "traffic.h"

#define RECEIVERS 4
#define WRITERS 4
#define CLIENTS 20
#define ROUNDS 10

/* The key of the packet that tells a thread to end. */
#define STOP UINTPTR_MAX

/* What a completion key refers to: a connection, and then another one. */
struct peer {
    pthread_mutex_t lock;
    /* Under the lock. */
    uint32_t connection; /* a number: an answer may come when its connection has gone */
    int fd;              /* -1 between two connections */
    int is_removed;      /* REMOVE was asked for, and not dequeued */
    size_t received;     /* of a question */
    size_t unsent;       /* of the answers */
    char answers[1024];
    /* Under the server's lock. */
    struct peer *next;
};

struct server {
    sn_port port;
    sn_port questions; /* a port is a queue of packets, whatever they are */
    pthread_mutex_t lock;
    /* Under the lock. */
    struct peer *unused;
    int gone;
};

/* Under the peer's lock. */
static void apply(const struct server *server, struct peer *peer, uint8_t operation) {
    sn_registration registration;
    memset(&registration, 0, sizeof registration);
    registration.socket = (sn_socket)peer->fd;
    registration.completionKey = peer;
    registration.eventFilter = SOCK_NOTIFY_REGISTER_EVENT_IN;
    if (peer->unsent > 0) {
        registration.eventFilter |= SOCK_NOTIFY_REGISTER_EVENT_OUT;
    }
    registration.operation = operation;
    registration.triggerFlags = SOCK_NOTIFY_TRIGGER_ONESHOT | SOCK_NOTIFY_TRIGGER_LEVEL;
    require(sn_process(server->port, 1, &registration, 0, 0, NULL, NULL) == SN_SUCCESS, "register");
    require(registration.registrationResult == SN_SUCCESS, "the registration");
}

static int is_connected(const struct peer *peer) {
    return peer->fd >= 0 && !peer->is_removed;
}

static void remove_peer(const struct server *server, struct peer *peer) {
    peer->is_removed = 1;
    apply(server, peer, SOCK_NOTIFY_OP_REMOVE);
}

/* Send what the socket takes, and arm it for what comes next. */
static void send_answers(const struct server *server, struct peer *peer) {
    while (peer->unsent > 0) {
        ssize_t length = send(peer->fd, peer->answers, peer->unsent, 0);
        if (length < 0) {
            if (would_block()) {
                break;
            }
            remove_peer(server, peer);
            return;
        }
        peer->unsent -= (size_t)length;
        memmove(peer->answers, peer->answers + length, peer->unsent);
    }
    apply(server, peer, SOCK_NOTIFY_OP_ENABLE);
}

/* Receive once, and have each question that is complete answered. */
static void receive_questions(const struct server *server, struct peer *peer) {
    char buffer[512];
    ssize_t length = recv(peer->fd, buffer, sizeof buffer, 0);
    if (length == 0 || (length < 0 && !would_block())) {
        remove_peer(server, peer);
        return;
    }
    if (length > 0) {
        peer->received += (size_t)length;
    }
    for (; peer->received >= MESSAGE_SIZE; peer->received -= MESSAGE_SIZE) {
        require(sn_post(server->questions, peer->connection, (uintptr_t)peer, NULL) == SN_SUCCESS,
                "post");
    }
    send_answers(server, peer);
}

/* The last notification of a connection has come, and its descriptor is closed. */
static void use_again(struct server *server, struct peer *peer) {
    pthread_mutex_lock(&server->lock);
    peer->next = server->unused;
    server->unused = peer;
    server->gone += 1;
    int all_gone = server->gone == CLIENTS * ROUNDS;
    pthread_mutex_unlock(&server->lock);
    if (all_gone) {
        require(sn_post(server->port, 0, STOP, NULL) == SN_SUCCESS, "post");
        require(sn_post(server->questions, 0, STOP, NULL) == SN_SUCCESS, "post");
    }
}

/* The next packet. False if the thread is to end: it passes the word on to the next. */
static int dequeue(sn_port port, uint32_t *transferred, struct peer **peer) {
    uintptr_t key = 0;
    sn_overlapped *overlapped;
    require(sn_dequeue_one(port, transferred, &key, &overlapped, PATIENCE_MS) == SN_SUCCESS,
            "dequeue");
    if (key == STOP) {
        require(sn_post(port, 0, STOP, NULL) == SN_SUCCESS, "post");
        return 0;
    }
    *peer = (struct peer *)key;
    return 1;
}

static void *receive(void *context) {
    struct server *server = (struct server *)context;
    struct peer *peer;
    uint32_t events;
    while (dequeue(server->port, &events, &peer)) {
        int is_last = (events & SOCK_NOTIFY_EVENT_REMOVE) != 0;
        pthread_mutex_lock(&peer->lock);
        if (is_last) {
            close_socket(peer->fd);
            peer->fd = -1;
        } else if (is_connected(peer)) {
            receive_questions(server, peer);
        }
        pthread_mutex_unlock(&peer->lock);
        if (is_last) {
            use_again(server, peer);
        }
    }
    return NULL;
}

static void *write_answers(void *context) {
    struct server *server = (struct server *)context;
    struct peer *peer;
    uint32_t connection;
    while (dequeue(server->questions, &connection, &peer)) {
        /* Here the answer would be found, without a lock. */
        pthread_mutex_lock(&peer->lock);
        if (is_connected(peer) && peer->connection == connection) {
            if (peer->unsent + MESSAGE_SIZE > sizeof peer->answers) {
                remove_peer(server, peer); /* It asks, and does not read. */
            } else {
                memcpy(peer->answers + peer->unsent, "pong", MESSAGE_SIZE);
                peer->unsent += MESSAGE_SIZE;
                send_answers(server, peer);
            }
        }
        pthread_mutex_unlock(&peer->lock);
    }
    return NULL;
}

static struct peer *unused_peer(struct server *server) {
    pthread_mutex_lock(&server->lock);
    struct peer *peer = server->unused;
    if (peer != NULL) {
        server->unused = peer->next;
    }
    pthread_mutex_unlock(&server->lock);
    if (peer == NULL) {
        peer = (struct peer *)calloc(1, sizeof *peer);
        require(peer != NULL, "memory");
        require(pthread_mutex_init(&peer->lock, NULL) == 0, "a lock");
    }
    return peer;
}

static void add_connection(struct server *server, int fd) {
    require(fd >= 0, "accept");
    do_not_block(fd);
    struct peer *peer = unused_peer(server);
    pthread_mutex_lock(&peer->lock);
    peer->connection += 1;
    peer->fd = fd;
    peer->is_removed = 0;
    peer->received = 0;
    peer->unsent = 0;
    apply(server, peer, SOCK_NOTIFY_OP_ENABLE);
    pthread_mutex_unlock(&peer->lock);
}

/* A client that asks, and reads all answers. */
struct asker {
    struct sockaddr_in server;
    pthread_t thread;
    long answered;
};

static void *ask(void *context) {
    struct asker *asker = (struct asker *)context;
    int fd = (int)socket(AF_INET, SOCK_STREAM, 0);
    require(fd >= 0, "a client's socket");
    require(connect(fd, (const struct sockaddr *)&asker->server, sizeof asker->server) == 0,
            "connect");
    for (int asked = 0; asked < MESSAGES; asked += 1) {
        require(send(fd, "ping", MESSAGE_SIZE, 0) == MESSAGE_SIZE, "send");
    }
    char answers[MESSAGES * MESSAGE_SIZE];
    for (size_t length = 0; length < sizeof answers;) {
        ssize_t more = recv(fd, answers + length, sizeof answers - length, 0);
        require(more > 0, "an answer");
        length += (size_t)more;
    }
    for (int index = 0; index < MESSAGES; index += 1) {
        require(memcmp(answers + index * MESSAGE_SIZE, "pong", MESSAGE_SIZE) == 0, "a pong");
        asker->answered += 1;
    }
    close_socket(fd);
    return NULL;
}

/* Clients that wait for their answers, and as many that leave at once. Returns the number of answers. */
static long run_clients(struct server *server, int listener, struct sockaddr_in address) {
    struct asker askers[CLIENTS / 2];
    struct client leaving[CLIENTS / 2];
    for (int index = 0; index < CLIENTS / 2; index += 1) {
        askers[index].server = address;
        askers[index].answered = 0;
        require(pthread_create(&askers[index].thread, NULL, ask, &askers[index]) == 0, "a client");
        start_client(&leaving[index], address, SOCK_STREAM);
    }
    for (int index = 0; index < CLIENTS; index += 1) {
        add_connection(server, (int)accept(listener, NULL, NULL));
    }
    long answered = 0;
    for (int index = 0; index < CLIENTS / 2; index += 1) {
        require(pthread_join(askers[index].thread, NULL) == 0, "join");
        answered += askers[index].answered;
        join_client(&leaving[index]);
    }
    return answered;
}

int main(void) {
    start_sockets();
    struct server server = {.lock = PTHREAD_MUTEX_INITIALIZER};
    int listener = (int)socket(AF_INET, SOCK_STREAM, 0);
    require(listener >= 0, "a listener");
    struct sockaddr_in address = bind_to_loopback(listener);
    require(listen(listener, CLIENTS) == 0, "listen");
    require(sn_create_port(0, &server.port) == SN_SUCCESS, "a port");
    require(sn_create_port(0, &server.questions) == SN_SUCCESS, "a port");

    pthread_t threads[RECEIVERS + WRITERS];
    for (int index = 0; index < RECEIVERS + WRITERS; index += 1) {
        void *(*run)(void *) = index < RECEIVERS ? receive : write_answers;
        require(pthread_create(&threads[index], NULL, run, &server) == 0, "a thread");
    }
    long answered = 0;
    for (int round = 0; round < ROUNDS; round += 1) {
        answered += run_clients(&server, listener, address);
    }
    for (int index = 0; index < RECEIVERS + WRITERS; index += 1) {
        require(pthread_join(threads[index], NULL) == 0, "join");
    }
    require(sn_close_port(server.port) == SN_SUCCESS, "close");
    require(sn_close_port(server.questions) == SN_SUCCESS, "close");
    close_socket(listener);
    while (server.unused != NULL) {
        struct peer *peer = server.unused;
        server.unused = peer->next;
        pthread_mutex_destroy(&peer->lock);
        free(peer);
    }

    printf("%d clients got %ld answers, and %d left at once\n", server.gone / 2, answered,
           server.gone / 2);
    require(answered == (long)CLIENTS / 2 * ROUNDS * MESSAGES, "the total");
    return EXIT_SUCCESS;
}
