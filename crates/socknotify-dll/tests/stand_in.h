/* What the stand-in for the system's function and the program that reaches it have in common. */
#include <socknotify.h>

#define ANSWER 20348

struct call {
    LONG number;
    HANDLE port;
    UINT32 registration_count;
    SOCK_NOTIFY_REGISTRATION *registrations;
    UINT32 timeout;
    ULONG room;
    OVERLAPPED_ENTRY *entries;
    UINT32 *received;
};

typedef struct call (*latest_call_function)(void);
