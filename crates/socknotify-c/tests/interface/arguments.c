/* Every function, with everything that a caller can get wrong. */
#define SOCKNOTIFY_WIN32_NAMES
#include <socknotify.h>

#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define NONE ((void *)0)

static HANDLE make_port(void) {
    HANDLE port = CreateIoCompletionPort(INVALID_HANDLE_VALUE, NULL, 0, 0);
    CHECK_EQ(port != NULL && port != INVALID_HANDLE_VALUE, TRUE);
    return port;
}

static SOCK_NOTIFY_REGISTRATION enable(int socket, uintptr_t key) {
    SOCK_NOTIFY_REGISTRATION registration;
    memset(&registration, 0, sizeof registration);
    registration.socket = (SOCKET)socket;
    registration.completionKey = (PVOID)key;
    registration.eventFilter = SOCK_NOTIFY_REGISTER_EVENT_IN;
    registration.operation = SOCK_NOTIFY_OP_ENABLE;
    registration.triggerFlags = SOCK_NOTIFY_TRIGGER_LEVEL;
    registration.registrationResult = 12345;
    return registration;
}

/* The last error, after a function has said FALSE. */
static DWORD error_of(BOOL outcome) {
    CHECK_EQ(outcome, FALSE);
    DWORD error = GetLastError();
    sn_set_last_error(ERROR_SUCCESS);
    return error;
}

static void make_ports_and_associate_files_only(void) {
    HANDLE port = make_port();
    int file = 0;
    const struct {
        HANDLE file;
        HANDLE existing;
        DWORD expected;
    } cases[] = {
        {NULL, NULL, ERROR_INVALID_HANDLE},
        {&file, NULL, ERROR_INVALID_HANDLE},
        {port, NULL, ERROR_INVALID_HANDLE},
        {&file, port, ERROR_INVALID_HANDLE},
        {INVALID_HANDLE_VALUE, port, ERROR_INVALID_PARAMETER},
        {INVALID_HANDLE_VALUE, INVALID_HANDLE_VALUE, ERROR_INVALID_PARAMETER},
    };
    for (size_t index = 0; index < sizeof cases / sizeof cases[0]; index += 1) {
        HANDLE made = CreateIoCompletionPort(cases[index].file, cases[index].existing, 1, 1);
        CHECK_EQ(error_of(made != NULL), cases[index].expected);
    }
    CHECK_EQ(sn_create_port(0, NULL), SN_INVALID_PARAMETER);
    CHECK_EQ(CloseHandle(port), TRUE);
}

static void expect_no_handle(HANDLE port) {
    OVERLAPPED_ENTRY entry;
    UINT32 count = 7;
    ULONG removed = 7;
    DWORD transferred = 7;
    ULONG_PTR key = 7;
    OVERLAPPED *overlapped = (OVERLAPPED *)&entry;
    SOCK_NOTIFY_REGISTRATION registration = enable(0, 0);

    CHECK_EQ(ProcessSocketNotifications(port, 1, &registration, 0, 1, &entry, &count),
             ERROR_INVALID_HANDLE);
    CHECK_EQ(count, 0);
    CHECK_EQ(registration.registrationResult, 12345);
    CHECK_EQ(ProcessSocketNotifications(port, 1, &registration, 0, 0, NULL, NULL),
             ERROR_INVALID_HANDLE);
    CHECK_EQ(error_of(GetQueuedCompletionStatusEx(port, &entry, 1, &removed, INFINITE, FALSE)),
             ERROR_INVALID_HANDLE);
    CHECK_EQ(removed, 0);
    CHECK_EQ(error_of(GetQueuedCompletionStatus(port, &transferred, &key, &overlapped, INFINITE)),
             ERROR_INVALID_HANDLE);
    CHECK_EQ(overlapped == NULL && transferred == 7 && key == 7, TRUE);
    CHECK_EQ(error_of(PostQueuedCompletionStatus(port, 0, 0, NULL)), ERROR_INVALID_HANDLE);
    CHECK_EQ(error_of(CloseHandle(port)), ERROR_INVALID_HANDLE);
    CHECK_EQ(sn_blocking(port, (void (*)(void *))abort, NULL), SN_INVALID_HANDLE);
}

