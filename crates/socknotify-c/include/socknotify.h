/*
 * socknotify.h - socket state notifications on a completion port
 *
 * A port is a queue of packets, with threads that take from it. Sockets are registered with it, and
 * packets come out when they become ready; programs post packets of their own. The interface is that
 * of Windows (ProcessSocketNotifications), brought to systems that have nothing of the kind.
 *
 * There are two spellings. The sn_ names below are always there. With
 *
 *     #define SOCKNOTIFY_WIN32_NAMES
 *     #include <socknotify.h>
 *
 * the names of the Windows headers are there as well, for programs that use them already. Structures
 * and masks are the same in both. docs/PORTING.md says what is the same and what differs.
 *
 * Rules for all functions:
 *
 *   - Any thread may call any of them at any time, also while another closes the port.
 *   - Each returns an error code, SN_SUCCESS or another of the SN_ codes, except where it says
 *     otherwise. What fails with anything but SN_TIMEOUT has done nothing.
 *   - A port that was closed, or that never was one, is SN_INVALID_HANDLE. Its value is checked, not
 *     followed.
 *   - A null pointer, where there has to be something, is SN_INVALID_PARAMETER. Arrays need not be
 *     aligned, and may overlap; where they do, what is written later stays: first the registrations'
 *     results, then the entries, then the count.
 *   - A port belongs to the process that made it. In a forked child it is SN_INVALID_HANDLE, except
 *     that it can be closed there, which does not disturb the parent.
 *   - None may be called from a signal handler.
 *
 * This header is C99 and C++11. Link with -lsocknotify.
 */
#ifndef SOCKNOTIFY_H
#define SOCKNOTIFY_H

/* The version of this header. sn_version() says that of the library. */
#define SN_VERSION_MAJOR 0
#define SN_VERSION_MINOR 1
#define SN_VERSION_PATCH 0
#define SN_VERSION (SN_VERSION_MAJOR * 1000000 + SN_VERSION_MINOR * 1000 + SN_VERSION_PATCH)
#define SN_VERSION_STRING "0.1.0"

#ifdef _WIN32

/*
 * On Windows the interface is the system's, with the system's names and on the system's completion
 * ports, and the sn_ names stand for these. What follows is what its headers may lack: MinGW's lacked
 * all of it, newer ones leave the functions out for programs that ask for an older Windows.
 * socknotify.dll has the function for systems that do not; where the system has it, it is the
 * system's that is called.
 */
#include <winsock2.h>
#include <ws2tcpip.h>
#include <windows.h>
#include <stdint.h>

/* The first Windows that these headers declare the functions for. */
#if !defined(SOCK_NOTIFY_REGISTER_EVENT_NONE)
#define SN_DECLARED_FROM 0xFFFFFFFF
#elif defined(__MINGW32__)
#define SN_DECLARED_FROM NTDDI_WIN10_MN
#else
#define SN_DECLARED_FROM NTDDI_WIN10_FE
#endif

#ifndef SOCK_NOTIFY_REGISTER_EVENT_NONE

#define SOCK_NOTIFY_REGISTER_EVENT_NONE 0x00
#define SOCK_NOTIFY_REGISTER_EVENT_IN 0x01
#define SOCK_NOTIFY_REGISTER_EVENT_OUT 0x02
#define SOCK_NOTIFY_REGISTER_EVENT_HANGUP 0x04
#define SOCK_NOTIFY_REGISTER_EVENTS_ALL 0x07

#define SOCK_NOTIFY_EVENT_IN SOCK_NOTIFY_REGISTER_EVENT_IN
#define SOCK_NOTIFY_EVENT_OUT SOCK_NOTIFY_REGISTER_EVENT_OUT
#define SOCK_NOTIFY_EVENT_HANGUP SOCK_NOTIFY_REGISTER_EVENT_HANGUP
#define SOCK_NOTIFY_EVENT_ERR 0x40
#define SOCK_NOTIFY_EVENT_REMOVE 0x80
#define SOCK_NOTIFY_EVENTS_ALL 0xC7

#define SOCK_NOTIFY_OP_NONE 0x00
#define SOCK_NOTIFY_OP_ENABLE 0x01
#define SOCK_NOTIFY_OP_DISABLE 0x02
#define SOCK_NOTIFY_OP_REMOVE 0x04

