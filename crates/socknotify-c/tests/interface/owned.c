/* A port that owns its connections. */
#include <socknotify_owned.h>

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define IN SOCK_NOTIFY_REGISTER_EVENT_IN
#define OUT SOCK_NOTIFY_REGISTER_EVENT_OUT
#define LIMIT (1 << 18)
/* Longer than anything here takes. */
#define PATIENCE 300000
/* For what must not come. */
#define QUIET 20

static sn_owned_port port;

/* What a connection's pointer points to: freed at its last event, so a checker of memory sees a second one. */
struct peer {
    uint64_t handle;
    int ours;
    int theirs;
};

static struct peer *adopt(void) {
    struct peer *peer = malloc(sizeof *peer);
    int pair[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    peer->ours = pair[0];
    peer->theirs = pair[1];
    CHECK_EQ(sn_owned_adopt(port, pair[0], peer, &peer->handle), SN_SUCCESS);
    return peer;
}

static void arm(struct peer *peer, uint32_t events, uint32_t timeout_ms) {
    CHECK_EQ(sn_owned_arm(port, peer->handle, events, timeout_ms), SN_SUCCESS);
}

static sn_owned_event next(uint32_t kind) {
    sn_owned_event event;
    CHECK_EQ(sn_owned_next(port, &event, PATIENCE), SN_SUCCESS);
    CHECK_EQ(event.kind, kind);
    return event;
}

static void next_is(uint32_t kind, struct peer *peer, uint32_t events) {
    sn_owned_event event = next(kind);
    CHECK_EQ(event.handle, peer->handle);
    CHECK_EQ(event.user == peer, 1);
    CHECK_EQ(event.events, events);
}

static void are_queued(struct peer *peer, size_t count) {
    size_t bytes = count + 1;
    CHECK_EQ(sn_owned_queued(port, peer->handle, &bytes), SN_SUCCESS);
    CHECK_EQ(bytes, count);
}

static void nothing_comes(void) {
    sn_owned_event event;
    CHECK_EQ(sn_owned_next(port, &event, QUIET), SN_TIMEOUT);
}

static void is_gone(uint64_t handle) {
    CHECK_EQ(sn_owned_arm(port, handle, IN, 0), SN_NOT_FOUND);
    CHECK_EQ(sn_owned_end(port, handle), SN_NOT_FOUND);
    CHECK_EQ(sn_owned_cancel(port, handle), SN_NOT_FOUND);
    CHECK_EQ(sn_owned_send(port, handle, "x", 1), SN_NOT_FOUND);
    size_t bytes;
    CHECK_EQ(sn_owned_queued(port, handle, &bytes), SN_NOT_FOUND);
}

static void is_open(int descriptor, int is) {
    CHECK_EQ(fcntl(descriptor, F_GETFD) >= 0, is);
}

static void end(struct peer *peer) {
    CHECK_EQ(sn_owned_end(port, peer->handle), SN_SUCCESS);
    is_open(peer->ours, 0);
    next_is(SN_OWNED_CLOSED, peer, 0);
    close(peer->theirs);
    free(peer);
}

static void begin(size_t limit) {
    CHECK_EQ(sn_owned_create(0, limit, &port), SN_SUCCESS);
}

static void finish(void) {
    sn_owned_event event;
    CHECK_EQ(sn_owned_drain(port, 0), SN_SUCCESS);
    CHECK_EQ(sn_owned_next(port, &event, PATIENCE), SN_ABANDONED_WAIT);
    CHECK_EQ(sn_owned_close(port), SN_SUCCESS);
    CHECK_EQ(sn_owned_close(port), SN_INVALID_HANDLE);
}

static void a_connection_is_the_programs_or_the_ports(void) {
    struct peer *peer = adopt();
    CHECK_EQ(sn_owned_arm(port, peer->handle, 0x08, 0), SN_INVALID_PARAMETER);
    CHECK_EQ(sn_owned_arm(port, peer->handle, 0x10001, 0), SN_INVALID_PARAMETER);
    arm(peer, IN, SN_INFINITE);
    CHECK_EQ(sn_owned_arm(port, peer->handle, IN, 0), SN_NOT_FOUND);
    CHECK_EQ(sn_owned_end(port, peer->handle), SN_NOT_FOUND);
    nothing_comes();
    CHECK_EQ(write(peer->theirs, "x", 1), 1);
    next_is(SN_OWNED_READY, peer, IN);
    nothing_comes();
    arm(peer, IN, 0);
    next_is(SN_OWNED_READY, peer, IN);
    CHECK_EQ(sn_owned_arm(port, peer->handle, IN | OUT | SOCK_NOTIFY_REGISTER_EVENT_HANGUP, SN_INFINITE), SN_SUCCESS);
    next_is(SN_OWNED_READY, peer, IN | OUT);
    end(peer);
}

/* A new one has its descriptor's number, and another handle. */
static void an_old_handle_reaches_nobody(void) {
    struct peer *first = adopt();
    uint64_t old = first->handle;
    int number = first->ours;
    end(first);
    is_gone(old);
    struct peer *second = adopt();
    CHECK_EQ(second->ours, number);
    is_gone(old);
    is_gone(0);
    is_gone(UINT64_MAX);
    arm(second, IN, SN_INFINITE);
    is_gone(old);
    nothing_comes();
    /* Nor does one of another port. */
    sn_owned_port before = port;
    begin(LIMIT);
    is_gone(second->handle);
    finish();
    port = before;
    CHECK_EQ(sn_owned_cancel(port, second->handle), SN_SUCCESS);
    next_is(SN_OWNED_CANCELLED, second, 0);
    end(second);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void deadlines_are_not_early(void) {
    struct peer *peer = adopt();
    double begun = now();
    arm(peer, IN, 30);
    next_is(SN_OWNED_TIMED_OUT, peer, 0);
    CHECK_EQ(now() - begun >= 30, 1);
    arm(peer, 0, 0);
    next_is(SN_OWNED_TIMED_OUT, peer, 0);
    end(peer);
}

static void a_cancellation_is_reported_once(void) {
    struct peer *peer = adopt();
    CHECK_EQ(sn_owned_cancel(port, peer->handle), SN_SUCCESS);
    nothing_comes();
    arm(peer, IN, SN_INFINITE);
    next_is(SN_OWNED_CANCELLED, peer, 0);
    arm(peer, IN, SN_INFINITE);
    nothing_comes();
    CHECK_EQ(sn_owned_cancel(port, peer->handle), SN_SUCCESS);
    CHECK_EQ(sn_owned_cancel(port, peer->handle), SN_SUCCESS);
    next_is(SN_OWNED_CANCELLED, peer, 0);
    arm(peer, IN, SN_INFINITE);
    nothing_comes();
    /* Also where it was woken to send besides. */
    CHECK_EQ(sn_owned_send(port, peer->handle, "x", 1), SN_SUCCESS);
    CHECK_EQ(sn_owned_cancel(port, peer->handle), SN_SUCCESS);
    next_is(SN_OWNED_CANCELLED, peer, 0);
    end(peer);
}

/* What is in the socket and in the queue is the beginning of these. */
static unsigned char pattern(size_t index) {
    return (unsigned char)(index * 31 + index / 251);
}

static void fill(unsigned char *bytes, size_t from, size_t length) {
    for (size_t index = 0; index < length; index += 1) {
        bytes[index] = pattern(from + index);
    }
}

static void receive(struct peer *peer, size_t from, size_t length) {
    unsigned char bytes[4096];
    while (length > 0) {
        ssize_t received = recv(peer->theirs, bytes, length < sizeof bytes ? length : sizeof bytes, MSG_DONTWAIT);
        if (received < 0) {
            /* More is sent by whoever takes events. */
            CHECK_EQ(errno == EAGAIN, 1);
            nothing_comes();
            continue;
        }
        for (ssize_t index = 0; index < received; index += 1) {
            CHECK_EQ(bytes[index], pattern(from + (size_t)index));
        }
        from += (size_t)received;
        length -= (size_t)received;
    }
}

static void what_is_sent_arrives_in_order_and_no_event_tells_of_it(void) {
    unsigned char bytes[1000];
    struct peer *peer = adopt();
    fill(bytes, 0, 1000);
    /* The program has it: it is sent when it is armed. */
    CHECK_EQ(sn_owned_send(port, peer->handle, bytes, 500), SN_SUCCESS);
    CHECK_EQ(sn_owned_send(port, peer->handle, bytes, 0), SN_SUCCESS);
    are_queued(peer, 500);
    arm(peer, IN, SN_INFINITE);
    are_queued(peer, 0);
    CHECK_EQ(recv(peer->theirs, bytes, 1, MSG_DONTWAIT | MSG_PEEK), 1);
    receive(peer, 0, 500);
    /* It waits. */
    CHECK_EQ(sn_owned_send(port, peer->handle, bytes + 500, 500), SN_SUCCESS);
    receive(peer, 500, 500);
    nothing_comes();
    /* What it waits for is as before, and its deadline, too. */
    CHECK_EQ(write(peer->theirs, "x", 1), 1);
    next_is(SN_OWNED_READY, peer, IN);
    double begun = now();
    arm(peer, 0, 30);
    CHECK_EQ(sn_owned_send(port, peer->handle, bytes, 500), SN_SUCCESS);
    next_is(SN_OWNED_TIMED_OUT, peer, 0);
    CHECK_EQ(now() - begun >= 30, 1);
    receive(peer, 0, 500);
    CHECK_EQ(sn_owned_send(port, peer->handle, NULL, 1), SN_INVALID_PARAMETER);
    CHECK_EQ(sn_owned_send(port, peer->handle, bytes, SIZE_MAX), SN_INVALID_PARAMETER);
    end(peer);
}

static void a_queue_that_is_full_takes_all_or_nothing(void) {
    enum { PIECE = 5000 };
    unsigned char bytes[PIECE];
    size_t sent = 0;
    uint32_t outcome;
    struct peer *peer = adopt();
    arm(peer, IN, SN_INFINITE);
    for (;; sent += PIECE) {
        fill(bytes, sent, PIECE);
        outcome = sn_owned_send(port, peer->handle, bytes, PIECE);
        if (outcome != SN_SUCCESS) {
            /* The socket takes what it can, and then the queue. */
            nothing_comes();
            outcome = sn_owned_send(port, peer->handle, bytes, PIECE);
        }
        if (outcome != SN_SUCCESS) {
            break;
        }
    }
    CHECK_EQ(outcome, SN_WOULD_BLOCK);
    CHECK_EQ(sent > LIMIT - PIECE, 1);
    /* The rest is in the socket. */
    size_t waiting;
    CHECK_EQ(sn_owned_queued(port, peer->handle, &waiting), SN_SUCCESS);
    CHECK_EQ(waiting > LIMIT - PIECE && waiting <= LIMIT && waiting < sent, 1);
    /* Neither event tells of the queue: IN does not hold, and OUT not before all is sent. */
    CHECK_EQ(sn_owned_cancel(port, peer->handle), SN_SUCCESS);
    next_is(SN_OWNED_CANCELLED, peer, 0);
    arm(peer, OUT, SN_INFINITE);
    nothing_comes();
    /* There is room again when some of it has gone, and then the rest. */
    size_t received = 0;
    sn_owned_event event;
    fill(bytes, sent, PIECE);
    while ((outcome = sn_owned_send(port, peer->handle, bytes, PIECE)) == SN_WOULD_BLOCK) {
        CHECK_EQ(received < sent, 1);
        receive(peer, received, 10000);
        received += 10000;
        CHECK_EQ(sn_owned_next(port, &event, 0), SN_TIMEOUT);
    }
    CHECK_EQ(outcome, SN_SUCCESS);
    sent += PIECE;
    while (sn_owned_next(port, &event, 0) == SN_TIMEOUT) {
        CHECK_EQ(received < sent, 1);
        receive(peer, received, 1000);
        received += 1000;
    }
    CHECK_EQ(event.kind, SN_OWNED_READY);
    CHECK_EQ(event.events, OUT);
    are_queued(peer, 0);
    receive(peer, received, sent - received);
    CHECK_EQ(recv(peer->theirs, bytes, 1, MSG_DONTWAIT), (unsigned long)-1);
    end(peer);
    /* Nothing is larger than the limit. */
    begin(4);
    peer = adopt();
    CHECK_EQ(sn_owned_send(port, peer->handle, bytes, 5), SN_WOULD_BLOCK);
    CHECK_EQ(sn_owned_send(port, peer->handle, bytes, 4), SN_SUCCESS);
    CHECK_EQ(sn_owned_send(port, peer->handle, bytes, 1), SN_WOULD_BLOCK);
    end(peer);
    finish();
}

/* And no signal ends the program. */
static void what_cannot_be_sent_is_an_error_of_its_connection(void) {
    struct peer *peer = adopt();
    arm(peer, 0, SN_INFINITE);
    CHECK_EQ(shutdown(peer->ours, SHUT_WR), 0);
    CHECK_EQ(sn_owned_send(port, peer->handle, "x", 1), SN_SUCCESS);
    next_is(SN_OWNED_READY, peer, SOCK_NOTIFY_EVENT_ERR);
    /* Again, if it is armed again. */
    arm(peer, 0, SN_INFINITE);
    next_is(SN_OWNED_READY, peer, SOCK_NOTIFY_EVENT_ERR);
    end(peer);
}

/* Some systems say of a socket that still connects that it is not connected, which is no error of it. */
static void what_is_sent_waits_for_the_connect(void) {
    enum { CLIENTS = 16 };
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct sockaddr *const at = (struct sockaddr *)&address;
    socklen_t length = sizeof address;
    int clients[CLIENTS];
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(bind(listener, at, length), 0);
    CHECK_EQ(getsockname(listener, at, &length), 0);
    /* There is room for fewer. */
    CHECK_EQ(listen(listener, 1), 0);
    for (int index = 0; index < CLIENTS; index += 1) {
        clients[index] = socket(AF_INET, SOCK_STREAM, 0);
        CHECK_EQ(fcntl(clients[index], F_SETFL, O_NONBLOCK), 0);
        int begun = connect(clients[index], at, length);
        CHECK_EQ(begun == 0 || errno == EINPROGRESS, 1);
    }
    struct peer *peer = malloc(sizeof *peer);
    peer->ours = clients[CLIENTS - 1];
    peer->theirs = listener;
    CHECK_EQ(sn_owned_adopt(port, peer->ours, peer, &peer->handle), SN_SUCCESS);
    arm(peer, 0, SN_INFINITE);
    CHECK_EQ(sn_owned_send(port, peer->handle, "x", 1), SN_SUCCESS);
    nothing_comes();
    CHECK_EQ(sn_owned_cancel(port, peer->handle), SN_SUCCESS);
    next_is(SN_OWNED_CANCELLED, peer, 0);
    end(peer);
    for (int index = 0; index < CLIENTS - 1; index += 1) {
        close(clients[index]);
    }
}

static void messages_come_in_time_or_are_cancelled(void) {
    int later = 0;
    int sooner = 0;
    uint64_t handles[3];
    double begun = now();
    CHECK_EQ(sn_owned_post(port, &later, 40, &handles[0]), SN_SUCCESS);
    CHECK_EQ(sn_owned_post(port, &sooner, 0, &handles[1]), SN_SUCCESS);
    CHECK_EQ(sn_owned_post(port, NULL, 3600000, &handles[2]), SN_SUCCESS);
    for (int count = 0; count < 2; count += 1) {
        sn_owned_event event = next(SN_OWNED_MESSAGE);
        int is_later = event.user == &later;
        CHECK_EQ(is_later || event.user == &sooner, 1);
        CHECK_EQ(event.handle, handles[!is_later]);
        CHECK_EQ(!is_later || now() - begun >= 40, 1);
        is_gone(event.handle);
        handles[!is_later] = 0;
    }
    CHECK_EQ(handles[0] + handles[1], 0);
    CHECK_EQ(sn_owned_cancel(port, handles[2]), SN_SUCCESS);
    is_gone(handles[2]);
    CHECK_EQ(sn_owned_post(port, NULL, 1, &handles[2]), SN_SUCCESS);
    CHECK_EQ(sn_owned_cancel(port, handles[2]), SN_SUCCESS);
    nothing_comes();
}

static void what_is_refused_stays_the_callers(void) {
    int pair[2];
    int ends[2];
    uint64_t handle = 7;
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    CHECK_EQ(pipe(ends), 0);
    CHECK_EQ(sn_owned_adopt(port, ends[0], NULL, &handle), SN_NOT_A_SOCKET);
    CHECK_EQ(sn_owned_adopt(port, -1, NULL, &handle), SN_NOT_A_SOCKET);
    CHECK_EQ(sn_owned_adopt(port, 1 << 24, NULL, &handle), SN_NOT_A_SOCKET);
    CHECK_EQ(sn_owned_adopt(port, pair[0], NULL, NULL), SN_INVALID_PARAMETER);
    CHECK_EQ(handle, 7);
    CHECK_EQ(sn_owned_adopt(port, pair[0], NULL, &handle), SN_SUCCESS);
    uint64_t other = 7;
    CHECK_EQ(sn_owned_adopt(port, pair[0], NULL, &other), SN_INVALID_PARAMETER);
    CHECK_EQ(other, 7);
    is_open(pair[0], 1);
    is_open(ends[0], 1);
    nothing_comes();
    CHECK_EQ(sn_owned_end(port, handle), SN_SUCCESS);
    CHECK_EQ(next(SN_OWNED_CLOSED).handle, handle);
    close(pair[1]);
    close(ends[0]);
    close(ends[1]);
}

static void every_call_fails(sn_owned_port wrong) {
    sn_owned_event event;
    uint64_t handle;
    CHECK_EQ(sn_owned_drain(wrong, 0), SN_INVALID_HANDLE);
    CHECK_EQ(sn_owned_adopt(wrong, 0, NULL, &handle), SN_INVALID_HANDLE);
    CHECK_EQ(sn_owned_arm(wrong, 1, IN, 0), SN_INVALID_HANDLE);
    CHECK_EQ(sn_owned_end(wrong, 1), SN_INVALID_HANDLE);
    CHECK_EQ(sn_owned_cancel(wrong, 1), SN_INVALID_HANDLE);
    CHECK_EQ(sn_owned_send(wrong, 1, "x", 1), SN_INVALID_HANDLE);
    size_t bytes;
    CHECK_EQ(sn_owned_queued(wrong, 1, &bytes), SN_INVALID_HANDLE);
    CHECK_EQ(sn_owned_post(wrong, NULL, 0, &handle), SN_INVALID_HANDLE);
    CHECK_EQ(sn_owned_next(wrong, &event, 0), SN_INVALID_HANDLE);
    CHECK_EQ(sn_owned_close(wrong), SN_INVALID_HANDLE);
}

static void a_port_is_of_one_kind(void) {
    sn_port other;
    uint64_t handle;
    CHECK_EQ(sn_create_port(0, &other), SN_SUCCESS);
    every_call_fails((sn_owned_port)other);
    CHECK_EQ(sn_close_port(other), SN_SUCCESS);
    CHECK_EQ(sn_post((sn_port)port, 0, 0, NULL), SN_INVALID_HANDLE);
    CHECK_EQ(sn_close_port((sn_port)port), SN_INVALID_HANDLE);
    every_call_fails(NULL);
    every_call_fails((sn_owned_port)(intptr_t)-1);
    every_call_fails((sn_owned_port)(void *)&handle);
    CHECK_EQ(sn_owned_create(0, 0, NULL), SN_INVALID_PARAMETER);
    CHECK_EQ(sn_owned_next(port, NULL, 0), SN_INVALID_PARAMETER);
    CHECK_EQ(sn_owned_queued(port, 0, NULL), SN_INVALID_PARAMETER);
    CHECK_EQ(sn_owned_post(port, NULL, 0, NULL), SN_INVALID_PARAMETER);
}

static void a_forked_child_has_no_port(void) {
    struct peer *peer = adopt();
    int status;
    arm(peer, IN, SN_INFINITE);
    pid_t child = fork();
    if (child == 0) {
        every_call_fails(port);
        begin(LIMIT);
        finish();
        _exit(EXIT_SUCCESS);
    }
    CHECK_EQ(waitpid(child, &status, 0) == child && status == 0, 1);
    CHECK_EQ(write(peer->theirs, "x", 1), 1);
    next_is(SN_OWNED_READY, peer, IN);
    end(peer);
}

static void draining_reports_each_connection_once_and_then_all_end(void) {
    sn_owned_event event;
    uint64_t handle;
    begin(LIMIT);
    struct peer *armed = adopt();
    struct peer *held = adopt();
    arm(armed, IN, SN_INFINITE);
    CHECK_EQ(sn_owned_drain(port, PATIENCE), SN_SUCCESS);
    next_is(SN_OWNED_DRAINING, armed, 0);
    nothing_comes();
    arm(held, IN, SN_INFINITE);
    next_is(SN_OWNED_DRAINING, held, 0);
    arm(armed, IN, SN_INFINITE);
    arm(held, IN, SN_INFINITE);
    nothing_comes();
    CHECK_EQ(write(armed->theirs, "x", 1), 1);
    next_is(SN_OWNED_READY, armed, IN);
    end(armed);
    /* The last one. */
    CHECK_EQ(sn_owned_cancel(port, held->handle), SN_SUCCESS);
    next_is(SN_OWNED_CANCELLED, held, 0);
    end(held);
    CHECK_EQ(sn_owned_next(port, &event, PATIENCE), SN_ABANDONED_WAIT);
    int pair[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    CHECK_EQ(sn_owned_adopt(port, pair[0], NULL, &handle), SN_ABANDONED_WAIT);
    is_open(pair[0], 1);
    CHECK_EQ(sn_owned_post(port, NULL, 0, &handle), SN_ABANDONED_WAIT);
    CHECK_EQ(sn_owned_close(port), SN_SUCCESS);
    close(pair[0]);
    close(pair[1]);
}

/* However many are armed, in the program's hands, or about to be reported. */
static void at_the_end_each_connection_has_its_last_event(void) {
    enum { PEERS = 30 };
    sn_owned_event event;
    struct peer *peers[PEERS];
    uint64_t message;
    int closed = 0;
    begin(LIMIT);
    for (int index = 0; index < PEERS; index += 1) {
        peers[index] = adopt();
        if (index % 3 > 0) {
            arm(peers[index], index % 3 == 1 ? IN : OUT, SN_INFINITE);
        }
    }
    CHECK_EQ(sn_owned_post(port, NULL, 3600000, &message), SN_SUCCESS);
    CHECK_EQ(sn_owned_drain(port, 0), SN_SUCCESS);
    uint32_t outcome;
    while ((outcome = sn_owned_next(port, &event, PATIENCE)) == SN_SUCCESS) {
        struct peer *peer = event.user;
        CHECK_EQ(event.handle, peer->handle);
        if (event.kind == SN_OWNED_CLOSED) {
            closed += 1;
            is_gone(event.handle);
            close(peer->theirs);
            free(peer);
        } else if (event.kind == SN_OWNED_READY) {
            CHECK_EQ(sn_owned_end(port, peer->handle), SN_SUCCESS);
        } else {
            arm(peer, IN, SN_INFINITE);
        }
    }
    CHECK_EQ(outcome, SN_ABANDONED_WAIT);
    CHECK_EQ(closed, PEERS / 3 * 2);
    /* The others are the program's, until it says otherwise. */
    for (int index = 0; index < PEERS; index += 3) {
        struct peer *peer = peers[index];
        is_open(peer->ours, 1);
        CHECK_EQ(send(peer->ours, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE, 1);
        uint32_t done = index % 2 == 0 ? sn_owned_end(port, peer->handle) : sn_owned_arm(port, peer->handle, IN, 0);
        CHECK_EQ(done, SN_SUCCESS);
        next_is(SN_OWNED_CLOSED, peer, 0);
        is_open(peer->ours, 0);
        close(peer->theirs);
        free(peer);
    }
    finish();
}

static void *count_last_events(void *count) {
    sn_owned_event event;
    uint32_t outcome;
    while ((outcome = sn_owned_next(port, &event, SN_INFINITE)) == SN_SUCCESS) {
        CHECK_EQ(event.kind, SN_OWNED_CLOSED);
        *(int *)count += 1;
    }
    CHECK_EQ(outcome, SN_ABANDONED_WAIT);
    return NULL;
}

/* Also if that thread takes no events. */
static void draining_leads_to_the_last_event_whoever_ends_the_connection(void) {
    for (int round = 0; round < 200; round += 1) {
        pthread_t thread;
        int count = 0;
        begin(LIMIT);
        struct peer *peer = adopt();
        CHECK_EQ(pthread_create(&thread, NULL, count_last_events, &count), 0);
        CHECK_EQ(sn_owned_drain(port, PATIENCE), SN_SUCCESS);
        CHECK_EQ(sn_owned_end(port, peer->handle), SN_SUCCESS);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK_EQ(count, 1);
        CHECK_EQ(sn_owned_close(port), SN_SUCCESS);
        close(peer->theirs);
        free(peer);
    }
}

enum { ENDING = 4, LEFT = 40 };

static atomic_int has_ended, after_the_end;

static void *take_what_is_left(void *context) {
    sn_owned_event event;
    uint32_t outcome;
    (void)context;
    while ((outcome = sn_owned_next(port, &event, PATIENCE)) == SN_SUCCESS) {
        if (event.kind == SN_OWNED_CLOSED) {
            atomic_fetch_add(&after_the_end, atomic_load(&has_ended));
            close(((struct peer *)event.user)->theirs);
            free(event.user);
        } else {
            arm(event.user, IN, SN_INFINITE);
        }
    }
    CHECK_EQ(outcome, SN_ABANDONED_WAIT);
    atomic_store(&has_ended, 1);
    return NULL;
}

/* While another one is about to have it. One that has taken an event already may have that, and then close what it armed for it. */
static void no_thread_is_told_of_the_end_before_what_is_left(void) {
    for (int round = 0; round < 50; round += 1) {
        pthread_t threads[ENDING];
        begin(LIMIT);
        atomic_store(&has_ended, 0);
        atomic_store(&after_the_end, 0);
        for (int index = 0; index < LEFT; index += 1) {
            arm(adopt(), IN, SN_INFINITE);
        }
        for (int index = 0; index < ENDING; index += 1) {
            CHECK_EQ(pthread_create(&threads[index], NULL, take_what_is_left, NULL), 0);
        }
        CHECK_EQ(sn_owned_drain(port, 0), SN_SUCCESS);
        for (int index = 0; index < ENDING; index += 1) {
            CHECK_EQ(pthread_join(threads[index], NULL), 0);
        }
        CHECK_EQ(after_the_end <= 2 * (ENDING - 1), 1);
        CHECK_EQ(sn_owned_close(port), SN_SUCCESS);
    }
}

static int count_descriptors(void) {
    enum { MORE_THAN_ARE_OPEN = 256 };
    int count = 0;
    for (int descriptor = 0; descriptor < MORE_THAN_ARE_OPEN; descriptor += 1) {
        count += fcntl(descriptor, F_GETFD) >= 0;
    }
    return count;
}

static void *close_port(void *context) {
    (void)context;
    CHECK_EQ(sn_owned_close(port), SN_SUCCESS);
    return NULL;
}

static void run(void *(*start)(void *)) {
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, start, NULL), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

static void *take_from_ports_that_end(void *context) {
    sn_owned_event event;
    (void)context;
    int before = count_descriptors();
    begin(LIMIT);
    nothing_comes();
    close_port(NULL);
    CHECK_EQ(count_descriptors(), before);
    /* Another thread closes, and it finds that out. */
    begin(LIMIT);
    nothing_comes();
    run(close_port);
    CHECK_EQ(sn_owned_next(port, &event, PATIENCE), SN_INVALID_HANDLE);
    CHECK_EQ(count_descriptors(), before);
    /* It sees the end, and another thread closes. */
    begin(LIMIT);
    CHECK_EQ(sn_owned_drain(port, 0), SN_SUCCESS);
    CHECK_EQ(sn_owned_next(port, &event, PATIENCE), SN_ABANDONED_WAIT);
    run(close_port);
    CHECK_EQ(count_descriptors(), before);
    return NULL;
}

/* Though the thread that took its events goes on. */
static void a_port_that_was_closed_has_no_descriptors(void) {
    run(take_from_ports_that_end);
}

static atomic_long waiter;

static void *wait_for_the_end(void *context) {
    sn_owned_event event;
    (void)context;
    CHECK_EQ(sn_owned_next(port, &event, 0), SN_TIMEOUT);
    atomic_store(&waiter, 1);
    uint32_t outcome = sn_owned_next(port, &event, SN_INFINITE);
    /* The port may have been closed before this thread began to wait. */
    int is_closed = outcome == SN_ABANDONED_WAIT || outcome == SN_INVALID_HANDLE;
    CHECK_EQ(is_closed || (outcome == SN_SUCCESS && event.kind == SN_OWNED_CLOSED), 1);
    CHECK_EQ(sn_owned_next(port, &event, SN_INFINITE), SN_INVALID_HANDLE);
    return NULL;
}

static void closing_ends_waits_and_closes_what_the_port_owns(void) {
    pthread_t thread;
    begin(LIMIT);
    struct peer *armed = adopt();
    struct peer *held = adopt();
    arm(armed, IN, SN_INFINITE);
    CHECK_EQ(pthread_create(&thread, NULL, wait_for_the_end, NULL), 0);
    while (!atomic_load(&waiter)) {
    }
    CHECK_EQ(sn_owned_close(port), SN_SUCCESS);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    struct peer *peers[] = {armed, held};
    for (int index = 0; index < 2; index += 1) {
        is_open(peers[index]->ours, 0);
        close(peers[index]->theirs);
        free(peers[index]);
    }
}

/*
 * Threads take events, and others send to all handles, cancel them, and end them. A connection says how often it may be armed; the
 * thread that has it alone writes there. Each is freed at its last event.
 */
enum { THREADS = 4, ROUNDS = 60, CROWD = 16 };

struct member {
    uint64_t handle;
    int theirs;
    int is_taken;
    int armings;
};

static _Atomic uint64_t crowd[CROWD];
static atomic_int adopted, closed, failed;

static void join_crowd(int seat) {
    struct member *member = calloc(1, sizeof *member);
    int pair[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    member->theirs = pair[1];
    member->is_taken = 1;
    CHECK_EQ(fcntl(pair[1], F_SETFL, O_NONBLOCK), 0);
    CHECK_EQ(sn_owned_adopt(port, pair[0], member, &member->handle), SN_SUCCESS);
    atomic_fetch_add(&adopted, 1);
    atomic_store(&crowd[seat], member->handle);
    member->is_taken = 0;
    CHECK_EQ(sn_owned_arm(port, member->handle, IN, 5), SN_SUCCESS);
}

static void *take_events(void *context) {
    sn_owned_event event;
    char bytes[512];
    (void)context;
    while (sn_owned_next(port, &event, PATIENCE) == SN_SUCCESS) {
        struct member *member = event.user;
        if (event.kind == SN_OWNED_MESSAGE) {
            continue;
        }
        CHECK_EQ(event.handle, member->handle);
        CHECK_EQ(member->is_taken, 0);
        if (event.kind == SN_OWNED_CLOSED) {
            CHECK_EQ(sn_owned_send(port, event.handle, "x", 1), SN_NOT_FOUND);
            close(member->theirs);
            free(member);
            atomic_fetch_add(&closed, 1);
            continue;
        }
        member->is_taken = 1;
        while (recv(member->theirs, bytes, sizeof bytes, 0) > 0) {
        }
        member->is_taken = 0;
        if (member->armings++ == 20 || (event.events & SOCK_NOTIFY_EVENT_ERR)) {
            CHECK_EQ(sn_owned_end(port, event.handle), SN_SUCCESS);
        } else {
            CHECK_EQ(sn_owned_arm(port, event.handle, event.kind == SN_OWNED_CANCELLED ? IN | OUT : IN, 5), SN_SUCCESS);
        }
    }
    return NULL;
}

static void *disturb(void *context) {
    static const char text[300];
    unsigned state = (unsigned)(uintptr_t)context;
    for (int round = 0; round < ROUNDS; round += 1) {
        for (int step = 0; step < CROWD; step += 1) {
            state = state * 1103515245 + 12345;
            int seat = (int)(state >> 16) % CROWD;
            uint64_t handle = atomic_load(&crowd[seat]);
            uint32_t outcome;
            switch ((state >> 24) % 4) {
            case 0:
                outcome = sn_owned_cancel(port, handle);
                break;
            case 1:
                outcome = sn_owned_post(port, NULL, state >> 30, &handle);
                break;
            default:
                outcome = sn_owned_send(port, handle, text, sizeof text);
            }
            if (outcome == SN_NOT_FOUND) {
                join_crowd(seat);
            } else if (outcome != SN_SUCCESS && outcome != SN_WOULD_BLOCK) {
                atomic_fetch_add(&failed, 1);
            }
        }
    }
    return NULL;
}

static void many_threads_agree(void) {
    pthread_t threads[THREADS], others[THREADS];
    begin(2000);
    for (int index = 0; index < THREADS; index += 1) {
        CHECK_EQ(pthread_create(&threads[index], NULL, take_events, NULL), 0);
        CHECK_EQ(pthread_create(&others[index], NULL, disturb, (void *)(uintptr_t)(index + 1)), 0);
    }
    for (int index = 0; index < THREADS; index += 1) {
        CHECK_EQ(pthread_join(others[index], NULL), 0);
    }
    CHECK_EQ(sn_owned_drain(port, 50), SN_SUCCESS);
    for (int index = 0; index < THREADS; index += 1) {
        CHECK_EQ(pthread_join(threads[index], NULL), 0);
    }
    CHECK_EQ(failed, 0);
    CHECK_EQ(adopted >= CROWD, 1);
    CHECK_EQ(closed, adopted);
    CHECK_EQ(sn_owned_close(port), SN_SUCCESS);
}

int main(void) {
    begin(LIMIT);
    a_connection_is_the_programs_or_the_ports();
    an_old_handle_reaches_nobody();
    deadlines_are_not_early();
    a_cancellation_is_reported_once();
    what_is_sent_arrives_in_order_and_no_event_tells_of_it();
    what_cannot_be_sent_is_an_error_of_its_connection();
    what_is_sent_waits_for_the_connect();
    messages_come_in_time_or_are_cancelled();
    what_is_refused_stays_the_callers();
    a_port_is_of_one_kind();
    a_forked_child_has_no_port();
    sn_owned_port first = port;
    a_queue_that_is_full_takes_all_or_nothing();
    port = first;
    draining_reports_each_connection_once_and_then_all_end();
    at_the_end_each_connection_has_its_last_event();
    draining_leads_to_the_last_event_whoever_ends_the_connection();
    no_thread_is_told_of_the_end_before_what_is_left();
    closing_ends_waits_and_closes_what_the_port_owns();
    a_port_that_was_closed_has_no_descriptors();
    many_threads_agree();
    port = first;
    finish();
    return EXIT_SUCCESS;
}
