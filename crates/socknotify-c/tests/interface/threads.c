/* One port on many threads: while it is closed, and while one of them blocks. */
#define SOCKNOTIFY_WIN32_NAMES
#include <socknotify.h>

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

#define THREADS 8

struct waiter {
    pthread_t thread;
    HANDLE port;
    atomic_long id;
    BOOL outcome;
    DWORD error;
    ULONG_PTR key;
};

static void *wait_for_ever(void *context) {
    struct waiter *waiter = context;
    DWORD transferred;
    OVERLAPPED *overlapped;
    atomic_store(&waiter->id, syscall(SYS_gettid));
    waiter->outcome =
        GetQueuedCompletionStatus(waiter->port, &transferred, &waiter->key, &overlapped, INFINITE);
    waiter->error = GetLastError();
    return NULL;
}

/* Start a thread, and return once it waits. */
static void start(struct waiter *waiter, HANDLE port) {
    waiter->port = port;
    atomic_store(&waiter->id, 0);
    CHECK_EQ(pthread_create(&waiter->thread, NULL, wait_for_ever, waiter), 0);
    long id;
    while ((id = atomic_load(&waiter->id)) == 0) {
    }
    await_sleep(id);
}

static void closing_releases_those_who_wait(void) {
    struct waiter waiters[THREADS];
    HANDLE port = CreateIoCompletionPort(INVALID_HANDLE_VALUE, NULL, 0, 2);
    sn_set_last_error(12345);
    for (int index = 0; index < THREADS; index += 1) {
        start(&waiters[index], port);
    }
    CHECK_EQ(CloseHandle(port), TRUE);
    for (int index = 0; index < THREADS; index += 1) {
        CHECK_EQ(pthread_join(waiters[index].thread, NULL), 0);
        CHECK_EQ(waiters[index].outcome, FALSE);
        CHECK_EQ(waiters[index].error, ERROR_ABANDONED_WAIT_0);
    }
    /* The last error is each thread's own. */
    CHECK_EQ(GetLastError(), 12345);
    CHECK_EQ(CloseHandle(port), FALSE);
    CHECK_EQ(GetLastError(), ERROR_INVALID_HANDLE);
}

struct shared {
    HANDLE port;
    int sockets[2];
    atomic_int closed;
};

static void *use_until_closed(void *context) {
    struct shared *shared = context;
    for (DWORD error = ERROR_SUCCESS; error != ERROR_INVALID_HANDLE;) {
        SOCK_NOTIFY_REGISTRATION registration = {
            .socket = (SOCKET)shared->sockets[0],
            .eventFilter = SOCK_NOTIFY_REGISTER_EVENT_OUT,
            .operation = SOCK_NOTIFY_OP_ENABLE,
            .triggerFlags = SOCK_NOTIFY_TRIGGER_ONESHOT | SOCK_NOTIFY_TRIGGER_LEVEL,
        };
        OVERLAPPED_ENTRY entry;
        UINT32 count;
        error = ProcessSocketNotifications(shared->port, 1, &registration, INFINITE, 1, &entry, &count);
        CHECK_EQ(error == ERROR_SUCCESS || error == ERROR_ABANDONED_WAIT_0 || error == ERROR_INVALID_HANDLE,
                 TRUE);
        CHECK_EQ(count, error == ERROR_SUCCESS);
    }
    return NULL;
}

static void *close_once(void *context) {
    struct shared *shared = context;
    if (CloseHandle(shared->port)) {
        atomic_fetch_add(&shared->closed, 1);
    } else {
        CHECK_EQ(GetLastError(), ERROR_INVALID_HANDLE);
    }
    return NULL;
}

/* Two threads close what four others use. One of them succeeds, and all come to an end. */
static void a_port_is_closed_once_while_others_use_it(void) {
    for (int round = 0; round < 200; round += 1) {
        struct shared shared = {.port = CreateIoCompletionPort(INVALID_HANDLE_VALUE, NULL, 0, 0)};
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, shared.sockets), 0);
        pthread_t threads[6];
        for (int index = 0; index < 6; index += 1) {
            void *(*role)(void *) = index < 4 ? use_until_closed : close_once;
            CHECK_EQ(pthread_create(&threads[index], NULL, role, &shared), 0);
        }
        for (int index = 0; index < 6; index += 1) {
            CHECK_EQ(pthread_join(threads[index], NULL), 0);
        }
        CHECK_EQ(atomic_load(&shared.closed), 1);
        close(shared.sockets[0]);
        close(shared.sockets[1]);
    }
}

static void await_other(void *context) {
    CHECK_EQ(pthread_join(((struct waiter *)context)->thread, NULL), 0);
}

/* The port has one place. This thread has it, and blocks until another has dequeued. */
static void who_blocks_lends_its_place(void) {
    struct waiter other;
    HANDLE port = CreateIoCompletionPort(INVALID_HANDLE_VALUE, NULL, 0, 1);
    CHECK_EQ(PostQueuedCompletionStatus(port, 0, 1, NULL), TRUE);
    DWORD transferred;
    ULONG_PTR key;
    OVERLAPPED *overlapped;
    CHECK_EQ(GetQueuedCompletionStatus(port, &transferred, &key, &overlapped, INFINITE), TRUE);
    CHECK_EQ(PostQueuedCompletionStatus(port, 0, 2, NULL), TRUE);
    start(&other, port);
    CHECK_EQ(sn_blocking(port, await_other, &other), SN_SUCCESS);
    CHECK_EQ(other.outcome, TRUE);
    CHECK_EQ(other.key, 2);
    CHECK_EQ(CloseHandle(port), TRUE);
}

/* The same, and it goes on to do something else. */
static void who_gives_its_place_back_lets_another_go(void) {
    struct waiter other;
    HANDLE port = CreateIoCompletionPort(INVALID_HANDLE_VALUE, NULL, 0, 1);
    CHECK_EQ(PostQueuedCompletionStatus(port, 0, 1, NULL), TRUE);
    DWORD transferred;
    ULONG_PTR key;
    OVERLAPPED *overlapped;
    CHECK_EQ(GetQueuedCompletionStatus(port, &transferred, &key, &overlapped, INFINITE), TRUE);
    CHECK_EQ(PostQueuedCompletionStatus(port, 0, 2, NULL), TRUE);
    start(&other, port);
    CHECK_EQ(sn_release(port), SN_SUCCESS);
    await_other(&other);
    CHECK_EQ(other.key, 2);
    CHECK_EQ(CloseHandle(port), TRUE);
}

int main(void) {
    closing_releases_those_who_wait();
    a_port_is_closed_once_while_others_use_it();
    who_blocks_lends_its_place();
    who_gives_its_place_back_lets_another_go();
    return EXIT_SUCCESS;
}
