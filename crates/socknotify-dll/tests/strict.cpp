/*
 * Sockets are closed without REMOVE, and no call of the library names a handle that is none: where the system checks handles
 * strictly, as in an AppContainer or under Application Verifier, that ends the process.
 */
#include "imports.hpp"

#include <initializer_list>

namespace {

struct Poll {
    LARGE_INTEGER timeout;
    ULONG count;
    ULONG exclusive;
    HANDLE socket;
};

using Control = LONG(NTAPI *)(HANDLE, HANDLE, void *, void *, void *, ULONG, void *, ULONG, void *, ULONG);

Control systems_control = nullptr;
volatile LONG calls = 0;
volatile LONG wrong = 0;

LONG NTAPI check_handle(HANDLE handle, HANDLE event, void *routine, void *context, void *outcome, ULONG code, void *input,
                        ULONG input_length, void *output, ULONG output_length) {
    constexpr ULONG poll_code = 0x12024;
    DWORD flags;
    HANDLE named = code == poll_code ? static_cast<Poll *>(input)->socket : handle;
    InterlockedIncrement(&calls);
    if (!GetHandleInformation(named, &flags)) {
        InterlockedIncrement(&wrong);
        std::printf("code %lx names %p\n", code, named);
    }
    return systems_control(handle, event, routine, context, outcome, code, input, input_length, output, output_length);
}

void expect_nothing(HANDLE port) {
    require(take(port, 0).error == WAIT_TIMEOUT && take(port, 50).error == WAIT_TIMEOUT, "nothing comes");
    require(wrong == 0, "each call names a handle");
}

/* A socket that was notified so often, drained or not in between, and closed before the next call. */
void closed_after(int notifications, int trigger, bool drains) {
    HANDLE port = make_port();
    Pair pair = connect_pair();
    require_applied(port, enable(pair.ours, as_key(1), in, trigger));
    for (int round = 0; round < notifications; round += 1) {
        send_one(pair.theirs);
        require(take(port, patience).events() == in, "IN");
        if (drains) {
            char byte;
            require(recv(pair.ours, &byte, 1, 0) == 1, "recv");
        }
        if ((trigger & SOCK_NOTIFY_TRIGGER_ONESHOT) != 0) {
            require_applied(port, enable(pair.ours, as_key(1), in, trigger));
        }
    }
    close_pair(pair);
    /* What was queued may come. */
    take(port, 50);
    expect_nothing(port);
    CloseHandle(port);
    require(wrong == 0, "each call names a handle");
}

/* The port is closed after its sockets. */
void closed_before_the_port(int trigger) {
    HANDLE port = make_port();
    for (int count = 0; count < 10; count += 1) {
        Pair pair = connect_pair();
        require_applied(port, enable(pair.ours, as_key(1), in, trigger));
        send_one(pair.theirs);
        require(take(port, patience).count == 1, "IN");
        close_pair(pair);
    }
    CloseHandle(port);
    require(wrong == 0, "each call names a handle");
}

} // namespace

int main() {
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    WSADATA data;
    require(WSAStartup(MAKEWORD(2, 2), &data) == 0, "WSAStartup");
    systems_control = lead("NtDeviceIoControlFile", check_handle);
    for (int trigger : {once, level, edge}) {
        for (int notifications : {0, 1, 3}) {
            for (bool drains : {false, true}) {
                /* An edge that was not drained need not be followed by another. */
                if (trigger != edge || drains || notifications <= 1) {
                    closed_after(notifications, trigger, drains);
                }
            }
        }
        closed_before_the_port(trigger);
    }
    require(calls > 0, "calls are seen");
    std::puts("strict: ok");
    return 0;
}
