/*
 * What a notification costs, with each trigger and each call that dequeues: until a thread that waits is woken, a round
 * trip of an echo, and the processor time of a message. Beside it the same with `wepoll.dll`, if there is one beside this
 * program: then it fails if the library's call is slower by more than the goals allow. The ways take turns, so that what
 * else the machine does concerns them alike.
 *
 * `speed [rounds [process [way]]]`: with the number of Wine's server as a process of the host, its processor time counts
 * too; and only the ways with this in their names, without goals.
 */
#include "loopback.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace {

/* The interface of wepoll, which is that of Linux. */
union epoll_data {
    void *pointer;
    SOCKET socket;
    std::uint64_t number;
};

struct epoll_event {
    std::uint32_t events;
    epoll_data data;
};

constexpr std::uint32_t epoll_in = 1, epoll_once = 1U << 31;
constexpr int epoll_add = 1, epoll_change = 2;

template <typename Function> Function function_of(HMODULE library, const char *name) {
    FARPROC found = GetProcAddress(library, name);
    require(found != nullptr, name);
    return reinterpret_cast<Function>(reinterpret_cast<void (*)()>(found));
}

struct Wepoll {
    HANDLE (*create)(int);
    int (*control)(HANDLE, int, SOCKET, epoll_event *);
    int (*wait)(HANDLE, epoll_event *, int, int);
    int (*close)(HANDLE);
    bool is_there;

    Wepoll() : create(), control(), wait(), close(), is_there() {
        HMODULE library = LoadLibraryA("wepoll.dll");
        if (library != nullptr) {
            create = function_of<HANDLE (*)(int)>(library, "epoll_create1");
            control = function_of<int (*)(HANDLE, int, SOCKET, epoll_event *)>(library, "epoll_ctl");
            wait = function_of<int (*)(HANDLE, epoll_event *, int, int)>(library, "epoll_wait");
            close = function_of<int (*)(HANDLE)>(library, "epoll_close");
            is_there = true;
        }
    }
};

