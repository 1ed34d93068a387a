/* load: a load generator for the beanstalk protocol, one thread over epoll.
 *
 * Each connection knows which reply it expects. Received bytes are compared
 * with exactly that reply, including the whole job body; anything else ends
 * the program with a message. A matched reply is passed to the mode's step
 * function, which sends the next command, or nothing once claim() returns 0.
 * The measurement ends when no reply is outstanding, so every command sent is
 * also answered and counted.
 *
 * A run has three parts: setup (open the connections, put the backlog), the
 * measurement, and the end, when connections close. With --stepwise the
 * program waits between them for a line or EOF on stdin, so that the caller
 * can read the server's CPU time and memory before and after the measurement.
 * The output is "ready" (with --stepwise only), then one line of JSON.
 *
 * Times are nanoseconds of the monotonic clock unless the name says otherwise.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SECOND UINT64_C(1000000000)
#define UNLIMITED UINT64_MAX
#define PRIORITY 1024
#define TTR_SECONDS 600
#define LINE_LIMIT 224            /* maximum bytes of a line, by protocol.txt */
#define READ_ROOM (16 * 1024)     /* bytes offered to each recv, in addition to a body */
#define EVENTS_PER_WAIT 256
#define SOCKET_TIMEOUT_SECONDS 10 /* for the blocking calls of the setup */
#define PER_SOURCE_ADDRESS 10000  /* connections per source address, well below the number of ports */
#define BACKLOG_CONNECTIONS 4
#define BACKLOG_DEPTH 100
#define TUBE "tube-%06u"          /* names of the tubes of --tubes and --watch */
#define NO_TUBE UINT32_MAX
#define SERIAL "%016" PRIx64      /* --vary: the start of each body */
#define SERIAL_SIZE 16
#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)

enum word { INSERTED, RESERVED, DELETED, USING, WATCHING };
static const char *const words[] = {"INSERTED", "RESERVED", "DELETED", "USING", "WATCHING"};

struct buffer {
    char *data;
    size_t start, end, capacity;
};

struct connection {
    int fd;
    bool awaits_writable;
    enum word expected;    /* the expected word of each outstanding reply */
    unsigned due;          /* number of outstanding replies */
    uint64_t sent;         /* time at which the unanswered commands were sent */
    uint64_t *ids;         /* drain: jobs reserved by this batch */
    unsigned reserved;     /* drain: number of ids */
    unsigned tube, next_tube; /* tour: the watched tube, and the next one */
    struct buffer in, out;
    struct connection *next_idle; /* fan: next in the list of idle producers */
};

struct mode {
    const char *name;
    unsigned connections, depth; /* defaults */
    void (*start)(struct connection *connection, unsigned index);
    void (*step)(struct connection *connection, uint64_t id);
};

static struct {
    const struct mode *mode;
    const char *host, *port;
    unsigned connections, depth, tubes, watch, use;
    uint64_t body, jobs, backlog, delay_seconds;
    double seconds, deadline_seconds;
    bool stepwise, varies;
} options = {
    .host = "127.0.0.1", .port = "11300", .body = 128, .deadline_seconds = 120, .use = NO_TUBE,
};

/* The state of the measurement, or of putting the backlog. */
static struct {
    const struct mode *mode;
    unsigned depth;
    uint64_t now;         /* time at which the current event was received */
    uint64_t stop;        /* time from which no job is claimed */
    uint64_t jobs_left;   /* jobs that may still be claimed */
    uint64_t outstanding; /* replies that must arrive before the run ends */
    uint64_t answered;
    struct connection *idle_producers; /* fan */
    unsigned waiting_consumers;        /* fan: blocked consumers without an outstanding put */
    unsigned handing_over;             /* fan: puts whose job has not arrived */
} run;

struct outcome {
    double seconds, cpu_seconds;
};

static int epoll_fd;
static uint64_t deadline;
static char *put_command, *payload; /* payload: the body and its CRLF in put_command */
static size_t put_size, payload_size;

/* ---- Errors, and the clock ---- */

__attribute__((noreturn, format(printf, 1, 2)))
static void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static void *checked(void *memory)
{
    if (!memory)
        die("out of memory");
    return memory;
}

static uint64_t clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / SECOND;
}

/* ---- Latencies: 128 buckets for each power of two, so accurate to 0.8 % ---- */

#define SUB_BITS 7
#define SUB_BUCKETS (1u << SUB_BITS)

static uint64_t latencies[(65 - SUB_BITS) * SUB_BUCKETS];
static uint64_t latencies_count, latency_max;

