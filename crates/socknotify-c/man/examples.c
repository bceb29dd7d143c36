/*
 * The examples of the manual: each function's page has what is here after the comment with its name. The tests compile
 * and run it.
 */
#include <socknotify.h>
#include <socknotify_owned.h>

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* EXAMPLE sn_create_port */
sn_port make_port(void) {
    sn_port port;
    uint32_t error = sn_create_port(0, &port);
    if (error != SN_SUCCESS) {
        errx(1, "sn_create_port: %s", sn_strerror(error));
    }
    return port;
}
/* END */

/* EXAMPLE sn_create_port_on */
sn_port make_port_on(const char *backend) {
    sn_port port;
    if (sn_create_port_on(SN_UNLIMITED, backend, &port) == SN_NOT_SUPPORTED) {
        fprintf(stderr, "%s: not on this system\n", backend);
    }
    return port; /* null if there is none */
}
/* END */

/* EXAMPLE sn_close_port */
void close_port(sn_port port) {
    /* Threads that wait in it return, with SN_ABANDONED_WAIT. */
    if (sn_close_port(port) == SN_INVALID_HANDLE) {
        warnx("another thread has closed it");
    }
}
/* END */

/* EXAMPLE sn_process */
struct connection {
    int socket;
    /* ... */
};

/* The thread that dequeues a notification has the connection to itself until it enables it again. */
void enable(sn_registration *registration, struct connection *connection) {
    memset(registration, 0, sizeof *registration);
    registration->socket = (sn_socket)connection->socket;
    registration->completionKey = connection;
    registration->eventFilter = SOCK_NOTIFY_REGISTER_EVENT_IN;
    registration->operation = SOCK_NOTIFY_OP_ENABLE;
    registration->triggerFlags = SOCK_NOTIFY_TRIGGER_ONESHOT | SOCK_NOTIFY_TRIGGER_LEVEL;
}

/* Returns how many bytes have come. */
size_t receive_all(sn_port port, struct connection *first) {
    size_t total = 0;
    sn_registration again;
    enable(&again, first);
    for (;;) {
        sn_entry entry;
        uint32_t received;
        char buffer[512];
        uint32_t error = sn_process(port, 1, &again, SN_INFINITE, 1, &entry, &received);
        if (error != SN_SUCCESS || again.registrationResult != SN_SUCCESS) {
            errx(1, "sn_process: %s, %s", sn_strerror(error), sn_strerror(sn_reason(0)));
        }
        struct connection *connection = (struct connection *)entry.lpCompletionKey;
        if (entry.dwNumberOfBytesTransferred & SOCK_NOTIFY_EVENT_REMOVE) {
            close(connection->socket); /* nothing more comes of it: free what the key points to */
            return total;
        }
        ssize_t length = recv(connection->socket, buffer, sizeof buffer, 0);
        enable(&again, connection);
        if (length <= 0) {
            again.operation = SOCK_NOTIFY_OP_REMOVE;
        } else {
            total += (size_t)length;
        }
    }
}
/* END */

/* EXAMPLE sn_process_descriptors */
/* A signal ends all threads of a port. The handler writes to a pipe: it must call no function of the library. */
enum { SIGNALLED = 1 };
static int pipe_ends[2];

static void on_signal(int number) {
    int before = errno;
    char byte = (char)number;
    if (write(pipe_ends[1], &byte, 1) < 0) {
        /* The pipe is full: it is readable in any case. */
    }
    errno = before;
}

void watch_signal(sn_port port, int number) {
    struct sigaction action;
    sn_registration registration;
    memset(&action, 0, sizeof action);
    memset(&registration, 0, sizeof registration);
    if (pipe(pipe_ends) != 0 || fcntl(pipe_ends[1], F_SETFL, O_NONBLOCK) != 0) {
        err(1, "pipe");
    }
    registration.socket = (sn_socket)pipe_ends[0];
    registration.completionKey = (void *)SIGNALLED;
    registration.eventFilter = SOCK_NOTIFY_REGISTER_EVENT_IN;
    registration.operation = SOCK_NOTIFY_OP_ENABLE;
    registration.triggerFlags = SOCK_NOTIFY_TRIGGER_ONESHOT | SOCK_NOTIFY_TRIGGER_LEVEL;
    if (sn_process_descriptors(port, 1, &registration, 0, 0, NULL, NULL) != SN_SUCCESS ||
        registration.registrationResult != SN_SUCCESS) {
        errx(1, "sn_process_descriptors: %s", sn_strerror(sn_reason(0)));
    }
    action.sa_handler = on_signal;
    sigaction(number, &action, NULL);
}

