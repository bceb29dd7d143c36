/*
 * A library that calls ProcessSocketNotifications while the process exits, when all other threads are gone:
 * the call returns. That it was made, and what it returned, is the exit status of the process.
 */
#include "exit_library.h"

#include <stdio.h>
#include <stdlib.h>

static HANDLE watched_port;
static SOCKET watched_socket;

__declspec(dllexport) void watch(HANDLE port, SOCKET socket) {
    watched_port = port;
    watched_socket = socket;
}

BOOL WINAPI DllMain(HINSTANCE library, DWORD reason, LPVOID is_exit) {
    (void)library;
    if (reason != DLL_PROCESS_DETACH || !is_exit) {
        return TRUE;
    }
    SOCK_NOTIFY_REGISTRATION registration = {0};
    registration.socket = watched_socket;
    registration.operation = SOCK_NOTIFY_OP_REMOVE;
    OVERLAPPED_ENTRY entry;
    UINT32 received = 0;
    DWORD error =
        ProcessSocketNotifications(watched_port, 1, &registration, INFINITE, 1, &entry, &received);
    BOOL is_right = error == ERROR_SHUTDOWN_IN_PROGRESS && GetLastError() == error;
    printf("exit: %s (%lu)\n", is_right ? "ok" : "failed", error);
    fflush(stdout);
    TerminateProcess(GetCurrentProcess(), is_right ? EXIT_SUCCESS : EXIT_FAILURE);
    return TRUE;
}
