/* libuv: streams for the server; for readiness, uv_poll_t, which is level-triggered and stays armed. One-shot is a
 * uv_poll_stop in the callback, and a uv_poll_start to arm it again. */
#include "bench.h"
#include <stdlib.h>
#include <unistd.h>
#include <uv.h>

struct connection {
  uv_tcp_t stream;
  unsigned work;
  char buffer[4096];
};

static void give_buffer(uv_handle_t *handle, size_t size, uv_buf_t *buffer) {
  struct connection *connection = (struct connection *)handle;
  *buffer = uv_buf_init(connection->buffer, sizeof connection->buffer);
}

static void free_connection(uv_handle_t *handle) { free(handle); }

static void on_read(uv_stream_t *stream, ssize_t length, const uv_buf_t *buffer) {
  struct connection *connection = (struct connection *)stream;
  if (length == 0) return;
  if (length > 0) {
    uv_buf_t answer = uv_buf_init(buffer->base, length);
    compute(connection->work);
    /* The client reads answers as they come, so that there is always room. */
    if (uv_try_write(stream, &answer, 1) == length) return;
  }
  uv_close((uv_handle_t *)stream, free_connection);
}

int bench_serve(const int *sockets, size_t count, unsigned work) {
  uv_loop_t loop;
  int error = uv_loop_init(&loop);
  for (size_t i = 0; i < count && !error; i++) {
    struct connection *connection = malloc(sizeof *connection);
    connection->work = work;
    uv_tcp_init(&loop, &connection->stream);
    error = uv_tcp_open(&connection->stream, sockets[i]);
    if (!error) error = uv_read_start((uv_stream_t *)&connection->stream, give_buffer, on_read);
  }
  if (!error) uv_run(&loop, UV_RUN_DEFAULT);
  int closed = uv_loop_close(&loop);
  return error ? error : closed;
}

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

int bench_remove(struct state *state) {
  for (size_t i = 0; i < state->count; i++) uv_close((uv_handle_t *)&state->sockets[i]->poll, free_socket);
  state->count = state->unarmed = 0;
  uv_run(&state->loop, UV_RUN_DEFAULT);
  return 0;
}

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
  bench_remove(state);
  uv_loop_close(&state->loop);
  free(state->sockets);
  free(state->to_arm);
  free(state);
}