static unsigned latency_bucket(uint64_t latency)
{
    if (latency < SUB_BUCKETS)
        return (unsigned)latency;
    unsigned shift = 63 - SUB_BITS - (unsigned)__builtin_clzll(latency);
    return shift * SUB_BUCKETS + (unsigned)(latency >> shift);
}

static uint64_t bucket_middle(unsigned bucket)
{
    if (bucket < 2 * SUB_BUCKETS)
        return bucket;
    unsigned shift = bucket / SUB_BUCKETS - 1;
    uint64_t low = (uint64_t)(bucket - shift * SUB_BUCKETS) << shift;
    return low + (UINT64_C(1) << shift) / 2;
}

static void record_latency(uint64_t latency)
{
    latencies[latency_bucket(latency)]++;
    latencies_count++;
    if (latency > latency_max)
        latency_max = latency;
}

static void forget_latencies(void)
{
    memset(latencies, 0, sizeof latencies);
    latencies_count = latency_max = 0;
}

static double percentile_us(double percent)
{
    uint64_t wanted = (uint64_t)((double)latencies_count * percent / 100), seen = 0;
    for (unsigned bucket = 0; bucket < sizeof latencies / sizeof *latencies; bucket++) {
        seen += latencies[bucket];
        if (seen > wanted)
            return (double)bucket_middle(bucket) / 1000;
    }
    return (double)latency_max / 1000;
}

/* ---- Buffers ---- */

static void make_room(struct buffer *buffer, size_t size)
{
    if (buffer->start == buffer->end)
        buffer->start = buffer->end = 0;
    if (buffer->capacity - buffer->end >= size)
        return;
    size_t held = buffer->end - buffer->start;
    if (buffer->start > 0)
        memmove(buffer->data, buffer->data + buffer->start, held);
    buffer->start = 0;
    buffer->end = held;
    if (buffer->capacity - held < size) {
        buffer->capacity = 2 * held + size;
        buffer->data = checked(realloc(buffer->data, buffer->capacity));
    }
}

static void append(struct buffer *buffer, const char *data, size_t size)
{
    make_room(buffer, size);
    memcpy(buffer->data + buffer->end, data, size);
    buffer->end += size;
}

/* ---- Sending ---- */

static void watch(struct connection *connection, int operation, bool writable)
{
    struct epoll_event event = {
        .events = EPOLLIN | (writable ? EPOLLOUT : 0),
        .data.ptr = connection,
    };
    if (epoll_ctl(epoll_fd, operation, connection->fd, &event) < 0)
        die("epoll_ctl: %s", strerror(errno));
    connection->awaits_writable = writable;
}

static void flush(struct connection *connection)
{
    struct buffer *out = &connection->out;
    while (out->start < out->end) {
        ssize_t sent = send(connection->fd, out->data + out->start,
                            out->end - out->start, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN)
            break;
        if (sent < 0)
            die("send: %s", strerror(errno));
        out->start += (size_t)sent;
    }
    bool unsent = out->start < out->end;
    if (unsent != connection->awaits_writable)
        watch(connection, EPOLL_CTL_MOD, unsent);
}

/* Send the appended *count* commands, each of which expects the reply *expected*. */
static void transmit(struct connection *connection, enum word expected, unsigned count)
{
    connection->expected = expected;
    connection->due = count;
    connection->sent = clock_now();
    run.outstanding += count;
    flush(connection);
}

static void build_put_command(uint64_t delay_seconds)
{
    char line[LINE_LIMIT];
    int line_size = snprintf(line, sizeof line, "put %d %" PRIu64 " %d %" PRIu64 "\r\n",
                             PRIORITY, delay_seconds, TTR_SECONDS, options.body);
    payload_size = options.body + 2;
    put_size = (size_t)line_size + payload_size;
    put_command = checked(realloc(put_command, put_size));
    payload = put_command + line_size;
    memcpy(put_command, line, (size_t)line_size);
    for (uint64_t i = 0; i < options.body; i++)
        payload[i] = (char)('a' + i % 26);
    memcpy(payload + options.body, "\r\n", 2);
}

/* Append a put. With --vary, no two bodies are equal. */
static void append_put(struct buffer *out)
{
    static uint64_t serial;
    char text[SERIAL_SIZE + 1];
    append(out, put_command, put_size);
    if (options.varies) {
        snprintf(text, sizeof text, SERIAL, serial++);
        memcpy(out->data + out->end - payload_size, text, SERIAL_SIZE);
    }
}

static void send_puts(struct connection *connection, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        append_put(&connection->out);
    transmit(connection, INSERTED, count);
}

