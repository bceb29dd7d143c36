/*
 * socknotify.h - socket state notifications on a completion port
 *
 * A port is a queue of packets, from which threads dequeue. Register a socket with a port, and a
 * packet is queued when the socket becomes ready: you read and write yourself. Programs can also post
 * packets of their own. The interface is that of Windows (ProcessSocketNotifications), on systems that
 * lack it.
 *
 * close() of a registered socket ends its registration. No REMOVE follows, but a notification that is
 * queued may still be dequeued, with a key whose memory you may have freed. So ask for REMOVE, dequeue
 * its notification, and then close the socket and free the memory; or call sn_deregister() first. If the
 * socket lives on under a duplicate or in a child process, a descriptor that was closed without REMOVE
 * may still be notified: once if it is one-shot, and at most 64 times if it is persistent.
 *
 * An ENABLE that is kept for a later call is out of date if another thread may remove that socket first:
 * once it is closed, another one can get its number, and would be armed under the old key. So follow one
 * of two rules. Either only the thread that holds a socket's one-shot notification, its owner, asks for
 * REMOVE; then it may keep ENABLE for its next call, and nobody else enables. Or each ENABLE and REMOVE is
 * applied at once, by a call of its own, under a lock of the connection that also says whether REMOVE was
 * asked for. The example answers.c does that.
 *
 * There are two sets of names. The sn_ names are always defined. With
 *
 *     #define SOCKNOTIFY_WIN32_NAMES
 *     #include <socknotify.h>
 *
 * so are the names of the Windows headers, for programs that use them already. Structures and masks
 * are the same in both. PORTING.md, installed with the examples, says what is the same and what differs.
 *
 * Rules for all functions:
 *
 *   - Any thread may call any of them at any time, also while another closes the port.
 *   - Each returns an error code, SN_SUCCESS or another of the SN_ codes, unless its comment says
 *     otherwise. A call that fails with anything but SN_TIMEOUT has done nothing, but for a wait that
 *     SN_ABANDONED_WAIT ends, and sn_dequeue_one(), which also returns the error of an operation.
 *   - A port that was closed, or a value that never was one, is SN_INVALID_HANDLE. The value is
 *     checked, never dereferenced.
 *   - A null pointer that is not allowed is SN_INVALID_PARAMETER. Arrays need not be aligned. They
 *     may overlap; then the last write counts: first the registrations' results, then the entries,
 *     then the count.
 *   - A port belongs to the process that made it. In a forked child every call on it fails with
 *     SN_INVALID_HANDLE, but it can be closed there, which does not affect the parent.
 *   - None may be called from a signal handler, which can write to a pipe that a port watches: see
 *     sn_process_descriptors(). They may be called from destructors of a thread's keys.
 *   - None is a cancellation point: pthread_cancel takes effect after the call. Post a packet to end a
 *     wait. Cancellation is off in what sn_blocking() calls, too. As most functions, none may be called
 *     while cancellation is asynchronous.
 *   - Each needs at most 4 KB of stack, except that 8 KB are needed to make a port, and by a port's first
 *     sn_read or sn_write. Signal handlers need their own.
 *   - SN_NOT_ENOUGH_MEMORY means that there is none for the entries of a call, or that the system has none
 *     for a port or a registration. The library's own tables and queues grow as they need to; if the
 *     system refuses memory for those, the process is aborted.
 *
 * This header is C99 and C++11. Link with -lsocknotify.
 */
#ifndef SOCKNOTIFY_H
#define SOCKNOTIFY_H

/* The version of this header. sn_version() returns the library's. */
#define SN_VERSION_MAJOR 0
#define SN_VERSION_MINOR 1
#define SN_VERSION_PATCH 0
#define SN_VERSION (SN_VERSION_MAJOR * 1000000 + SN_VERSION_MINOR * 1000 + SN_VERSION_PATCH)
#define SN_VERSION_STRING "0.1.0"

#ifdef _WIN32

/*
 * On Windows the interface is the system's, on the system's completion ports, and the sn_ names call
 * it. The following definitions may be missing in the system's headers: MinGW lacked all of them, and
 * newer headers leave the functions out for programs that ask for an older Windows. On a system
 * without the function, socknotify.dll has it; otherwise the DLL calls the system's.
 */
#include <winsock2.h>
#include <ws2tcpip.h>
#include <windows.h>
#include <stdint.h>