double median(std::vector<double> &values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

/* A way to wait for sockets that can be received from. */
struct Way {
    std::string name;
    const Wepoll *wepoll;
    int trigger;
    bool by_system;
    /* How long each took: medians, since what else the machine does takes the rest. */
    std::vector<double> wakes;
    std::vector<double> echoes;
    double processor;
    HANDLE port;

    void open() { port = wepoll ? wepoll->create(0) : make_port(); }

    void close() {
        if (wepoll) {
            wepoll->close(port);
        } else {
            CloseHandle(port);
        }
    }

    void add(SOCKET socket, bool again) {
        if (wepoll) {
            epoll_event event = {epoll_in | (trigger == once ? epoll_once : 0), {nullptr}};
            event.data.socket = socket;
            require(wepoll->control(port, again ? epoll_change : epoll_add, socket, &event) == 0, "epoll_ctl");
        } else {
            require_applied(port, enable(socket, as_key(socket), in, trigger));
        }
    }

    /* The sockets that are ready. Those of the last call are enabled again first, if that is needed. */
    const std::vector<SOCKET> &wait() {
        std::vector<SOCKET> last;
        last.swap(ready);
        if (wepoll) {
            if (trigger == once) {
                for (SOCKET socket : last) {
                    add(socket, true);
                }
            }
            epoll_event events[64];
            int count = wepoll->wait(port, events, 64, static_cast<int>(patience));
            require(count > 0, "epoll_wait");
            for (int index = 0; index < count; index += 1) {
                ready.push_back(events[index].data.socket);
            }
            return ready;
        }
        std::vector<SOCK_NOTIFY_REGISTRATION> batch;
        if (trigger == once) {
            for (SOCKET socket : last) {
                batch.push_back(enable(socket, as_key(socket), in, once));
            }
        }
        UINT32 number = static_cast<UINT32>(batch.size());
        OVERLAPPED_ENTRY entries[64];
        UINT32 count = 0;
        if (by_system) {
            ULONG taken = 0;
            require(number == 0 || ProcessSocketNotifications(port, number, batch.data(), 0, 0, nullptr, nullptr) == 0,
                    "enable");
            require(GetQueuedCompletionStatusEx(port, entries, 64, &taken, patience, FALSE), "dequeue");
            count = taken;
        } else {
            require(ProcessSocketNotifications(port, number, number > 0 ? batch.data() : nullptr, patience, 64, entries,
                                               &count) == ERROR_SUCCESS,
                    "ProcessSocketNotifications");
        }
        for (UINT32 index = 0; index < count; index += 1) {
            ready.push_back(entries[index].lpCompletionKey);
        }
        return ready;
    }

    std::vector<SOCKET> ready;
};

/* How long it takes until a thread that waits has been woken. */
void measure_wakes(std::vector<Way> &ways, int rounds) {
    std::vector<Pair> pairs;
    Sender sender = {INVALID_SOCKET, CreateEventA(nullptr, FALSE, FALSE, nullptr), 0};
    for (Way &way : ways) {
        Pair pair = connect_pair();
        way.open();
        way.add(pair.ours, false);
        pairs.push_back(pair);
    }
    sender.socket = pairs[0].theirs;
    HANDLE thread = start(send_soon, &sender);
    for (int round = 0; round < rounds; round += 1) {
        for (std::size_t index = 0; index < ways.size(); index += 1) {
            sender.socket = pairs[index].theirs;
            SetEvent(sender.go);
            ways[index].wait();
            ways[index].wakes.push_back(now() - sender.sent);
            receive_all(pairs[index].ours);
        }
    }
    sender.socket = INVALID_SOCKET;
    SetEvent(sender.go);
    join(thread);
    for (std::size_t index = 0; index < ways.size(); index += 1) {
        ways[index].ready.clear();
        close_pair(pairs[index]);
        ways[index].close();
    }
}

struct Client {
    std::vector<Pair> pairs;
    int rounds;
};

/* One byte on each connection, and then all answers. */
DWORD WINAPI ask(void *context) {
    Client &client = *static_cast<Client *>(context);
    for (int round = 0; round < client.rounds; round += 1) {
        for (Pair pair : client.pairs) {
            send_one(pair.theirs);
        }
        for (Pair pair : client.pairs) {
            char byte;
            require(recv(pair.theirs, &byte, 1, 0) == 1, "the answer");
        }
    }
    return 0;
}

double of_process(HANDLE process) {
    FILETIME made, ended, kernel, user;
    require(GetProcessTimes(process, &made, &ended, &kernel, &user), "GetProcessTimes");
    return (kernel.dwLowDateTime + user.dwLowDateTime +
            4294967296.0 * (kernel.dwHighDateTime + user.dwHighDateTime)) /
           10000;
}

/* Processor time in milliseconds, with that of Wine's server. */
double processor_time(const char *server) {
    double sum = of_process(GetCurrentProcess());
    if (server != nullptr) {
        std::FILE *file = std::fopen((std::string("Z:\\proc\\") + server + "\\stat").c_str(), "r");
        require(file != nullptr, "the server's process");
        char line[1024];
        require(std::fgets(line, sizeof line, file) != nullptr, "its line");
        std::fclose(file);
        long long user = 0, kernel = 0;
        require(std::sscanf(std::strrchr(line, ')') + 1, "%*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lld %lld", &user,
                            &kernel) == 2,
                "its times");
        sum += static_cast<double>(user + kernel) * 10;
    }
    return sum;
}

/* An echo on so many connections. Returns the time, and adds the processor time. */
double echo(Way &way, std::size_t connections, int rounds, const char *server, double &processor) {
    Client client = {{}, rounds};
    way.open();
    for (std::size_t index = 0; index < connections; index += 1) {
        client.pairs.push_back(connect_pair());
        way.add(client.pairs[index].ours, false);
    }
    double before = processor_time(server);
    double begin = now();
    HANDLE thread = start(ask, &client);
    for (std::size_t left = connections * static_cast<std::size_t>(rounds); left > 0;) {
        for (SOCKET socket : way.wait()) {
            char buffer[16];
            int length = recv(socket, buffer, sizeof buffer, 0);
            require(length > 0 && send(socket, buffer, length, 0) == length, "the echo");
            left -= static_cast<std::size_t>(length);
        }
    }
    join(thread);
    double time = now() - begin;
    processor += processor_time(server) - before;
    way.ready.clear();
    for (Pair pair : client.pairs) {
        close_pair(pair);
    }
    way.close();
    return time;
}

/* Whether the library's call meets the goals, with each trigger. wepoll has no edges: they are compared with its levels. */
bool meets_goals(std::vector<Way> &ways) {
    bool all = true;
    std::puts("beside wepoll                    wake <= 1.1   echoes >= 0.9   processor time <= 1.5");
    for (Way &way : ways) {
        if (way.wepoll || way.by_system) {
            continue;
        }
        auto is_its_like = [&way](const Way &other) {
            return other.wepoll && (other.trigger == once) == (way.trigger == once);
        };
        Way &other = *std::find_if(ways.begin(), ways.end(), is_its_like);
        double wake = median(way.wakes) / median(other.wakes);
        double echoes = median(other.echoes) / median(way.echoes);
        double processor = way.processor / other.processor;
        bool meets = wake <= 1.1 && echoes >= 0.9 && processor <= 1.5;
        std::printf("%-30s %13.2f %15.2f %23.2f%s\n", way.name.c_str(), wake, echoes, processor, meets ? "" : "  MISSED");
        all = all && meets;
    }
    return all;
}

} // namespace

