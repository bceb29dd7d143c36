/* Descriptors other than sockets: a pipe, another port, and on Linux an eventfd and a timer. */
#define _GNU_SOURCE
#include <socknotify.h>

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#endif

#include "check.h"

enum { ONCE = SOCK_NOTIFY_TRIGGER_ONESHOT | SOCK_NOTIFY_TRIGGER_LEVEL };

static sn_registration entry_of(int descriptor, uintptr_t key, uint16_t filter, uint8_t operation) {
    sn_registration entry;
    memset(&entry, 0, sizeof entry);
    entry.socket = (sn_socket)descriptor;
    entry.completionKey = (void *)key;
    entry.eventFilter = filter;
    entry.operation = operation;
    entry.triggerFlags = ONCE;
    entry.registrationResult = 4711;
    return entry;
}

/* Apply one entry that does not fail, and return the events of the notification that has this key. */
static uint32_t events_of(sn_port port, sn_registration entry, uintptr_t key) {
    sn_entry packet;
    uint32_t count = 0;
    CHECK_EQ(sn_process_descriptors(port, 1, &entry, SN_INFINITE, 1, &packet, &count), SN_SUCCESS);
    CHECK_EQ(entry.registrationResult, SN_SUCCESS);
    CHECK_EQ(count == 1 && packet.lpCompletionKey == key && packet.lpOverlapped == NULL, 1);
    return packet.dwNumberOfBytesTransferred;
}

static uint32_t result_of(sn_port port, sn_registration entry) {
    CHECK_EQ(sn_process_descriptors(port, 1, &entry, 0, 0, NULL, NULL), SN_SUCCESS);
    CHECK_EQ(sn_reason(0) == SN_REASON_NONE, entry.registrationResult == SN_SUCCESS);
    return entry.registrationResult;
}

static void expect_nothing(sn_port port) {
    sn_entry packet;
    uint32_t count;
    CHECK_EQ(sn_dequeue(port, &packet, 1, &count, 0), SN_TIMEOUT);
}

static void a_pipe_is_watched(sn_port port) {
    int ends[2];
    char byte;
    CHECK_EQ(pipe(ends), 0);
    sn_registration in = entry_of(ends[0], 1, SOCK_NOTIFY_REGISTER_EVENT_IN, SOCK_NOTIFY_OP_ENABLE);
    sn_registration out = entry_of(ends[1], 2, SOCK_NOTIFY_REGISTER_EVENT_OUT, SOCK_NOTIFY_OP_ENABLE);
    CHECK_EQ(result_of(port, in), SN_SUCCESS);
    CHECK_EQ(events_of(port, out, 2), SOCK_NOTIFY_EVENT_OUT);
    expect_nothing(port);
    CHECK_EQ(write(ends[1], "ab", 2), 2);
    /* Enabled again after its one notification, as often as is wanted. */
    for (int round = 0; round < 2; round += 1) {
        CHECK_EQ(events_of(port, in, 1), SOCK_NOTIFY_EVENT_IN);
        CHECK_EQ(read(ends[0], &byte, 1), 1);
        expect_nothing(port);
    }
    in.completionKey = (void *)3;
    CHECK_EQ(result_of(port, in), SN_INVALID_PARAMETER);
    in.completionKey = (void *)1;
    in.eventFilter |= SOCK_NOTIFY_REGISTER_EVENT_HANGUP;
    CHECK_EQ(sn_deregister(port, (sn_socket)ends[1]), SN_SUCCESS);
    CHECK_EQ(close(ends[1]), 0);
    CHECK_EQ(events_of(port, in, 1), SOCK_NOTIFY_EVENT_IN | SOCK_NOTIFY_EVENT_HANGUP);
    CHECK_EQ(events_of(port, entry_of(ends[0], 0, 0, SOCK_NOTIFY_OP_REMOVE), 1), SOCK_NOTIFY_EVENT_REMOVE);
    CHECK_EQ(close(ends[0]), 0);
}