/* The first version of Windows for which these headers declare the functions. */
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
 * Of the sn_ functions those that make, close, post to and dequeue from a port, sn_process(),
 * sn_blocking(), sn_release(), sn_last_error() and sn_version(), as described below, with three
 * differences: error codes are the system's, a port is any that CreateIoCompletionPort has made, and
 * the system itself sees when a thread blocks. The others are extensions that it does not have, or
 * operations on files, which it has itself.
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
    /* This value is also the pseudo handle of the process, which CloseHandle closes with success. */
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

/* The packet of a failed operation is a packet too: its error is returned, with the rest filled in. */
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

/* The system sees a thread block, and lets another one run. */
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
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Types and constants -------------------------------------------------------------------- */

/* A completion port. Never null, and never -1. */
typedef void *sn_port;

/* A socket: its descriptor. -1 converts to the largest value, which is no socket. */
typedef uintptr_t sn_socket;

/* A socket, and what to do with it: SOCK_NOTIFY_REGISTRATION. */
typedef struct sn_registration {
    sn_socket socket;
    void *completionKey;         /* is in each notification; fixed until REMOVE was dequeued */
    uint16_t eventFilter;        /* SOCK_NOTIFY_REGISTER_EVENT_*: what to notify */
    uint8_t operation;           /* SOCK_NOTIFY_OP_*: at most one */
    uint8_t triggerFlags;        /* SOCK_NOTIFY_TRIGGER_*: when to notify, and how often */
    uint32_t registrationResult; /* out: SN_SUCCESS, or why this entry was not applied */
} sn_registration;

/*
 * A block of the caller's own that belongs to a packet: OVERLAPPED. The library does not read one that
 * is posted. For an operation on a file, Offset and OffsetHigh say where in the file it begins, the
 * library writes the first two fields, and the block has to be aligned. sn_result() returns its result.
 */
typedef struct sn_overlapped {
    uintptr_t Internal;     /* SN_STATUS_PENDING until the operation is complete */
    uintptr_t InternalHigh; /* then the number of bytes */
    uint32_t Offset;
    uint32_t OffsetHigh;
    void *hEvent; /* not used */
} sn_overlapped;

#define SN_STATUS_PENDING 0x103

/* A packet: OVERLAPPED_ENTRY. Choose keys that distinguish notifications from posted packets. */
typedef struct sn_entry {
    uintptr_t lpCompletionKey;           /* the key of the registration, or as posted */
    sn_overlapped *lpOverlapped;         /* null, or as posted */
    uintptr_t Internal;                  /* 0 */
    uint32_t dwNumberOfBytesTransferred; /* SOCK_NOTIFY_EVENT_*, or as posted */
} sn_entry;

#ifndef SOCK_NOTIFY_REGISTER_EVENT_NONE

/* What to notify. Errors and the removal are always notified. */
#define SOCK_NOTIFY_REGISTER_EVENT_NONE 0x00
#define SOCK_NOTIFY_REGISTER_EVENT_IN 0x01     /* a receive, or an accept, would not block */
#define SOCK_NOTIFY_REGISTER_EVENT_OUT 0x02    /* a send would not block, or a connect succeeded */
#define SOCK_NOTIFY_REGISTER_EVENT_HANGUP 0x04 /* the peer has ended or reset the stream */
#define SOCK_NOTIFY_REGISTER_EVENTS_ALL 0x07

/* What was notified. */
#define SOCK_NOTIFY_EVENT_IN SOCK_NOTIFY_REGISTER_EVENT_IN
#define SOCK_NOTIFY_EVENT_OUT SOCK_NOTIFY_REGISTER_EVENT_OUT
#define SOCK_NOTIFY_EVENT_HANGUP SOCK_NOTIFY_REGISTER_EVENT_HANGUP
#define SOCK_NOTIFY_EVENT_ERR 0x40    /* the socket has an error: the next receive returns it */
/*
 * The last notification: nothing is dequeued for this registration after it. With ONESHOT, if the thread
 * that dequeued the notification before it asked for REMOVE, and does not use the key after that, what
 * the key refers to may be freed now. If another thread asked for it, or with PERSISTENT on several
 * threads, an earlier notification may still be in a thread's hands: free when those handlers have
 * ended, too.
 */
#define SOCK_NOTIFY_EVENT_REMOVE 0x80
#define SOCK_NOTIFY_EVENTS_ALL 0xC7