static void send_reserves(struct connection *connection, unsigned count)
{
    static const char blocking[] = "reserve\r\n", polling[] = "reserve-with-timeout 0\r\n";
    for (unsigned i = 0; i < count; i++) {
        if (run.depth == 1)
            append(&connection->out, blocking, sizeof blocking - 1);
        else
            append(&connection->out, polling, sizeof polling - 1);
    }
    transmit(connection, RESERVED, count);
}

static void send_line(struct connection *connection, enum word expected, const char *format, unsigned tube)
{
    char line[LINE_LIMIT];
    int size = snprintf(line, sizeof line, format, tube);
    append(&connection->out, line, (size_t)size);
    transmit(connection, expected, 1);
}

static void send_deletes(struct connection *connection, const uint64_t *ids, unsigned count)
{
    char line[LINE_LIMIT];
    for (unsigned i = 0; i < count; i++) {
        int size = snprintf(line, sizeof line, "delete %" PRIu64 "\r\n", ids[i]);
        append(&connection->out, line, (size_t)size);
    }
    transmit(connection, DELETED, count);
}

/* ---- Replies ---- */

struct cursor {
    const char *at, *end;
};

static bool accept_text(struct cursor *cursor, const char *text)
{
    size_t size = strlen(text);
    if ((size_t)(cursor->end - cursor->at) < size || memcmp(cursor->at, text, size) != 0)
        return false;
    cursor->at += size;
    return true;
}

static bool accept_number(struct cursor *cursor, uint64_t *number)
{
    const char *first = cursor->at;
    *number = 0;
    while (cursor->at < cursor->end && *cursor->at >= '0' && *cursor->at <= '9')
        *number = *number * 10 + (uint64_t)(*cursor->at++ - '0');
    return cursor->at > first;
}

static bool accept_line(struct cursor *line, enum word expected, uint64_t *id)
{
    uint64_t body = options.body;
    if (!accept_text(line, words[expected]))
        return false;
    if (expected == USING && !accept_text(line, " tube-"))
        return false;
    if (expected != USING && expected != DELETED && !accept_text(line, " "))
        return false;
    if (expected != DELETED && !accept_number(line, id))
        return false;
    if (expected == RESERVED && !(accept_text(line, " ") && accept_number(line, &body)))
        return false;
    return body == options.body && accept_text(line, "\r\n");
}

/* Return the size of the reply at the start of *data*, 0 if it is incomplete, -1 if it is wrong. */
static ssize_t read_reply(enum word expected, const char *data, size_t size, uint64_t *id)
{
    const char *newline = memchr(data, '\n', size);
    if (!newline)
        return size > LINE_LIMIT ? -1 : 0;
    struct cursor line = {data, newline + 1};
    if (!accept_line(&line, expected, id))
        return -1;
    size_t line_size = (size_t)(line.at - data);
    if (expected != RESERVED)
        return (ssize_t)line_size;
    if (size < line_size + payload_size)
        return 0;
    size_t skipped = options.varies ? SERIAL_SIZE : 0;
    if (memcmp(line.at + skipped, payload + skipped, payload_size - skipped) != 0)
        return -1;
    return (ssize_t)(line_size + payload_size);
}

__attribute__((noreturn))
static void die_of_reply(const struct connection *connection)
{
    const struct buffer *in = &connection->in;
    const char *due = connection->due ? words[connection->expected] : "no reply";
    const char *body = connection->expected == RESERVED ? " with the body that was put" : "";
    die("%s: expected %s%s, got \"%.*s\"", run.mode->name, due, body,
        (int)strcspn(in->data + in->start, "\r\n"), in->data + in->start);
}

static void answer(struct connection *connection, uint64_t id)
{
    connection->due--;
    run.outstanding--;
    run.answered++;
    if (connection->due == 0)
        record_latency(run.now - connection->sent);
    run.mode->step(connection, id);
}

static void receive(struct connection *connection)
{
    struct buffer *in = &connection->in;
    make_room(in, payload_size + READ_ROOM);
    ssize_t received = recv(connection->fd, in->data + in->end, in->capacity - in->end - 1, 0);
    if (received < 0 && errno == EAGAIN)
        return;
    if (received < 0)
        die("%s: recv: %s", run.mode->name, strerror(errno));
    if (received == 0)
        die("%s: the server closed a connection that was due %u %s", run.mode->name,
            connection->due, words[connection->expected]);
    in->end += (size_t)received;
    in->data[in->end] = '\0'; /* for die_of_reply only */
    while (in->start < in->end) {
        uint64_t id = 0;
        ssize_t size = connection->due == 0 ? -1
            : read_reply(connection->expected, in->data + in->start, in->end - in->start, &id);
        if (size < 0)
            die_of_reply(connection);
        if (size == 0)
            break;
        in->start += (size_t)size;
        answer(connection, id);
    }
}

