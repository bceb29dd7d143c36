/* libuv: uv_poll_t, which is level-triggered and stays armed. One-shot is a uv_poll_stop in the callback, and a
 * uv_poll_start to arm it again. */
#include "bench.h"
#include <stdlib.h>
#include <unistd.h>
#include <uv.h>

struct socket {
  uv_poll_t poll;
  struct state *state;
  int fd;
};

struct state {
  uv_loop_t loop;
  int trigger;
  size_t count, read, failed, unarmed;
  struct socket **sockets, **to_arm;
};

struct state *bench_make(int trigger) {
  struct state *state = calloc(1, sizeof *state);
  state->trigger = trigger;
  if (trigger == EDGE || uv_loop_init(&state->loop)) {
    free(state);
    return NULL;
  }
  return state;
}

static void on_ready(uv_poll_t *poll, int status, int events) {
  struct socket *socket = (struct socket *)poll;
  struct state *state = socket->state;
  char bytes[2];
  if (status < 0 || read(socket->fd, bytes, 2) != 1) state->failed++;
  state->read++;
  if (state->trigger == ONE_SHOT) {
    uv_poll_stop(poll);
    state->to_arm[state->unarmed++] = socket;
  }
}

int bench_add(struct state *state, const int *sockets, size_t count) {
  size_t all = state->count + count;
  state->sockets = realloc(state->sockets, all * sizeof *state->sockets);
  state->to_arm = realloc(state->to_arm, all * sizeof *state->to_arm);
  for (size_t i = 0; i < count; i++) {
    struct socket *socket = malloc(sizeof *socket);
    socket->state = state;
    socket->fd = sockets[i];
    int error = uv_poll_init(&state->loop, &socket->poll, sockets[i]);
    if (error) {
      free(socket);
      return error;
    }
    state->sockets[state->count++] = socket;
    error = uv_poll_start(&socket->poll, UV_READABLE, on_ready);
    if (error) return error;
  }
  return 0;
}

static void free_socket(uv_handle_t *handle) { free(handle); }

static int start_all(struct state *state) {
  while (state->unarmed) {
    struct socket *socket = state->to_arm[--state->unarmed];
    int error = uv_poll_start(&socket->poll, UV_READABLE, on_ready);
    if (error) return error;
  }
  return 0;
}

/* The loop arms when it runs. */
int bench_arm(struct state *state) {
  int error = start_all(state);
  if (!error) uv_run(&state->loop, UV_RUN_NOWAIT);
  return error;
}

int bench_wait(struct state *state, size_t count) {
  int error = start_all(state);
  state->read = 0;
  while (!error && !state->failed && state->read < count) uv_run(&state->loop, UV_RUN_ONCE);
  return error ? error : (int)state->failed;
}

void bench_free(struct state *state) {
  for (size_t i = 0; i < state->count; i++) uv_close((uv_handle_t *)&state->sockets[i]->poll, free_socket);
  uv_run(&state->loop, UV_RUN_DEFAULT);
  uv_loop_close(&state->loop);
  free(state->sockets);
  free(state->to_arm);
  free(state);
}