/* What to do with a registration. */
#define SOCK_NOTIFY_OP_NONE 0x00
#define SOCK_NOTIFY_OP_ENABLE 0x01  /* register, or overwrite filter and trigger, and enable */
#define SOCK_NOTIFY_OP_DISABLE 0x02 /* no new notifications until enabled again */
#define SOCK_NOTIFY_OP_REMOVE 0x04  /* end it; a last notification follows */

/* When to notify: exactly one of LEVEL and EDGE, and ONESHOT or PERSISTENT (the default). */
#define SOCK_NOTIFY_TRIGGER_ONESHOT 0x01 /* dequeuing a notification disables the registration */
#define SOCK_NOTIFY_TRIGGER_PERSISTENT 0x02
#define SOCK_NOTIFY_TRIGGER_LEVEL 0x04 /* while the condition holds */
#define SOCK_NOTIFY_TRIGGER_EDGE 0x08  /* when the condition begins to hold */
#define SOCK_NOTIFY_TRIGGER_ALL 0x0F

#endif /* SOCK_NOTIFY_REGISTER_EVENT_NONE */

/* As timeout_ms: wait for ever. */
#define SN_INFINITE 0xFFFFFFFF

/* As concurrency value: no limit. */
#define SN_UNLIMITED 0xFFFFFFFF

/* Extensions, which Windows does not have. */
#define SN_REGISTER_EVENT_PRIORITY 0x4000    /* urgent data can be received: on Linux */
#define SN_REGISTER_EVENT_FULL_HANGUP 0x8000 /* neither side will send any more: on Linux */
#define SN_EVENT_PRIORITY SN_REGISTER_EVENT_PRIORITY
#define SN_EVENT_FULL_HANGUP SN_REGISTER_EVENT_FULL_HANGUP
#define SN_TRIGGER_INITIAL 0x10 /* with EDGE: notify what holds at ENABLE, too, as EPOLLET does */

/* Error codes, with the values that they have on Windows. */
#define SN_SUCCESS 0
#define SN_TOO_MANY_OPEN_FILES 4    /* no descriptor is left for a new port */
#define SN_ACCESS_DENIED 5          /* of an operation, as the codes below that have no comment */
#define SN_INVALID_HANDLE 6         /* not an open port of this process, or no file for this */
#define SN_NOT_ENOUGH_MEMORY 8
#define SN_GEN_FAILURE 31           /* the system refused for another reason */
#define SN_HANDLE_EOF 38            /* a read that begins at or after the end of the file */
#define SN_NOT_SUPPORTED 50         /* of an entry: the system cannot watch such a descriptor */
#define SN_INVALID_PARAMETER 87     /* of a call: the arguments contradict each other; of an entry: */
                                    /* its masks do, its key is not that of the registration, or the */
                                    /* socket has another port or is being removed: see sn_reason() */
#define SN_DISK_FULL 112
#define SN_FILE_TOO_LARGE 223
#define SN_TIMEOUT 258              /* no packet came in time; the registrations were applied */
#define SN_ABANDONED_WAIT 735       /* the port was closed during the call */
#define SN_OPERATION_ABORTED 995    /* the operation was cancelled, or its port closed */
#define SN_IO_INCOMPLETE 996        /* the operation is in progress */
#define SN_IO_DEVICE 1117
#define SN_NOT_FOUND 1168           /* of an entry: its socket is not registered with this port */
#define SN_INTERNAL_ERROR 1359      /* a bug in this library */
#define SN_NO_SYSTEM_RESOURCES 1450 /* a limit of the system is reached */
#define SN_WOULD_BLOCK 10035        /* of sn_owned_send(): the connection's queue is full */
#define SN_NOT_A_SOCKET 10038       /* of an entry: not an open socket, or not open */

/*
 * Why an entry was not applied, in more detail than registrationResult: the first six are all
 * SN_INVALID_PARAMETER there.
 */
