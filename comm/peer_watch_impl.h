/* Notices the death of ranks that share this host.
 *
 * Through one pidfd per peer: it becomes readable when the process has ended, whichever process is
 * its parent, and a pid that is used again is not mistaken for the old one. Without pidfd (old
 * kernels, sandboxes, no descriptors left) /proc tells by state and start time, without /proc
 * kill(pid, 0).
 *
 * Life cycle: peer_watch_init() → peer_watch_add() per peer → peer_watch_wait() … →
 * peer_watch_free(). One thread. */
#ifndef CZ_COMM_PEER_WATCH_IMPL_H
#define CZ_COMM_PEER_WATCH_IMPL_H

#include "base/status.h"

#include <poll.h>
#include <sys/types.h>

struct peer_watch {
    int n, n_max;
    struct pollfd *fds; /* (n_max); fd −1: no pidfd, or no longer watched */
    pid_t *pids;        /* (n_max); −1: no longer watched */
    uint64_t *starts;   /* (n_max) start time of the process, 0: not known */
    int *ranks;         /* (n_max) */
    bool no_pidfd;      /* set after init: do as if the kernel had none */
};

/* Space for n_max peers. CZ_NOMEM. */
cz_status peer_watch_init(struct peer_watch *w, int n_max);

/* Accepts zeroed and half-built. */
void peer_watch_free(struct peer_watch *w);

/* Watch `rank`, which is process `pid` as seen from here. A pid that is gone already counts as
 * dead. CZ_INVALID when there is no space. */
cz_status peer_watch_add(struct peer_watch *w, int rank, pid_t pid);

/* This rank has said goodbye: its end is no news. */
void peer_watch_forget(struct peer_watch *w, int rank);

/* Sleep until a watched rank has died, at most timeout_ns (0: only look); a signal ends the sleep
 * early. Returns the dead rank that was added first, −1 when all live. */
int peer_watch_wait(struct peer_watch *w, int64_t timeout_ns);

bool peer_watch_has(const struct peer_watch *w, int rank);

/* Send a signal to all watched ranks; one that has ended gets none. */
void peer_watch_signal(const struct peer_watch *w, int number);

#endif