#define SOCK_NOTIFY_TRIGGER_ONESHOT 0x01
#define SOCK_NOTIFY_TRIGGER_PERSISTENT 0x02
#define SOCK_NOTIFY_TRIGGER_LEVEL 0x04
#define SOCK_NOTIFY_TRIGGER_EDGE 0x08
#define SOCK_NOTIFY_TRIGGER_ALL 0x0F

typedef struct SOCK_NOTIFY_REGISTRATION {
    SOCKET socket;
    PVOID completionKey;
    UINT16 eventFilter;
    UINT8 operation;
    UINT8 triggerFlags;
    DWORD registrationResult; /* out */
} SOCK_NOTIFY_REGISTRATION;

#endif /* SOCK_NOTIFY_REGISTER_EVENT_NONE */

#ifdef __cplusplus
extern "C" {
#endif

#if NTDDI_VERSION < SN_DECLARED_FROM

DWORD WSAAPI ProcessSocketNotifications(HANDLE completionPort, UINT32 registrationCount,
                                        SOCK_NOTIFY_REGISTRATION *registrationInfos, UINT32 timeoutMs,
                                        ULONG completionCount,
                                        OVERLAPPED_ENTRY *completionPortEntries,
                                        UINT32 *receivedEntryCount);

static inline UINT32 SocketNotificationRetrieveEvents(OVERLAPPED_ENTRY *notification) {
    return notification->dwNumberOfBytesTransferred;
}

#endif /* SN_DECLARED_FROM */

/*
 * The sn_ names, as they are described below. What differs: there are as many error codes as the system
 * has, a port is any that CreateIoCompletionPort has made, and the system sees by itself when a thread
 * blocks.
 */
typedef HANDLE sn_port;
typedef SOCKET sn_socket;
typedef SOCK_NOTIFY_REGISTRATION sn_registration;
typedef OVERLAPPED sn_overlapped;
typedef OVERLAPPED_ENTRY sn_entry;

#define SN_INFINITE INFINITE
#define SN_UNLIMITED 0xFFFFFFFF
#define SN_SUCCESS ERROR_SUCCESS
#define SN_TOO_MANY_OPEN_FILES ERROR_TOO_MANY_OPEN_FILES
#define SN_INVALID_HANDLE ERROR_INVALID_HANDLE
#define SN_NOT_ENOUGH_MEMORY ERROR_NOT_ENOUGH_MEMORY
#define SN_GEN_FAILURE ERROR_GEN_FAILURE
#define SN_NOT_SUPPORTED ERROR_NOT_SUPPORTED
#define SN_INVALID_PARAMETER ERROR_INVALID_PARAMETER
#define SN_TIMEOUT WAIT_TIMEOUT
#define SN_ABANDONED_WAIT ERROR_ABANDONED_WAIT_0
#define SN_NOT_FOUND ERROR_NOT_FOUND
#define SN_INTERNAL_ERROR ERROR_INTERNAL_ERROR
#define SN_NO_SYSTEM_RESOURCES ERROR_NO_SYSTEM_RESOURCES
#define SN_NOT_A_SOCKET WSAENOTSOCK

static inline uint32_t sn_create_port(uint32_t concurrency, sn_port *port) {
    if (port == NULL) {
        return SN_INVALID_PARAMETER;
    }
    *port = CreateIoCompletionPort(INVALID_HANDLE_VALUE, NULL, 0, concurrency);
    return *port != NULL ? SN_SUCCESS : GetLastError();
}

static inline uint32_t sn_close_port(sn_port port) {
    /* The system takes this value for the process itself, which it closes with success. */
    if (port == INVALID_HANDLE_VALUE) {
        return SN_INVALID_HANDLE;
    }
    return CloseHandle(port) ? SN_SUCCESS : GetLastError();
}

static inline uint32_t sn_process(sn_port port,
                                  uint32_t registration_count,
                                  sn_registration *registrations,
                                  uint32_t timeout_ms,
                                  uint32_t entry_count,
                                  sn_entry *entries,
                                  uint32_t *received) {
    uint32_t error = SN_INVALID_PARAMETER;
    if ((registration_count == 0) == (registrations == NULL) &&
        (entry_count == 0) == (entries == NULL) && (entry_count == 0) == (received == NULL) &&
        (entry_count != 0 || timeout_ms == 0)) {
        error = ProcessSocketNotifications(port, registration_count, registrations, timeout_ms,
                                           entry_count, entries, received);
    }
    if (error != SN_SUCCESS && received != NULL) {
        *received = 0;
    }
    return error;
}

static inline uint32_t sn_dequeue(sn_port port,
                                  sn_entry *entries,
                                  uint32_t entry_count,
                                  uint32_t *received,
                                  uint32_t timeout_ms) {
    ULONG count = 0;
    uint32_t error = SN_INVALID_PARAMETER;
    if (entries != NULL && entry_count != 0 && received != NULL) {
        BOOL taken =
            GetQueuedCompletionStatusEx(port, entries, entry_count, &count, timeout_ms, FALSE);
        error = taken ? SN_SUCCESS : GetLastError();
    }
    if (received != NULL) {
        *received = error == SN_SUCCESS ? count : 0;
    }
    return error;
}

/* A failed operation of the caller's own is a packet too: its error is returned, with the rest filled in. */
static inline uint32_t sn_dequeue_one(sn_port port,
                                      uint32_t *transferred,
                                      uintptr_t *completion_key,
                                      sn_overlapped **overlapped,
                                      uint32_t timeout_ms) {
    DWORD bytes = 0;
    ULONG_PTR key = 0;
    BOOL taken;
    if (overlapped != NULL) {
        *overlapped = NULL;
    }
    if (transferred == NULL || completion_key == NULL || overlapped == NULL) {
        return SN_INVALID_PARAMETER;
    }
    taken = GetQueuedCompletionStatus(port, &bytes, &key, overlapped, timeout_ms);
    if (taken || *overlapped != NULL) {
        *transferred = bytes;
        *completion_key = key;
    }
    return taken ? SN_SUCCESS : GetLastError();
}

static inline uint32_t sn_post(sn_port port,
                               uint32_t transferred,
                               uintptr_t completion_key,
                               sn_overlapped *overlapped) {
    BOOL posted = PostQueuedCompletionStatus(port, transferred, completion_key, overlapped);
    return posted ? SN_SUCCESS : GetLastError();
}

static inline uint32_t sn_blocking(sn_port port, void (*work)(void *context), void *context) {
    if (port == NULL || port == INVALID_HANDLE_VALUE) {
        return SN_INVALID_HANDLE;
    }
    if (work == NULL) {
        return SN_INVALID_PARAMETER;
    }
    work(context);
    return SN_SUCCESS;
}

/* The system sees a thread block, and gives its place to another. */
static inline uint32_t sn_release(sn_port port) {
    return port == NULL || port == INVALID_HANDLE_VALUE ? SN_INVALID_HANDLE : SN_SUCCESS;
}

static inline uint32_t sn_version(void) {
    return SN_VERSION;
}

static inline uint32_t sn_last_error(void) {
    return GetLastError();
}

static inline void sn_set_last_error(uint32_t error) {
    SetLastError(error);
}

#ifdef __cplusplus
}
#endif

