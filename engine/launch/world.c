/* The world of ranks as programs see it (engine.h), and the number of threads of each. All ranks
 * use the same number of threads, the least any of them can have: a different number would change
 * the order of sums, and the slowest rank sets the pace anyway. */
#include "engine/engine.h"
#include "engine/launch/launch_impl.h"
#include "engine/launch/world_impl.h"

#include "base/hash.h"
#include "base/host/entry.h"
#include "base/log.h"
#include "base/threads.h"
#include "comm/shm/shm.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

/* ---- how many threads ----------------------------------------------------------------------- */

/* A launcher may have given every rank its own cores, or groups of ranks the same ones, or all of
 * them everything. The affinity masks show which cores are shared. */

/* Cores of a rank, one that k ranks use counting 1/k. */
static double share_of(const struct world_seat *seats, int n_ranks, int rank)
{
    double share = 0;
    for (int cpu = 0; cpu < PROCESSORS_MAX; cpu++) {
        int n_users = 0;
        if (!processors_has(&seats[rank].cores, cpu)) continue;
        for (int r = 0; r < n_ranks; r++)
            n_users += strcmp(seats[r].host, seats[rank].host) == 0 &&
                       processors_has(&seats[r].cores, cpu);
        share += 1.0 / n_users;
    }
    return share;
}

/* + 1e-6: shares are sums of fractions that should be whole. */
int world_threads(const struct world_seat *seats, int n_ranks)
{
    int least = 0;
    for (int r = 0; r < n_ranks; r++) {
        int n = (int)(share_of(seats, n_ranks, r) + 1e-6);
        if (seats[r].n_threads_max > 0 && n > seats[r].n_threads_max) n = seats[r].n_threads_max;
        if (n < 1) n = 1;
        if (r == 0 || n < least) least = n;
    }
    return least;
}

/* The machine, not its name: two hosts of a test may be one machine, and two containers as well. */
static void read_host(char *host, size_t nbytes)
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    host[0] = '\0';
    if (f && !fgets(host, (int)nbytes, f)) host[0] = '\0';
    if (f) fclose(f);
}

/* A quota (cgroup) is the host's, shared by all its ranks. */
static struct world_seat seat_here(const struct comm *comm, int n_threads_bound)
{
    struct world_seat seat = {.n_threads_max = n_threads_bound};
    int quota = threads_quota_cores(NULL);
    read_host(seat.host, sizeof seat.host);
    processors_allowed(&seat.cpus);
    seat.cores = seat.cpus;
    processors_keep_cores(&seat.cores, NULL);
    if (quota > 0 && n_threads_bound == 0)
        seat.n_threads_max = quota / comm->n_ranks_host > 0 ? quota / comm->n_ranks_host : 1;
    return seat;
}

/* `czero launch --hostfile` leaves binding to the ranks: only they know their host. The share's
 * threads, or 0 when nothing was bound. */
static cz_status bind_here(const struct comm *comm, int *n_threads)
{
    const char *how = getenv("CZERO_BIND");
    const int asked = threads_asked();
    struct launch_shares shares;
    *n_threads = 0;
    if (!how || strcmp(how, "cores") != 0 || comm->n_ranks_host < 1) return CZ_OK;
    TRY(launch_divide_here(LAUNCH_BIND_CORES, asked > 0 ? asked : 0, comm->n_ranks_host, &shares));
    if (shares.bound) {
        launch_bind_self(shares.sets[comm->rank_host]);
        *n_threads = shares.n_threads;
    }
    launch_shares_free(&shares);
    return CZ_OK;
}

/* Collective even for a rank that failed before: the others would wait for its seat. */
cz_status world_seats(struct comm *comm, cz_status mine, int n_threads_bound,
                      struct world_seat **out)
{
    struct world_seat *seats = calloc((size_t)comm->world_size, sizeof *seats);
    *out = NULL;
    if (mine == CZ_OK && !seats) mine = err_set(CZ_NOMEM, 0, "no memory for ranks");
    cz_status st = comm_agree(comm, mine);
    if (st == CZ_OK) {
        seats[comm->rank] = seat_here(comm, n_threads_bound);
        st = comm_all_gather(comm, &seats[comm->rank], seats, sizeof *seats);
    }
    if (st == CZ_OK)
        *out = seats;
    else
        free(seats);
    return st;
}

