/* What a program can ask: why an entry failed, what a port looks like, and how another loop can watch it. */
#include <socknotify.h>
/* Included without the names, and then with them. */
#define SOCKNOTIFY_WIN32_NAMES
#include <socknotify.h>

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

static int pair[2];

static sn_registration entry(int socket, uint8_t operation, uintptr_t key) {
    sn_registration registration = {0};
    registration.socket = (sn_socket)socket;
    registration.completionKey = (void *)key;
    registration.eventFilter = SOCK_NOTIFY_REGISTER_EVENT_IN;
    registration.operation = operation;
    registration.triggerFlags = SOCK_NOTIFY_TRIGGER_LEVEL;
    return registration;
}

static void check_text(const char *text, const char *expected) {
    CHECK_EQ(text != NULL && strcmp(text, expected) == 0, 1);
}

static void reasons(sn_port port, sn_port other) {
    sn_registration first = entry(pair[0], SOCK_NOTIFY_OP_ENABLE, 1);
    CHECK_EQ(sn_process(other, 1, &first, 0, 0, NULL, NULL), SN_SUCCESS);
    int pipes[2];
    CHECK_EQ(pipe(pipes), 0);
    sn_registration batch[] = {
        entry(pair[1], SOCK_NOTIFY_OP_ENABLE, 1), entry(pair[1], 3, 1),
        entry(pair[1], SOCK_NOTIFY_OP_ENABLE, 1), entry(pair[1], SOCK_NOTIFY_OP_ENABLE, 1),
        entry(pair[0], SOCK_NOTIFY_OP_ENABLE, 1), entry(pair[1], SOCK_NOTIFY_OP_ENABLE, 2),
        entry(pair[1], SOCK_NOTIFY_OP_REMOVE, 0), entry(pair[1], SOCK_NOTIFY_OP_ENABLE, 1),
        entry(pair[1], SOCK_NOTIFY_OP_REMOVE, 0), entry(pipes[0], SOCK_NOTIFY_OP_ENABLE, 1),
    };
    batch[2].eventFilter = 0x100;
    batch[3].triggerFlags = SOCK_NOTIFY_TRIGGER_ONESHOT;
    const struct {
        uint32_t result;
        uint32_t reason;
    } expected[] = {
        {SN_SUCCESS, SN_REASON_NONE},
        {SN_INVALID_PARAMETER, SN_REASON_INVALID_OPERATION},
        {SN_INVALID_PARAMETER, SN_REASON_INVALID_FILTER},
        {SN_INVALID_PARAMETER, SN_REASON_INVALID_TRIGGER},
        {SN_INVALID_PARAMETER, SN_REASON_OTHER_PORT},
        {SN_INVALID_PARAMETER, SN_REASON_OTHER_KEY},
        {SN_SUCCESS, SN_REASON_NONE},
        {SN_INVALID_PARAMETER, SN_REASON_REMOVE_PENDING},
        {SN_NOT_FOUND, SN_REASON_NOT_FOUND},
        {SN_NOT_A_SOCKET, SN_REASON_NOT_A_SOCKET},
    };
    const uint32_t count = sizeof batch / sizeof batch[0];
    CHECK_EQ(sn_process(port, count, batch, 0, 0, NULL, NULL), SN_SUCCESS);
    for (uint32_t index = 0; index < count; index += 1) {
        CHECK_EQ(batch[index].registrationResult, expected[index].result);
        CHECK_EQ(sn_reason(index), expected[index].reason);
        /* Each has words of its own. */
        for (uint32_t before = 0; before < index; before += 1) {
            int same = strcmp(sn_strerror(sn_reason(index)), sn_strerror(sn_reason(before))) == 0;
            CHECK_EQ(same, sn_reason(index) == sn_reason(before));
        }
    }
    CHECK_EQ(sn_reason(count), SN_REASON_NONE);
    sn_entry entry;
    uint32_t received;
    CHECK_EQ(sn_dequeue(port, &entry, 1, &received, SN_INFINITE), SN_SUCCESS);
    CHECK_EQ(entry.dwNumberOfBytesTransferred, SOCK_NOTIFY_EVENT_REMOVE);
    /* Until the next call with registrations, whatever becomes of that. */
    CHECK_EQ(sn_reason(1), expected[1].reason);
    CHECK_EQ(sn_dequeue(port, &entry, 1, &received, 0), SN_TIMEOUT);
    CHECK_EQ(sn_dequeue(port, NULL, 1, &received, 0), SN_INVALID_PARAMETER);
    CHECK_EQ(sn_dequeue(NULL, &entry, 1, &received, 0), SN_INVALID_HANDLE);
    CHECK_EQ(sn_process(port, 0, NULL, 0, 0, &entry, &received), SN_INVALID_PARAMETER);
    CHECK_EQ(sn_reason(1), expected[1].reason);
    CHECK_EQ(sn_process(port, 1, batch, 1, 0, NULL, NULL), SN_INVALID_PARAMETER);
    CHECK_EQ(sn_reason(1), SN_REASON_NONE);
    close(pipes[0]);
    close(pipes[1]);
}

