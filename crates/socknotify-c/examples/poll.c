/*
 * One thread waits for one connection, as it would with poll().
 *
 * The registration is level-triggered and persistent: it is notified as long as there is something to
 * receive. To end it, the program asks for REMOVE, and waits for the last notification.
 */
#include <socknotify.h>

#include "traffic.h"

/* End the registration, and wait for its last notification. The port has no other registration. */
static void remove_and_wait(sn_port port, int fd) {
    sn_registration registration = {.socket = (sn_socket)fd, .operation = SOCK_NOTIFY_OP_REMOVE};
    sn_entry entry;
    uint32_t received;
    require(sn_process(port, 1, &registration, PATIENCE_MS, 1, &entry, &received) == SN_SUCCESS,
            "remove");
    require(registration.registrationResult == SN_SUCCESS, "the removal");
    /* Asked for once, it is only to be waited for. */
    while ((entry.dwNumberOfBytesTransferred & SOCK_NOTIFY_EVENT_REMOVE) == 0) {
        require(sn_dequeue(port, &entry, 1, &received, PATIENCE_MS) == SN_SUCCESS, "dequeue");
    }
}

int main(void) {
    start_sockets();
    int listener = (int)socket(AF_INET, SOCK_STREAM, 0);
    require(listener >= 0, "a listener");
    struct sockaddr_in address = bind_to_loopback(listener);
    require(listen(listener, 1) == 0, "listen");

    struct client client;
    start_client(&client, address, SOCK_STREAM);
    int connection = (int)accept(listener, NULL, NULL);
    require(connection >= 0, "accept");

    sn_port port;
    require(sn_create_port(0, &port) == SN_SUCCESS, "a port");
    sn_registration registration = {
        .socket = (sn_socket)connection,
        .completionKey = (void *)(intptr_t)connection,
        .eventFilter = SOCK_NOTIFY_REGISTER_EVENT_IN | SOCK_NOTIFY_REGISTER_EVENT_HANGUP,
        .operation = SOCK_NOTIFY_OP_ENABLE,
        .triggerFlags = SOCK_NOTIFY_TRIGGER_LEVEL,
    };
    /* The call and its one entry have separate outcomes. */
    require(sn_process(port, 1, &registration, 0, 0, NULL, NULL) == SN_SUCCESS, "register");
    require(registration.registrationResult == SN_SUCCESS, "the registration");

    long total = 0;
    for (int connected = 1; connected;) {
        sn_entry entry;
        uint32_t received;
        require(sn_dequeue(port, &entry, 1, &received, PATIENCE_MS) == SN_SUCCESS, "dequeue");
        int ready = (int)entry.lpCompletionKey;
        uint32_t events = entry.dwNumberOfBytesTransferred;
        require((events & SOCK_NOTIFY_EVENT_ERR) == 0, "the connection");
        char buffer[512];
        ssize_t length = recv(ready, buffer, sizeof buffer, 0);
        require(length >= 0, "receive");
        total += length;
        /* HANGUP comes with what was sent before it; the end of the stream comes after both. */
        connected = length > 0;
    }

    remove_and_wait(port, connection);
    require(sn_close_port(port) == SN_SUCCESS, "close");
    close_socket(connection);
    close_socket(listener);
    join_client(&client);

    printf("received %ld bytes\n", total);
    require(total == (long)MESSAGES * MESSAGE_SIZE, "the total");
    return EXIT_SUCCESS;
}