#else /* not Windows */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- What goes in and what comes out -------------------------------------------------------- */

/* A completion port. Never null, and never -1. */
typedef void *sn_port;

/* A socket: its descriptor. Wide enough for -1 to become the largest value, which is no socket. */
typedef uintptr_t sn_socket;

/* One socket, and what to do with it: SOCK_NOTIFY_REGISTRATION. */
typedef struct sn_registration {
    sn_socket socket;
    void *completionKey;         /* comes back in each notification; fixed until REMOVE has come out */
    uint16_t eventFilter;        /* SOCK_NOTIFY_REGISTER_EVENT_*: what to notify */
    uint8_t operation;           /* SOCK_NOTIFY_OP_*: one of them at most */
    uint8_t triggerFlags;        /* SOCK_NOTIFY_TRIGGER_*: when to notify, and how often */
    uint32_t registrationResult; /* out: SN_SUCCESS, or why this entry was not applied */
} sn_registration;

/*
 * A block of the caller's own that goes with a packet: OVERLAPPED. In one that is posted, nobody looks.
 * For an operation on a file, Offset and OffsetHigh say where in the file it begins, and the first two
 * are the library's: sn_result() says what has become of it. It has to be aligned then.
 */
typedef struct sn_overlapped {
    uintptr_t Internal;     /* SN_STATUS_PENDING while the operation is under way */
    uintptr_t InternalHigh; /* then the number of bytes */
    uint32_t Offset;
    uint32_t OffsetHigh;
    void *hEvent; /* not used */
} sn_overlapped;

#define SN_STATUS_PENDING 0x103

