/*
 * Tokens that go round a ring of sockets, each with every trigger and taken with either call, by one thread
 * and by two. If they stand still, what can be seen of the state is printed.
 *
 * `ring [hops [times]]`: how far the tokens go together, and how often all that is done.
 */
#include "loopback.hpp"

#include <atomic>
#include <vector>

namespace {

constexpr std::size_t connections = 100;
constexpr std::size_t tokens = 10;
constexpr DWORD standstill = 200000;

struct Ring {
    HANDLE port;
    int trigger;
    bool by_system;
    std::vector<Pair> pairs;
    std::atomic<long> left;
    std::atomic<long> notifications;
    std::atomic<long> in_vain;
};

/* One byte, to whoever is next. */
void pass_on(Ring &ring, std::size_t index) {
    long left = ring.left.fetch_sub(1);
    if (left == 1) {
        PostQueuedCompletionStatus(ring.port, 0, connections, nullptr);
    } else if (left > 1) {
        send_one(ring.pairs[(index + 1) % connections].theirs);
    }
}

DWORD WINAPI serve(void *context) {
    Ring &ring = *static_cast<Ring *>(context);
    for (;;) {
        Taken taken = ring.by_system ? dequeue(ring.port, INFINITE) : take(ring.port, INFINITE);
        require(taken.error == ERROR_SUCCESS && taken.count > 0, "take");
        bool ends = false;
        for (UINT32 each = 0; each < taken.count; each += 1) {
            std::size_t index = taken.entries[each].lpCompletionKey;
            if (index == connections) {
                ends = true;
                continue;
            }
            ring.notifications += 1;
            SOCKET socket = ring.pairs[index].ours;
            char buffer[tokens];
            int length = recv(socket, buffer, sizeof buffer, 0);
            if (length < 0) {
                require(WSAGetLastError() == WSAEWOULDBLOCK, "recv");
                ring.in_vain += 1;
            }
            for (int token = 0; token < length; token += 1) {
                pass_on(ring, index);
            }
            if (ring.trigger == once) {
                require_applied(ring.port, enable(socket, as_key(index), in, once));
            }
        }
        if (ends) {
            PostQueuedCompletionStatus(ring.port, 0, connections, nullptr);
            return 0;
        }
    }
}

void print_state(Ring &ring, long left) {
    std::fprintf(stderr, "standing still: trigger %d, taken by %s, %ld hops left, %ld notifications\n",
                 ring.trigger, ring.by_system ? "the system's call" : "the library's", left,
                 ring.notifications.load());
    for (std::size_t index = 0; index < connections; index += 1) {
        u_long length = 0;
        ioctlsocket(ring.pairs[index].ours, FIONREAD, &length);
        WSAPOLLFD poll = {ring.pairs[index].ours, POLLRDNORM, 0};
        WSAPoll(&poll, 1, 0);
        if (length > 0 || poll.revents != 0) {
            std::fprintf(stderr, "  socket %u: %lu bytes, poll says 0x%x\n",
                         static_cast<unsigned>(index), length, poll.revents);
        }
    }
    Taken taken = dequeue(ring.port, 0);
    std::fprintf(stderr, "  in the port: %u packets\n", taken.error == ERROR_SUCCESS ? taken.count : 0);
    taken = take(ring.port, 0);
    std::fprintf(stderr, "  the library finds %u more (%lu)\n", taken.count, taken.error);
}

/* Until the threads have left, or nothing moves. */
void watch(Ring &ring, const std::vector<HANDLE> &threads) {
    long left = ring.left;
    for (;;) {
        DWORD outcome = WaitForMultipleObjects(static_cast<DWORD>(threads.size()), threads.data(),
                                               TRUE, standstill);
        if (outcome != WAIT_TIMEOUT) {
            return;
        }
        long now = ring.left;
        if (now == left) {
            print_state(ring, left);
            std::exit(1);
        }
        left = now;
    }
}

void go_round(int trigger, bool by_system, std::size_t number, long hops) {
    DWORD begin = GetTickCount();
    Ring ring = {};
    ring.port = make_port();
    ring.trigger = trigger;
    ring.by_system = by_system;
    ring.left = hops;
    for (std::size_t index = 0; index < connections; index += 1) {
        Pair pair = connect_pair();
        u_long yes = 1;
        ioctlsocket(pair.ours, FIONBIO, &yes);
        ring.pairs.push_back(pair);
        require_applied(ring.port, enable(pair.ours, as_key(index), in, trigger));
    }
    std::vector<HANDLE> threads;
    for (std::size_t index = 0; index < number; index += 1) {
        threads.push_back(start(serve, &ring));
    }
    for (std::size_t token = 0; token < tokens; token += 1) {
        send_one(ring.pairs[token * connections / tokens].theirs);
    }
    watch(ring, threads);
    for (HANDLE thread : threads) {
        CloseHandle(thread);
    }
    for (Pair pair : ring.pairs) {
        /* Wine's server does not always live through what is closed while it is armed: see PLATFORMS.md. */
        require_applied(ring.port, entry_for(pair.ours, SOCK_NOTIFY_OP_REMOVE));
        close_pair(pair);
    }
    CloseHandle(ring.port);
    std::printf("trigger %d, %s, %u threads: %ld hops, %ld notifications, %ld in vain, %lu ms\n", trigger,
                by_system ? "system" : "library", static_cast<unsigned>(number), hops,
                ring.notifications.load(), ring.in_vain.load(), GetTickCount() - begin);
}

} // namespace

int main(int count, char **arguments) {
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    WSADATA data;
    require(WSAStartup(MAKEWORD(2, 2), &data) == 0, "WSAStartup");
    long hops = count > 1 ? std::atol(arguments[1]) : 1000;
    long times = count > 2 ? std::atol(arguments[2]) : 1;
    for (; times > 0; times -= 1) {
        for (int trigger : {once, level, edge}) {
            for (bool by_system : {false, true}) {
                for (std::size_t number : {1, 2}) {
                    go_round(trigger, by_system, number, hops);
                }
            }
        }
    }
    std::puts("ring: ok");
    return 0;
}
