/* What foreign.rs calls. Each library has its own definitions. Functions return 0 if they succeed. */
#include <stddef.h>

enum { ONE_SHOT, EDGE, LEVEL };

struct state;

struct state *bench_make(int trigger);
int bench_add(struct state *, const int *sockets, size_t count);
/* Arm again what was read. */
int bench_arm(struct state *);
/* Run until so many sockets were read; before that, arm again what was read. */
int bench_wait(struct state *, size_t count);
void bench_free(struct state *);
