/*
 * Winsock's header as newer kits have it: all of it for programs that ask for a Windows that has the
 * functions; in newer versions of MinGW, the constants and the structure for all programs.
 */
#include_next <winsock2.h>

#ifndef NEWER_WINSOCK2_H
#define NEWER_WINSOCK2_H

#ifdef IMITATES_MINGW
#define HAS_FUNCTIONS (NTDDI_VERSION >= NTDDI_WIN10_MN)
#define HAS_TYPES 1
#else
#define HAS_FUNCTIONS (NTDDI_VERSION >= NTDDI_WIN10_FE)
#define HAS_TYPES HAS_FUNCTIONS
#endif

#if HAS_TYPES
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
    DWORD registrationResult;
} SOCK_NOTIFY_REGISTRATION;
#endif

#if HAS_FUNCTIONS
#ifdef __cplusplus
extern "C" {
#endif
WINSOCK_API_LINKAGE DWORD WSAAPI ProcessSocketNotifications(HANDLE port, UINT32 count,
                                                            SOCK_NOTIFY_REGISTRATION *registrations,
                                                            UINT32 timeout, ULONG room,
                                                            OVERLAPPED_ENTRY *entries,
                                                            UINT32 *received);

static __inline UINT32 SocketNotificationRetrieveEvents(OVERLAPPED_ENTRY *entry) {
    return entry->dwNumberOfBytesTransferred;
}
#ifdef __cplusplus
}
#endif
#endif

#endif