/* One packet: OVERLAPPED_ENTRY. Whether a socket or a post has sent it, the key must tell. */
typedef struct sn_entry {
    uintptr_t lpCompletionKey;           /* the key of the registration, or as posted */
    sn_overlapped *lpOverlapped;         /* null, or as posted */
    uintptr_t Internal;                  /* 0 */
    uint32_t dwNumberOfBytesTransferred; /* SOCK_NOTIFY_EVENT_*, or as posted */
} sn_entry;

#ifndef SOCK_NOTIFY_REGISTER_EVENT_NONE

/* What to notify. Errors and the removal are notified in any case. */
#define SOCK_NOTIFY_REGISTER_EVENT_NONE 0x00
#define SOCK_NOTIFY_REGISTER_EVENT_IN 0x01     /* a receive, or an accept, would not block */
#define SOCK_NOTIFY_REGISTER_EVENT_OUT 0x02    /* a send would not block, or a connect succeeded */
#define SOCK_NOTIFY_REGISTER_EVENT_HANGUP 0x04 /* the peer has ended or reset the stream */
#define SOCK_NOTIFY_REGISTER_EVENTS_ALL 0x07

/* What was notified. */
#define SOCK_NOTIFY_EVENT_IN SOCK_NOTIFY_REGISTER_EVENT_IN
#define SOCK_NOTIFY_EVENT_OUT SOCK_NOTIFY_REGISTER_EVENT_OUT
#define SOCK_NOTIFY_EVENT_HANGUP SOCK_NOTIFY_REGISTER_EVENT_HANGUP
#define SOCK_NOTIFY_EVENT_ERR 0x40    /* the socket has an error: the next receive says which */
#define SOCK_NOTIFY_EVENT_REMOVE 0x80 /* the last one: what belongs to the key may be freed */
#define SOCK_NOTIFY_EVENTS_ALL 0xC7

/* What to do with a registration. */
#define SOCK_NOTIFY_OP_NONE 0x00
#define SOCK_NOTIFY_OP_ENABLE 0x01  /* register, or overwrite filter and trigger, and enable */
#define SOCK_NOTIFY_OP_DISABLE 0x02 /* no new notifications until enabled again */
#define SOCK_NOTIFY_OP_REMOVE 0x04  /* end it; a last notification follows */

/* When to notify: exactly one of LEVEL and EDGE, and ONESHOT or PERSISTENT (if neither is given). */
#define SOCK_NOTIFY_TRIGGER_ONESHOT 0x01 /* dequeuing a notification disables the registration */
#define SOCK_NOTIFY_TRIGGER_PERSISTENT 0x02
#define SOCK_NOTIFY_TRIGGER_LEVEL 0x04 /* whenever it holds */
#define SOCK_NOTIFY_TRIGGER_EDGE 0x08  /* when it begins to hold */
#define SOCK_NOTIFY_TRIGGER_ALL 0x0F

#endif /* SOCK_NOTIFY_REGISTER_EVENT_NONE */

/* The time-out, in milliseconds, that never comes. */
#define SN_INFINITE 0xFFFFFFFF

/* The concurrency value that is no limit. */
#define SN_UNLIMITED 0xFFFFFFFF

/* What Windows does not have. */
#define SN_REGISTER_EVENT_PRIORITY 0x4000    /* urgent data can be received: on Linux */
#define SN_REGISTER_EVENT_FULL_HANGUP 0x8000 /* neither side will send any more: on Linux */
#define SN_EVENT_PRIORITY SN_REGISTER_EVENT_PRIORITY
#define SN_EVENT_FULL_HANGUP SN_REGISTER_EVENT_FULL_HANGUP
#define SN_TRIGGER_INITIAL 0x10 /* with EDGE: notify what holds at ENABLE, too, as EPOLLET does */

/* Error codes, with the values that they have on Windows. */
#define SN_SUCCESS 0
#define SN_TOO_MANY_OPEN_FILES 4    /* no descriptor is left for a new port */
#define SN_ACCESS_DENIED 5          /* an operation's, as those that follow with no other word */
#define SN_INVALID_HANDLE 6         /* not an open port of this process */
#define SN_NOT_ENOUGH_MEMORY 8
#define SN_GEN_FAILURE 31           /* the system refused for a reason of its own */
#define SN_HANDLE_EOF 38            /* a read that begins at the end of its file, or behind it */
#define SN_NOT_SUPPORTED 50
#define SN_INVALID_PARAMETER 87     /* the call's: the arguments contradict each other; an entry's: */
                                    /* its masks do, or its key is not that of the registration, */
                                    /* which is another port's or is being removed: sn_reason() */
