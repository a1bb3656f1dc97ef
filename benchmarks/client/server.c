/* A server that generates nothing and knows the truth: OpenAI-compatible streams by the clock, on one epoll thread.
 *
 *     gcc -O2 -o server server.c
 *     server --truth FILE [--port 0] [--first-ms 50] [--itl-ms 10] [--ignore-continuous-usage]
 *
 * Prints its base URL, serves until its standard input ends or SIGTERM, and writes the truth to FILE; GET /truth gives
 * the same text before. All times are CLOCK_MONOTONIC in ns. Each stamp of a send stands directly before its system
 * call. Per token it copies one template and makes one system call; memory grows by requests alone.
 *
 * A request is named by its X-Request-ID, else by the first word of its prompt.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MODEL "mock"
#define BACKLOG 4096
#define EVENTS 256
#define PIECE (256 * 1024)
#define MAX_REQUEST (16 * 1024 * 1024)
#define NAME_BYTES 64
#define DEFAULT_TOKENS 16
#define LATE_BIN_NS 10000
#define LATE_BINS 100001 /* up to 1 s, and one for all beyond */
#define NONE UINT32_MAX

typedef struct {
    char name[NAME_BYTES];
    int64_t arrived_ns, complete_ns, first_send_ns, last_send_ns, worst_late_ns;
    uint32_t connection, asked, sends, prompt_tokens;
    bool is_chat, is_stream, wants_usage, wants_every_usage, is_whole;
} request_t;

typedef struct {
    int fd;
    uint32_t number, request; /* request: the one under way, or NONE */
    int64_t arrived_ns, due_ns;
    size_t heap_place; /* 1-based, 0: not in the heap */
    char *in, *out;
    size_t in_used, in_size, out_used, out_sent, out_size;
    bool waits_for_room;
} connection_t;

static int64_t first_ns = 50000000, itl_ns = 10000000;
static bool ignores_every_usage;
static const char *truth_path;
static int poll_fd, listen_fd, signal_fd;

static request_t *requests;
static size_t requests_used, requests_size;
static connection_t **heap;
static size_t heap_used, heap_size;
static uint32_t late_bins[LATE_BINS];
static uint64_t sends_total;
static int64_t late_max_ns;
static uint32_t connections_total;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void *grown(void *old, size_t bytes) {
    void *new = realloc(old, bytes);
    if (!new) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return new;
}

/* The timers: a binary heap of connections by due_ns, each of which knows its place. */

static void heap_set(size_t place, connection_t *c) {
    heap[place] = c;
    c->heap_place = place;
}

static void heap_up(size_t place) {
    connection_t *c = heap[place];
    while (place > 1 && heap[place / 2]->due_ns > c->due_ns) {
        heap_set(place, heap[place / 2]);
        place /= 2;
    }
    heap_set(place, c);
}

static void heap_down(size_t place) {
    connection_t *c = heap[place];
    for (;;) {
        size_t child = 2 * place;
        if (child > heap_used) break;
        if (child < heap_used && heap[child + 1]->due_ns < heap[child]->due_ns) child++;
        if (heap[child]->due_ns >= c->due_ns) break;
        heap_set(place, heap[child]);
        place = child;
    }
    heap_set(place, c);
}

static void heap_push(connection_t *c) {
    if (heap_used + 2 > heap_size) {
        heap_size = heap_size ? 2 * heap_size : 4096;
        heap = grown(heap, heap_size * sizeof *heap);
    }
    heap[++heap_used] = c;
    heap_up(heap_used);
}

static void heap_remove(connection_t *c) {
    size_t place = c->heap_place;
    if (!place) return;
    c->heap_place = 0;
    connection_t *last = heap[heap_used--];
    if (last == c) return;
    heap[place] = last;
    last->heap_place = place;
    heap_up(place);
    heap_down(last->heap_place);
}

/* Writing. What the kernel does not take at once waits in the connection's outbox. */

static void drop(connection_t *c) {
    heap_remove(c);
    c->request = NONE;
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
}

