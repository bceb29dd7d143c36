/* The sn_ names on Windows, with everything that a caller can get wrong: no pointer is followed that is null. */
#include <socknotify.h>

#ifdef WIN32_LEAN_AND_MEAN
#error "whoever includes the header decides"
#endif

#include <stdio.h>
#include <stdlib.h>

static void require(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "failed: %s (%lu)\n", what, GetLastError());
        exit(EXIT_FAILURE);
    }
}

static void never(void *context) {
    (void)context;
    require(0, "it is not called");
}

static void once(void *context) {
    *(int *)context += 1;
}

int main(void) {
    sn_port port = NULL;
    sn_entry entry;
    sn_overlapped block;
    sn_overlapped *overlapped = &block;
    sn_registration registration = {0};
    uint32_t count = 7;
    uint32_t transferred = 7;
    uintptr_t key = 7;
    int calls = 0;
    require(sn_version() == SN_VERSION, "sn_version");
    require(sn_create_port(0, NULL) == SN_INVALID_PARAMETER, "sn_create_port");
    require(sn_create_port(0, &port) == SN_SUCCESS && port != NULL, "sn_create_port");
    require(sn_post(port, 1, 2, &block) == SN_SUCCESS, "sn_post");

    /* Nothing is taken from the port by what is wrong. */
    require(sn_dequeue(port, &entry, 1, NULL, 0) == SN_INVALID_PARAMETER, "no count");
    require(sn_dequeue(port, NULL, 1, &count, 0) == SN_INVALID_PARAMETER && count == 0, "no entries");
    count = 7;
    require(sn_dequeue(port, &entry, 0, &count, 0) == SN_INVALID_PARAMETER && count == 0, "no room");
    require(sn_dequeue(port, NULL, 0, NULL, 0) == SN_INVALID_PARAMETER, "nothing");
    require(sn_dequeue_one(port, NULL, &key, &overlapped, 0) == SN_INVALID_PARAMETER &&
                overlapped == NULL,
            "no transferred value");
    require(sn_dequeue_one(port, &transferred, NULL, &overlapped, 0) == SN_INVALID_PARAMETER, "no key");
    require(sn_dequeue_one(port, &transferred, &key, NULL, 0) == SN_INVALID_PARAMETER,
            "no overlapped value");
    const struct {
        uint32_t registrations;
        sn_registration *registration;
        uint32_t time;
        uint32_t room;
        sn_entry *entries;
        uint32_t *received;
    } wrong[] = {
        {1, NULL, 0, 1, &entry, &count}, {0, &registration, 0, 1, &entry, &count},
        {0, NULL, 0, 1, NULL, &count},   {0, NULL, 0, 1, &entry, NULL},
        {0, NULL, 0, 0, &entry, NULL},   {0, NULL, 0, 0, NULL, &count},
        {0, NULL, 1, 0, NULL, NULL},
    };
    for (size_t index = 0; index < sizeof wrong / sizeof wrong[0]; index += 1) {
        count = 7;
        require(sn_process(port, wrong[index].registrations, wrong[index].registration,
                           wrong[index].time, wrong[index].room, wrong[index].entries,
                           wrong[index].received) == SN_INVALID_PARAMETER,
                "sn_process");
        require(wrong[index].received == NULL || count == 0, "nothing was received");
    }
    require(sn_blocking(port, NULL, NULL) == SN_INVALID_PARAMETER, "no work");
    require(sn_blocking(NULL, never, NULL) == SN_INVALID_HANDLE, "no port");
    require(sn_release(NULL) == SN_INVALID_HANDLE, "no port to give a place back to");
    require(sn_release(port) == SN_SUCCESS, "sn_release");
    require(sn_blocking(port, once, &calls) == SN_SUCCESS && calls == 1, "sn_blocking");

    require(sn_dequeue_one(port, &transferred, &key, &overlapped, 0) == SN_SUCCESS, "the packet");
    require(transferred == 1 && key == 2 && overlapped == &block, "as it was posted");
    require(sn_dequeue_one(port, &transferred, &key, &overlapped, 0) == SN_TIMEOUT &&
                overlapped == NULL && transferred == 1 && key == 2,
            "a time-out leaves the other two");
    sn_set_last_error(0);
    count = 7;
    require(sn_process(port, 0, NULL, 0, 1, &entry, &count) == SN_TIMEOUT && count == 0, "a time-out");
    require(sn_last_error() == SN_TIMEOUT, "and the last error");

    require(sn_close_port(port) == SN_SUCCESS, "sn_close_port");
    require(sn_close_port(port) == SN_INVALID_HANDLE, "twice");
    require(sn_close_port(NULL) == SN_INVALID_HANDLE, "null");
    require(sn_close_port(INVALID_HANDLE_VALUE) == SN_INVALID_HANDLE, "-1");
    require(sn_process(port, 0, NULL, 0, 1, &entry, &count) == SN_INVALID_HANDLE, "a closed port");
    puts("arguments: ok");
    return EXIT_SUCCESS;
}