/* ---- Modes: the first commands of each connection, and those after each reply ---- */

/* Return how many of *wanted* jobs may still be processed in this run. */
static unsigned claim(unsigned wanted)
{
    if (run.now >= run.stop)
        return 0;
    if (wanted > run.jobs_left)
        wanted = (unsigned)run.jobs_left;
    run.jobs_left -= wanted;
    return wanted;
}

static void start_put(struct connection *connection, unsigned index)
{
    (void)index;
    unsigned count = claim(run.depth);
    if (count > 0)
        send_puts(connection, count);
}

static void step_put(struct connection *connection, uint64_t id)
{
    (void)id;
    if (connection->due == 0)
        start_put(connection, 0);
}

static void start_drain(struct connection *connection, unsigned index)
{
    (void)index;
    unsigned count = claim(run.depth);
    connection->reserved = 0;
    if (count > 0)
        send_reserves(connection, count);
}

static void step_drain(struct connection *connection, uint64_t id)
{
    if (connection->expected == RESERVED)
        connection->ids[connection->reserved++] = id;
    if (connection->due > 0)
        return;
    if (connection->expected == RESERVED)
        send_deletes(connection, connection->ids, connection->reserved);
    else
        start_drain(connection, 0);
}

static void start_cycle(struct connection *connection, unsigned index)
{
    (void)index;
    if (claim(1))
        send_puts(connection, 1);
}

static void step_cycle(struct connection *connection, uint64_t id)
{
    switch (connection->expected) {
    case INSERTED:
        send_reserves(connection, 1);
        break;
    case RESERVED:
        send_deletes(connection, &id, 1);
        break;
    default:
        start_cycle(connection, 0);
        break;
    }
}

/* Each connection visits its share of --tubes: in each it puts a job, reserves one and deletes it. */
static void start_tour(struct connection *connection, unsigned index)
{
    (void)index;
    if (claim(1))
        send_line(connection, USING, "use " TUBE "\r\n", connection->next_tube);
}

static void step_tour(struct connection *connection, uint64_t id)
{
    switch (connection->expected) {
    case USING:
        send_line(connection, WATCHING, "watch " TUBE "\r\n", connection->next_tube);
        break;
    case WATCHING:
        if (id == 1) {
            connection->tube = connection->next_tube;
            send_puts(connection, 1);
        } else if (connection->tube == NO_TUBE) {
            send_line(connection, WATCHING, "ignore default\r\n", 0);
        } else {
            send_line(connection, WATCHING, "ignore " TUBE "\r\n", connection->tube);
        }
        break;
    case DELETED:
        connection->next_tube = (connection->tube + options.connections) % options.tubes;
        start_tour(connection, 0);
        break;
    default:
        step_cycle(connection, id);
    }
}

/* Each put is sent when a consumer is already blocked, so every job goes to a waiting
 * client. Unrestricted producers would outpace the consumers, which send two commands
 * per job: the queue would grow, and no reserve would ever block. */
static void match_producers(void)
{
    while (run.waiting_consumers > 0 && run.idle_producers && claim(1)) {
        struct connection *producer = run.idle_producers;
        run.idle_producers = producer->next_idle;
        run.waiting_consumers--;
        run.handing_over++;
        run.outstanding++; /* the RESERVED reply caused by this put */
        send_puts(producer, 1);
    }
}

static void await_producer(struct connection *producer)
{
    producer->next_idle = run.idle_producers;
    run.idle_producers = producer;
    match_producers();
}

static void await_job(struct connection *consumer)
{
    send_reserves(consumer, 1);
    run.outstanding--; /* its reply is counted once a put is sent for it */
    run.waiting_consumers++;
    match_producers();
}

static void take_job(struct connection *consumer, uint64_t id)
{
    if (run.handing_over == 0)
        die("fan: got job %" PRIu64 ", which this run did not put: the tube was not empty", id);
    run.handing_over--;
    send_deletes(consumer, &id, 1);
}

static void start_fan(struct connection *connection, unsigned index)
{
    if (index % 2 == 0)
        await_job(connection);
    else
        await_producer(connection);
}

static void step_fan(struct connection *connection, uint64_t id)
{
    switch (connection->expected) {
    case INSERTED:
        await_producer(connection);
        break;
    case RESERVED:
        take_job(connection, id);
        break;
    default:
        await_job(connection);
        break;
    }
}

static void start_idle(struct connection *connection, unsigned index)
{
    (void)index;
    send_reserves(connection, 1);
    run.outstanding--; /* without a put the reply never comes */
}