static void a_port_can_be_watched(sn_port port) {
    int descriptor = -1;
    CHECK_EQ(sn_port_descriptor(port, &descriptor), SN_SUCCESS);
    struct pollfd watched = {descriptor, POLLIN, 0};
    sn_entry entry;
    uint32_t received;
    while (poll(&watched, 1, 0) == 1) {
        CHECK_EQ(sn_dequeue(port, &entry, 1, &received, 0), SN_TIMEOUT);
    }
    CHECK_EQ(sn_post(port, 1, 2, NULL), SN_SUCCESS);
    CHECK_EQ(poll(&watched, 1, -1), 1);
    sn_port_state state = {.size = sizeof state};
    CHECK_EQ(sn_query_port(port, &state), SN_SUCCESS);
    CHECK_EQ(state.concurrency, 3);
    CHECK_EQ(state.queued, 1);
    CHECK_EQ(state.waiting, 0);
    CHECK_EQ(sn_dequeue(port, &entry, 1, &received, 0), SN_SUCCESS);
    CHECK_EQ(sn_query_port(port, &state), SN_SUCCESS);
    CHECK_EQ(state.running, 1);
    CHECK_EQ(state.queued, 0);
    CHECK_EQ(state.registrations, 0);
    CHECK_EQ(state.size, sizeof state);
    state.size -= 1;
    CHECK_EQ(sn_query_port(port, &state), SN_INVALID_PARAMETER);
    /* As of a later version, of which this library writes what it knows. */
    struct {
        sn_port_state state;
        uint32_t more;
    } later = {{.size = sizeof later}, 77};
    CHECK_EQ(sn_query_port(port, &later.state), SN_SUCCESS);
    CHECK_EQ(later.state.concurrency == 3 && later.more == 77, 1);
    CHECK_EQ(later.state.size, sizeof state);
    CHECK_EQ(state.limit, 3);
}

static void a_registration_ends_at_once(sn_port port) {
    sn_entry packet;
    uint32_t received;
    for (uintptr_t key = 1; key < 4; key += 1) {
        sn_registration ready = entry(pair[1], SOCK_NOTIFY_OP_ENABLE, key);
        ready.eventFilter = SOCK_NOTIFY_REGISTER_EVENT_OUT;
        CHECK_EQ(sn_process(port, 1, &ready, 0, 0, NULL, NULL), SN_SUCCESS);
        CHECK_EQ(ready.registrationResult, SN_SUCCESS);
        CHECK_EQ(sn_deregister(port, (sn_socket)pair[1]), SN_SUCCESS);
        CHECK_EQ(sn_dequeue(port, &packet, 1, &received, 0), SN_TIMEOUT);
        CHECK_EQ(sn_deregister(port, (sn_socket)pair[1]), SN_NOT_FOUND);
    }
    CHECK_EQ(sn_deregister(port, (sn_socket)-1), SN_NOT_A_SOCKET);
    CHECK_EQ(sn_deregister(NULL, (sn_socket)pair[1]), SN_INVALID_HANDLE);
}

static void an_edge_may_begin_with_what_holds(sn_port port) {
    sn_entry packet;
    uint32_t received;
    const uint8_t edge = SOCK_NOTIFY_TRIGGER_EDGE;
    const uint8_t triggers[] = {edge, (uint8_t)(edge | SN_TRIGGER_INITIAL)};
    for (size_t index = 0; index < 2; index += 1) {
        sn_registration ready = entry(pair[1], SOCK_NOTIFY_OP_ENABLE, 7);
        ready.eventFilter = SOCK_NOTIFY_REGISTER_EVENT_OUT;
        ready.triggerFlags = triggers[index];
        CHECK_EQ(sn_process(port, 1, &ready, 0, 0, NULL, NULL), SN_SUCCESS);
        // Without INITIAL it may come, or not.
        uint32_t found = (uint32_t)sn_dequeue(port, &packet, 1, &received, 0);
        CHECK_EQ(found == SN_SUCCESS || (index == 0 && found == SN_TIMEOUT), 1);
        CHECK_EQ(sn_deregister(port, (sn_socket)pair[1]), SN_SUCCESS);
    }
}