static void want_room(connection_t *c, bool wanted) {
    if (wanted == c->waits_for_room) return;
    c->waits_for_room = wanted;
    struct epoll_event e = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &e);
}

static void keep(connection_t *c, const char *data, size_t n) {
    if (c->out_used + n > c->out_size) {
        c->out_size = 2 * (c->out_used + n);
        c->out = grown(c->out, c->out_size);
    }
    memcpy(c->out + c->out_used, data, n);
    c->out_used += n;
}

static void send_bytes(connection_t *c, const char *data, size_t n) {
    if (c->fd < 0) return;
    ssize_t sent = 0;
    if (!c->out_used) {
        sent = send(c->fd, data, n, MSG_NOSIGNAL);
        if (sent == (ssize_t)n) return;
        if (sent < 0 && errno != EAGAIN) {
            drop(c);
            return;
        }
        if (sent < 0) sent = 0;
    }
    keep(c, data + sent, n - sent);
    want_room(c, true);
}

static void flush(connection_t *c) {
    ssize_t sent = send(c->fd, c->out + c->out_sent, c->out_used - c->out_sent, MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno != EAGAIN) drop(c);
        return;
    }
    c->out_sent += sent;
    if (c->out_sent == c->out_used) {
        c->out_sent = c->out_used = 0;
        want_room(c, false);
    }
}

/* The answer. Numbers have a fixed width, so that an event's length is known beforehand. */

static size_t put(char *at, const char *text) {
    size_t n = strlen(text);
    memcpy(at, text, n);
    return n;
}

static size_t put_number(char *at, uint32_t number) {
    for (int i = 5; i >= 0; i--, number /= 10) at[i] = (i < 5 && !number) ? ' ' : (char)('0' + number % 10);
    return 6;
}

static size_t put_usage(char *at, const request_t *r, uint32_t tokens) {
    char *p = at;
    p += put(p, ",\"usage\":{\"prompt_tokens\":");
    p += put_number(p, r->prompt_tokens);
    p += put(p, ",\"total_tokens\":");
    p += put_number(p, r->prompt_tokens + tokens);
    p += put(p, ",\"completion_tokens\":");
    p += put_number(p, tokens);
    p += put(p, ",\"completion_tokens_details\":null}");
    return p - at;
}

static size_t put_about(char *at, const request_t *r) {
    static const char chat[] = "{\"id\":\"chatcmpl-0000000000000000\",\"object\":\"chat.completion.chunk\",";
    static const char text[] = "{\"id\":\"cmpl-0000000000000000\",\"object\":\"text_completion\",";
    size_t n = put(at, r->is_chat ? chat : text);
    return n + put(at + n, "\"created\":1767225600,\"model\":\"" MODEL "\",");
}

static size_t put_choice(char *at, const request_t *r, bool is_first, bool is_last) {
    char *p = at;
    if (r->is_chat) {
        p += put(p, "\"choices\":[{\"index\":0,\"delta\":{");
        if (is_first) p += put(p, "\"role\":\"assistant\",");
        p += put(p, "\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":");
    } else {
        p += put(p, "\"choices\":[{\"index\":0,\"text\":\" token\",\"logprobs\":null,\"finish_reason\":");
    }
    p += put(p, is_last ? "\"length\"" : "null");
    p += put(p, "}]");
    return p - at;
}

/* One event in a chunk of its own. */
static size_t put_chunk(char *at, const char *payload, size_t n) {
    char *p = at;
    p += sprintf(p, "%zx\r\ndata: ", n + 8);
    memcpy(p, payload, n);
    p += n;
    p += put(p, "\n\n\r\n");
    return p - at;
}

static size_t put_token(char *at, const request_t *r) {
    char payload[1024], *p = payload;
    p += put_about(p, r);
    p += put_choice(p, r, r->sends == 0, r->sends + 1 == r->asked);
    if (r->wants_every_usage) p += put_usage(p, r, r->sends + 1);
    *p++ = '}';
    return put_chunk(at, payload, p - payload);
}

static size_t put_end(char *at, const request_t *r) {
    char *p = at;
    if (r->wants_usage) {
        char payload[1024], *q = payload;
        q += put_about(q, r);
        q += put(q, "\"choices\":[]");
        q += put_usage(q, r, r->asked);
        *q++ = '}';
        p += put_chunk(p, payload, q - payload);
    }
    p += put_chunk(p, "[DONE]", 6);
    p += put(p, "0\r\n\r\n");
    return p - at;
}

static size_t put_head(char *at) {
    return put(at, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                   "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n");
}

static void send_page(connection_t *c, const char *status, const char *body, size_t n) {
    char head[256];
    int used = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                        status, n);
    send_bytes(c, head, used);
    send_bytes(c, body, n);
}