__attribute__((noreturn))
static void step_idle(struct connection *connection, uint64_t id)
{
    (void)connection;
    die("idle: a connection blocked in reserve was given job %" PRIu64, id);
}

static const struct mode modes[] = {
    {"cycle", 50, 1, start_cycle, step_cycle},
    {"put", 50, 1, start_put, step_put},
    {"drain", 50, 1, start_drain, step_drain},
    {"pipelined-put", 4, 100, start_put, step_put},
    {"pipelined-drain", 4, 50, start_drain, step_drain},
    {"fan", 50, 1, start_fan, step_fan},
    {"idle", 10000, 1, start_idle, step_idle},
    {"preload", 4, 100, start_put, step_put},
    {"tour", 50, 1, start_tour, step_tour},
};
#define MODES (sizeof modes / sizeof *modes)

static const struct mode *find_mode(const char *name)
{
    for (size_t i = 0; i < MODES; i++)
        if (strcmp(modes[i].name, name) == 0)
            return &modes[i];
    return NULL;
}

static bool is_mode(const char *name)
{
    return strcmp(options.mode->name, name) == 0;
}

static bool is_drain(void)
{
    return options.mode->start == start_drain;
}

static bool is_batched(void)
{
    return is_drain() || options.mode->start == start_put;
}

/* ---- Opening and closing connections ---- */

static void set_socket_timeouts(int fd)
{
    struct timeval limit = {.tv_sec = SOCKET_TIMEOUT_SECONDS};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/* On loopback, connections use several source addresses, because one has too few ports. */
static void bind_source(int fd, const struct sockaddr_in *server, unsigned index)
{
    int on = 1;
    struct sockaddr_in source = {
        .sin_family = AF_INET,
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK + index / PER_SOURCE_ADDRESS),
    };
    if (ntohl(server->sin_addr.s_addr) >> 24 != IN_LOOPBACKNET)
        return;
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&source, sizeof source) < 0)
        die("bind: %s", strerror(errno));
}

static int connect_tcp(unsigned index)
{
    int on = 1;
    struct sockaddr_in server = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)strtoul(options.port, NULL, 10)),
    };
    if (inet_pton(AF_INET, options.host, &server.sin_addr) != 1)
        die("--host %s: an IPv4 address is needed", options.host);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die("socket %u: %s", index, strerror(errno));
    set_socket_timeouts(fd);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    bind_source(fd, &server, index);
    if (connect(fd, (struct sockaddr *)&server, sizeof server) < 0)
        die("connection %u to %s:%s: %s", index, options.host, options.port, strerror(errno));
    return fd;
}

/* Send one command on a blocking socket; return when the reply contains *enough*. */
static void ask(int fd, const char *command, const char *enough, char *reply, size_t size)
{
    size_t used = 0;
    if (send(fd, command, strlen(command), MSG_NOSIGNAL) != (ssize_t)strlen(command))
        die("send of %.*s: %s", (int)strcspn(command, "\r"), command, strerror(errno));
    do {
        ssize_t received = recv(fd, reply + used, size - used - 1, 0);
        if (received <= 0)
            die("reply to %.*s: %s", (int)strcspn(command, "\r"), command,
                received == 0 ? "connection closed" : strerror(errno));
        used += (size_t)received;
        reply[used] = '\0';
    } while (!strstr(reply, enough) && used < size - 1);
}

/* Exchange one command, to be sure that the server has accepted the connection. */
static void greet(int fd)
{
    char reply[LINE_LIMIT];
    ask(fd, "list-tube-used\r\n", "\r\n", reply, sizeof reply);
    if (strcmp(reply, "USING default\r\n") != 0)
        die("list-tube-used: expected USING default, got \"%s\"", reply);
}

static int open_blocking(unsigned index)
{
    int fd = connect_tcp(index);
    greet(fd);
    return fd;
}

/* Send *out*; return once *count* one-line replies, each one of *expected*, have arrived. */
static void converse(int fd, struct buffer *out, unsigned count, const char *expected)
{
    char replies[READ_ROOM], first = '\n';
    for (ssize_t sent; out->start < out->end; out->start += (size_t)sent)
        if ((sent = send(fd, out->data + out->start, out->end - out->start, MSG_NOSIGNAL)) <= 0)
            die("send: %s", strerror(errno));
    while (count > 0) {
        ssize_t received = recv(fd, replies, sizeof replies, 0);
        if (received <= 0)
            die("%u replies missing: %s", count, received ? strerror(errno) : "connection closed");
        for (ssize_t i = 0; i < received; i++) {
            if (first == '\n' && !strchr(expected, replies[i]))
                die("set-up: a reply begins with %.*s", (int)(received - i), replies + i);
            first = replies[i];
            count -= first == '\n';
        }
    }
}

