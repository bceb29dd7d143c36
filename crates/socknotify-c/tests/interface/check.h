/* What the test programs check with, and how they know that a thread waits. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK_EQ(actual, expected) check_eq((unsigned long)(actual), (unsigned long)(expected), #actual, __LINE__)

static inline void check_eq(unsigned long actual, unsigned long expected, const char *what, int line) {
    if (actual != expected) {
        fprintf(stderr, "line %d: %s is %lu, not %lu\n", line, what, actual, expected);
        exit(EXIT_FAILURE);
    }
}

/* Return once a thread sleeps. One that has nothing to sleep for but a packet, then waits for it. */
static inline void await_sleep(long thread) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%ld/stat", thread);
    for (char state = 0; state != 'S';) {
        FILE *file = fopen(path, "r");
        if (file == NULL || fscanf(file, "%*d %*s %c", &state) != 1) {
            fprintf(stderr, "cannot read %s\n", path);
            exit(EXIT_FAILURE);
        }
        fclose(file);
    }
}

#endif /* CHECK_H */
