/*
 * Datagrams, with an edge-triggered registration.
 *
 * An edge is notified once, so the notified thread has to receive until nothing is left. The socket is
 * registered before it is bound, so no datagram can arrive unnoticed in between.
 */
#include <socknotify.h>

#include "traffic.h"

/* Receive until nothing is left. Returns the number of datagrams. */
static int drain(int fd) {
    for (int count = 0;; count += 1) {
        char buffer[512];
        ssize_t length = recv(fd, buffer, sizeof buffer, 0);
        if (length < 0) {
            require(would_block(), "receive");
            return count;
        }
        require(length == MESSAGE_SIZE, "a whole datagram");
    }
}

int main(void) {
    start_sockets();
    int server = (int)socket(AF_INET, SOCK_DGRAM, 0);
    require(server >= 0, "a server");
    do_not_block(server);
    sn_port port;
    require(sn_create_port(0, &port) == SN_SUCCESS, "a port");
    sn_registration registration = {
        .socket = (sn_socket)server,
        .completionKey = (void *)(intptr_t)server,
        .eventFilter = SOCK_NOTIFY_REGISTER_EVENT_IN,
        .operation = SOCK_NOTIFY_OP_ENABLE,
        .triggerFlags = SOCK_NOTIFY_TRIGGER_EDGE,
    };
    require(sn_process(port, 1, &registration, 0, 0, NULL, NULL) == SN_SUCCESS, "register");
    require(registration.registrationResult == SN_SUCCESS, "the registration");

    struct client client;
    start_client(&client, bind_to_loopback(server), SOCK_DGRAM);

    int total = 0;
    while (total < MESSAGES) {
        sn_entry entry;
        uint32_t received;
        require(sn_dequeue(port, &entry, 1, &received, PATIENCE_MS) == SN_SUCCESS, "dequeue");
        require((entry.dwNumberOfBytesTransferred & SOCK_NOTIFY_EVENT_ERR) == 0, "the socket");
        total += drain((int)entry.lpCompletionKey);
    }

    registration.operation = SOCK_NOTIFY_OP_REMOVE;
    require(sn_process(port, 1, &registration, 0, 0, NULL, NULL) == SN_SUCCESS, "remove");
    require(registration.registrationResult == SN_SUCCESS, "the removal");
    uint32_t events = 0;
    do {
        uintptr_t key;
        sn_overlapped *overlapped;
        require(sn_dequeue_one(port, &events, &key, &overlapped, PATIENCE_MS) == SN_SUCCESS,
                "dequeue");
    } while ((events & SOCK_NOTIFY_EVENT_REMOVE) == 0);
    require(sn_close_port(port) == SN_SUCCESS, "close");
    close_socket(server);
    join_client(&client);

    printf("received %d datagrams\n", total);
    require(total == MESSAGES, "the total");
    return EXIT_SUCCESS;
}