__attribute__((format(printf, 2, 3)))
static void append_line(struct buffer *out, const char *format, ...)
{
    char line[LINE_LIMIT];
    va_list arguments;
    va_start(arguments, format);
    append(out, line, (size_t)vsnprintf(line, sizeof line, format, arguments));
    va_end(arguments);
}

/* Make connection number *index* watch --watch tubes and use one of them, by default its share of them. */
static void watch_tubes(int fd, unsigned index)
{
    struct buffer out = {0};
    unsigned share = (unsigned)((uint64_t)index * options.watch / options.connections);
    for (unsigned tube = 0; tube < options.watch; tube++)
        append_line(&out, "watch " TUBE "\r\n", tube);
    append_line(&out, "ignore default\r\nuse " TUBE "\r\n", options.use == NO_TUBE ? share : options.use);
    converse(fd, &out, options.watch + 2, "WU");
    free(out.data);
}

static struct connection *open_connections(unsigned count, unsigned depth, bool is_watching)
{
    struct connection *connections = checked(calloc(count, sizeof *connections));
    for (unsigned i = 0; i < count; i++) {
        struct connection *connection = &connections[i];
        connection->fd = open_blocking(i);
        connection->tube = NO_TUBE;
        connection->next_tube = i;
        if (is_watching)
            watch_tubes(connection->fd, i);
        connection->ids = checked(calloc(depth, sizeof *connection->ids));
        if (fcntl(connection->fd, F_SETFL, O_NONBLOCK) < 0)
            die("fcntl: %s", strerror(errno));
        watch(connection, EPOLL_CTL_ADD, false);
    }
    return connections;
}

static void close_connections(struct connection *connections, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        close(connections[i].fd);
        free(connections[i].ids);
        free(connections[i].in.data);
        free(connections[i].out.data);
    }
    free(connections);
}

/* ---- Running ---- */

static void handle(const struct epoll_event *event)
{
    struct connection *connection = event->data.ptr;
    run.now = clock_now();
    if (event->events & EPOLLOUT)
        flush(connection);
    if (event->events & ~(uint32_t)EPOLLOUT)
        receive(connection);
}

/* Process received data; return after *timeout_ms* without any. */
static void poll_connections(int timeout_ms)
{
    struct epoll_event events[EVENTS_PER_WAIT];
    int count = epoll_wait(epoll_fd, events, EVENTS_PER_WAIT, timeout_ms);
    if (count < 0 && errno != EINTR)
        die("epoll_wait: %s", strerror(errno));
    for (int i = 0; i < count; i++)
        handle(&events[i]);
}

static void run_until_quiet(void)
{
    while (run.outstanding > 0) {
        poll_connections(1000);
        if (clock_now() > deadline)
            die("%s: deadline of %g s passed with %" PRIu64 " replies outstanding",
                run.mode->name, options.deadline_seconds, run.outstanding);
    }
}

static void start_run(const struct mode *mode, unsigned depth, uint64_t jobs, double seconds)
{
    memset(&run, 0, sizeof run);
    run.mode = mode;
    run.depth = depth;
    run.jobs_left = jobs;
    run.now = clock_now();
    run.stop = seconds > 0 ? run.now + (uint64_t)(seconds * SECOND) : UNLIMITED;
}

static struct outcome measure(struct connection *connections, uint64_t jobs, double seconds)
{
    double cpu = cpu_seconds();
    start_run(options.mode, options.depth, jobs, seconds);
    uint64_t started = run.now;
    for (unsigned i = 0; i < options.connections; i++)
        run.mode->start(&connections[i], i);
    run_until_quiet();
    return (struct outcome){
        .seconds = (double)(clock_now() - started) / SECOND,
        .cpu_seconds = cpu_seconds() - cpu,
    };
}

/* Put the backlog into the --tubes in turn. */
static void fill_tubes(void)
{
    struct buffer out = {0};
    int fd = open_blocking(0);
    build_put_command(options.delay_seconds);
    for (uint64_t job = 0; job < options.backlog; job++) {
        append_line(&out, "use " TUBE "\r\n", (unsigned)(job % options.tubes));
        append_put(&out);
        if (job % BACKLOG_DEPTH == BACKLOG_DEPTH - 1)
            converse(fd, &out, 2 * BACKLOG_DEPTH, "UI");
    }
    converse(fd, &out, (unsigned)(options.backlog % BACKLOG_DEPTH) * 2, "UI");
    free(out.data);
    close(fd);
}

