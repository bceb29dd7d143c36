/*
 * A chat with rooms, over socknotify_owned.h: idle clients have to leave, and one that does not read holds up nobody.
 *
 *   chat                   lets clients of its own talk on loopback, and checks what they hear
 *   chat PORT              serves this port of the loopback interface until SIGTERM or Ctrl-C
 *
 * Clients begin in the room "hall". "/join NAME" takes them to another one; every other line goes to all others there.
 *
 * The port owns each connection. An event gives it to one thread, which arms it again or ends it: so what is in a `Peer` has no lock.
 * Whoever talks has but the handles of the others; a handle of one that has gone is an error, and nothing worse.
 */
#include <socknotify_owned.h>

#include "traffic.h"

#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

static const uint32_t IN = SOCK_NOTIFY_REGISTER_EVENT_IN;
static const uint32_t OUT = SOCK_NOTIFY_REGISTER_EVENT_OUT;
static const uint32_t IDLE_MS = 300000, LEAVE_MS = 2000, GRACE_MS = 5000;
static const size_t LONGEST_LINE = 4096, QUEUE = 256 * 1024;

typedef std::chrono::steady_clock Clock;

struct Peer {
    enum { LISTENS, TALKS, IS_SENT_THE_REST, LEAVES } state;
    Clock::time_point leaves_by;
    int fd;
    uint64_t handle;
    std::string line, room;
};

class Server {
  public:
    explicit Server(int listener) {
        require(sn_owned_create(0, QUEUE, &port) == SN_SUCCESS, "a port");
        adopt(Peer::LISTENS, listener);
    }

    /* What each thread runs. */
    void serve() {
        sn_owned_event event;
        while (sn_owned_next(port, &event, SN_INFINITE) == SN_SUCCESS) {
            Peer *peer = static_cast<Peer *>(event.user);
            if (event.kind == SN_OWNED_CLOSED) {
                enter(*peer, "");
                delete peer;
            } else if (peer->state == Peer::LISTENS) {
                accept_from(*peer, event.kind == SN_OWNED_DRAINING);
            } else if (!goes_on(*peer, event)) {
                sn_owned_end(port, event.handle);
            }
        }
    }

    void drain() {
        sn_owned_drain(port, GRACE_MS);
    }

    ~Server() {
        sn_owned_close(port);
    }

  private:
    sn_owned_port port;
    std::mutex lock;
    std::map<std::string, std::set<uint64_t> > rooms;

    void adopt(int state, int fd) {
        Peer *peer = new Peer();
        peer->state = static_cast<decltype(peer->state)>(state);
        peer->fd = fd;
        do_not_block(fd);
        if (sn_owned_adopt(port, fd, peer, &peer->handle) != SN_SUCCESS) {
            close(fd);
            delete peer;
            return;
        }
        if (state == Peer::TALKS) {
            enter(*peer, "hall");
        }
        sn_owned_arm(port, peer->handle, IN, state == Peer::LISTENS ? SN_INFINITE : IDLE_MS);
    }

    void accept_from(Peer &listener, bool is_last) {
        int fd;
        while ((fd = accept(listener.fd, NULL, NULL)) >= 0) {
            adopt(Peer::TALKS, fd);
        }
        if (is_last) {
            sn_owned_end(port, listener.handle);
        } else if (would_block()) {
            sn_owned_arm(port, listener.handle, IN, SN_INFINITE);
        } else {
            sn_owned_arm(port, listener.handle, 0, 50); /* out of descriptors, perhaps: again soon */
        }
    }

    /* Serve a client that this thread has, and arm it again. False if it is to be closed. */
    bool goes_on(Peer &peer, const sn_owned_event &event) {
        if ((event.events & SOCK_NOTIFY_EVENT_ERR) || event.kind == SN_OWNED_CANCELLED) {
            return false; /* it is broken, or does not read */
        }
        if (peer.state == Peer::TALKS) {
            bool stays = event.kind == SN_OWNED_READY && hears(peer);
            if (!stays) {
                enter(peer, "");
                send_to(peer.handle, "* bye\n");
                peer.state = Peer::IS_SENT_THE_REST;
                peer.leaves_by = Clock::now() + std::chrono::milliseconds(LEAVE_MS);
            }
            return sn_owned_arm(port, peer.handle, stays ? IN : OUT, stays ? IDLE_MS : LEAVE_MS) == SN_SUCCESS;
        }
        if (event.kind == SN_OWNED_TIMED_OUT) {
            return false;
        }
        if (peer.state == Peer::IS_SENT_THE_REST && event.kind == SN_OWNED_READY) {
            /* All is sent. What it still says is read: a socket that is closed with that in it may lose what was sent. */
            peer.state = Peer::LEAVES;
            shutdown(peer.fd, SHUT_WR);
        }
        char rest[4096];
        bool leaves = peer.state == Peer::LEAVES;
        if (leaves && recv(peer.fd, rest, sizeof rest, 0) == 0) {
            return false;
        }
        /* Whatever it still says, it does not stay. */
        auto left = std::chrono::duration_cast<std::chrono::milliseconds>(peer.leaves_by - Clock::now()).count();
        return left > 0 && sn_owned_arm(port, peer.handle, leaves ? IN : OUT, static_cast<uint32_t>(left)) == SN_SUCCESS;
    }