int main(int count, char **arguments) {
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    WSADATA data;
    require(WSAStartup(MAKEWORD(2, 2), &data) == 0, "WSAStartup");
    int rounds = count > 1 ? std::atoi(arguments[1]) : 100;
    const char *server = count > 2 && std::atoi(arguments[2]) > 0 ? arguments[2] : nullptr;
    Wepoll wepoll;
    std::vector<Way> ways;
    struct {
        const char *name;
        int trigger;
    } triggers[] = {{"one-shot", once}, {"level", level}, {"edge", edge}};
    for (auto &each : triggers) {
        if (wepoll.is_there && each.trigger != edge) {
            ways.push_back({std::string("wepoll, ") + each.name, &wepoll, each.trigger, false, {}, {}, 0, nullptr, {}});
        }
    }
    for (auto &each : triggers) {
        ways.push_back({std::string("the library's call, ") + each.name, nullptr, each.trigger, false, {}, {}, 0, nullptr, {}});
        ways.push_back({std::string("the system's call, ") + each.name, nullptr, each.trigger, true, {}, {}, 0, nullptr, {}});
    }
    if (count > 3) {
        std::string only = arguments[3];
        auto is_other = [&only](const Way &way) { return way.name.find(only) == std::string::npos; };
        ways.erase(std::remove_if(ways.begin(), ways.end(), is_other), ways.end());
    }
    measure_wakes(ways, rounds);
    constexpr int parts = 25;
    constexpr std::size_t many = 10;
    double ignored = 0;
    for (int part = 0; part < parts; part += 1) {
        for (Way &way : ways) {
            way.echoes.push_back(echo(way, 1, rounds / 5, server, ignored));
            echo(way, many, rounds / 25, server, way.processor);
        }
    }
    std::puts("                                 wake, ms   echoes/s   processor time of a message, ms");
    for (Way &way : ways) {
        std::printf("%-30s %8.3f %10.0f %10.3f\n", way.name.c_str(), median(way.wakes),
                    rounds / 5 * 1000 / median(way.echoes),
                    way.processor / (parts * (rounds / 25) * static_cast<int>(many)));
    }
    if (wepoll.is_there && count <= 3) {
        require(meets_goals(ways), "the goals");
    }
    return 0;
}