static void fill_backlog(void)
{
    struct connection *connections = open_connections(BACKLOG_CONNECTIONS, BACKLOG_DEPTH, false);
    build_put_command(options.delay_seconds);
    start_run(find_mode("preload"), BACKLOG_DEPTH, options.backlog, 0);
    for (unsigned i = 0; i < BACKLOG_CONNECTIONS; i++)
        run.mode->start(&connections[i], i);
    run_until_quiet();
    close_connections(connections, BACKLOG_CONNECTIONS);
    forget_latencies();
}

static uint64_t count_waiting(int fd)
{
    static const char key[] = "\ncurrent-waiting: ";
    char reply[8192];
    ask(fd, "stats\r\n", "\n\r\n", reply, sizeof reply);
    char *found = strstr(reply, key);
    if (!found)
        die("stats: no current-waiting in the reply");
    return strtoull(found + strlen(key), NULL, 10);
}

/* Wait until the server reports that all connections are blocked in reserve. */
static void await_waiting(void)
{
    int fd = open_blocking(options.connections);
    while (count_waiting(fd) < options.connections) {
        if (clock_now() > deadline)
            die("idle: deadline passed before the server had all %u connections waiting",
                options.connections);
        poll_connections(10);
    }
    close(fd);
}

/* ---- The caller's side: stdin, stdout and the command line ---- */

static void await_line(void)
{
    char byte = 0;
    while (byte != '\n') {
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        uint64_t now = clock_now();
        uint64_t left = now < deadline ? deadline - now : 0;
        if (poll(&input, 1, (int)(left / 1000000)) == 0)
            die("deadline of %g s passed while waiting for a line on stdin",
                options.deadline_seconds);
        if (read(STDIN_FILENO, &byte, 1) <= 0)
            return;
    }
}

static void report(struct outcome outcome)
{
    printf("{\"mode\": \"%s\", \"connections\": %u, \"depth\": %u, \"body\": %" PRIu64 ", ",
           options.mode->name, options.connections, options.depth, options.body);
    printf("\"ops\": %" PRIu64 ", \"seconds\": %.6f, \"load_cpu_seconds\": %.6f, ",
           run.answered, outcome.seconds, outcome.cpu_seconds);
    printf("\"p50_us\": %.2f, \"p99_us\": %.2f, \"p999_us\": %.2f}\n",
           percentile_us(50), percentile_us(99), percentile_us(99.9));
    fflush(stdout);
}

static void await_driver(void)
{
    if (!options.stepwise)
        return;
    puts("ready");
    fflush(stdout);
    await_line();
}

/* Open the connections, block them in reserve, report, and keep them open. */
static void run_idle(void)
{
    await_driver();
    uint64_t started = clock_now();
    struct connection *connections = open_connections(options.connections, 1, options.watch > 0);
    measure(connections, UNLIMITED, 0);
    await_waiting();
    report((struct outcome){
        .seconds = (double)(clock_now() - started) / SECOND,
        .cpu_seconds = cpu_seconds(),
    });
    await_line();
    poll_connections(0); /* any reply or lost connection ends the program */
    close_connections(connections, options.connections);
}

static void run_load(void)
{
    uint64_t jobs = is_drain() ? options.backlog : options.jobs;
    if (options.backlog > 0 && options.tubes > 0)
        fill_tubes();
    else if (options.backlog > 0)
        fill_backlog();
    build_put_command(is_mode("preload") ? options.delay_seconds : 0);
    struct connection *connections = open_connections(options.connections, options.depth, options.watch > 0);
    await_driver();
    report(measure(connections, jobs, options.seconds));
    if (options.stepwise)
        await_line();
    close_connections(connections, options.connections);
}

static void raise_file_limit(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        die("setrlimit: %s", strerror(errno));
    if (options.connections + 32 > limit.rlim_cur)
        die("--connections %u: the hard limit is %ju open files", options.connections,
            (uintmax_t)limit.rlim_cur);
}

__attribute__((noreturn))
static void usage(const char *message)
{
    fprintf(stderr, "load: %s\n"
        "usage: load --mode MODE [options]\n"
        "  --mode MODE      cycle put drain pipelined-put pipelined-drain fan idle preload tour\n"
        "  --host ADDRESS   an IPv4 address (127.0.0.1)\n"
        "  --port PORT      (11300)\n"
        "  --connections N  (50; pipelined and preload 4; idle 10000)\n"
        "  --depth N        commands in a batch, for put, drain and preload\n"
        "  --body BYTES     (128)\n"
        "  --seconds S      measure for at most S seconds\n"
        "  --jobs N         measure at most N jobs\n"
        "  --backlog N      put N jobs before the measurement; drain takes these and ends\n"
        "  --delay S        delay of the backlog's jobs, or of preload's\n"
        "  --tubes N        spread the backlog over N tubes; tour visits them\n"
        "  --watch N        each connection watches N of these tubes, without default, and uses one of them\n"
        "  --use N          all of them use this tube, from 0\n"
        "  --vary           no two bodies are equal: each begins with a number\n"
        "  --deadline S     exit with an error after S seconds in total (120)\n"
        "  --stepwise       wait for a line on stdin before and after the measurement\n",
        message);
    exit(2);
}

