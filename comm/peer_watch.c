#include "comm/peer_watch_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
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
    w->ranks = calloc(n, sizeof *w->ranks);
    if (w->fds && w->pids && w->ranks) return CZ_OK;
    peer_watch_free(w);
    return err_set(CZ_NOMEM, 0, "no memory to watch %d ranks", n_max);
}

void peer_watch_free(struct peer_watch *w)
{
    for (int i = 0; i < w->n; i++)
        if (w->fds[i].fd >= 0) close(w->fds[i].fd);
    free(w->fds);
    free(w->pids);
    free(w->ranks);
    memset(w, 0, sizeof *w);
}

cz_status peer_watch_add(struct peer_watch *w, int rank, pid_t pid)
{
    if (w->n == w->n_max || pid <= 0)
        return err_set(CZ_INVALID, 0, "rank %d (process %d) cannot be watched", rank, (int)pid);
    int i = w->n;
    w->ranks[i] = rank;
    w->pids[i] = pid;
    w->fds[i] = (struct pollfd){.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    if (w->fds[i].fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
            return err_set(CZ_COMM, errno, "rank %d cannot be watched", rank);
        if (errno == ESRCH) w->pids[i] = 0;
        w->fds[i].fd = -1; /* ENOSYS, EPERM: kill(pid, 0) tells */
    }
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

void peer_watch_forget(struct peer_watch *w, int rank)
{
    int i = find(w, rank);
    if (i < 0) return;
    if (w->fds[i].fd >= 0) close(w->fds[i].fd);
    w->fds[i].fd = -1;
    w->fds[i].revents = 0;
    w->pids[i] = -1;
}

static bool is_dead(const struct peer_watch *w, int i)
{
    if (w->fds[i].fd >= 0) return w->fds[i].revents != 0;
    return w->pids[i] == 0 || (w->pids[i] > 0 && kill(w->pids[i], 0) != 0 && errno == ESRCH);
}

static int first_dead(const struct peer_watch *w)
{
    for (int i = 0; i < w->n; i++)
        if (is_dead(w, i)) return w->ranks[i];
    return -1;
}

int peer_watch_wait(struct peer_watch *w, int64_t timeout_ns)
{
    const struct timespec t = {.tv_sec = timeout_ns / 1000000000,
                               .tv_nsec = timeout_ns % 1000000000};
    for (int i = 0; i < w->n; i++) w->fds[i].revents = 0;
    if (ppoll(w->fds, (nfds_t)w->n, &t, NULL) < 0) /* interrupted: revents are as we left them */
        return -1;
    return first_dead(w);
}

cz_status peer_died(int rank, int world_size, int64_t step, const char *phase)
{
    if (!phase || !*phase)
        return err_set(CZ_PEER, 0, "rank %d of %d died before its first collective", rank,
                       world_size);
    return err_set(CZ_PEER, 0, "rank %d of %d died at step %" PRId64 " (%s)", rank, world_size,
                   step, phase);
}