/* What each thread runs. */
void serve(sn_port port) {
    sn_entry entry;
    uint32_t received;
    while (sn_dequeue(port, &entry, 1, &received, SN_INFINITE) == SN_SUCCESS) {
        if (entry.lpCompletionKey == SIGNALLED) {
            sn_close_port(port); /* the other threads return, too */
        }
    }
}
/* END */

/* EXAMPLE sn_dequeue */
/* Returns how many packets there were within a second. */
uint32_t take_packets(sn_port port) {
    sn_entry entries[64];
    uint32_t received;
    uint32_t error = sn_dequeue(port, entries, 64, &received, 1000);
    if (error != SN_SUCCESS && error != SN_TIMEOUT) {
        errx(1, "sn_dequeue: %s", sn_strerror(error));
    }
    for (uint32_t index = 0; index < received; index += 1) {
        printf("key %lu: %lu\n", (unsigned long)entries[index].lpCompletionKey,
               (unsigned long)entries[index].dwNumberOfBytesTransferred);
    }
    return received; /* 0 after a timeout */
}
/* END */

/* EXAMPLE sn_dequeue_one */
void take_packet(sn_port port) {
    uint32_t transferred;
    uintptr_t key;
    sn_overlapped *overlapped;
    uint32_t error = sn_dequeue_one(port, &transferred, &key, &overlapped, SN_INFINITE);
    if (error == SN_SUCCESS) {
        printf("key %lu: %lu\n", (unsigned long)key, (unsigned long)transferred);
    } else if (overlapped != NULL) {
        printf("an operation has failed: %s\n", sn_strerror(error));
    } else {
        errx(1, "sn_dequeue_one: %s", sn_strerror(error));
    }
}
/* END */

/* EXAMPLE sn_post */
/* Ends all threads that run this: each posts the packet again for the next one. */
void run_until_stopped(sn_port port, uintptr_t stop_key) {
    sn_entry entry;
    uint32_t received;
    do {
        if (sn_dequeue(port, &entry, 1, &received, SN_INFINITE) != SN_SUCCESS) {
            return;
        }
        /* ... */
    } while (entry.lpCompletionKey != stop_key);
    sn_post(port, 0, stop_key, NULL);
}
/* END */

/* EXAMPLE sn_read sn_write */
struct request {
    sn_overlapped overlapped; /* the first field: its address is the request's */
    char buffer[4096];
};

/* Read a page of a file, and return how many bytes it has. */
uint32_t read_page(sn_port port, int file, uint64_t offset, struct request *request) {
    uint32_t transferred;
    uintptr_t key;
    sn_overlapped *overlapped;
    memset(&request->overlapped, 0, sizeof request->overlapped);
    request->overlapped.Offset = (uint32_t)offset;
    request->overlapped.OffsetHigh = (uint32_t)(offset >> 32);
    uint32_t error = sn_read(port, file, request->buffer, sizeof request->buffer, 0, &request->overlapped);
    if (error != SN_SUCCESS) {
        errx(1, "sn_read: %s", sn_strerror(error));
    }
    /* The request stays where it is until its packet was dequeued: here by this thread, the only one. */
    error = sn_dequeue_one(port, &transferred, &key, &overlapped, SN_INFINITE);
    if (error == SN_HANDLE_EOF) {
        return 0;
    }
    if (error != SN_SUCCESS) {
        errx(1, "a read: %s", sn_strerror(error));
    }
    return transferred;
}

/* Write it elsewhere. Returns before that is done. */
void begin_copy(sn_port port, int file, uint64_t offset, uint32_t length, struct request *request) {
    request->overlapped.Offset = (uint32_t)offset;
    request->overlapped.OffsetHigh = (uint32_t)(offset >> 32);
    uint32_t error = sn_write(port, file, request->buffer, length, 0, &request->overlapped);
    if (error != SN_SUCCESS) {
        errx(1, "sn_write: %s", sn_strerror(error));
    }
}
/* END */

/* EXAMPLE sn_readv sn_writev */
struct message {
    sn_overlapped overlapped;
    struct iovec parts[2]; /* they stay, too */
};

