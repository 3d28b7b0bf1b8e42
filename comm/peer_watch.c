/* Watching other processes of this host: a rank that dies must end the waits of its peers, and a
 * closed shared memory segment does not tell. Process descriptors (pidfd) become readable when a
 * process ends; where there are none (kernels before 5.3, some containers), /proc is read, with the
 * start time, because process numbers are used again. */
#include "comm/peer_watch_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

cz_status peer_watch_init(struct peer_watch *w, int n_max)
{
    memset(w, 0, sizeof *w);
    size_t n = n_max > 0 ? (size_t)n_max : 1;
    w->n_max = n_max;
    w->fds = calloc(n, sizeof *w->fds);
    w->pids = calloc(n, sizeof *w->pids);
    w->starts = calloc(n, sizeof *w->starts);
    w->ranks = calloc(n, sizeof *w->ranks);
    if (w->fds && w->pids && w->starts && w->ranks) return CZ_OK;
    peer_watch_free(w);
    return err_set(CZ_NOMEM, 0, "no memory to watch %d ranks", n_max);
}

void peer_watch_free(struct peer_watch *w)
{
    for (int i = 0; i < w->n; i++)
        if (w->fds[i].fd >= 0) close(w->fds[i].fd);
    free(w->fds);
    free(w->pids);
    free(w->starts);
    free(w->ranks);
    memset(w, 0, sizeof *w);
}

/* Fields 3 and 22 of /proc/PID/stat: its state, and when it was started. They follow the name in
 * parentheses, which may contain anything. False when there is no such file. */
static bool read_stat(pid_t pid, char *state, uint64_t *start)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = '\0';
    const char *at = strrchr(line, ')');
    if (!at || sscanf(at, ") %c", state) != 1) return false;
    for (int field = 3; field < 22 && at; field++) at = strchr(at + 2, ' ');
    return at && sscanf(at, "%" SCNu64, start) == 1;
}

cz_status peer_watch_add(struct peer_watch *w, int rank, pid_t pid)
{
    char state;
    if (w->n == w->n_max || pid <= 0)
        return err_set(CZ_INVALID, 0, "rank %d (process %d) cannot be watched", rank, (int)pid);
    int i = w->n;
    w->ranks[i] = rank;
    w->pids[i] = pid;
    w->fds[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    if (!w->no_pidfd) w->fds[i].fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (w->fds[i].fd < 0 && !read_stat(pid, &state, &w->starts[i])) w->starts[i] = 0;
    w->n++;
    return CZ_OK;
}

static int find(const struct peer_watch *w, int rank)
{
    for (int i = 0; i < w->n; i++)
        if (w->ranks[i] == rank && w->pids[i] >= 0) return i;
    return -1;
}

bool peer_watch_has(const struct peer_watch *w, int rank)
{
    return find(w, rank) >= 0;
}

/* The entry stays, so that positions in the arrays do not change. */
void peer_watch_forget(struct peer_watch *w, int rank)
{
    int i = find(w, rank);
    if (i < 0) return;
    if (w->fds[i].fd >= 0) close(w->fds[i].fd);
    w->fds[i].fd = -1;
    w->fds[i].revents = 0;
    w->pids[i] = -1;
}

/* A zombie is dead: its parent has just not waited for it yet. */
static bool has_ended(pid_t pid, uint64_t start)
{
    char state;
    uint64_t found;
    if (read_stat(pid, &state, &found))
        return state == 'Z' || state == 'X' || (start != 0 && found != start);
    return kill(pid, 0) != 0 && errno == ESRCH;
}

static bool is_dead(const struct peer_watch *w, int i)
{
    if (w->fds[i].fd >= 0) return w->fds[i].revents != 0;
    return w->pids[i] > 0 && has_ended(w->pids[i], w->starts[i]);
}

/* Without process descriptors the wait is the timeout, and the look comes after it. */
int peer_watch_wait(struct peer_watch *w, int64_t timeout_ns)
{
    const struct timespec t = {.tv_sec = timeout_ns / 1000000000,
                               .tv_nsec = timeout_ns % 1000000000};
    for (int i = 0; i < w->n; i++) w->fds[i].revents = 0;
    if (ppoll(w->fds, (nfds_t)w->n, &t, NULL) < 0) /* interrupted: revents are as we left them */
        return -1;
    for (int i = 0; i < w->n; i++)
        if (is_dead(w, i)) return w->ranks[i];
    return -1;
}

void peer_watch_signal(const struct peer_watch *w, int number)
{
    for (int i = 0; i < w->n; i++) {
        if (w->fds[i].fd >= 0)
            (void)syscall(SYS_pidfd_send_signal, w->fds[i].fd, number, NULL, 0);
        else if (w->pids[i] > 0 && !has_ended(w->pids[i], w->starts[i]))
            (void)kill(w->pids[i], number);
    }
}
