/* How fast the ranks of a host exchange bytes: an estimate made in one process. Each thread copies
 * slots into a shared mapping, and its neighbour's out of it, as the ranks of a host do. */
#include "base/threads.h"
#include "engine/machine/machine_impl.h"

#include <string.h>
#include <sys/mman.h>

#define SHARE       0.04              /* of the time */
#define SLOT_NBYTES ((size_t)1 << 20) /* about what a rank of comm/ fills per turn */
#define N_ROUNDS    16

struct exchange {
    int n_threads;
    unsigned char *slots; /* shared: one per thread */
    unsigned char *own;   /* per thread: N_ROUNDS slots to send, as many to receive */
};

static unsigned char *own_slot(const struct exchange *x, int thread, int idx)
{
    return x->own + ((size_t)thread * 2 * N_ROUNDS + (size_t)idx) * SLOT_NBYTES;
}

/* All send, then all receive, as a round of the exchange does. */
static cz_status pass_on(void *user)
{
    const struct exchange *x = user;
    const int n = x->n_threads;
    for (int r = 0; r < N_ROUNDS; r++) {
#pragma omp parallel for schedule(static, 1)
        for (int t = 0; t < n; t++)
            memcpy(x->slots + (size_t)t * SLOT_NBYTES, own_slot(x, t, r), SLOT_NBYTES);
#pragma omp parallel for schedule(static, 1)
        for (int t = 0; t < n; t++)
            memcpy(own_slot(x, t, N_ROUNDS + r), x->slots + (size_t)((t + 1) % n) * SLOT_NBYTES,
                   SLOT_NBYTES);
    }
    return CZ_OK;
}

/* Bytes sent and received both count, as in the plan's figures. */
static cz_status measure(const struct machine_run *run, struct exchange *x)
{
    const size_t nbytes = (size_t)x->n_threads * N_ROUNDS * SLOT_NBYTES;
    struct machine_line line = {.step = pass_on};
    struct host_memory own;
    TRY(host_memory_map(run->affinity, "slots", 2 * nbytes, &own));
    host_memory_touch(own.base, 2 * nbytes, 0);
    x->own = own.base;
    cz_status st = machine_time(run, SHARE * run->seconds, &line, 1, x);
    host_memory_unmap(&own);
    if (st == CZ_OK) run->out->comm = (double)nbytes / line.seconds;
    return st;
}

/* A shared mapping, because page tables of shared memory differ from private ones. */
cz_status machine_measure_comm(const struct machine_run *run)
{
    struct exchange x = {.n_threads = threads_count()};
    const size_t nbytes = (size_t)x.n_threads * SLOT_NBYTES;
    TRY(machine_next(run, "copies from rank to rank"));
    void *slots = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (slots == MAP_FAILED) return err_set(CZ_NOMEM, 0, "no memory to exchange slots in");
    x.slots = slots;
    cz_status st = measure(run, &x);
    munmap(slots, nbytes);
    return st;
}