static void send_whole(connection_t *c, const request_t *r) {
    size_t size = 1024 + 8 * (size_t)r->asked;
    char *body = grown(NULL, size), *p = body;
    p += sprintf(p, "{\"id\":\"%s-0\",\"object\":\"%s\",\"created\":1767225600,\"model\":\"" MODEL "\",\"choices\":[{\"index\":0,%s",
                 r->is_chat ? "chatcmpl" : "cmpl", r->is_chat ? "chat.completion" : "text_completion",
                 r->is_chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"" : "\"text\":\"");
    for (uint32_t i = 0; i < r->asked; i++) p += put(p, " token");
    p += put(p, r->is_chat ? "\"}" : "\"");
    p += put(p, ",\"logprobs\":null,\"finish_reason\":\"length\"}]");
    p += put_usage(p, r, r->asked);
    p += put(p, "}");
    send_page(c, "200 OK", body, p - body);
    free(body);
}

static void note_late(request_t *r, int64_t late_ns) {
    size_t bin = late_ns < 0 ? 0 : (size_t)(late_ns / LATE_BIN_NS);
    late_bins[bin < LATE_BINS ? bin : LATE_BINS - 1]++;
    sends_total++;
    if (late_ns > r->worst_late_ns) r->worst_late_ns = late_ns;
    if (late_ns > late_max_ns) late_max_ns = late_ns;
}

static void take_requests(connection_t *c);

static void send_due_token(connection_t *c) {
    request_t *r = &requests[c->request];
    char data[4096], *p = data;
    bool is_last = !r->is_stream || r->sends + 1 == r->asked;
    if (r->is_stream) {
        if (r->sends == 0) p += put_head(p);
        p += put_token(p, r);
        if (is_last) p += put_end(p, r);
    }
    r->sends++;
    if (is_last) {
        r->is_whole = true;
        heap_remove(c);
        c->request = NONE;
    } else {
        c->due_ns += itl_ns;
        heap_down(c->heap_place);
    }
    int64_t due_ns = is_last ? c->due_ns : c->due_ns - itl_ns, at_ns = now_ns();
    if (r->sends == 1) r->first_send_ns = at_ns;
    r->last_send_ns = at_ns;
    note_late(r, at_ns - due_ns);
    if (r->is_stream) send_bytes(c, data, p - data);
    else send_whole(c, r);
    if (is_last && c->in_used) take_requests(c);
}

/* Requests. */

static const char *find(const char *in, size_t n, const char *what) { return memmem(in, n, what, strlen(what)); }

/* The value of a JSON key, behind the colon and blanks; NULL where it is not there. */
static const char *value_of(const char *body, size_t n, const char *key) {
    const char *at = find(body, n, key), *end = body + n;
    if (!at) return NULL;
    for (at += strlen(key); at < end && (*at == ' ' || *at == ':'); at++) {}
    return at < end ? at : NULL;
}

static bool is_true(const char *body, size_t n, const char *key) {
    const char *at = value_of(body, n, key);
    return at && body + n - at >= 4 && !memcmp(at, "true", 4);
}

static uint32_t number_of(const char *body, size_t n, const char *key) {
    const char *at = value_of(body, n, key), *end = body + n;
    uint32_t number = 0;
    for (; at && at < end && *at >= '0' && *at <= '9' && number < 100000; at++) number = 10 * number + (*at - '0');
    return number;
}

