/* How much of a thread's stack the calls need. Prints the bytes for each call. */
#define _GNU_SOURCE
#include <socknotify.h>
#include <socknotify_owned.h>

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

#define SIZE (256 * 1024)
#define PAINT 0xa5

static sn_port port;
static int sockets[2];

static void nothing(void) {
}

static void create_port(void) {
    CHECK_EQ(sn_create_port(2, &port), SN_SUCCESS);
}

/* The first registration of a port. */
static void process(void) {
    sn_registration registration = {
        .socket = (sn_socket)sockets[0],
        .eventFilter = SOCK_NOTIFY_REGISTER_EVENT_IN,
        .operation = SOCK_NOTIFY_OP_ENABLE,
        .triggerFlags = SOCK_NOTIFY_TRIGGER_LEVEL | SOCK_NOTIFY_TRIGGER_ONESHOT,
    };
    sn_entry entry;
    uint32_t count;
    CHECK_EQ(sn_process(port, 1, &registration, SN_INFINITE, 1, &entry, &count), SN_SUCCESS);
    CHECK_EQ(registration.registrationResult, SN_SUCCESS);
}

static void post(void) {
    CHECK_EQ(sn_post(port, 1, 2, NULL), SN_SUCCESS);
}

static void dequeue_one(void) {
    uint32_t transferred;
    uintptr_t key;
    sn_overlapped *overlapped;
    CHECK_EQ(sn_dequeue_one(port, &transferred, &key, &overlapped, SN_INFINITE), SN_SUCCESS);
}

static void deregister(void) {
    CHECK_EQ(sn_deregister(port, (sn_socket)sockets[0]), SN_SUCCESS);
}

static sn_owned_port owner;
static uint64_t handle;

static void owned_create(void) {
    CHECK_EQ(sn_owned_create(2, 100, &owner), SN_SUCCESS);
}

/* The first connection of a port, and its last event. */
static void owned_adopt(void) {
    CHECK_EQ(sn_owned_adopt(owner, sockets[0], NULL, &handle), SN_SUCCESS);
    CHECK_EQ(sn_owned_send(owner, handle, "x", 1), SN_SUCCESS);
    CHECK_EQ(sn_owned_arm(owner, handle, SOCK_NOTIFY_REGISTER_EVENT_IN, 1000), SN_SUCCESS);
}

static void owned_next(void) {
    sn_owned_event event;
    do {
        CHECK_EQ(sn_owned_next(owner, &event, SN_INFINITE), SN_SUCCESS);
        if (event.kind == SN_OWNED_READY) {
            CHECK_EQ(sn_owned_end(owner, event.handle), SN_SUCCESS);
        }
    } while (event.kind != SN_OWNED_CLOSED);
}

static void *run(void *call) {
    (*(void (**)(void))call)();
    return NULL;
}

/* The bytes of a stack that a thread with this one call has used. */
static size_t used(void (*call)(void)) {
    unsigned char *stack = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK_EQ(stack == MAP_FAILED, 0);
    memset(stack, PAINT, SIZE);
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK_EQ(pthread_attr_init(&attributes), 0);
    CHECK_EQ(pthread_attr_setstack(&attributes, stack, SIZE), 0);
    CHECK_EQ(pthread_create(&thread, &attributes, run, &call), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(pthread_attr_destroy(&attributes), 0);
    size_t untouched = 0;
    while (untouched < SIZE && stack[untouched] == PAINT) {
        untouched += 1;
    }
    CHECK_EQ(munmap(stack, SIZE), 0);
    return SIZE - untouched;
}

static void say(const char *name, void (*call)(void)) {
    size_t before = used(nothing);
    size_t with = used(call);
    printf("%s %zu\n", name, with > before ? with - before : 0);
}

int main(void) {
    say("sn_create_port", create_port);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    CHECK_EQ(write(sockets[1], "x", 1), 1);
    say("sn_process", process);
    say("sn_post", post);
    say("sn_dequeue_one", dequeue_one);
    say("sn_deregister", deregister);
    say("sn_owned_create", owned_create);
    say("sn_owned_adopt", owned_adopt);
    say("sn_owned_next", owned_next);
    CHECK_EQ(sn_owned_close(owner), SN_SUCCESS);
    CHECK_EQ(sn_close_port(port), SN_SUCCESS);
    return EXIT_SUCCESS;
}