#define SN_DISK_FULL 112
#define SN_FILE_TOO_LARGE 223
#define SN_TIMEOUT 258              /* no packet came in time; the registrations were applied */
#define SN_ABANDONED_WAIT 735       /* the port was closed during the call */
#define SN_OPERATION_ABORTED 995    /* it was cancelled, or its port was closed */
#define SN_IO_INCOMPLETE 996        /* it is under way */
#define SN_IO_DEVICE 1117
#define SN_NOT_FOUND 1168           /* an entry's: its socket is not registered with this port */
#define SN_INTERNAL_ERROR 1359      /* a fault of this library */
#define SN_NO_SYSTEM_RESOURCES 1450 /* a limit of the system is reached */
#define SN_NOT_A_SOCKET 10038       /* an entry's: not an open socket */

/*
 * Why an entry was not applied, more closely than registrationResult says: SN_INVALID_PARAMETER there
 * stands for the first six.
 */
#define SN_REASON_NONE 0x00000000              /* it was applied, or there is no such entry */
#define SN_REASON_INVALID_OPERATION 0x20000001 /* two operations, or an unknown one */
#define SN_REASON_INVALID_FILTER 0x20000002    /* a bit that is no event to notify */
#define SN_REASON_INVALID_TRIGGER 0x20000003   /* not one of LEVEL and EDGE, or too much beside it */
#define SN_REASON_OTHER_PORT 0x20000004        /* the socket is registered with another port */
#define SN_REASON_OTHER_KEY 0x20000005         /* it is registered with another key */
#define SN_REASON_REMOVE_PENDING 0x20000006    /* REMOVE was accepted, and has not come out yet */
#define SN_REASON_NOT_FOUND 0x20000007         /* it is not registered with this port */
#define SN_REASON_NOT_A_SOCKET 0x20000008      /* not an open descriptor of a socket */
#define SN_REASON_LIMIT_REACHED 0x20000009     /* the system's limit of watched sockets */
#define SN_REASON_OUT_OF_MEMORY 0x2000000A
#define SN_REASON_OTHER 0x2000000B             /* the system's own: registrationResult says which */

/* What a port looks like at one moment: see sn_query_port. */
typedef struct sn_port_state {
    uint32_t concurrency;   /* places: so many threads may run with packets in hand */
    uint32_t running;       /* threads that hold a place */
    uint32_t waiting;       /* threads that wait for a packet */
    uint32_t queued;        /* packets in the queue, but for what was not fetched from the system */
    uint32_t registrations; /* also of sockets that were closed and not noticed yet */
} sn_port_state;

/* ---- What to call --------------------------------------------------------------------------- */

/*
 * Make a port, of which at most `concurrency` threads run with packets in hand; 0 stands for the
 * number of processors, SN_UNLIMITED for a place for every thread. When it fails, *port becomes null.
 */
uint32_t sn_create_port(uint32_t concurrency, sn_port *port);

/*
 * The same on a certain backend: "epoll" on Linux, or NULL for the best one. A name that is no backend's
 * here is SN_NOT_SUPPORTED.
 */
uint32_t sn_create_port_on(uint32_t concurrency, const char *backend, sn_port *port);

/*
 * Close a port. Threads that wait in it return with SN_ABANDONED_WAIT. Its registrations end without
 * a notification, and its packets are lost. The sockets stay open.
 */
uint32_t sn_close_port(sn_port port);

/*
 * Apply registrations, in order, then dequeue packets.
 *
 * Each registration gets its own registrationResult; one that fails does not stop the others. What
 * they make ready can come out of this same call. Results are written with SN_SUCCESS and with
 * SN_TIMEOUT. With everything else, nothing was applied (with SN_ABANDONED_WAIT, it is gone with the
 * port).
 *
 * Then at least one packet is waited for, timeout_ms at most, and as many as are there (up to
 * entry_count, and up to 65536) are written to `entries`, and their number to *received. A call that
 * fails sets *received to 0.
 *
 * With registration_count 0, `registrations` must be null: that is a plain dequeue. With entry_count
 * 0, `entries` and `received` must be null and timeout_ms 0: that only registers. All else that does
 * not fit together is SN_INVALID_PARAMETER.
 */
