/* A forked child, and the ports of its parent. */
#include <socknotify.h>

#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static int calls;

static void work(void *context) {
    (void)context;
    calls += 1;
}

static void every_call_fails(sn_port port, int socket) {
    sn_registration registration;
    sn_entry entry;
    sn_port_state state = {.size = sizeof state};
    sn_overlapped block;
    sn_overlapped *overlapped;
    char memory[4];
    uintptr_t key;
    uint32_t count;
    int descriptor;
    memset(&registration, 0, sizeof registration);
    memset(&block, 0, sizeof block);
    registration.socket = (sn_socket)socket;
    CHECK_EQ(sn_process(port, 1, &registration, 0, 1, &entry, &count), SN_INVALID_HANDLE);
    CHECK_EQ(sn_process(port, 1, &registration, 0, 0, NULL, NULL), SN_INVALID_HANDLE);
    CHECK_EQ(sn_process(port, 0, NULL, 0, 0, NULL, NULL), SN_INVALID_HANDLE);
    CHECK_EQ(sn_dequeue(port, &entry, 1, &count, 0), SN_INVALID_HANDLE);
    CHECK_EQ(sn_dequeue_one(port, &count, &key, &overlapped, 0), SN_INVALID_HANDLE);
    CHECK_EQ(sn_post(port, 0, 0, NULL), SN_INVALID_HANDLE);
    CHECK_EQ(sn_blocking(port, work, NULL), SN_INVALID_HANDLE);
    CHECK_EQ(calls, 0);
    CHECK_EQ(sn_release(port), SN_INVALID_HANDLE);
    CHECK_EQ(sn_deregister(port, (sn_socket)socket), SN_INVALID_HANDLE);
    CHECK_EQ(sn_query_port(port, &state), SN_INVALID_HANDLE);
    CHECK_EQ(sn_port_descriptor(port, &descriptor), SN_INVALID_HANDLE);
    CHECK_EQ(sn_backend(port) == NULL, 1);
    CHECK_EQ(sn_read(port, 0, memory, 4, 0, &block), SN_INVALID_HANDLE);
    CHECK_EQ(sn_write(port, 0, memory, 4, 0, &block), SN_INVALID_HANDLE);
    CHECK_EQ(sn_cancel(port, &block), SN_INVALID_HANDLE);
    CHECK_EQ(sn_associate(port, 0, 0), SN_INVALID_HANDLE);
}

static void a_port_of_its_own_works(int socket) {
    sn_port port;
    sn_registration registration;
    memset(&registration, 0, sizeof registration);
    registration.socket = (sn_socket)socket;
    registration.eventFilter = SOCK_NOTIFY_REGISTER_EVENT_OUT;
    registration.operation = SOCK_NOTIFY_OP_ENABLE;
    registration.triggerFlags = SOCK_NOTIFY_TRIGGER_LEVEL | SOCK_NOTIFY_TRIGGER_ONESHOT;
    sn_entry entry;
    uint32_t count;
    CHECK_EQ(sn_create_port(1, &port), SN_SUCCESS);
    CHECK_EQ(sn_process(port, 1, &registration, SN_INFINITE, 1, &entry, &count), SN_SUCCESS);
    CHECK_EQ(registration.registrationResult, SN_SUCCESS);
    CHECK_EQ(sn_blocking(port, work, NULL), SN_SUCCESS);
    CHECK_EQ(calls, 1);
    CHECK_EQ(sn_close_port(port), SN_SUCCESS);
}

int main(void) {
    sn_port port;
    int pair[2];
    int status;
    uint32_t transferred;
    uintptr_t key;
    sn_overlapped *overlapped;
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    CHECK_EQ(sn_create_port(1, &port), SN_SUCCESS);
    CHECK_EQ(sn_post(port, 0, 7, NULL), SN_SUCCESS);
    pid_t child = fork();
    if (child == 0) {
        every_call_fails(port, pair[0]);
        a_port_of_its_own_works(pair[0]);
        /* It can be closed here, once. */
        CHECK_EQ(sn_close_port(port), SN_SUCCESS);
        CHECK_EQ(sn_close_port(port), SN_INVALID_HANDLE);
        exit(EXIT_SUCCESS);
    }
    CHECK_EQ(waitpid(child, &status, 0) == child && status == 0, 1);
    /* Which the parent does not notice. */
    CHECK_EQ(sn_dequeue_one(port, &transferred, &key, &overlapped, SN_INFINITE), SN_SUCCESS);
    CHECK_EQ(key, 7);
    CHECK_EQ(sn_close_port(port), SN_SUCCESS);
    close(pair[0]);
    close(pair[1]);
    return 0;
}