#define SN_REASON_NONE 0x00000000              /* it was applied, or there is no such entry */
#define SN_REASON_INVALID_OPERATION 0x20000001 /* two operations, or an unknown one */
#define SN_REASON_INVALID_FILTER 0x20000002    /* a bit that is no event to notify */
#define SN_REASON_INVALID_TRIGGER 0x20000003   /* a combination that is not allowed */
#define SN_REASON_OTHER_PORT 0x20000004        /* the socket is registered with another port */
#define SN_REASON_OTHER_KEY 0x20000005         /* it is registered with another key */
#define SN_REASON_REMOVE_PENDING 0x20000006    /* REMOVE was accepted, and not dequeued yet */
#define SN_REASON_NOT_FOUND 0x20000007         /* it is not registered with this port */
#define SN_REASON_NOT_A_SOCKET 0x20000008      /* not an open descriptor of a socket */
#define SN_REASON_LIMIT_REACHED 0x20000009     /* the system's limit of watched sockets */
#define SN_REASON_OUT_OF_MEMORY 0x2000000A
#define SN_REASON_OTHER 0x2000000B             /* an error of the system: see registrationResult */
#define SN_REASON_NOT_WATCHABLE 0x2000000C     /* a descriptor that the system cannot watch */

/* The state of a port at one moment: see sn_query_port. Set `size` to sizeof(sn_port_state) before. After, it says how much the
 * library has filled in: it may be older than this header. */
typedef struct sn_port_state {
    uint32_t size;          /* of this structure, in bytes, for later versions that have more in it */
    uint32_t concurrency;   /* how many threads run while they neither block nor compute for long */
    uint32_t running;       /* threads that have dequeued and not handled */
    uint32_t waiting;       /* threads that wait for a packet */
    uint32_t queued;        /* packets in the queue, except those not fetched from the kernel yet */
    uint32_t registrations; /* including closed sockets that the port has not noticed yet */
    uint32_t limit;         /* how many threads may run now: more than `concurrency` while those that run block or
                               compute for long; SN_UNLIMITED if there is no limit */
} sn_port_state;

/* ---- Functions ------------------------------------------------------------------------------ */

/*
 * Make a port that lets `concurrency` threads run that have dequeued, and more while these block or compute for long. 0 means
 * the number of processors, SN_UNLIMITED any number of threads. On failure, *port becomes null.
 */
uint32_t sn_create_port(uint32_t concurrency, sn_port *port);

/*
 * Make a port on a particular backend: "epoll" on Linux, "kqueue" on macOS and the BSDs, or NULL for the
 * best one. Any other name is SN_NOT_SUPPORTED. Otherwise as sn_create_port().
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
 * Each registration gets its own registrationResult; one that fails does not stop the others. The
 * same call can dequeue what they make ready. Results are written if the call returns SN_SUCCESS or
 * SN_TIMEOUT. With any other code nothing was applied (with SN_ABANDONED_WAIT, it has ended with the
 * port).
 *
 * Then the call waits for at least one packet, at most timeout_ms. It writes as many as there are, up
 * to entry_count and up to 65536, to `entries`, and their number to *received. A call that fails sets
 * *received to 0.
 *
 * With registration_count 0, `registrations` must be null: the call only dequeues. With entry_count 0,
 * `entries` and `received` must be null and timeout_ms 0: the call only registers. Other combinations
 * are SN_INVALID_PARAMETER.
 */
uint32_t sn_process(sn_port port,
                    uint32_t registration_count,
                    sn_registration *registrations,
                    uint32_t timeout_ms,
                    uint32_t entry_count,
                    sn_entry *entries,
                    uint32_t *received);

/*
 * Apply registrations of any descriptors, then dequeue packets: sn_process(), where ENABLE takes whatever
 * the system can watch. That is a socket, a pipe, a terminal, another port (see sn_port_descriptor()),
 * and on Linux an eventfd, timerfd, signalfd, pidfd or inotify descriptor. A timer is a timerfd.
 *
 * IN, OUT and ERR mean the same as in poll(); HANGUP is POLLHUP, and comes with IN, since a read does not
 * block then. DISABLE, REMOVE and sn_deregister() work as for sockets. The result of an entry for a
 * regular file or a directory is SN_NOT_SUPPORTED, and that of a closed descriptor SN_NOT_A_SOCKET.
 *
 * The port cannot identify a descriptor other than a socket while it is disabled. So remove one that you
 * are about to close, rather than disable it. Several ports may watch one such descriptor.
 *
 * Not on Windows.
 */
uint32_t sn_process_descriptors(sn_port port,
                                uint32_t registration_count,
                                sn_registration *registrations,
                                uint32_t timeout_ms,
                                uint32_t entry_count,
                                sn_entry *entries,
                                uint32_t *received);

/*
 * Dequeue packets, as sn_process() does.
 *
 * A port has no timers. Keep a list of your own, and give the time to the first as timeout_ms: SN_TIMEOUT
 * means that it is due. Where several threads dequeue, one of them does that and the others wait for ever. On
 * Linux a port can also watch a timerfd, with sn_process_descriptors().
 */
