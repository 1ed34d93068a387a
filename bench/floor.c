/* floor: answers the beanstalk protocol with canned replies, to measure the cost of the
 * system calls alone. It keeps no jobs: a put replies INSERTED 1, every reserve returns
 * job 1 with a body of --body bytes. It runs until it is killed, and listens on loopback.
 *
 * Sockets block. epoll reports a readable socket, one recv reads it, and one send answers
 * all commands in it: the minimum number of calls that an event loop can make.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS_PER_WAIT 256
#define READ_ROOM (16 * 1024)
#define SHORTEST_COMMAND 9 /* "reserve\r\n" */

struct client {
    int fd;
    size_t used;
    char received[];
};

static size_t body_size, received_capacity;
static char *reserved, *replies;
static size_t reserved_size;

static void die(const char *doing)
{
    fprintf(stderr, "floor: %s: %s\n", doing, strerror(errno));
    exit(1);
}

static void *checked(void *memory)
{
    if (!memory)
        die("malloc");
    return memory;
}

static bool starts_with(const char *line, size_t size, const char *word)
{
    return size >= strlen(word) && memcmp(line, word, strlen(word)) == 0;
}

/* Append the reply to the command at *line*; return the size of the command, 0 if partial. */
static size_t reply_to(const char *line, size_t size, size_t *replied)
{
    const char *reply = "UNKNOWN_COMMAND\r\n", *newline = memchr(line, '\n', size);
    if (!newline)
        return 0;
    size_t taken = (size_t)(newline + 1 - line), reply_size = 0;
    if (starts_with(line, size, "put ")) {
        reply = "INSERTED 1\r\n";
        taken += body_size + 2;
    } else if (starts_with(line, size, "reserve")) {
        reply = reserved;
        reply_size = reserved_size;
    } else if (starts_with(line, size, "delete ")) {
        reply = "DELETED\r\n";
    } else if (starts_with(line, size, "list-tube-used")) {
        reply = "USING default\r\n";
    }
    if (taken > size)
        return 0;
    if (reply_size == 0)
        reply_size = strlen(reply);
    memcpy(replies + *replied, reply, reply_size);
    *replied += reply_size;
    return taken;
}

static void drop(struct client *client)
{
    close(client->fd);
    free(client);
}

static void serve(struct client *client)
{
    size_t served = 0, replied = 0, taken;
    ssize_t size = recv(client->fd, client->received + client->used,
                        received_capacity - client->used, 0);
    if (size <= 0) {
        drop(client);
        return;
    }
    client->used += (size_t)size;
    while ((taken = reply_to(client->received + served, client->used - served, &replied)) > 0)
        served += taken;
    client->used -= served;
    if (client->used > 0)
        memmove(client->received, client->received + served, client->used);
    if (replied > 0 && send(client->fd, replies, replied, MSG_NOSIGNAL) < 0)
        drop(client);
}

static void admit(int epoll_fd, int listener)
{
    int on = 1, fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        die("accept");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct client *client = checked(malloc(sizeof *client + received_capacity));
    *client = (struct client){.fd = fd};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
        die("epoll_ctl");
}

static int listen_on(unsigned short port)
{
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons(port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    if (fd < 0)
        die("socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 1024) < 0)
        die("bind");
    return fd;
}

static void prepare_replies(void)
{
    received_capacity = body_size + READ_ROOM;
    reserved = checked(malloc(body_size + 64));
    reserved_size = (size_t)sprintf(reserved, "RESERVED 1 %zu\r\n", body_size);
    for (size_t i = 0; i < body_size; i++)
        reserved[reserved_size++] = (char)('a' + i % 26); /* the same body as in load.c */
    memcpy(reserved + reserved_size, "\r\n", 2);
    reserved_size += 2;
    replies = checked(malloc((received_capacity / SHORTEST_COMMAND + 1) * (reserved_size + 32)));
}

int main(int argc, char **argv)
{
    struct epoll_event events[EVENTS_PER_WAIT];
    if (argc != 3) {
        fputs("usage: floor PORT BODY_BYTES\n", stderr);
        return 2;
    }
    body_size = strtoul(argv[2], NULL, 10);
    prepare_replies();
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int listener = listen_on((unsigned short)strtoul(argv[1], NULL, 10));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event) < 0)
        die("epoll");
    for (;;) {
        int count = epoll_wait(epoll_fd, events, EVENTS_PER_WAIT, -1);
        if (count < 0 && errno != EINTR)
            die("epoll_wait");
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr)
                serve(events[i].data.ptr);
            else
                admit(epoll_fd, listener);
        }
    }
}
