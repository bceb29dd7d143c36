/* Threads that end, by themselves or because they are cancelled. */
#define _GNU_SOURCE
#include <socknotify.h>

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

static pthread_key_t key;
static sn_port port;

static void dequeue(void *expected) {
    uint32_t transferred;
    uintptr_t completion_key;
    sn_overlapped *overlapped;
    CHECK_EQ(sn_dequeue_one(port, &transferred, &completion_key, &overlapped, SN_INFINITE), SN_SUCCESS);
    CHECK_EQ(completion_key, (uintptr_t)expected);
}

static void *set_key(void *value) {
    CHECK_EQ(pthread_setspecific(key, value), 0);
    return NULL;
}

static void *dequeue_and_set_key(void *value) {
    dequeue((void *)2);
    return set_key(value);
}

static void run(void *(*start)(void *), void *context) {
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, start, context), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* Whoever dequeues in a destructor, and has or has not dequeued before, keeps no place. */
static void a_place_that_a_destructor_takes_is_given_back(void) {
    for (int round = 0; round < 3; round += 1) {
        sn_port_state state = {.size = sizeof state};
        CHECK_EQ(sn_post(port, 0, 1, NULL), SN_SUCCESS);
        run(set_key, (void *)1);
        CHECK_EQ(sn_query_port(port, &state), SN_SUCCESS);
        CHECK_EQ(state.running, 0);
        CHECK_EQ(sn_post(port, 0, 2, NULL), SN_SUCCESS);
        CHECK_EQ(sn_post(port, 0, 1, NULL), SN_SUCCESS);
        run(dequeue_and_set_key, (void *)1);
        CHECK_EQ(sn_query_port(port, &state), SN_SUCCESS);
        CHECK_EQ(state.running, 0);
    }
}

static void keys_from_before_and_after_the_first_port(void) {
    CHECK_EQ(pthread_key_create(&key, dequeue), 0);
    CHECK_EQ(sn_create_port(1, &port), SN_SUCCESS);
    a_place_that_a_destructor_takes_is_given_back();
    CHECK_EQ(pthread_key_delete(key), 0);
    /* Its destructor may run after the library's, or the other way round. */
    for (int index = 0; index < 3; index += 1) {
        CHECK_EQ(pthread_key_create(&key, dequeue), 0);
        a_place_that_a_destructor_takes_is_given_back();
    }
    CHECK_EQ(sn_close_port(port), SN_SUCCESS);
}

struct waiter {
    pthread_t thread;
    atomic_long id;
    atomic_int outcome;
};

static void work(void *context) {
    struct waiter *waiter = context;
    dequeue((void *)3);
    pthread_testcancel();
    atomic_fetch_add(&waiter->outcome, 1);
}

static void *wait_in_port(void *context) {
    struct waiter *waiter = context;
    atomic_store(&waiter->id, syscall(SYS_gettid));
    dequeue((void *)3);
    CHECK_EQ(sn_post(port, 0, 4, NULL), SN_SUCCESS);
    atomic_store(&waiter->outcome, 1);
    pthread_testcancel();
    atomic_store(&waiter->outcome, -1);
    return NULL;
}

static void *wait_in_blocking(void *context) {
    struct waiter *waiter = context;
    atomic_store(&waiter->id, syscall(SYS_gettid));
    CHECK_EQ(sn_blocking(port, work, waiter), SN_SUCCESS);
    CHECK_EQ(sn_post(port, 0, 4, NULL), SN_SUCCESS);
    pthread_testcancel();
    atomic_store(&waiter->outcome, -1);
    return NULL;
}

/* No call is a cancellation point: it ends first, and then the thread does. */
static void a_thread_that_waits_is_cancelled_after_the_call(void *(*start)(void *), uint32_t concurrency) {
    struct waiter waiter = {.outcome = 0};
    void *result;
    CHECK_EQ(sn_create_port(concurrency, &port), SN_SUCCESS);
    CHECK_EQ(pthread_create(&waiter.thread, NULL, start, &waiter), 0);
    long id;
    while ((id = atomic_load(&waiter.id)) == 0) {
    }
    await_sleep(id);
    CHECK_EQ(pthread_cancel(waiter.thread), 0);
    CHECK_EQ(sn_post(port, 0, 3, NULL), SN_SUCCESS);
    CHECK_EQ(pthread_join(waiter.thread, &result), 0);
    CHECK_EQ(result == PTHREAD_CANCELED, 1);
    CHECK_EQ(atomic_load(&waiter.outcome), 1);
    /* Its place is another's. */
    dequeue((void *)4);
    CHECK_EQ(sn_close_port(port), SN_SUCCESS);
}

#ifdef __linux__
static atomic_int goes;

/* No destructor runs. */
static void *dequeue_and_vanish(void *value) {
    dequeue(value);
    while (!atomic_load(&goes)) {
        usleep(100);
    }
    syscall(SYS_exit, 0);
    return NULL;
}

static unsigned count(const char *directory) {
    unsigned count = 0;
    DIR *entries = opendir(directory);
    while (readdir(entries) != NULL) {
        count += 1;
    }
    closedir(entries);
    return count;
}

/* Whoever dequeues first finds them gone: no list of theirs grows, and no descriptor by which they were looked at stays open. */
static void threads_that_end_without_destructors_are_forgotten(uint32_t concurrency) {
    enum { ROUNDS = 40 };
    sn_port_state state = {.size = sizeof state};
    unsigned before;
    CHECK_EQ(sn_create_port(concurrency, &port), SN_SUCCESS);
    before = count("/proc/self/fd");
    for (int round = 0; round < ROUNDS; round += 1) {
        pthread_t thread;
        atomic_store(&goes, 0);
        CHECK_EQ(sn_post(port, 0, 5, NULL), SN_SUCCESS);
        CHECK_EQ(pthread_create(&thread, NULL, dequeue_and_vanish, (void *)5), 0);
        do {
            CHECK_EQ(sn_query_port(port, &state), SN_SUCCESS);
        } while (state.queued > 0);
        /* It blocks: this one has to look at it, if there is one permit, to have one. */
        CHECK_EQ(sn_post(port, 0, 6, NULL), SN_SUCCESS);
        dequeue((void *)6);
        CHECK_EQ(sn_release(port), SN_SUCCESS);
        atomic_store(&goes, 1);
        CHECK_EQ(pthread_join(thread, NULL), 0);
    }
    CHECK_EQ(sn_query_port(port, &state), SN_SUCCESS);
    CHECK_EQ(state.running <= 2, 1);
    CHECK_EQ(count("/proc/self/fd") <= before + 5, 1);
    CHECK_EQ(sn_close_port(port), SN_SUCCESS);
}
#endif

int main(void) {
    keys_from_before_and_after_the_first_port();
    for (int round = 0; round < 20; round += 1) {
        a_thread_that_waits_is_cancelled_after_the_call(wait_in_port, 1);
        a_thread_that_waits_is_cancelled_after_the_call(wait_in_blocking, SN_UNLIMITED);
    }
#ifdef __linux__
    threads_that_end_without_destructors_are_forgotten(1);
    threads_that_end_without_destructors_are_forgotten(SN_UNLIMITED);
#endif
    return EXIT_SUCCESS;
}