static double parse_number(const char *name, const char *text, double low, double high)
{
    char *end, message[128];
    double number = strtod(text, &end);
    if (end != text && *end == '\0' && number >= low && number <= high)
        return number;
    snprintf(message, sizeof message, "--%s %.40s: must be a number from %g to %g",
             name, text, low, high);
    usage(message);
}

static const struct option long_options[] = {
    {"mode", required_argument, NULL, 'm'},     {"host", required_argument, NULL, 'h'},
    {"port", required_argument, NULL, 'p'},     {"connections", required_argument, NULL, 'c'},
    {"depth", required_argument, NULL, 'n'},    {"body", required_argument, NULL, 'b'},
    {"seconds", required_argument, NULL, 's'},  {"jobs", required_argument, NULL, 'j'},
    {"backlog", required_argument, NULL, 'l'},  {"delay", required_argument, NULL, 'y'},
    {"deadline", required_argument, NULL, 'd'}, {"tubes", required_argument, NULL, 't'},
    {"watch", required_argument, NULL, 'a'},    {"use", required_argument, NULL, 'x'},
    {"vary", no_argument, NULL, 'v'},           {"stepwise", no_argument, NULL, 'w'},
    {NULL, 0, NULL, 0},
};

static void parse_option(int letter, const char *name)
{
    switch (letter) {
    case 'm': options.mode = find_mode(optarg); break;
    case 'h': options.host = optarg; break;
    case 'p': options.port = optarg; break;
    case 'c': options.connections = (unsigned)parse_number(name, optarg, 1, 1e6); break;
    case 'n': options.depth = (unsigned)parse_number(name, optarg, 1, 1e5); break;
    case 'b': options.body = (uint64_t)parse_number(name, optarg, 0, 1 << 30); break;
    case 's': options.seconds = parse_number(name, optarg, 1e-3, 1e6); break;
    case 'j': options.jobs = (uint64_t)parse_number(name, optarg, 1, 1e12); break;
    case 'l': options.backlog = (uint64_t)parse_number(name, optarg, 1, 1e12); break;
    case 'y': options.delay_seconds = (uint64_t)parse_number(name, optarg, 0, UINT32_MAX); break;
    case 't': options.tubes = (unsigned)parse_number(name, optarg, 1, 1e6); break;
    case 'x': options.use = (unsigned)parse_number(name, optarg, 0, 1e5); break;
    case 'v': options.varies = true; break;
    case 'a': options.watch = (unsigned)parse_number(name, optarg, 1, 1e5); break;
    case 'd': options.deadline_seconds = parse_number(name, optarg, 1, 1e6); break;
    case 'w': options.stepwise = true; break;
    default: usage("unknown option");
    }
}

static void check_options(void)
{
    if (!options.mode)
        usage("--mode: must be one of those below");
    if (!options.connections)
        options.connections = options.mode->connections;
    if (!is_batched() || !options.depth)
        options.depth = options.mode->depth;
    if (is_drain() && !options.backlog)
        usage("drain needs --backlog");
    if (is_mode("tour") && options.tubes < 2 * options.connections)
        usage("tour needs at least two --tubes per connection");
    if (options.varies && options.body < SERIAL_SIZE)
        usage("--vary needs a --body of " TEXT(SERIAL_SIZE) " or more");
    if (is_mode("fan") && (options.connections % 2 || options.backlog))
        usage("fan needs an even number of connections and no --backlog");
    if (!is_drain() && !is_mode("idle") && !options.seconds && !options.jobs)
        usage("--seconds or --jobs is needed");
    if (!options.jobs)
        options.jobs = UNLIMITED;
}

int main(int argc, char **argv)
{
    int letter, index = 0;
    while ((letter = getopt_long(argc, argv, "", long_options, &index)) != -1)
        parse_option(letter, long_options[index].name);
    if (optind < argc)
        usage("only options are allowed");
    check_options();
    raise_file_limit();
    deadline = clock_now() + (uint64_t)(options.deadline_seconds * SECOND);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0)
        die("epoll_create1: %s", strerror(errno));
    if (is_mode("idle"))
        run_idle();
    else
        run_load();
    return 0;
}
