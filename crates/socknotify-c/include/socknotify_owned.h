/*
 * socknotify_owned.h - a port that owns its connections, with deadlines, messages, timers and a queue of what is to be sent
 *
 * With socknotify.h alone, a descriptor and a completion key name a connection, and the program sees to it that neither is used
 * once the connection is gone. Here a connection has a handle of 64 bits, which no other connection, of whatever port, ever
 * gets: a call with an old one fails with SN_NOT_FOUND. It is either armed, which means that it waits in the port, or the
 * program has it. So:
 *
 *     sn_owned_adopt()  the port owns the descriptor, and the program has the connection
 *     sn_owned_arm()    it waits, for events or until a deadline, and no thread may use its descriptor
 *     sn_owned_next()   an event gives it to the thread that takes that event, and to no other
 *     sn_owned_end()    closes it, in place of arming it again; never call close()
 *
 * Any thread may send to a connection, and interrupt its wait, with its handle, whoever has it.
 *
 * MEMORY: each connection has exactly one event SN_OWNED_CLOSED, which is its last, whether the program ended it, the port did,
 * or the system refused to watch it. When that is taken, nothing else has the pointer that sn_owned_adopt() was given: free
 * what it points to then, and not before. sn_owned_drain() leads to all of them; sn_owned_close() alone leaves them out.
 *
 * No function calls the program. The rules of socknotify.h hold for all of these, but that in a forked child not even
 * sn_owned_close() does anything. A port of this kind is none of socknotify.h, and the other way round: SN_INVALID_HANDLE. Not
 * on Windows.
 *
 * This header is C99 and C++11. Link with -lsocknotify. The example chat.cpp is a whole server.
 */
#ifndef SOCKNOTIFY_OWNED_H
#define SOCKNOTIFY_OWNED_H

#ifdef _WIN32
#error "socknotify_owned.h is not for Windows"
#endif

#include <socknotify.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Types and constants -------------------------------------------------------------------- */

/* A port that owns its connections. Never null. */
typedef struct sn_owned *sn_owned_port;

/* What an event says. With the first four, the program has the connection: it arms or ends it. */
#define SN_OWNED_READY 1     /* `events` hold, of those that it was armed for; ERR in any case */
#define SN_OWNED_TIMED_OUT 2 /* its time has passed */
#define SN_OWNED_CANCELLED 3 /* sn_owned_cancel() was called for it */
#define SN_OWNED_DRAINING 4  /* sn_owned_drain() was called: once for each connection */
#define SN_OWNED_CLOSED 5    /* it is closed: its last event, after which `user` may be freed */
#define SN_OWNED_MESSAGE 6   /* what sn_owned_post() was given */

/* What a thread takes from a port. */
typedef struct sn_owned_event {
    uint64_t handle; /* of the connection or the message */
    void *user;      /* the pointer that sn_owned_adopt() or sn_owned_post() was given */
    uint32_t kind;   /* SN_OWNED_* */
    uint32_t events; /* of SN_OWNED_READY: SOCK_NOTIFY_EVENT_*. ERR, of any kind: it is broken, perhaps for what was sent */
} sn_owned_event;

/* ---- Functions ------------------------------------------------------------------------------ */

/*
 * Make a port that owns its connections.
 *
 * `concurrency` is as for sn_create_port(). `queue_limit` is the maximum number of bytes that wait to be sent on one
 * connection: see sn_owned_send(). They take twice that memory at most, and none when all is sent.
 */
uint32_t sn_owned_create(uint32_t concurrency, size_t queue_limit, sn_owned_port *port);

/*
 * Close a port, and the connections that it owns. A thread that waits returns with SN_ABANDONED_WAIT, or with an event that was
 * left.
 *
 * Events that nobody has taken are lost, SN_OWNED_CLOSED among them. So call sn_owned_drain() first, join the threads that take
 * events when they have had SN_ABANDONED_WAIT, and close the port then.
 */
uint32_t sn_owned_close(sn_owned_port port);

/*
 * Shut a port down, within this time. It returns at once.
 *
 * Each connection is reported as SN_OWNED_DRAINING: at once if it is armed, otherwise when it is armed next. Finish what is to
 * be finished, and end it. When the last one is closed, or the time has passed, the port is at its end: connections that are
 * armed are closed, and those that the program has are closed when it arms or ends them. They are shut down at once, so that no
 * thread waits for their peers: a send of your own raises SIGPIPE unless it has MSG_NOSIGNAL. Then sn_owned_next() returns the
 * events that are left, and after them SN_ABANDONED_WAIT. Time 0 ends it at once. A second call with a shorter time takes
 * effect.
 *
 * A listening socket is a connection like others here: at SN_OWNED_DRAINING accept what waits, and end it.
 */
uint32_t sn_owned_drain(sn_owned_port port, uint32_t within_ms);

/*
 * Give a socket to the port, as a connection that the program has. Arm it next.
 *
 * The port owns the descriptor from here on, and closes it. `user` is in each of its events. `*handle`, which is never 0, is
 * written before the first one: it may be a field of what `user` points to. A listening socket, a socket that is connecting and
 * one for datagrams are connections as well; but what is queued does not keep the bounds of datagrams, so send those yourself.
 *
 * The socket keeps its mode. Set O_NONBLOCK, or receive with MSG_DONTWAIT: a receive may find nothing.
 *
 * If the call fails, the descriptor is the caller's, and there is no SN_OWNED_CLOSED.
 */