uint32_t sn_process(sn_port port,
                    uint32_t registration_count,
                    sn_registration *registrations,
                    uint32_t timeout_ms,
                    uint32_t entry_count,
                    sn_entry *entries,
                    uint32_t *received);

/* Dequeue packets, as sn_process does. */
uint32_t sn_dequeue(sn_port port,
                    sn_entry *entries,
                    uint32_t entry_count,
                    uint32_t *received,
                    uint32_t timeout_ms);

/*
 * Dequeue one packet. When that fails, *overlapped becomes null and the other two stay as they are. The
 * packet of an operation that has failed is a packet, too: *overlapped is not null, the other two are
 * written, and the operation's error is returned.
 */
uint32_t sn_dequeue_one(sn_port port,
                        uint32_t *transferred,
                        uintptr_t *completion_key,
                        sn_overlapped **overlapped,
                        uint32_t timeout_ms);

/* Queue a packet, which comes out unchanged. `overlapped` may be anything. */
uint32_t sn_post(sn_port port,
                 uint32_t transferred,
                 uintptr_t completion_key,
                 sn_overlapped *overlapped);

/*
 * Begin to read from a file, or to write to it: `length` bytes at `memory`, from the offset in
 * `overlapped` on. When it is done, a packet with this key comes out of the port, with the number of
 * bytes, and with `overlapped`: by these two it is told from others. sn_result() says whether it has
 * succeeded. A read may be short, and so may a write. Any number may be under way, in any order.
 *
 * What has begun has one packet; what fails here has none. SN_INVALID_HANDLE for what is no file: a pipe
 * or a socket could take for ever. At most 1 GiB at once.
 *
 * Until the packet was dequeued, or sn_close_port() has returned, which waits for the system, nobody
 * frees the memory or `overlapped`, or writes to them, and the descriptor stays open.
 *
 * Not on Windows, where ReadFile and WriteFile do this.
 */
uint32_t sn_read(sn_port port,
                 int file,
                 void *memory,
                 uint32_t length,
                 uintptr_t completion_key,
                 sn_overlapped *overlapped);
uint32_t sn_write(sn_port port,
                  int file,
                  const void *memory,
                  uint32_t length,
                  uintptr_t completion_key,
                  sn_overlapped *overlapped);

/*
 * Have an operation end early, if that is possible still. Its packet comes in any case, and says which.
 * SN_NOT_FOUND if it is not under way on this port.
 */
uint32_t sn_cancel(sn_port port, const sn_overlapped *overlapped);

/* What has become of an operation: its error, and how many bytes it has read or written. */
uint32_t sn_result(const sn_overlapped *overlapped, uint32_t *transferred);

/*
 * For the Win32 names: a file whose operations complete on a port under a key, and these operations. A
 * file is associated until it is associated anew, or another file has its number.
 */
uint32_t sn_associate(sn_port port, int file, uintptr_t completion_key);
uint32_t sn_read_associated(int file, void *memory, uint32_t length, sn_overlapped *overlapped);
uint32_t sn_write_associated(int file, const void *memory, uint32_t length, sn_overlapped *overlapped);

/*
 * Run work(context), and let another thread take packets meanwhile in place of this one.
 *
 * For work that blocks with a packet in hand: on Windows the kernel sees a thread block, here it has
 * to be told. `work` must return to its caller: no longjmp, no exception, no end of the thread.
 */
uint32_t sn_blocking(sn_port port, void (*work)(void *context), void *context);

/*
 * Give back the place of this thread, if it has one: for a thread that is done with its packets, and does
 * not dequeue again soon. Without it the place stays taken until the thread dequeues, or ends.
 */
uint32_t sn_release(sn_port port);

/*
 * End a registration at once. When this returns, no thread will dequeue a notification of it: one that was
 * queued is withdrawn, and no REMOVE comes. A thread that has dequeued one before may still be working on
 * it. The socket can be registered again at once, with any key. SN_NOT_FOUND if it is not registered.
 */
uint32_t sn_deregister(sn_port port, sn_socket socket);

/*
 * The reason of one entry of the latest sn_process call of this thread: SN_REASON_*. `index` is its place in
 * `registrations`.
 */
uint32_t sn_reason(uint32_t index);

/* What a port looks like now: for diagnosis and for tests. */
uint32_t sn_query_port(sn_port port, sn_port_state *state);

