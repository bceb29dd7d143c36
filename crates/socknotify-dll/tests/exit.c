/* A program that ends while sockets are registered: `exit_library.c` says with which status. */
#include "exit_library.h"

#include <stdio.h>
#include <stdlib.h>

static void require(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "failed: %s (%lu)\n", what, GetLastError());
        exit(EXIT_FAILURE);
    }
}

int main(void) {
    WSADATA data;
    require(WSAStartup(MAKEWORD(2, 2), &data) == 0, "WSAStartup");
    SOCKET receiver = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in address;
    ZeroMemory(&address, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    require(bind(receiver, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    HANDLE port = CreateIoCompletionPort(INVALID_HANDLE_VALUE, NULL, 0, 0);
    SOCK_NOTIFY_REGISTRATION registration = {0};
    registration.socket = receiver;
    registration.eventFilter = SOCK_NOTIFY_REGISTER_EVENT_OUT;
    registration.operation = SOCK_NOTIFY_OP_ENABLE;
    registration.triggerFlags = SOCK_NOTIFY_TRIGGER_PERSISTENT | SOCK_NOTIFY_TRIGGER_LEVEL;
    OVERLAPPED_ENTRY entry;
    UINT32 received = 0;
    require(ProcessSocketNotifications(port, 1, &registration, INFINITE, 1, &entry, &received) ==
                    ERROR_SUCCESS &&
                registration.registrationResult == ERROR_SUCCESS,
            "register and take");
    HMODULE library = LoadLibraryA("exit_library.dll");
    require(library != NULL, "LoadLibrary");
    watch_function watch = (watch_function)(void (*)(void))GetProcAddress(library, "watch");
    require(watch != NULL, "GetProcAddress");
    watch(port, receiver);
    /* The library has another status. */
    return EXIT_FAILURE;
}