uint32_t sn_owned_adopt(sn_owned_port port, int descriptor, void *user, uint64_t *handle);

/*
 * Arm a connection that the program has: let it wait for events, up to a time.
 *
 * `events` is a mask of SOCK_NOTIFY_REGISTER_EVENT_IN, OUT and HANGUP, or 0 for none. What comes first gives the connection
 * back, as SN_OWNED_READY, or after `timeout_ms` as SN_OWNED_TIMED_OUT: never earlier, and up to some milliseconds later. With
 * SN_INFINITE it has no deadline. While bytes are in its queue they are sent meanwhile, and OUT is reported when all are sent.
 * To send to it does not put its deadline off.
 *
 * After the call, do not use the descriptor, nor what `user` points to unless you have a lock for it: another thread may have
 * taken the next event.
 *
 * SN_NOT_FOUND if the program does not have the connection: it is armed, closed, or an event of it is not taken yet. If the
 * port is at its end, the call succeeds, and SN_OWNED_CLOSED follows.
 */
uint32_t sn_owned_arm(sn_owned_port port, uint64_t handle, uint32_t events, uint32_t timeout_ms);

/*
 * Close a connection that the program has, at once. SN_OWNED_CLOSED follows, perhaps in another thread before this returns: so
 * do not use what `user` points to after the call.
 *
 * What is in its queue is lost, and so may be what the peer has not received, if the peer has sent something that was not read.
 * To end well, arm it for OUT until all is sent, shut it down for sending, and arm it for IN, with a deadline, until the peer
 * has closed its side: the example chat.cpp does that. For a peer that takes nothing, set SO_LINGER to zero before: otherwise the
 * system keeps what it was sent, for minutes.
 *
 * SN_NOT_FOUND as for sn_owned_arm(). To end a connection that another thread may have, cancel it, and end it in that event.
 */
uint32_t sn_owned_end(sn_owned_port port, uint64_t handle);

/*
 * Interrupt the wait of a connection, or cancel a message.
 *
 * A connection is reported as SN_OWNED_CANCELLED: at once if it is armed, otherwise when it is armed next. SN_NOT_FOUND if it
 * is closed.
 *
 * A message does not come, and its pointer is the caller's. SN_NOT_FOUND if it is due: then its event comes, or has come.
 */
uint32_t sn_owned_cancel(sn_owned_port port, uint64_t handle);

/*
 * Send bytes on a connection, from any thread: all of them or none.
 *
 * They are copied to the connection's queue, and sent in the order of the calls: when the connection is armed, or at once if it
 * waits, by a thread that is in sn_owned_next(). The memory must not change during the call. Do not send by yourself what has
 * to stay in order with these.
 *
 * SN_WOULD_BLOCK if they and what waits are more than the port's limit: nothing of them is sent. The peer reads too slowly:
 * wait for OUT, drop them, or cancel the connection and end it. SN_NOT_FOUND if the connection is closed.
 *
 * If sending fails later, the connection has SN_OWNED_READY with SOCK_NOTIFY_EVENT_ERR, for whatever it was armed.
 */
uint32_t sn_owned_send(sn_owned_port port, uint64_t handle, const void *bytes, size_t length);

/*
 * How many bytes of what sn_owned_send() was given wait in a connection's queue, whoever has it. The system has the others: it
 * may not have sent them, nor the peer received them.
 *
 * So leave out what a slow peer would get too late. And if fewer wait in SN_OWNED_TIMED_OUT than when the connection was armed,
 * its peer reads, and may be given more time. SN_NOT_FOUND if the connection is closed.
 */
uint32_t sn_owned_queued(sn_owned_port port, uint64_t handle, size_t *bytes);

/*
 * Send a message to one thread, after this time: a timer.
 *
 * It comes as SN_OWNED_MESSAGE, with `*handle`, by which sn_owned_cancel() cancels it: never earlier, and up to some
 * milliseconds later, also with time 0. It comes once: post it again in its event. It costs no descriptor. What has not come when
 * each thread that takes events has had SN_ABANDONED_WAIT does not come: its pointer is the program's.
 */
uint32_t sn_owned_post(sn_owned_port port, void *user, uint32_t after_ms, uint64_t *handle);

/*
 * Take the next event, and wait for it up to this time. SN_TIMEOUT if none comes.
 *
 * SN_ABANDONED_WAIT if the port is at its end, and no event is left. Another thread may be about to return with one. A
 * connection that the program still has is closed when it arms or ends it, and the next call after that, by whichever thread,
 * returns its SN_OWNED_CLOSED.
 *
 * Any number of threads may wait. Each event goes to one. A thread that has taken one counts as one that runs until it calls
 * this again, as with sn_dequeue().
 */
uint32_t sn_owned_next(sn_owned_port port, sn_owned_event *event, uint32_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif /* SOCKNOTIFY_OWNED_H */