static char printable(char c) { return c > ' ' && c < 127 && c != '"' && c != '\\' ? c : '?'; }

/* The prompt's words, and its first one as a name. A list of token ids has a token a number. */
static void read_prompt(const char *body, size_t n, request_t *r) {
    const char *end = body + n, *at = value_of(body, n, r->is_chat ? "\"content\"" : "\"prompt\"");
    if (at && *at == '[' && r->is_chat) at = value_of(at, end - at, "\"text\"");
    if (!at) return;
    if (*at == '[') {
        for (r->prompt_tokens = 1; at < end && *at != ']'; at++) r->prompt_tokens += *at == ',';
        return;
    }
    size_t used = 0;
    bool is_named = r->name[0], was_blank = true;
    for (at++; at < end && *at != '"'; at++) {
        bool is_blank = *at == ' ' || *at == '\\';
        if (*at == '\\') at++;
        if (!is_blank && was_blank) r->prompt_tokens++;
        if (is_blank && used) is_named = true;
        if (!is_blank && !is_named && used < NAME_BYTES - 1) r->name[used++] = printable(*at);
        was_blank = is_blank;
    }
}

/* A header's value inside head, up to CR; NULL where it is not there. key: with line end before and colon behind. */
static const char *header(char *head, size_t n, const char *key) {
    size_t length = strlen(key);
    for (size_t i = 0; i + length <= n; i++) {
        if (head[i] != '\r' || strncasecmp(head + i, key, length)) continue;
        for (i += length; i < n && head[i] == ' '; i++) {}
        return head + i;
    }
    return NULL;
}

static void begin(connection_t *c, char *head, size_t head_n, const char *body, size_t body_n, bool is_chat) {
    if (requests_used == requests_size) {
        requests_size = requests_size ? 2 * requests_size : 1 << 15;
        requests = grown(requests, requests_size * sizeof *requests);
    }
    request_t *r = &requests[requests_used];
    memset(r, 0, sizeof *r);
    const char *name = header(head, head_n, "\r\nx-request-id:");
    for (size_t i = 0; name && i < NAME_BYTES - 1 && name[i] != '\r'; i++) r->name[i] = printable(name[i]);
    r->connection = c->number;
    r->is_chat = is_chat;
    r->is_stream = is_true(body, body_n, "\"stream\"");
    r->wants_usage = is_true(body, body_n, "\"include_usage\"");
    r->wants_every_usage = !ignores_every_usage && is_true(body, body_n, "\"continuous_usage_stats\"");
    r->asked = number_of(body, body_n, "\"max_completion_tokens\"");
    if (!r->asked) r->asked = number_of(body, body_n, "\"max_tokens\"");
    if (!r->asked) r->asked = DEFAULT_TOKENS;
    read_prompt(body, body_n, r);
    r->arrived_ns = c->arrived_ns;
    r->complete_ns = now_ns();
    c->request = requests_used++;
    c->due_ns = r->complete_ns + first_ns + (r->is_stream ? 0 : (int64_t)(r->asked - 1) * itl_ns);
    heap_push(c);
}

static uint64_t late_quantile_ns(double share) {
    uint64_t seen = 0;
    for (size_t bin = 0; bin < LATE_BINS; bin++) {
        seen += late_bins[bin];
        if (seen && (double)seen >= share * (double)sends_total) return (bin + 1) * (uint64_t)LATE_BIN_NS;
    }
    return 0;
}