uint32_t write_message(sn_port port, int file, struct message *message, char *head, char *body) {
    memset(&message->overlapped, 0, sizeof message->overlapped);
    message->parts[0].iov_base = head;
    message->parts[0].iov_len = strlen(head);
    message->parts[1].iov_base = body;
    message->parts[1].iov_len = strlen(body);
    return sn_writev(port, file, message->parts, 2, 0, &message->overlapped);
}

/* Read it into the same parts. */
uint32_t read_again(sn_port port, int file, struct message *message) {
    return sn_readv(port, file, message->parts, 2, 0, &message->overlapped);
}
/* END */

/* EXAMPLE sn_sync */
uint32_t begin_sync(sn_port port, int file, sn_overlapped *overlapped) {
    memset(overlapped, 0, sizeof *overlapped);
    /* What was written before, by operations that are complete, is on the disk when the packet comes. */
    return sn_sync(port, file, 1, 0, overlapped);
}
/* END */

/* EXAMPLE sn_cancel */
/* When the deadline of an operation has passed. */
void on_deadline(sn_port port, sn_overlapped *overlapped) {
    switch (sn_cancel(port, overlapped)) {
    case SN_SUCCESS:   /* its packet comes soon, perhaps with SN_OPERATION_ABORTED */
    case SN_NOT_FOUND: /* it is complete: its packet is queued, or was dequeued */
        break;
    default:
        errx(1, "the port is closed");
    }
}
/* END */

/* EXAMPLE sn_result */
void on_packet(const sn_entry *entry) {
    uint32_t transferred;
    uint32_t error = sn_result(entry->lpOverlapped, &transferred);
    if (error == SN_SUCCESS) {
        printf("%lu bytes\n", (unsigned long)transferred);
    } else {
        printf("%s\n", sn_strerror(error));
    }
}
/* END */

/* EXAMPLE sn_errno */
void say_why(const sn_overlapped *overlapped) {
    int error = sn_errno(overlapped);
    if (error != 0) {
        printf("the operation has failed: %s\n", strerror(error));
    }
}
/* END */

/* EXAMPLE sn_associate sn_dissociate sn_read_associated sn_write_associated */
/* Append a line to a log, whose packets have the key 7. */
uint32_t begin_line(sn_port port, int log, uint64_t end, const char *line, sn_overlapped *overlapped) {
    uint32_t error = sn_associate(port, log, 7);
    if (error != SN_SUCCESS) {
        return error;
    }
    memset(overlapped, 0, sizeof *overlapped);
    overlapped->Offset = (uint32_t)end;
    overlapped->OffsetHigh = (uint32_t)(end >> 32);
    return sn_write_associated(log, line, (uint32_t)strlen(line), overlapped);
}

uint32_t begin_to_read(int log, char *memory, uint32_t length, sn_overlapped *overlapped) {
    memset(overlapped, 0, sizeof *overlapped);
    return sn_read_associated(log, memory, length, overlapped);
}

/* When its packets have come. */
void close_log(int log) {
    sn_dissociate(log);
    close(log);
}
/* END */

/* EXAMPLE sn_blocking */
static void wait_for_child(void *context) {
    int *status = (int *)context;
    *status = system("true");
}

int run_child(sn_port port) {
    int status = -1;
    /* Another thread may run meanwhile. */
    sn_blocking(port, wait_for_child, &status);
    return status;
}
/* END */

/* EXAMPLE sn_release */
void leave_pool(sn_port port) {
    /* This thread dequeues no more from here on, and computes for long. */
    sn_release(port);
    /* ... */
}
/* END */

/* EXAMPLE sn_deregister */
void close_socket(sn_port port, int socket) {
    uint32_t error = sn_deregister(port, (sn_socket)socket);
    if (error != SN_SUCCESS && error != SN_NOT_FOUND) {
        errx(1, "sn_deregister: %s", sn_strerror(error));
    }
    /* No thread dequeues a notification of it any more. */
    close(socket);
}
/* END */

/* EXAMPLE sn_reason */
void say_what_failed(const sn_registration *registrations, uint32_t count) {
    for (uint32_t index = 0; index < count; index += 1) {
        if (registrations[index].registrationResult != SN_SUCCESS) {
            printf("entry %lu: %s\n", (unsigned long)index, sn_strerror(sn_reason(index)));
        }
    }
}
/* END */

