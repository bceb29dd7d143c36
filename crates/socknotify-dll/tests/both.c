/* The library linked statically, in a process that has loaded socknotify.dll too: they are one. */
#include <socknotify.h>
#include <stdio.h>
#include <stdlib.h>

typedef DWORD(WSAAPI *process)(HANDLE, UINT32, SOCK_NOTIFY_REGISTRATION *, UINT32, ULONG,
                               OVERLAPPED_ENTRY *, UINT32 *);

static void require(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "failed: %s (%lu)\n", what, GetLastError());
        exit(EXIT_FAILURE);
    }
}

int main(void) {
    WSADATA data;
    require(WSAStartup(MAKEWORD(2, 2), &data) == 0, "WSAStartup");
    HMODULE library = LoadLibraryA("socknotify.dll");
    require(library != NULL, "LoadLibrary");
    process function = (process)(void (*)(void))GetProcAddress(library, "ProcessSocketNotifications");
    require(function != NULL && function != ProcessSocketNotifications, "there are two");
    HANDLE port = CreateIoCompletionPort(INVALID_HANDLE_VALUE, NULL, 0, 0);
    HANDLE other = CreateIoCompletionPort(INVALID_HANDLE_VALUE, NULL, 0, 0);
    SOCK_NOTIFY_REGISTRATION registration = {0};
    registration.socket = socket(AF_INET, SOCK_DGRAM, 0);
    registration.eventFilter = SOCK_NOTIFY_REGISTER_EVENT_IN;
    registration.operation = SOCK_NOTIFY_OP_ENABLE;
    registration.triggerFlags = SOCK_NOTIFY_TRIGGER_LEVEL;
    require(ProcessSocketNotifications(port, 1, &registration, 0, 0, NULL, NULL) == ERROR_SUCCESS &&
                registration.registrationResult == ERROR_SUCCESS,
            "register");
    require(function(other, 1, &registration, 0, 0, NULL, NULL) == ERROR_SUCCESS &&
                registration.registrationResult == ERROR_INVALID_PARAMETER,
            "another port's");
    registration.operation = SOCK_NOTIFY_OP_REMOVE;
    require(function(port, 1, &registration, 0, 0, NULL, NULL) == ERROR_SUCCESS &&
                registration.registrationResult == ERROR_SUCCESS,
            "remove");
    puts("both: ok");
    return EXIT_SUCCESS;
}