/*
 * A descriptor that is readable when a dequeue would return something, and perhaps at other times: for
 * another loop, with poll, select or epoll. It is the port's, which closes it. Dequeue with a timeout of 0,
 * and let no thread wait in the port meanwhile.
 */
uint32_t sn_port_descriptor(sn_port port, int *descriptor);

/* The name of a port's backend, for ever valid. Null if that is no port. */
const char *sn_backend(sn_port port);

/* An error code or a reason in words, for ever valid and never null. */
const char *sn_strerror(uint32_t error);

/* The version of the library, as SN_VERSION is that of the header. */
uint32_t sn_version(void);

/*
 * The last error of this thread. The sn_ functions leave it alone; those with Win32 names set it when
 * they fail, and so may code that stands in for other parts of Windows.
 */
uint32_t sn_last_error(void);
void sn_set_last_error(uint32_t error);

#ifdef __cplusplus
}
#endif

#endif /* _WIN32 */

#endif /* SOCKNOTIFY_H */

/* ---- The Win32 spelling --------------------------------------------------------------------- */

/* With a guard of its own: the header may have been included without the names before. */
#if defined(SOCKNOTIFY_WIN32_NAMES) && !defined(SOCKNOTIFY_WIN32_NAMES_DEFINED) && !defined(_WIN32)
#define SOCKNOTIFY_WIN32_NAMES_DEFINED