/* EXAMPLE sn_query_port */
void say_state(sn_port port) {
    sn_port_state state = {sizeof state, 0, 0, 0, 0, 0, 0};
    if (sn_query_port(port, &state) == SN_SUCCESS) {
        printf("%lu packets, %lu threads wait\n", (unsigned long)state.queued, (unsigned long)state.waiting);
    }
}
/* END */

/* EXAMPLE sn_port_descriptor */
/* A loop of another library has the descriptor among its own. */
uint32_t poll_port(sn_port port, sn_entry *entry) {
    struct pollfd watched = {-1, POLLIN, 0};
    uint32_t received;
    uint32_t error = sn_port_descriptor(port, &watched.fd);
    if (error != SN_SUCCESS) {
        return error;
    }
    do {
        poll(&watched, 1, -1);
        error = sn_dequeue(port, entry, 1, &received, 0);
    } while (error == SN_TIMEOUT);
    return error;
}
/* END */

/* EXAMPLE sn_backend */
void say_backend(sn_port port) {
    const char *name = sn_backend(port);
    printf("%s\n", name != NULL ? name : "not a port");
}
/* END */

/* EXAMPLE sn_strerror */
void say_error(const char *what, uint32_t error) {
    fprintf(stderr, "%s: %s (%lu)\n", what, sn_strerror(error), (unsigned long)error);
}
/* END */

/* EXAMPLE sn_version */
int has_this_version(void) {
    /* Of the library that was found, and of the header that the program was compiled with. */
    return sn_version() / 1000 == SN_VERSION / 1000;
}
/* END */

/* EXAMPLE sn_last_error sn_set_last_error */
/* As a layer that emulates other calls of Windows does it. */
int emulated_connect(int socket, const struct sockaddr *address, socklen_t length) {
    if (connect(socket, address, length) != 0) {
        sn_set_last_error(SN_GEN_FAILURE);
        return -1;
    }
    return 0;
}

int last_error_is(uint32_t error) {
    return sn_last_error() == error; /* GetLastError() */
}
/* END */

/* EXAMPLE sn_owned_create sn_owned_close sn_owned_drain sn_owned_adopt sn_owned_arm sn_owned_end sn_owned_cancel sn_owned_send sn_owned_queued sn_owned_post sn_owned_next */
struct owned {
    int socket;
    uint64_t handle;
};

/* Echo what one client says, until it ends, is silent for a minute, or an hour has passed. */
void echo(int socket) {
    sn_owned_port port;
    sn_owned_event event;
    uint64_t hour;
    struct owned *client = malloc(sizeof *client);
    client->socket = socket;
    if (sn_owned_create(0, 65536, &port) != SN_SUCCESS ||
        sn_owned_adopt(port, socket, client, &client->handle) != SN_SUCCESS ||
        sn_owned_post(port, NULL, 3600 * 1000, &hour) != SN_SUCCESS) {
        errx(1, "no port, or no socket");
    }
    sn_owned_arm(port, client->handle, SOCK_NOTIFY_REGISTER_EVENT_IN, 60 * 1000);
    while (sn_owned_next(port, &event, SN_INFINITE) == SN_SUCCESS) {
        char bytes[512];
        ssize_t length = 0;
        size_t waiting = 0;
        if (event.kind == SN_OWNED_CLOSED) {
            free(event.user);
            sn_owned_cancel(port, hour);
            sn_owned_drain(port, 0);
            continue;
        }
        if (event.kind == SN_OWNED_MESSAGE) {
            sn_owned_drain(port, 1000);
            continue;
        }
        if (event.kind == SN_OWNED_READY) {
            client = (struct owned *)event.user;
            length = recv(client->socket, bytes, sizeof bytes, MSG_DONTWAIT);
        }
        if (length > 0 ? sn_owned_send(port, event.handle, bytes, (size_t)length) == SN_SUCCESS
                       : length < 0 && errno == EAGAIN /* a receive may find nothing */) {
            sn_owned_arm(port, event.handle, SOCK_NOTIFY_REGISTER_EVENT_IN, 60 * 1000);
        } else if (event.events == SOCK_NOTIFY_EVENT_IN &&
                   sn_owned_queued(port, event.handle, &waiting) == SN_SUCCESS && waiting > 0) {
            /* It says no more, and is sent the rest. */
            sn_owned_arm(port, event.handle, SOCK_NOTIFY_REGISTER_EVENT_OUT, 60 * 1000);
        } else {
            sn_owned_end(port, event.handle);
        }
    }
    sn_owned_close(port);
}
/* END */