static void a_socket_may_be_among_them(sn_port port) {
    int pair[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    sn_registration entry = entry_of(pair[0], 4, SOCK_NOTIFY_REGISTER_EVENT_OUT, SOCK_NOTIFY_OP_ENABLE);
    CHECK_EQ(events_of(port, entry, 4), SOCK_NOTIFY_EVENT_OUT);
    CHECK_EQ(sn_deregister(port, (sn_socket)pair[0]), SN_SUCCESS);
    close(pair[0]);
    close(pair[1]);
}

static void a_port_watches_another(sn_port port) {
    sn_port inner;
    int descriptor;
    CHECK_EQ(sn_create_port(1, &inner), SN_SUCCESS);
    CHECK_EQ(sn_port_descriptor(inner, &descriptor), SN_SUCCESS);
    CHECK_EQ(sn_post(inner, 0, 6, NULL), SN_SUCCESS);
    sn_registration entry = entry_of(descriptor, 5, SOCK_NOTIFY_REGISTER_EVENT_IN, SOCK_NOTIFY_OP_ENABLE);
    CHECK_EQ(events_of(port, entry, 5), SOCK_NOTIFY_EVENT_IN);
    CHECK_EQ(sn_deregister(port, (sn_socket)descriptor), SN_SUCCESS);
    CHECK_EQ(sn_close_port(inner), SN_SUCCESS);
}

#ifdef __linux__
static void an_eventfd_and_a_timer_are_watched(sn_port port) {
    uint64_t count = 1;
    int event = eventfd(0, EFD_NONBLOCK);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct itimerspec in_two_milliseconds = {.it_value = {.tv_nsec = 2000000}};
    CHECK_EQ(event >= 0 && timer >= 0, 1);
    sn_registration entry = entry_of(event, 7, SOCK_NOTIFY_REGISTER_EVENT_IN, SOCK_NOTIFY_OP_ENABLE);
    CHECK_EQ(result_of(port, entry), SN_SUCCESS);
    expect_nothing(port);
    CHECK_EQ(write(event, &count, sizeof count), sizeof count);
    CHECK_EQ(events_of(port, entry_of(timer, 0, 0, SOCK_NOTIFY_OP_NONE), 7), SOCK_NOTIFY_EVENT_IN);
    CHECK_EQ(timerfd_settime(timer, 0, &in_two_milliseconds, NULL), 0);
    entry = entry_of(timer, 8, SOCK_NOTIFY_REGISTER_EVENT_IN, SOCK_NOTIFY_OP_ENABLE);
    CHECK_EQ(events_of(port, entry, 8), SOCK_NOTIFY_EVENT_IN);
    CHECK_EQ(read(timer, &count, sizeof count) == sizeof count && count == 1, 1);
    CHECK_EQ(sn_deregister(port, (sn_socket)event), SN_SUCCESS);
    CHECK_EQ(sn_deregister(port, (sn_socket)timer), SN_SUCCESS);
    close(event);
    close(timer);
}
#endif

static void what_cannot_be_watched_is_refused(sn_port port) {
    int file = open("/etc/passwd", O_RDONLY);
    int directory = open("/", O_RDONLY);
    int ends[2];
    CHECK_EQ(file >= 0 && directory >= 0 && pipe(ends) == 0, 1);
    int refused[] = {file, directory};
    for (int index = 0; index < 2; index += 1) {
        sn_registration entry =
            entry_of(refused[index], 9, SOCK_NOTIFY_REGISTER_EVENT_IN, SOCK_NOTIFY_OP_ENABLE);
        CHECK_EQ(result_of(port, entry), SN_NOT_SUPPORTED);
        CHECK_EQ(sn_reason(0), SN_REASON_NOT_WATCHABLE);
        CHECK_EQ(strcmp(sn_strerror(sn_reason(0)), "unknown error") != 0, 1);
    }
    sn_registration entry = entry_of(12345, 9, SOCK_NOTIFY_REGISTER_EVENT_IN, SOCK_NOTIFY_OP_ENABLE);
    CHECK_EQ(result_of(port, entry), SN_NOT_A_SOCKET);
    entry = entry_of(-1, 9, SOCK_NOTIFY_REGISTER_EVENT_IN, SOCK_NOTIFY_OP_ENABLE);
    CHECK_EQ(result_of(port, entry), SN_NOT_A_SOCKET);
    /* The other function is for sockets. */
    entry = entry_of(ends[0], 9, SOCK_NOTIFY_REGISTER_EVENT_IN, SOCK_NOTIFY_OP_ENABLE);
    CHECK_EQ(sn_process(port, 1, &entry, 0, 0, NULL, NULL), SN_SUCCESS);
    CHECK_EQ(entry.registrationResult, SN_NOT_A_SOCKET);
    CHECK_EQ(sn_process_descriptors(port, 1, &entry, 1, 0, NULL, NULL), SN_INVALID_PARAMETER);
    CHECK_EQ(sn_process_descriptors(NULL, 1, &entry, 0, 0, NULL, NULL), SN_INVALID_HANDLE);
    close(file);
    close(directory);
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    sn_port port;
    sn_port_state state = {.size = sizeof state};
    CHECK_EQ(sn_create_port(1, &port), SN_SUCCESS);
    a_pipe_is_watched(port);
    a_socket_may_be_among_them(port);
    a_port_watches_another(port);
#ifdef __linux__
    an_eventfd_and_a_timer_are_watched(port);
#endif
    what_cannot_be_watched_is_refused(port);
    expect_nothing(port);
    CHECK_EQ(sn_query_port(port, &state), SN_SUCCESS);
    CHECK_EQ(state.registrations, 0);
    CHECK_EQ(sn_close_port(port), SN_SUCCESS);
    return 0;
}
