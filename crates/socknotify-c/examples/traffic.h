/*
 * What the examples need apart from a port: sockets on loopback, clients, and a way to fail.
 */
#ifndef TRAFFIC_H
#define TRAFFIC_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#include <winsock2.h>
#include <ws2tcpip.h>
#else
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#endif

/* Longer than anything here takes, under a checker of memory on a busy machine, too. */
#define PATIENCE_MS 300000

#define MESSAGES 10
#define MESSAGE_SIZE 4

/* End the program if something that has to hold does not. */
static inline void require(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "failed: %s\n", what);
        exit(EXIT_FAILURE);
    }
}

/* What Windows spells in its own way. Its sockets fit into an int. */
#ifdef _WIN32
static inline void start_sockets(void) {
    WSADATA data;
    require(WSAStartup(MAKEWORD(2, 2), &data) == 0, "WSAStartup");
}

static inline void close_socket(int fd) {
    closesocket((SOCKET)fd);
}

static inline void do_not_block(int fd) {
    u_long yes = 1;
    require(ioctlsocket((SOCKET)fd, FIONBIO, &yes) == 0, "FIONBIO");
}

static inline int would_block(void) {
    return WSAGetLastError() == WSAEWOULDBLOCK;
}
#else
/* A send to a client that has gone is an error, and no signal. */
static inline void start_sockets(void) {
    signal(SIGPIPE, SIG_IGN);
}

static inline void close_socket(int fd) {
    close(fd);
}

static inline void do_not_block(int fd) {
    require(fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "O_NONBLOCK");
}

static inline int would_block(void) {
    return errno == EAGAIN || errno == EWOULDBLOCK;
}
#endif

/* Bind to a port of the loopback interface, or with 0 to a free one, and say to which. */
static inline struct sockaddr_in bind_to_port(int socket, int port) {
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    require(bind(socket, (struct sockaddr *)&address, length) == 0, "bind");
    require(getsockname(socket, (struct sockaddr *)&address, &length) == 0, "getsockname");
    return address;
}

static inline struct sockaddr_in bind_to_loopback(int socket) {
    return bind_to_port(socket, 0);
}

/* What a client is to do: send so many messages to this address, and leave. */
struct client {
    struct sockaddr_in server;
    int socket_type;
    pthread_t thread;
};

static inline void *run_client(void *context) {
    const struct client *client = (const struct client *)context;
    const char message[MESSAGE_SIZE] = {'p', 'i', 'n', 'g'};
    int fd = (int)socket(AF_INET, client->socket_type, 0);
    require(fd >= 0, "a client's socket");
    require(connect(fd, (const struct sockaddr *)&client->server, sizeof client->server) == 0,
            "connect");
    for (int sent = 0; sent < MESSAGES; sent += 1) {
        require(send(fd, message, sizeof message, 0) == (ssize_t)sizeof message, "send");
    }
    close_socket(fd);
    return NULL;
}

static inline void start_client(struct client *client, struct sockaddr_in server, int socket_type) {
    client->server = server;
    client->socket_type = socket_type;
    require(pthread_create(&client->thread, NULL, run_client, client) == 0, "a client's thread");
}

static inline void join_client(struct client *client) {
    require(pthread_join(client->thread, NULL) == 0, "join");
}

#endif /* TRAFFIC_H */