static void require(int is_so, const char *what) {
    if (!is_so) {
        errx(1, "%s", what);
    }
}

int main(void) {
    sn_port port = make_port();
    sn_port closed = make_port();
    sn_port none = make_port_on("no such backend");
    sn_entry entry;
    /* The kernel writes to it, which valgrind does not see. */
    static struct request request;
    struct message message;
    sn_overlapped overlapped;
    sn_registration wrong;
    char name[] = "/tmp/socknotify-man-XXXXXX", head[] = "he", body[] = "llo\n";
    int pair[2], file = mkstemp(name);
    struct connection connection;

    require(none == NULL && file >= 0 && unlink(name) == 0, "begin");
    close_port(closed);
    close_port(closed);
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && write(pair[1], "hello", 5) == 5, "a pair");
    close(pair[1]);
    connection.socket = pair[0];
    require(receive_all(port, &connection) == 5, "receive_all");
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "a pair");
    close_socket(port, pair[0]);
    close(pair[1]);

    require(sn_post(port, 4, 5, NULL) == SN_SUCCESS && take_packets(port) == 1, "take_packets");
    require(sn_post(port, 4, 6, NULL) == SN_SUCCESS, "sn_post");
    take_packet(port);
    require(sn_post(port, 0, 8, NULL) == SN_SUCCESS, "sn_post");
    run_until_stopped(port, 8);
    require(poll_port(port, &entry) == SN_SUCCESS && entry.lpCompletionKey == 8, "poll_port");

    require(write_message(port, file, &message, head, body) == SN_SUCCESS, "write_message");
    require(poll_port(port, &entry) == SN_SUCCESS && entry.lpOverlapped == &message.overlapped, "its packet");
    on_packet(&entry);
    require(read_again(port, file, &message) == SN_SUCCESS, "read_again");
    require(poll_port(port, &entry) == SN_SUCCESS && strcmp(body, "llo\n") == 0, "its packet");
    require(begin_line(port, file, 6, "line\n", &overlapped) == SN_SUCCESS, "begin_line");
    require(poll_port(port, &entry) == SN_SUCCESS && entry.lpCompletionKey == 7, "its packet");
    require(begin_to_read(file, request.buffer, 3, &overlapped) == SN_SUCCESS, "begin_to_read");
    require(poll_port(port, &entry) == SN_SUCCESS && memcmp(request.buffer, "hel", 3) == 0, "its packet");
    require(begin_sync(port, file, &overlapped) == SN_SUCCESS, "begin_sync");
    require(poll_port(port, &entry) == SN_SUCCESS && entry.lpOverlapped == &overlapped, "its packet");
    on_deadline(port, &overlapped);
    say_why(&overlapped);
    require(read_page(port, file, 2, &request) == 9 && memcmp(request.buffer, "llo\nline\n", 9) == 0, "read_page");
    require(read_page(port, file, 11, &request) == 0, "read_page at the end");
    require(read_page(port, file, 6, &request) == 5, "read_page");
    begin_copy(port, file, 100, 5, &request);
    require(poll_port(port, &entry) == SN_SUCCESS && entry.dwNumberOfBytesTransferred == 5, "its packet");
    close_log(file);

    require(run_child(port) == 0, "run_child");
    leave_pool(port);
    memset(&wrong, 0, sizeof wrong);
    wrong.operation = SOCK_NOTIFY_OP_ENABLE;
    require(sn_process(port, 1, &wrong, 0, 0, NULL, NULL) == SN_SUCCESS, "sn_process");
    say_what_failed(&wrong, 1);
    say_state(port);
    say_backend(port);
    say_error("an example", SN_TIMEOUT);
    require(has_this_version(), "the version");
    require(emulated_connect(-1, NULL, 0) == -1 && last_error_is(SN_GEN_FAILURE), "the last error");

    require(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && write(pair[1], "hello", 5) == 5, "a pair");
    require(shutdown(pair[1], SHUT_WR) == 0, "shutdown");
    echo(pair[0]);
    require(read(pair[1], name, 5) == 5 && memcmp(name, "hello", 5) == 0, "its echo");
    close(pair[1]);

    watch_signal(port, SIGTERM);
    raise(SIGTERM);
    serve(port);
    require(sn_close_port(port) == SN_INVALID_HANDLE, "serve has closed it");
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    return 0;
}
