/* libevent: events, without its buffers. */
#include "bench.h"
#include <event2/event.h>
#include <stdlib.h>
#include <unistd.h>

struct state {
  struct event_base *base;
  int trigger;
  size_t count, read, failed, unarmed;
  struct event **events, **to_arm;
};

struct state *bench_make(int trigger) {
  struct state *state = calloc(1, sizeof *state);
  state->trigger = trigger;
  state->base = event_base_new();
  return state;
}

static void on_ready(evutil_socket_t fd, short what, void *argument) {
  struct state *state = argument;
  char bytes[2];
  if (read(fd, bytes, 2) != 1) state->failed++;
  state->read++;
  if (state->trigger == ONE_SHOT)
    state->to_arm[state->unarmed++] = event_base_get_running_event(state->base);
}

int bench_add(struct state *state, const int *sockets, size_t count) {
  size_t all = state->count + count;
  short kinds[] = {EV_READ, EV_READ | EV_PERSIST | EV_ET, EV_READ | EV_PERSIST};
  state->events = realloc(state->events, all * sizeof *state->events);
  state->to_arm = realloc(state->to_arm, all * sizeof *state->to_arm);
  for (size_t i = 0; i < count; i++) {
    struct event *event = event_new(state->base, sockets[i], kinds[state->trigger], on_ready, state);
    if (!event) return 1;
    state->events[state->count++] = event;
    if (event_add(event, NULL)) return 1;
  }
  return 0;
}

static int add_all(struct state *state) {
  while (state->unarmed)
    if (event_add(state->to_arm[--state->unarmed], NULL)) return 1;
  return 0;
}

/* The loop arms when it runs. */
int bench_arm(struct state *state) {
  if (add_all(state)) return 1;
  return event_base_loop(state->base, EVLOOP_NONBLOCK) < 0;
}

int bench_wait(struct state *state, size_t count) {
  if (add_all(state)) return 1;
  state->read = 0;
  while (!state->failed && state->read < count)
    if (event_base_loop(state->base, EVLOOP_ONCE)) return 1;
  return (int)state->failed;
}

void bench_free(struct state *state) {
  for (size_t i = 0; i < state->count; i++) event_free(state->events[i]);
  event_base_free(state->base);
  free(state->events);
  free(state->to_arm);
  free(state);
}