#ifdef __cplusplus
extern "C" {
#endif

typedef uint8_t UINT8;
typedef uint16_t UINT16;
typedef uint32_t UINT32;
typedef uint32_t DWORD; /* 32 bits, as on Windows, whatever a `long` has */
typedef uint32_t ULONG;
typedef uintptr_t ULONG_PTR;
typedef int BOOL;
typedef void *PVOID;
typedef sn_port HANDLE;
typedef sn_socket SOCKET;
typedef sn_registration SOCK_NOTIFY_REGISTRATION;
typedef sn_overlapped OVERLAPPED, *LPOVERLAPPED;
typedef sn_entry OVERLAPPED_ENTRY, *LPOVERLAPPED_ENTRY;

#ifndef TRUE
#define TRUE 1
#endif
#ifndef FALSE
#define FALSE 0
#endif
#define INFINITE SN_INFINITE
#ifdef __cplusplus
#define INVALID_HANDLE_VALUE (reinterpret_cast<HANDLE>(static_cast<intptr_t>(-1)))
#define INVALID_SOCKET (~static_cast<SOCKET>(0))
#else
#define INVALID_HANDLE_VALUE ((HANDLE)(intptr_t)-1)
#define INVALID_SOCKET (~(SOCKET)0)
#endif

#define ERROR_SUCCESS 0L
#define ERROR_TOO_MANY_OPEN_FILES 4L
#define ERROR_INVALID_HANDLE 6L
#define ERROR_NOT_ENOUGH_MEMORY 8L
#define ERROR_GEN_FAILURE 31L
#define ERROR_NOT_SUPPORTED 50L
#define ERROR_INVALID_PARAMETER 87L
#define ERROR_ACCESS_DENIED 5L
#define ERROR_HANDLE_EOF 38L
#define ERROR_DISK_FULL 112L
#define ERROR_FILE_TOO_LARGE 223L
#define ERROR_OPERATION_ABORTED 995L
#define ERROR_IO_INCOMPLETE 996L
#define ERROR_IO_PENDING 997L
#define ERROR_IO_DEVICE 1117L
#define WAIT_TIMEOUT 258L
#define ERROR_ABANDONED_WAIT_0 735L
#define ERROR_NOT_FOUND 1168L
#define ERROR_INTERNAL_ERROR 1359L
#define ERROR_NO_SYSTEM_RESOURCES 1450L
#define WSAENOTSOCK 10038L

/* The last error of this thread. */
static inline DWORD GetLastError(void) {
    return sn_last_error();
}

/* The descriptor of a file; -1 for what can be none. NULL is no file, as it is none on Windows. */
static inline int sn_descriptor(HANDLE file) {
#ifdef __cplusplus
    intptr_t number = reinterpret_cast<intptr_t>(file);
    int descriptor = static_cast<int>(number);
#else
    intptr_t number = (intptr_t)file;
    int descriptor = (int)number;
#endif
    return number == descriptor && number != 0 ? descriptor : -1;
}

/* What a function with a BOOL for a result returns. */
static inline BOOL sn_bool_outcome(uint32_t error) {
    if (error == SN_SUCCESS) {
        return TRUE;
    }
    sn_set_last_error(error);
    return FALSE;
}

/*
 * Make a port, with INVALID_HANDLE_VALUE; or have operations on a file complete on a port under a key, on
 * a new port if there is none. A file is a descriptor, cast: (HANDLE)(intptr_t)descriptor. It can be
 * associated anew. What fails returns NULL.
 */
static inline HANDLE CreateIoCompletionPort(HANDLE file,
                                            HANDLE existing_port,
                                            ULONG_PTR completion_key,
                                            DWORD concurrency) {
    HANDLE port = existing_port;
    uint32_t error = SN_SUCCESS;
    if (file == INVALID_HANDLE_VALUE && existing_port != NULL) {
        error = SN_INVALID_PARAMETER;
    } else if (existing_port == NULL) {
        error = sn_create_port(concurrency, &port);
    }
    if (error == SN_SUCCESS && file != INVALID_HANDLE_VALUE) {
        error = sn_associate(port, sn_descriptor(file), completion_key);
        if (error != SN_SUCCESS && existing_port == NULL) {
            (void)sn_close_port(port);
        }
    }
    return sn_bool_outcome(error) ? port : NULL;
}

/*
 * Begin an operation on an associated file. It never completes within the call: it returns FALSE with
 * ERROR_IO_PENDING, and a packet comes. With any other error none does.
 */
static inline BOOL ReadFile(HANDLE file, PVOID memory, DWORD length, DWORD *read, OVERLAPPED *overlapped) {
    uint32_t error = sn_read_associated(sn_descriptor(file), memory, length, overlapped);
    if (read != NULL) {
        *read = 0;
    }
    return sn_bool_outcome(error != SN_SUCCESS ? error : ERROR_IO_PENDING);
}

static inline BOOL WriteFile(HANDLE file,
                             const void *memory,
                             DWORD length,
                             DWORD *written,
                             OVERLAPPED *overlapped) {
    uint32_t error = sn_write_associated(sn_descriptor(file), memory, length, overlapped);
    if (written != NULL) {
        *written = 0;
    }
    return sn_bool_outcome(error != SN_SUCCESS ? error : ERROR_IO_PENDING);
}

/* Close a port. Any other handle fails, with ERROR_INVALID_HANDLE. */
static inline BOOL CloseHandle(HANDLE port) {
    return sn_bool_outcome(sn_close_port(port));
}

/* Returns the error code, and sets the last error too if it is one. */
static inline DWORD ProcessSocketNotifications(HANDLE port,
                                               UINT32 registration_count,
                                               SOCK_NOTIFY_REGISTRATION *registrations,
                                               UINT32 timeout_ms,
                                               ULONG entry_count,
                                               OVERLAPPED_ENTRY *entries,
                                               UINT32 *received) {
    uint32_t error = sn_process(port, registration_count, registrations, timeout_ms, entry_count,
                                entries, received);
    (void)sn_bool_outcome(error);
    return error;
}

/* The event mask of a socket notification. */
static inline UINT32 SocketNotificationRetrieveEvents(const OVERLAPPED_ENTRY *notification) {
    return notification != NULL ? notification->dwNumberOfBytesTransferred : 0;
}

/* `alertable` is accepted, and makes no difference. */
static inline BOOL GetQueuedCompletionStatusEx(HANDLE port,
                                               OVERLAPPED_ENTRY *entries,
                                               ULONG entry_count,
                                               ULONG *received,
                                               DWORD timeout_ms,
                                               BOOL alertable) {
    (void)alertable;
    return sn_bool_outcome(sn_dequeue(port, entries, entry_count, received, timeout_ms));
}

static inline BOOL GetQueuedCompletionStatus(HANDLE port,
                                             DWORD *transferred,
                                             ULONG_PTR *completion_key,
                                             OVERLAPPED **overlapped,
                                             DWORD timeout_ms) {
    return sn_bool_outcome(
        sn_dequeue_one(port, transferred, completion_key, overlapped, timeout_ms));
}

static inline BOOL PostQueuedCompletionStatus(HANDLE port,
                                              DWORD transferred,
                                              ULONG_PTR completion_key,
                                              OVERLAPPED *overlapped) {
    return sn_bool_outcome(sn_post(port, transferred, completion_key, overlapped));
}

#ifdef __cplusplus
}
#endif

#endif /* SOCKNOTIFY_WIN32_NAMES */
