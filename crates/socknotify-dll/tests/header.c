/* Everything that the header has, whatever the compiler's own headers had before. C, and C++. */
#include <socknotify.h>
#include <socknotify.h>

int main(void) {
    SOCK_NOTIFY_REGISTRATION registration;
    OVERLAPPED_ENTRY entry;
    UINT32 received;
    DWORD error;
    ZeroMemory(&registration, sizeof registration);
    ZeroMemory(&entry, sizeof entry);
    registration.eventFilter = SOCK_NOTIFY_REGISTER_EVENTS_ALL;
    registration.operation = SOCK_NOTIFY_OP_ENABLE;
    registration.triggerFlags = SOCK_NOTIFY_TRIGGER_ALL;
    error = ProcessSocketNotifications(NULL, 1, &registration, 0, 1, &entry, &received);
    if (SocketNotificationRetrieveEvents(&entry) & SOCK_NOTIFY_EVENTS_ALL) {
        return 1;
    }
    return sn_process(NULL, 1, &registration, 0, 1, &entry, &received) == error ? 0 : 1;
}
