/* No memory for what a call needs beside the caller's. */
#define _GNU_SOURCE
#include <socknotify.h>

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"

enum { MANY = 1 << 16 };

static size_t address_space(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK_EQ(file != NULL && fscanf(file, "%lu", &pages) == 1, 1);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void limit(size_t bytes) {
    struct rlimit limit = {.rlim_cur = bytes, .rlim_max = RLIM_INFINITY};
    CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

int main(void) {
    static sn_registration registrations[MANY];
    static sn_entry entries[MANY];
    uint32_t count = 1;
    sn_port port;
    for (int index = 0; index < MANY; index += 1) {
        registrations[index].socket = (sn_socket)-1;
    }
    CHECK_EQ(sn_create_port(1, &port), SN_SUCCESS);
    /* Memory that calls keep is there from now on. */
    CHECK_EQ(sn_post(port, 5, 6, NULL), SN_SUCCESS);
    CHECK_EQ(sn_dequeue(port, entries, 1, &count, SN_INFINITE), SN_SUCCESS);
    CHECK_EQ(sn_post(port, 7, 8, NULL), SN_SUCCESS);

    limit(address_space() + 64 * 1024);
    CHECK_EQ(sn_dequeue(port, entries, MANY, &count, SN_INFINITE), SN_NOT_ENOUGH_MEMORY);
    CHECK_EQ(count, 0);
    CHECK_EQ(sn_process(port, MANY, registrations, 0, 0, NULL, NULL), SN_NOT_ENOUGH_MEMORY);
    CHECK_EQ(sn_process(port, MANY, registrations, 0, 1, entries, &count), SN_NOT_ENOUGH_MEMORY);
    CHECK_EQ(count, 0);
    /* Nothing was done, and smaller calls work. */
    CHECK_EQ(sn_dequeue(port, entries, 1, &count, SN_INFINITE), SN_SUCCESS);
    CHECK_EQ(count == 1 && entries[0].lpCompletionKey == 8, 1);
    CHECK_EQ(sn_reason(0), SN_REASON_NONE);

    limit(RLIM_INFINITY);
    CHECK_EQ(sn_process(port, MANY, registrations, 0, 0, NULL, NULL), SN_SUCCESS);
    CHECK_EQ(sn_close_port(port), SN_SUCCESS);
    return EXIT_SUCCESS;
}