static void a_place_is_given_back(void) {
    sn_port one;
    sn_entry packet;
    uint32_t received;
    sn_port_state state = {.size = sizeof state};
    CHECK_EQ(sn_create_port(1, &one), SN_SUCCESS);
    CHECK_EQ(sn_post(one, 0, 1, NULL), SN_SUCCESS);
    CHECK_EQ(sn_dequeue(one, &packet, 1, &received, 0), SN_SUCCESS);
    for (uint32_t running = 2; running > 0; running -= 1) {
        CHECK_EQ(sn_query_port(one, &state), SN_SUCCESS);
        CHECK_EQ(state.running, running - 1);
        CHECK_EQ(sn_release(one), SN_SUCCESS);
    }
    CHECK_EQ(sn_close_port(one), SN_SUCCESS);
    CHECK_EQ(sn_release(one), SN_INVALID_HANDLE);
}

static void places_may_be_without_limit(void) {
    sn_port port;
    sn_port_state state = {.size = sizeof state};
    CHECK_EQ(sn_create_port(SN_UNLIMITED, &port), SN_SUCCESS);
    CHECK_EQ(sn_query_port(port, &state), SN_SUCCESS);
    CHECK_EQ(state.concurrency, SN_UNLIMITED);
    CHECK_EQ(sn_close_port(port), SN_SUCCESS);
}

static void wrong_arguments(sn_port port) {
    sn_port made = port;
    int descriptor;
    sn_port_state state = {.size = sizeof state};
    CHECK_EQ(sn_create_port_on(0, "none", &made), SN_NOT_SUPPORTED);
    CHECK_EQ(made == NULL, 1);
    CHECK_EQ(sn_create_port_on(0, "\xff", &made), SN_NOT_SUPPORTED);
    CHECK_EQ(sn_create_port_on(0, NULL, NULL), SN_INVALID_PARAMETER);
    CHECK_EQ(sn_port_descriptor(port, NULL), SN_INVALID_PARAMETER);
    CHECK_EQ(sn_port_descriptor(NULL, &descriptor), SN_INVALID_HANDLE);
    CHECK_EQ(sn_query_port(port, NULL), SN_INVALID_PARAMETER);
    CHECK_EQ(sn_query_port(NULL, &state), SN_INVALID_HANDLE);
    CHECK_EQ(sn_backend(NULL) == NULL, 1);
    check_text(sn_strerror(SN_TIMEOUT), "no packet came in time");
    check_text(sn_strerror(4711), "unknown error");
}

/* The names were defined by the second inclusion. */
static void a_time_out_is_the_last_error(HANDLE port) {
    OVERLAPPED_ENTRY entry;
    UINT32 received;
    sn_set_last_error(ERROR_SUCCESS);
    CHECK_EQ(ProcessSocketNotifications(port, 0, NULL, 0, 1, &entry, &received), WAIT_TIMEOUT);
    CHECK_EQ(GetLastError(), WAIT_TIMEOUT);
    CHECK_EQ(ProcessSocketNotifications(NULL, 0, NULL, 0, 1, &entry, &received),
             ERROR_INVALID_HANDLE);
    CHECK_EQ(GetLastError(), ERROR_INVALID_HANDLE);
    CHECK_EQ(PostQueuedCompletionStatus(port, 0, 0, NULL), TRUE);
    CHECK_EQ(ProcessSocketNotifications(port, 0, NULL, 0, 1, &entry, &received), ERROR_SUCCESS);
    CHECK_EQ(GetLastError(), ERROR_INVALID_HANDLE);
}

int main(void) {
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    CHECK_EQ(sn_version(), SN_VERSION);
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", SN_VERSION_MAJOR, SN_VERSION_MINOR, SN_VERSION_PATCH);
    check_text(SN_VERSION_STRING, text);
    sn_port port, other, named;
    CHECK_EQ(sn_create_port(3, &port), SN_SUCCESS);
    CHECK_EQ(sn_create_port_on(1, NULL, &other), SN_SUCCESS);
    check_text(sn_backend(other), sn_backend(port));
    CHECK_EQ(sn_create_port_on(1, sn_backend(port), &named), SN_SUCCESS);
    check_text(sn_backend(named), sn_backend(port));
    reasons(port, other);
    a_port_can_be_watched(port);
    a_registration_ends_at_once(other);
    an_edge_may_begin_with_what_holds(other);
    a_place_is_given_back();
    places_may_be_without_limit();
    wrong_arguments(port);
    a_time_out_is_the_last_error(port);
    CHECK_EQ(sn_close_port(named), SN_SUCCESS);
    CHECK_EQ(sn_close_port(other), SN_SUCCESS);
    CHECK_EQ(sn_close_port(port), SN_SUCCESS);
    close(pair[0]);
    close(pair[1]);
    return 0;
}
