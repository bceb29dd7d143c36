/*
 * Providers in layers above the system's, one of which breaks `SIO_BASE_HANDLE`: a socket that is its own beneath all of them
 * is registered, and any other is refused with a code of its own.
 */
#include "imports.hpp"

#include <initializer_list>

namespace {

constexpr DWORD base_handle = 0x48000022, poll_handle = 0x4800001D, select_handle = 0x4800001C;

using Ioctl = decltype(&WSAIoctl);

Ioctl systems_ioctl = nullptr;
/* Which of the two does not work, either. */
DWORD broken = 0;
SOCKET beneath = INVALID_SOCKET;

int WSAAPI ioctl_of_a_layer(SOCKET socket, DWORD code, void *input, DWORD input_length, void *output, DWORD output_length,
                            DWORD *length, WSAOVERLAPPED *overlapped, LPWSAOVERLAPPED_COMPLETION_ROUTINE routine) {
    if (code == base_handle || code == broken) {
        WSASetLastError(WSAEFAULT);
        return SOCKET_ERROR;
    }
    if (code == poll_handle || code == select_handle) {
        *static_cast<SOCKET *>(output) = socket == beneath || beneath == INVALID_SOCKET ? socket : beneath;
        *length = sizeof beneath;
        return 0;
    }
    return systems_ioctl(socket, code, input, input_length, output, output_length, length, overlapped, routine);
}

} // namespace

int main() {
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    WSADATA data;
    require(WSAStartup(MAKEWORD(2, 2), &data) == 0, "WSAStartup");
    systems_ioctl = lead("WSAIoctl", ioctl_of_a_layer);
    for (DWORD which : {DWORD{0}, poll_handle, select_handle}) {
        broken = which;
        beneath = INVALID_SOCKET;
        HANDLE port = make_port();
        Pair pair = connect_pair();
        require_applied(port, enable(pair.ours, as_key(1), in, once));
        send_one(pair.theirs);
        require(take(port, patience).events() == in, "IN");
        close_pair(pair);
        pair = connect_pair();
        beneath = pair.theirs;
        require(apply(port, enable(pair.ours, as_key(1), in, once)) == WSAEOPNOTSUPP, "a layer above another's socket");
        require(apply(port, enable(pair.theirs, as_key(1), in, once)) == ERROR_SUCCESS, "the socket beneath");
        close_pair(pair);
        CloseHandle(port);
    }
    std::puts("providers: ok");
    return 0;
}
