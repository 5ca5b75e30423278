/* A delay and loss line between two TAP devices, for kernels that have no netem.
 *
 * usage: wan DELAY_MS LOSS_PERCENT NETNS TAP_A TAP_B
 * Prints "ready" once both devices exist, then carries frames both ways until it is killed. TAP devices vanish with it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 1 << 14, BURST = 64, FRAME = 70000, VNET_HEADER = 12 };

struct frame {
    uint64_t due; /* CLOCK_MONOTONIC, ns */
    size_t length;
    unsigned char *bytes;
};

/* Frames all wait equally long, so each direction is a plain first-in first-out ring. */
struct line {
    struct frame ring[SLOTS];
    unsigned head, tail;
};

static struct line lines[2];

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static int open_tap(const char *name)
{
    struct ifreq request;
    int header = VNET_HEADER, fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    if (fd < 0)
        die("/dev/net/tun");
    memset(&request, 0, sizeof request);
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    /* With the vnet header the kernel hands over whole TCP segments of up to 64 KiB instead of single frames. */
    request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    if (ioctl(fd, TUNSETIFF, &request) || ioctl(fd, TUNSETVNETHDRSZ, &header))
        die(name);
    if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6))
        die("TUNSETOFFLOAD");
    return fd;
}

static void take(int fd, struct line *line, uint64_t delay, double loss)
{
    static unsigned char buffer[FRAME];
    for (int i = 0; i < BURST; i++) {
        ssize_t got = read(fd, buffer, sizeof buffer);
        if (got <= 0)
            return;
        if (drand48() < loss || line->tail - line->head == SLOTS)
            continue;
        struct frame *frame = &line->ring[line->tail % SLOTS];
        frame->bytes = malloc((size_t)got);
        if (!frame->bytes)
            continue;
        memcpy(frame->bytes, buffer, (size_t)got);
        frame->length = (size_t)got;
        frame->due = now() + delay;
        line->tail++;
    }
}

static void give(int fd, struct line *line)
{
    uint64_t t = now();
    while (line->head != line->tail && line->ring[line->head % SLOTS].due <= t) {
        struct frame *frame = &line->ring[line->head % SLOTS];
        if (write(fd, frame->bytes, frame->length) < 0 && errno == EAGAIN)
            return;
        free(frame->bytes);
        line->head++;
    }
}

static void arm(int timer)
{
    struct itimerspec next = {{0, 0}, {0, 0}};
    uint64_t due = UINT64_MAX;
    for (int i = 0; i < 2; i++)
        if (lines[i].head != lines[i].tail && lines[i].ring[lines[i].head % SLOTS].due < due)
            due = lines[i].ring[lines[i].head % SLOTS].due;
    if (due != UINT64_MAX) {
        next.it_value.tv_sec = (time_t)(due / 1000000000u);
        next.it_value.tv_nsec = (long)(due % 1000000000u);
    }
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &next, NULL))
        die("timerfd_settime");
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: wan DELAY_MS LOSS_PERCENT NETNS TAP_A TAP_B\n");
        return 2;
    }
    uint64_t delay = (uint64_t)(atof(argv[1]) * 1e6);
    double loss = atof(argv[2]) / 100;
    int netns = open(argv[3], O_RDONLY);
    if (netns < 0 || setns(netns, CLONE_NEWNET))
        die(argv[3]);
    int taps[2] = {open_tap(argv[4]), open_tap(argv[5])};
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    if (timer < 0)
        die("timerfd_create");
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct pollfd ready[3] = {{taps[0], POLLIN, 0}, {taps[1], POLLIN, 0}, {timer, POLLIN, 0}};
        arm(timer);
        if (poll(ready, 3, -1) < 0 && errno != EINTR)
            die("poll");
        for (int i = 0; i < 2; i++) {
            take(taps[i], &lines[i], delay, loss);
            give(taps[1 - i], &lines[i]);
        }
    }
}
