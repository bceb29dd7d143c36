/* What foreign.rs calls. Each library has its own definitions. Functions return 0 if they succeed. */
#include <stddef.h>
#include <time.h>

enum { ONE_SHOT, EDGE, LEVEL };

struct state;

/* Echo on these connections until the last has ended, and close them. */
int bench_serve(const int *sockets, size_t count, unsigned work_nanoseconds);

struct state *bench_make(int trigger);
int bench_add(struct state *, const int *sockets, size_t count);
int bench_remove(struct state *);
/* Arm again what was read. */
int bench_arm(struct state *);
/* Run until so many sockets were read; before that, arm again what was read. */
int bench_wait(struct state *, size_t count);
void bench_free(struct state *);

static inline void compute(unsigned nanoseconds) {
  struct timespec now;
  if (!nanoseconds) return;
  clock_gettime(CLOCK_MONOTONIC, &now);
  long long end = now.tv_sec * 1000000000LL + now.tv_nsec + nanoseconds;
  do clock_gettime(CLOCK_MONOTONIC, &now);
  while (now.tv_sec * 1000000000LL + now.tv_nsec < end);
}