    /* Receive once, so that others get their turn. False at the end. */
    bool hears(Peer &peer) {
        char bytes[4096];
        ssize_t length = recv(peer.fd, bytes, sizeof bytes, 0);
        if (length <= 0) {
            return length < 0 && would_block();
        }
        peer.line.append(bytes, static_cast<size_t>(length));
        for (size_t end; (end = peer.line.find('\n')) != std::string::npos; peer.line.erase(0, end + 1)) {
            if (peer.line.compare(0, 6, "/join ") == 0) {
                enter(peer, peer.line.substr(6, end - 6));
            } else {
                say(peer.room, peer.line.substr(0, end + 1), peer.handle);
            }
        }
        return peer.line.size() <= LONGEST_LINE;
    }

    /* From one room to another; none is called "". */
    void enter(Peer &peer, const std::string &room) {
        size_t present;
        {
            std::lock_guard<std::mutex> guard(lock);
            rooms[peer.room].erase(peer.handle);
            if (rooms[peer.room].empty()) {
                rooms.erase(peer.room);
            }
            peer.room = room;
            present = room.empty() ? 0 : (rooms[room].insert(peer.handle), rooms[room].size());
        }
        if (present > 0) {
            say(room, "* " + std::to_string(present) + " in " + room + "\n", 0);
        }
    }

    void say(const std::string &room, const std::string &line, uint64_t from) {
        std::lock_guard<std::mutex> guard(lock);
        auto found = rooms.find(room);
        if (found == rooms.end()) {
            return;
        }
        for (uint64_t member : found->second) {
            if (member != from) {
                send_to(member, line);
            }
        }
    }

    /* It may have gone meanwhile. If it does not read, whoever has it next ends it. */
    void send_to(uint64_t member, const std::string &line) {
        if (sn_owned_send(port, member, line.data(), line.size()) == SN_WOULD_BLOCK) {
            sn_owned_cancel(port, member);
        }
    }
};

static const int ROOMS = 4, MEMBERS = 5, LINES = 20;

/* Go to a room, wait until all are there, talk, and count what the others say. */
static int talk(sockaddr_in address, int room) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    require(connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0, "connect");
    std::string name = "room" + std::to_string(room), heard;
    std::string join = "/join " + name + "\n", all = "* " + std::to_string(MEMBERS) + " in " + name + "\n";
    require(send(fd, join.data(), join.size(), 0) == static_cast<ssize_t>(join.size()), "send");
    int count = 0;
    bool talks = false;
    while (count < (MEMBERS - 1) * LINES || !talks) {
        char bytes[4096];
        ssize_t length = recv(fd, bytes, sizeof bytes, 0);
        require(length > 0, "a client is served");
        heard.append(bytes, static_cast<size_t>(length));
        for (size_t end; (end = heard.find('\n')) != std::string::npos; heard.erase(0, end + 1)) {
            count += heard.compare(0, end, "hello") == 0;
            if (heard.compare(0, end + 1, all) == 0) {
                for (int line = 0; line < LINES; line += 1) {
                    require(send(fd, "hello\n", 6, 0) == 6, "send");
                }
                talks = true;
            }
        }
    }
    shutdown(fd, SHUT_WR);
    char bytes[4096];
    while (recv(fd, bytes, sizeof bytes, 0) > 0) {
    }
    close(fd);
    return count;
}

int main(int argc, char **argv) {
    start_sockets();
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, NULL); /* in all threads: main waits for them */
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes); /* it may be started again at once */
    sockaddr_in address = bind_to_port(listener, argc > 1 ? atoi(argv[1]) : 0);
    require(listen(listener, 128) == 0, "listen");
    Server server(listener);
    std::vector<std::thread> threads;
    for (int index = 0; index < 4; index += 1) {
        threads.push_back(std::thread(&Server::serve, &server));
    }
    if (argc > 1) {
        int signal;
        sigwait(&ends, &signal);
    } else {
        std::vector<std::thread> clients;
        std::vector<int> heard(ROOMS * MEMBERS);
        for (int index = 0; index < ROOMS * MEMBERS; index += 1) {
            clients.push_back(std::thread([&heard, address, index] { heard[index] = talk(address, index % ROOMS); }));
        }
        int total = 0;
        for (int index = 0; index < ROOMS * MEMBERS; index += 1) {
            clients[index].join();
            total += heard[index];
        }
        printf("%d clients in %d rooms heard %d lines\n", ROOMS * MEMBERS, ROOMS, total);
    }
    server.drain();
    for (std::thread &thread : threads) {
        thread.join();
    }
    return EXIT_SUCCESS;
}