static cz_status size_pool(struct comm *comm)
{
    int n_bound = 0;
    struct world_seat *seats;
    cz_status st = bind_here(comm, &n_bound);
    TRY(world_seats(comm, st, n_bound, &seats));
    threads_init_share(world_threads(seats, comm->world_size), comm->n_ranks_host);
    free(seats);
    return CZ_OK;
}

/* ---- joining and leaving -------------------------------------------------------------------- */

static atomic_bool world_was_made;

bool world_has_been_made(void)
{
    return atomic_load(&world_was_made);
}

/* A half-joined world is left with a reason, so that other ranks end with this rank's message and
 * not with a timeout. */
cz_status engine_world_create(struct cz_world **out)
{
    API_ENTRY;
    NEED(out, "out");
    atomic_store(&world_was_made, true);
    /* Started by a script that the launcher started: end with the script. */
    if (getenv(COMM_ENV_RANK)) prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct comm *comm;
    *out = NULL;
    TRY(comm_create_world(&comm));
    log_set_rank(comm->rank, comm->world_size);
    cz_status st = CZ_OK;
    if (comm->world_size == 1)
        threads_init(1);
    else
        st = size_pool(comm);
    *out = comm_world(comm);
    if (st == CZ_OK) return CZ_OK;
    engine_world_leave(*out, cz_last_error());
    engine_world_destroy(*out);
    *out = NULL;
    return st;
}

void engine_world_destroy(struct cz_world *world)
{
    API_ENTRY;
    comm_destroy(world_comm(world));
}

int engine_world_rank(const struct cz_world *world)
{
    return world ? world_comm_const(world)->rank : 0;
}

int engine_world_size(const struct cz_world *world)
{
    return world ? world_comm_const(world)->world_size : 1;
}

int engine_world_started_as(void)
{
    return launchers_rank();
}

void engine_world_interrupt(void)
{
    comm_interrupt();
}

void engine_world_interrupt_over(void)
{
    comm_interrupt_over();
}

/* The caller's error survives: it is the one to be shown. */
void engine_world_leave(struct cz_world *world, const char *reason)
{
    API_ENTRY;
    struct err mine;
    if (!world) return;
    err_capture(&mine);
    comm_leave(world_comm(world), reason);
    err_restore(&mine);
}

/* ---- agreement ------------------------------------------------------------------------------ */

/* Of a message without its figures: ranks that do not fit in memory measure a little more or less.
 */
static uint64_t hash_words(const char *text)
{
    uint64_t h = HASH_FIXED_BEGIN;
    for (; *text; text++)
        if (*text < '0' || *text > '9') h = hash_fixed(h, text, 1);
    return h;
}

/* Whether no lower rank has this rank's message: each distinct message is printed once, and one
 * that `repeats` another rank's not at all. If the ranks cannot be asked any more, every rank
 * prints its own. */
static bool is_first_to_say(struct comm *world, bool repeats)
{
    uint64_t *hashes = calloc((size_t)world->world_size, sizeof *hashes), mine;
    struct err error;
    bool is_first = true;
    if (!hashes) return true;
    err_capture(&error);
    mine = hash_words(cz_last_error());
    hashes[world->rank] = mine;
    if (comm_all_gather(world, &hashes[world->rank], hashes, sizeof *hashes) == CZ_OK)
        for (int r = 0; r < world->rank; r++) is_first = is_first && hashes[r] != mine;
    else
        repeats = false;
    err_restore(&error);
    free(hashes);
    return is_first && !repeats;
}

cz_status engine_world_same(struct cz_world *world, const char *what, const char *text)
{
    API_ENTRY;
    NEED(what, "what");
    NEED(text, "text");
    if (!world) return CZ_OK;
    TRY(entry_check_process(world_comm(world)->generation, "this world"));
    return comm_same(world_comm(world), what, text);
}

cz_status engine_world_agree(struct cz_world *world, cz_status mine, bool *reports)
{
    API_ENTRY;
    if (reports) *reports = true;
    if (world) TRY(entry_check_process(world_comm(world)->generation, "this world"));
    cz_status st = world ? comm_agree(world_comm(world), mine) : mine;
    if (!reports) return st;
    if (st != CZ_OK && engine_world_size(world) > 1)
        *reports = is_first_to_say(world_comm(world),
                                   mine == CZ_OK && st == CZ_PEER && engine_world_rank(world) > 0);
    return st;
}
