/*
 * The library loaded while the program runs, and freed while a socket is registered: it stays, and so
 * do its notifications.
 */
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

static DWORD WINAPI dequeue(void *port) {
    OVERLAPPED_ENTRY entry;
    ULONG count = 0;
    require(GetQueuedCompletionStatusEx(port, &entry, 1, &count, 300000, FALSE), "dequeue");
    require(entry.lpCompletionKey == 1, "the key");
    require(entry.dwNumberOfBytesTransferred == SOCK_NOTIFY_EVENT_IN, "IN");
    return 0;
}

int main(void) {
    WSADATA data;
    require(WSAStartup(MAKEWORD(2, 2), &data) == 0, "WSAStartup");
    SOCKET receiver = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in address;
    int length = sizeof address;
    ZeroMemory(&address, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    require(bind(receiver, (struct sockaddr *)&address, length) == 0, "bind");
    require(getsockname(receiver, (struct sockaddr *)&address, &length) == 0, "getsockname");
    HANDLE port = CreateIoCompletionPort(INVALID_HANDLE_VALUE, NULL, 0, 0);

    HMODULE library = LoadLibraryA("socknotify.dll");
    require(library != NULL, "LoadLibrary");
    /* It waits before a socket is registered with the port. */
    HANDLE thread = CreateThread(NULL, 0, dequeue, port, 0, NULL);
    Sleep(100);
    process function = (process)(void (*)(void))GetProcAddress(library, "ProcessSocketNotifications");
    require(function != NULL, "GetProcAddress");
    SOCK_NOTIFY_REGISTRATION registration;
    ZeroMemory(&registration, sizeof registration);
    registration.socket = receiver;
    registration.completionKey = (void *)1;
    registration.eventFilter = SOCK_NOTIFY_REGISTER_EVENT_IN;
    registration.operation = SOCK_NOTIFY_OP_ENABLE;
    registration.triggerFlags = SOCK_NOTIFY_TRIGGER_ONESHOT | SOCK_NOTIFY_TRIGGER_LEVEL;
    require(function(port, 1, &registration, 0, 0, NULL, NULL) == ERROR_SUCCESS, "register");
    require(registration.registrationResult == ERROR_SUCCESS, "registrationResult");
    require(FreeLibrary(library), "FreeLibrary");

    require(sendto(receiver, "x", 1, 0, (struct sockaddr *)&address, length) == 1, "sendto");
    require(WaitForSingleObject(thread, 300000) == WAIT_OBJECT_0, "the thread ends");
    puts("loaded late: ok");
    return EXIT_SUCCESS;
}