static void write_truth(FILE *f) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu_s = used.ru_utime.tv_sec + used.ru_stime.tv_sec + 1e-6 * (used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    fprintf(f, "{\"schema_version\":1,\"sends\":%llu,\"connections\":%u,\"cpu_s\":%.6f,", (unsigned long long)sends_total,
            connections_total, cpu_s);
    fprintf(f, "\"late_p50_ns\":%llu,\"late_p99_ns\":%llu,\"late_max_ns\":%lld,\"requests\":[",
            (unsigned long long)late_quantile_ns(0.5), (unsigned long long)late_quantile_ns(0.99), (long long)late_max_ns);
    for (size_t i = 0; i < requests_used; i++) {
        request_t *r = &requests[i];
        fprintf(f, "%s{\"name\":\"%s\",\"connection\":%u,\"is_chat\":%s,\"is_stream\":%s,\"is_whole\":%s,", i ? ",\n" : "\n",
                r->name, r->connection, r->is_chat ? "true" : "false", r->is_stream ? "true" : "false",
                r->is_whole ? "true" : "false");
        fprintf(f, "\"asked\":%u,\"sends\":%u,\"arrived_ns\":%lld,\"complete_ns\":%lld,", r->asked, r->sends,
                (long long)r->arrived_ns, (long long)r->complete_ns);
        fprintf(f, "\"first_send_ns\":%lld,\"last_send_ns\":%lld,\"worst_late_ns\":%lld}", (long long)r->first_send_ns,
                (long long)r->last_send_ns, (long long)r->worst_late_ns);
    }
    fprintf(f, "]}\n");
}

static void send_truth(connection_t *c) {
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    write_truth(f);
    fclose(f);
    send_page(c, "200 OK", text, n);
    free(text);
}

static void answer(connection_t *c, char *head, size_t head_n, const char *body, size_t body_n) {
    static const char models[] = "{\"object\":\"list\",\"data\":[{\"id\":\"" MODEL "\",\"object\":\"model\",\"created\":1767225600,"
                                 "\"owned_by\":\"mock\",\"max_model_len\":131072}]}";
    if (!strncmp(head, "POST /v1/chat/completions ", 26)) begin(c, head, head_n, body, body_n, true);
    else if (!strncmp(head, "POST /v1/completions ", 21)) begin(c, head, head_n, body, body_n, false);
    else if (!strncmp(head, "GET /v1/models ", 15)) send_page(c, "200 OK", models, sizeof models - 1);
    else if (!strncmp(head, "GET /health ", 12)) send_page(c, "200 OK", "{}", 2);
    else if (!strncmp(head, "GET /truth ", 11)) send_truth(c);
    else send_page(c, "404 Not Found", "{\"detail\":\"Not Found\"}", 22);
}

/* All requests that the inbox holds whole, one after the other: the next when the answer before it has ended. */
static void take_requests(connection_t *c) {
    while (c->fd >= 0 && c->request == NONE && c->in_used) {
        char *end = memmem(c->in, c->in_used, "\r\n\r\n", 4);
        if (!end) break;
        size_t head_n = end + 2 - c->in;
        const char *length = header(c->in, head_n, "\r\ncontent-length:");
        size_t body_n = length ? strtoul(length, NULL, 10) : 0, whole = head_n + 2 + body_n;
        if (header(c->in, head_n, "\r\ntransfer-encoding:") || whole > MAX_REQUEST) {
            send_page(c, "411 Length Required", "{\"detail\":\"say Content-Length\"}", 31);
            drop(c);
            return;
        }
        if (c->in_used < whole) break;
        answer(c, c->in, head_n, c->in + head_n + 2, body_n);
        c->in_used -= whole;
        memmove(c->in, c->in + whole, c->in_used);
        if (c->in_used) c->arrived_ns = now_ns();
    }
}

static void receive(connection_t *c) {
    if (c->in_size - c->in_used < PIECE) {
        c->in_size = c->in_used + 2 * PIECE;
        c->in = grown(c->in, c->in_size);
    }
    int64_t at_ns = now_ns();
    ssize_t n = recv(c->fd, c->in + c->in_used, c->in_size - c->in_used, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0 || c->in_used + n > MAX_REQUEST) {
        drop(c);
        return;
    }
    if (!c->in_used) c->arrived_ns = at_ns;
    c->in_used += n;
    take_requests(c);
}

static void accept_all(void) {
    int fd;
    while ((fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        connection_t *c = calloc(1, sizeof *c);
        if (!c) exit(1);
        c->fd = fd;
        c->request = NONE;
        c->number = connections_total++;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &e);
    }
}

/* The loop. */