static void find_out_what_is_no_handle(void) {
    HANDLE port = make_port();
    HANDLE closed = make_port();
    CHECK_EQ(CloseHandle(closed), TRUE);
    int local = 0;
    const uintptr_t numbers[] = {0, 1, 2, 3, 4, UINTPTR_MAX, UINTPTR_MAX - 1, UINTPTR_MAX >> 1,
                                 (uintptr_t)port ^ 1, (uintptr_t)port + 2, (uintptr_t)port << 8,
                                 (uintptr_t)closed, (uintptr_t)&local, (uintptr_t)&make_port};
    for (size_t index = 0; index < sizeof numbers / sizeof numbers[0]; index += 1) {
        expect_no_handle((HANDLE)numbers[index]);
    }
    /* The place of a closed port is given to the next one; the old handle does not lead there. */
    HANDLE next = make_port();
    expect_no_handle(closed);
    CHECK_EQ(CloseHandle(next), TRUE);
    CHECK_EQ(CloseHandle(port), TRUE);
    expect_no_handle(port);
}

static void refuse_what_contradicts_itself(void) {
    HANDLE port = make_port();
    int pair[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    SOCK_NOTIFY_REGISTRATION registration = enable(pair[0], 1);
    OVERLAPPED_ENTRY entry;
    UINT32 count;
    const struct {
        UINT32 registrations;
        SOCK_NOTIFY_REGISTRATION *registration;
        UINT32 timeout;
        ULONG room;
        OVERLAPPED_ENTRY *entries;
        UINT32 *count;
    } cases[] = {
        {1, NONE, 0, 1, &entry, &count},
        {UINT32_MAX, NONE, 0, 1, &entry, &count},
        {0, &registration, 0, 1, &entry, &count},
        {1, &registration, 0, 1, NONE, &count},
        {1, &registration, 0, 1, &entry, NONE},
        {1, &registration, 0, UINT32_MAX, NONE, NONE},
        {1, &registration, 0, 0, &entry, &count},
        {1, &registration, 0, 0, &entry, NONE},
        {1, &registration, 0, 0, NONE, &count},
        {1, &registration, 1, 0, NONE, NONE},
        {1, &registration, INFINITE, 0, NONE, NONE},
        /* Arrays that would wrap around the end of memory. */
        {2, (SOCK_NOTIFY_REGISTRATION *)(UINTPTR_MAX - 31), 0, 1, &entry, &count},
        {1, &registration, 0, 3, (OVERLAPPED_ENTRY *)(UINTPTR_MAX - 63), &count},
    };
    for (size_t index = 0; index < sizeof cases / sizeof cases[0]; index += 1) {
        count = 7;
        CHECK_EQ(ProcessSocketNotifications(port, cases[index].registrations,
                                            cases[index].registration, cases[index].timeout,
                                            cases[index].room, cases[index].entries,
                                            cases[index].count),
                 ERROR_INVALID_PARAMETER);
        CHECK_EQ(count, cases[index].count == NULL ? 7 : 0);
        CHECK_EQ(registration.registrationResult, 12345);
    }
    /* Nothing of all that was applied. */
    registration.operation = SOCK_NOTIFY_OP_REMOVE;
    CHECK_EQ(ProcessSocketNotifications(port, 1, &registration, 0, 0, NULL, NULL), ERROR_SUCCESS);
    CHECK_EQ(registration.registrationResult, ERROR_NOT_FOUND);

    ULONG removed;
    CHECK_EQ(error_of(GetQueuedCompletionStatusEx(port, NULL, 1, &removed, INFINITE, FALSE)),
             ERROR_INVALID_PARAMETER);
    CHECK_EQ(error_of(GetQueuedCompletionStatusEx(port, &entry, 0, &removed, 0, FALSE)),
             ERROR_INVALID_PARAMETER);
    CHECK_EQ(error_of(GetQueuedCompletionStatusEx(port, NULL, 0, NULL, 0, FALSE)),
             ERROR_INVALID_PARAMETER);
    CHECK_EQ(error_of(GetQueuedCompletionStatusEx(port, &entry, 1, NULL, INFINITE, TRUE)),
             ERROR_INVALID_PARAMETER);

    DWORD transferred;
    ULONG_PTR key;
    OVERLAPPED *overlapped;
    CHECK_EQ(error_of(GetQueuedCompletionStatus(port, NULL, &key, &overlapped, INFINITE)),
             ERROR_INVALID_PARAMETER);
    CHECK_EQ(error_of(GetQueuedCompletionStatus(port, &transferred, NULL, &overlapped, INFINITE)),
             ERROR_INVALID_PARAMETER);
    CHECK_EQ(error_of(GetQueuedCompletionStatus(port, &transferred, &key, NULL, INFINITE)),
             ERROR_INVALID_PARAMETER);
    CHECK_EQ(sn_blocking(port, NULL, NULL), SN_INVALID_PARAMETER);
    CHECK_EQ(SocketNotificationRetrieveEvents(NULL), 0);
    CHECK_EQ(CloseHandle(port), TRUE);
    close(pair[0]);
    close(pair[1]);
}

static void give_each_entry_its_own_result(void) {
    HANDLE port = make_port();
    HANDLE other = make_port();
    int pair[2];
    int pipes[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    CHECK_EQ(pipe(pipes), 0);
    int closed = dup(pair[0]);
    close(closed);

    SOCK_NOTIFY_REGISTRATION batch[14];
    const size_t length = sizeof batch / sizeof batch[0];
    for (size_t index = 0; index < length; index += 1) {
        batch[index] = enable(pair[0], 1);
    }
    batch[0].socket = INVALID_SOCKET;
    batch[1].socket = (SOCKET)INT32_MAX + 1;
    batch[2].socket = (SOCKET)(uintptr_t)&batch;
    batch[3].socket = (SOCKET)closed;
    batch[4].socket = (SOCKET)pipes[0];
    batch[5].operation = SOCK_NOTIFY_OP_ENABLE | SOCK_NOTIFY_OP_REMOVE;
    batch[6].operation = 0x80;
    batch[7].eventFilter = 0x2000;
    batch[8].triggerFlags = 0;
    batch[9].triggerFlags = 0xFF;
    batch[10].operation = SOCK_NOTIFY_OP_REMOVE;
    batch[11].operation = SOCK_NOTIFY_OP_NONE;
    batch[12].eventFilter = SOCK_NOTIFY_REGISTER_EVENT_NONE;
    batch[13].completionKey = (PVOID)2;
    const DWORD expected[] = {
        WSAENOTSOCK,
        WSAENOTSOCK,
        WSAENOTSOCK,
        WSAENOTSOCK,
        WSAENOTSOCK,
        ERROR_INVALID_PARAMETER,
        ERROR_INVALID_PARAMETER,
        ERROR_INVALID_PARAMETER,
        ERROR_INVALID_PARAMETER,
        ERROR_INVALID_PARAMETER,
        ERROR_NOT_FOUND,
        ERROR_SUCCESS,
        ERROR_SUCCESS,
        ERROR_INVALID_PARAMETER,
    };
    OVERLAPPED_ENTRY entry;
    UINT32 count = 7;
    CHECK_EQ(ProcessSocketNotifications(port, (UINT32)length, batch, 0, 1, &entry, &count), WAIT_TIMEOUT);
    CHECK_EQ(count, 0);
    for (size_t index = 0; index < length; index += 1) {
        CHECK_EQ(batch[index].registrationResult, expected[index]);
    }

    SOCK_NOTIFY_REGISTRATION second = enable(pair[0], 1);
    CHECK_EQ(ProcessSocketNotifications(other, 1, &second, 0, 0, NULL, NULL), ERROR_SUCCESS);
    CHECK_EQ(second.registrationResult, ERROR_INVALID_PARAMETER);

    CHECK_EQ(CloseHandle(other), TRUE);
    CHECK_EQ(CloseHandle(port), TRUE);
    close(pair[0]);
    close(pair[1]);
    close(pipes[0]);
    close(pipes[1]);
}

static void say_that_time_is_over(void) {
    HANDLE port = make_port();
    OVERLAPPED_ENTRY entry;
    UINT32 count = 7;
    ULONG removed = 7;
    DWORD transferred = 7;
    ULONG_PTR key = 7;
    OVERLAPPED *overlapped = (OVERLAPPED *)&entry;
    CHECK_EQ(ProcessSocketNotifications(port, 0, NULL, 1, 1, &entry, &count), WAIT_TIMEOUT);
    CHECK_EQ(count, 0);
    CHECK_EQ(error_of(GetQueuedCompletionStatusEx(port, &entry, 1, &removed, 1, FALSE)), WAIT_TIMEOUT);
    CHECK_EQ(removed, 0);
    CHECK_EQ(error_of(GetQueuedCompletionStatus(port, &transferred, &key, &overlapped, 1)), WAIT_TIMEOUT);
    CHECK_EQ(overlapped == NULL && transferred == 7 && key == 7, TRUE);
    CHECK_EQ(CloseHandle(port), TRUE);
}

static void carry_posted_packets_unchanged(void) {
    HANDLE port = make_port();
    OVERLAPPED block;
    CHECK_EQ(PostQueuedCompletionStatus(port, 0xDEADBEEF, (ULONG_PTR)-1, &block), TRUE);
    CHECK_EQ(PostQueuedCompletionStatus(port, 1, 2, (OVERLAPPED *)3), TRUE);
    CHECK_EQ(PostQueuedCompletionStatus(port, 4, 5, NULL), TRUE);

    DWORD transferred;
    ULONG_PTR key;
    OVERLAPPED *overlapped;
    CHECK_EQ(GetQueuedCompletionStatus(port, &transferred, &key, &overlapped, INFINITE), TRUE);
    CHECK_EQ(transferred == 0xDEADBEEF && key == (ULONG_PTR)-1 && overlapped == &block, TRUE);

    /* More room than there are packets. What lies behind them is left alone. */
    OVERLAPPED_ENTRY entries[4];
    memset(entries, 0xA5, sizeof entries);
    ULONG removed;
    CHECK_EQ(GetQueuedCompletionStatusEx(port, entries, UINT32_MAX, &removed, INFINITE, TRUE), TRUE);
    CHECK_EQ(removed, 2);
    CHECK_EQ(entries[0].dwNumberOfBytesTransferred, 1);
    CHECK_EQ(entries[0].lpCompletionKey, 2);
    CHECK_EQ((uintptr_t)entries[0].lpOverlapped, 3);
    CHECK_EQ(entries[0].Internal, 0);
    CHECK_EQ(entries[1].dwNumberOfBytesTransferred, 4);
    CHECK_EQ(entries[1].lpCompletionKey, 5);
    CHECK_EQ(entries[1].lpOverlapped == NULL, TRUE);
    unsigned char untouched[2 * sizeof entries[0]];
    memset(untouched, 0xA5, sizeof untouched);
    CHECK_EQ(memcmp(&entries[2], untouched, sizeof untouched), 0);
    CHECK_EQ(CloseHandle(port), TRUE);
}

/* Everything at odd addresses, and then everything at the same address. */
static void take_arrays_wherever_they_lie(void) {
    HANDLE port = make_port();
    int pair[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    CHECK_EQ(send(pair[1], "x", 1, 0), 1);
    SOCK_NOTIFY_REGISTRATION wanted = enable(pair[0], 77);
    wanted.triggerFlags |= SOCK_NOTIFY_TRIGGER_ONESHOT;
    unsigned char memory[256];
    OVERLAPPED_ENTRY entry;
    UINT32 count;

    unsigned char *registrations = memory + 1;
    unsigned char *entries = memory + 101;
    unsigned char *received = memory + 203;
    memcpy(registrations, &wanted, sizeof wanted);
    CHECK_EQ(sn_process(port, 1, (void *)registrations, INFINITE, 1, (void *)entries, (void *)received),
             SN_SUCCESS);
    memcpy(&count, received, sizeof count);
    memcpy(&entry, entries, sizeof entry);
    CHECK_EQ(count, 1);
    CHECK_EQ(entry.lpCompletionKey, 77);
    memcpy(&wanted, registrations, sizeof wanted);
    CHECK_EQ(wanted.registrationResult, ERROR_SUCCESS);

    /* The entry is written after the result, and the count after the entry. */
    unsigned char *all = memory + 3;
    memcpy(all, &wanted, sizeof wanted);
    CHECK_EQ(sn_process(port, 1, (void *)all, INFINITE, 1, (void *)all, (void *)all), SN_SUCCESS);
    memcpy(&entry, all, sizeof entry);
    memcpy(&count, all, sizeof count);
    CHECK_EQ(count, 1);
    CHECK_EQ(entry.dwNumberOfBytesTransferred, SOCK_NOTIFY_EVENT_IN);

    CHECK_EQ(PostQueuedCompletionStatus(port, 1, 2, (OVERLAPPED *)3), TRUE);
    CHECK_EQ(sn_dequeue_one(port, (void *)(memory + 1), (void *)(memory + 21), (void *)(memory + 41), 0),
             SN_SUCCESS);
    uintptr_t key;
    memcpy(&key, memory + 21, sizeof key);
    CHECK_EQ(key, 2);
    CHECK_EQ(CloseHandle(port), TRUE);
    close(pair[0]);
    close(pair[1]);
}

static void leave_the_parent_alone_in_a_forked_child(void) {
    HANDLE port = make_port();
    pid_t child = fork();
    CHECK_EQ(child >= 0, TRUE);
    if (child == 0) {
        OVERLAPPED_ENTRY entry;
        ULONG removed;
        CHECK_EQ(error_of(PostQueuedCompletionStatus(port, 0, 1, NULL)), ERROR_INVALID_HANDLE);
        CHECK_EQ(error_of(GetQueuedCompletionStatusEx(port, &entry, 1, &removed, INFINITE, FALSE)),
                 ERROR_INVALID_HANDLE);
        CHECK_EQ(CloseHandle(port), TRUE);
        HANDLE own = make_port();
        CHECK_EQ(PostQueuedCompletionStatus(own, 0, 1, NULL), TRUE);
        CHECK_EQ(GetQueuedCompletionStatusEx(own, &entry, 1, &removed, INFINITE, FALSE), TRUE);
        CHECK_EQ(CloseHandle(own), TRUE);
        _exit(0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0) == child, TRUE);
    CHECK_EQ(status, 0);
    CHECK_EQ(PostQueuedCompletionStatus(port, 0, 1, NULL), TRUE);
    CHECK_EQ(CloseHandle(port), TRUE);
}

int main(void) {
    make_ports_and_associate_files_only();
    find_out_what_is_no_handle();
    refuse_what_contradicts_itself();
    give_each_entry_its_own_result();
    say_that_time_is_over();
    carry_posted_packets_unchanged();
    take_arrays_wherever_they_lie();
    leave_the_parent_alone_in_a_forked_child();
    return EXIT_SUCCESS;
}
