/*
 * A mswsock.dll that has the function, as the system's has from build 20348 on: it notes how it is
 * called, and gives an answer that nothing else gives.
 */
#include "stand_in.h"

static struct call latest;

__declspec(dllexport) struct call latest_call(void) {
    return latest;
}

__declspec(dllexport) DWORD WSAAPI ProcessSocketNotifications(HANDLE port,
                                                              UINT32 registration_count,
                                                              SOCK_NOTIFY_REGISTRATION *registrations,
                                                              UINT32 timeout,
                                                              ULONG room,
                                                              OVERLAPPED_ENTRY *entries,
                                                              UINT32 *received) {
    struct call call = {latest.number + 1, port,    registration_count, registrations,
                        timeout,           room,    entries,            received};
    latest = call;
    return ANSWER;
}