uint32_t sn_dequeue(sn_port port,
                    sn_entry *entries,
                    uint32_t entry_count,
                    uint32_t *received,
                    uint32_t timeout_ms);

/*
 * Dequeue one packet. If that fails, *overlapped becomes null and the other two do not change. The
 * packet of an operation that has failed is a packet, too: *overlapped is not null, the other two are
 * written, and the operation's error is returned.
 */
uint32_t sn_dequeue_one(sn_port port,
                        uint32_t *transferred,
                        uintptr_t *completion_key,
                        sn_overlapped **overlapped,
                        uint32_t timeout_ms);

/*
 * Queue a packet, which is dequeued unchanged. `overlapped` may have any value.
 *
 * One call may dequeue several packets: so one packet for each thread does not end all threads. Let each thread that
 * dequeues such a packet post it again before it ends, or close the port. A signal handler must not call this: let it
 * write to a pipe whose other end is registered with sn_process_descriptors().
 */
uint32_t sn_post(sn_port port,
                 uint32_t transferred,
                 uintptr_t completion_key,
                 sn_overlapped *overlapped);

/*
 * Begin to read from a file, or to write to it: `length` bytes at `memory`, at the offset in
 * `overlapped`. When the operation is complete, a packet is queued with this key, the number of bytes,
 * and `overlapped`; key and `overlapped` distinguish it from other packets. sn_result() says whether it
 * has succeeded. A read may be short, and so may a write. Any number can be in progress, and they
 * complete in any order.
 *
 * If this call succeeds, there is one packet; if it fails, there is none. A descriptor that is no file
 * is SN_INVALID_HANDLE: a pipe or a socket could take for ever. So could a file that the kernel makes up, as
 * in /proc: SN_NOT_SUPPORTED. At most 1 GiB at once. For a deadline, call sn_cancel() when a timer is due.
 *
 * Until the packet was dequeued, or sn_close_port() has returned (which waits for the system), do not
 * free the memory or `overlapped`, do not write to them, and do not close the descriptor. After it has
 * returned, another thread may be about to return with a packet that it has dequeued before: the library
 * does not read `overlapped` then, and that thread must not, either.
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
 * The same with several parts of memory, one after the other: preadv and pwritev. The array must stay as
 * the memory must.
 */
uint32_t sn_readv(sn_port port,
                  int file,
                  const struct iovec *parts,
                  uint32_t count,
                  uintptr_t completion_key,
                  sn_overlapped *overlapped);
uint32_t sn_writev(sn_port port,
                   int file,
                   const struct iovec *parts,
                   uint32_t count,
                   uintptr_t completion_key,
                   sn_overlapped *overlapped);

/*
 * Begin to wait until what was written to a file is on the disk: fsync, or fdatasync if `only_data` is
 * not 0. A packet follows, with 0 bytes, as for sn_write(). The offset means nothing.
 */
uint32_t sn_sync(sn_port port,
                 int file,
                 int only_data,
                 uintptr_t completion_key,
                 sn_overlapped *overlapped);

/*
 * Cancel an operation, if that is still possible. Its packet comes in any case; sn_result() says
 * whether it was cancelled. SN_NOT_FOUND if it is not in progress on this port. The pointer is compared
 * with those of all operations in progress, and not dereferenced: the block may be gone.
 */
uint32_t sn_cancel(sn_port port, const sn_overlapped *overlapped);

/* The result of an operation: its error code, and how many bytes it has read or written. */
uint32_t sn_result(const sn_overlapped *overlapped, uint32_t *transferred);

/*
 * The system's own number of an operation's error, where sn_result() has but SN_GEN_FAILURE for many: a value of
 * errno, 0 if it has succeeded, EINPROGRESS while it is in progress.
 */
int sn_errno(const sn_overlapped *overlapped);

/*
 * Associate a file with a port and a key, and begin operations on it: what CreateIoCompletionPort,
 * ReadFile and WriteFile of the Win32 names call.
 *
 * The association lasts until sn_dissociate(), until the file is associated again, or until its
 * descriptor is closed and another file has the number. On Linux that is found out by the kernel's own
 * name of the file, and elsewhere by its inode and the time of its birth. It stays if the same file is
 * opened again under the same number. sn_dissociate() is SN_NOT_FOUND if there is no association.
 */
