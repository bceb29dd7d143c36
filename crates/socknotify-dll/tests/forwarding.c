/*
 * Where the system has the function, that one is called, with whatever the program passes. Run beside
 * socknotify.dll, with the stand-in as the system's mswsock.dll.
 */
#include "stand_in.h"

#include <stdio.h>
#include <stdlib.h>

static void require(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "failed: %s (%lu)\n", what, GetLastError());
        exit(EXIT_FAILURE);
    }
}

int main(void) {
    /* Nobody else checks these. */
    HANDLE port = (HANDLE)(INT_PTR)0x1234;
    SOCK_NOTIFY_REGISTRATION registrations[2] = {{0}};
    OVERLAPPED_ENTRY entries[3];
    UINT32 received = 7;
    for (LONG number = 1; number <= 3; number += 1) {
        require(ProcessSocketNotifications(port, 2, registrations, 5, 3, entries, &received) ==
                    ANSWER,
                "the system's answer");
        HMODULE system = GetModuleHandleA("mswsock.dll");
        require(system != NULL, "mswsock.dll");
        latest_call_function latest_call =
            (latest_call_function)(void (*)(void))GetProcAddress(system, "latest_call");
        require(latest_call != NULL, "it is the stand-in");
        struct call call = latest_call();
        require(call.number == number && call.port == port && call.registration_count == 2 &&
                    call.registrations == registrations && call.timeout == 5 && call.room == 3 &&
                    call.entries == entries && call.received == &received,
                "everything arrives");
    }
    puts("forwarding: ok");
    return EXIT_SUCCESS;
}
