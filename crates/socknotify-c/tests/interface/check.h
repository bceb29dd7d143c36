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

/* Return once a thread sleeps, or has ended. One that has nothing to sleep for but a packet, then waits for it. It may have had
 * that already: a thread that holds the only place for long, and looks at this one meanwhile, is counted out. */
static inline void await_sleep(long thread) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%ld/stat", thread);
    FILE *file;
    for (char state = 0; state != 'S' && (file = fopen(path, "r")) != NULL; fclose(file)) {
        if (fscanf(file, "%*d %*s %c", &state) != 1) {
            state = 'S';
        }
    }
}

#endif /* CHECK_H */