uint32_t sn_associate(sn_port port, int file, uintptr_t completion_key);
uint32_t sn_dissociate(int file);
uint32_t sn_read_associated(int file, void *memory, uint32_t length, sn_overlapped *overlapped);
uint32_t sn_write_associated(int file, const void *memory, uint32_t length, sn_overlapped *overlapped);

/*
 * Run work(context), and meanwhile let another thread run in place of this one.
 *
 * For work that blocks. Another thread runs then in any case, but only after a fraction of a millisecond to 10 ms, when the port
 * has found out; this lets it run at once. `work` must return: no longjmp, no exception, no pthread_exit.
 *
 * What the thread has dequeued stays its own. A socket that is registered SN_PERSISTENT and SN_LEVEL, and was notified to it, is
 * notified to others only now, or when the thread dequeues again, ends, or calls sn_release().
 */
uint32_t sn_blocking(sn_port port, void (*work)(void *context), void *context);

/*
 * Have this thread not count as one that runs. Call it if the thread is done with its packets and does not dequeue again
 * soon. Otherwise it counts until it dequeues again or ends.
 */
uint32_t sn_release(sn_port port);

/*
 * End a registration at once. After this returns, no thread dequeues a notification of it: a queued one
 * is withdrawn, and no REMOVE comes. A thread that dequeued one before may still be working on it. The
 * socket can be registered again at once, with any key. SN_NOT_FOUND if it is not registered.
 */
uint32_t sn_deregister(sn_port port, sn_socket socket);

/*
 * The reason why an entry was not applied: SN_REASON_*. `index` is its index in `registrations` of this
 * thread's latest call of sn_process() or sn_process_descriptors() that had registrations, on whatever
 * port. Calls that only dequeue do not change it. SN_REASON_NONE if the entry was applied, if there is no
 * such entry, and if that call has failed as a whole.
 */
uint32_t sn_reason(uint32_t index);

/*
 * The state of a port at this moment, for diagnosis and tests. The caller sets state->size:
 *
 *     sn_port_state state = {sizeof state};
 *     sn_query_port(port, &state);
 */
uint32_t sn_query_port(sn_port port, sn_port_state *state);

/*
 * A descriptor of a port that is readable if a dequeue would return something, and perhaps at other
 * times. Watch it in another loop, with poll, select or epoll. Then dequeue with a timeout of 0, and let
 * no thread wait in the port meanwhile. The port owns the descriptor and closes it.
 */
uint32_t sn_port_descriptor(sn_port port, int *descriptor);

/* The name of a port's backend. The string is always valid. Null if that is no port of this process. */
const char *sn_backend(sn_port port);

/* The text of an error code or a reason. The string is always valid, and never null. */
const char *sn_strerror(uint32_t error);

/* The version of the library, as SN_VERSION is that of the header. */
uint32_t sn_version(void);

/*
 * The last error of this thread, as GetLastError returns it. The sn_ functions do not change it. Those with Win32 names set it if
 * they fail, and so may code that emulates other parts of Windows.
 */
uint32_t sn_last_error(void);
void sn_set_last_error(uint32_t error);

#ifdef __cplusplus
}
#endif

#endif /* _WIN32 */

#endif /* SOCKNOTIFY_H */

/* ---- The Win32 names ------------------------------------------------------------------------ */

/* A guard of its own, because the header may have been included before without the names. */
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

/* The descriptor of a file, or -1 if the value cannot be one. NULL is no file, as on Windows. */
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

/* The result of a function that returns a BOOL. */
static inline BOOL sn_bool_outcome(uint32_t error) {
    if (error == SN_SUCCESS) {
        return TRUE;
    }
    sn_set_last_error(error);
    return FALSE;
}

/*
 * Make a port, with INVALID_HANDLE_VALUE for the file. Or associate a file with a port and a key, with
 * a new port if existing_port is NULL. A file is a descriptor: (HANDLE)(intptr_t)descriptor. It can be
 * associated again. Returns NULL on failure.
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
 * Begin an operation on an associated file. It never completes within the call, which returns FALSE
 * with ERROR_IO_PENDING, and a packet follows. With any other error there is no packet.
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

/* Close a port. Other handles fail with ERROR_INVALID_HANDLE. */
static inline BOOL CloseHandle(HANDLE port) {
    return sn_bool_outcome(sn_close_port(port));
}

/* Returns the error code, and on failure also sets the last error. */
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

/* `alertable` has no effect. */
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