static int wait_events(struct epoll_event *events) {
    int64_t idle_ns = heap_used ? heap[1]->due_ns - now_ns() : 1000000000;
    if (idle_ns < 0) idle_ns = 0;
#ifdef SYS_epoll_pwait2
    static bool is_missing;
    if (!is_missing) {
        struct timespec idle = {.tv_sec = idle_ns / 1000000000, .tv_nsec = idle_ns % 1000000000};
        int n = syscall(SYS_epoll_pwait2, poll_fd, events, EVENTS, &idle, NULL, 0);
        if (n >= 0 || errno != ENOSYS) return n;
        is_missing = true;
    }
#endif
    return epoll_wait(poll_fd, events, EVENTS, (int)(idle_ns / 1000000)); /* rounded down: it spins, but is in time */
}

/* A dropped connection is out of the heap, and the kernel forgot it with its descriptor: nothing points to it. */
static void forget_if_gone(connection_t *c) {
    if (c->fd >= 0) return;
    free(c->in);
    free(c->out);
    free(c);
}

static bool serve_one(struct epoll_event *e) {
    if (e->data.ptr == &listen_fd) accept_all();
    else if (e->data.ptr == &signal_fd) return false;
    else {
        connection_t *c = e->data.ptr;
        if (c->fd >= 0 && (e->events & EPOLLOUT)) flush(c);
        if (c->fd >= 0 && (e->events & ~EPOLLOUT)) receive(c);
        forget_if_gone(c);
    }
    return true;
}

static void watch(int fd, void *mark) {
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = mark};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &e);
}

static bool has_stdin_ended(void) {
    char byte;
    return read(STDIN_FILENO, &byte, 1) == 0;
}

static void serve(void) {
    struct epoll_event events[EVENTS];
    for (;;) {
        int n = wait_events(events);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == &poll_fd) {
                if (has_stdin_ended()) return;
            } else if (!serve_one(&events[i])) return;
        }
        while (heap_used && heap[1]->due_ns <= now_ns()) {
            connection_t *c = heap[1];
            send_due_token(c);
            forget_if_gone(c);
        }
    }
}

static void open_port(int port, bool is_shared) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t size = sizeof address;
    int one = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(listen_fd, SOL_SOCKET, is_shared ? SO_REUSEPORT : SO_REUSEADDR, &one, sizeof one);
    if (bind(listen_fd, (struct sockaddr *)&address, size) || listen(listen_fd, BACKLOG)) {
        perror("cannot listen");
        exit(1);
    }
    getsockname(listen_fd, (struct sockaddr *)&address, &size);
    printf("http://127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
}

static int usage(void) {
    fprintf(stderr, "usage: server --truth FILE [--port N] [--share-port] [--first-ms MS] [--itl-ms MS] "
                    "[--ignore-continuous-usage]\n");
    return 2;
}

int main(int argc, char **argv) {
    int port = 0;
    bool is_shared = false;
    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (!strcmp(argv[i], "--ignore-continuous-usage")) ignores_every_usage = true;
        else if (!strcmp(argv[i], "--share-port")) is_shared = true;
        else if (!strcmp(argv[i], "--truth") && has_value) truth_path = argv[++i];
        else if (!strcmp(argv[i], "--port") && has_value) port = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--first-ms") && has_value) first_ns = (int64_t)(1e6 * atof(argv[++i]));
        else if (!strcmp(argv[i], "--itl-ms") && has_value) itl_ns = (int64_t)(1e6 * atof(argv[++i]));
        else return usage();
    }
    if (!truth_path || first_ns < 0 || itl_ns <= 0) return usage();
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    prctl(PR_SET_TIMERSLACK, 1);
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    signal_fd = signalfd(-1, &ends, SFD_NONBLOCK | SFD_CLOEXEC);
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    open_port(port, is_shared);
    watch(listen_fd, &listen_fd);
    watch(signal_fd, &signal_fd);
    watch(STDIN_FILENO, &poll_fd);
    serve();
    FILE *f = fopen(truth_path, "w");
    if (!f) {
        perror(truth_path);
        return 1;
    }
    write_truth(f);
    return fclose(f) ? 1 : 0;
}
