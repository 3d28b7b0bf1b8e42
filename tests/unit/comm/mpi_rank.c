/* One rank of tests/unit/comm/test_mpi.sh and test_two_hosts.sh: mpirun … mpi_rank MODE [ARGUMENT].
 * Prints "rank R ok" and exits 0, or its error and exits 1. */
#include "comm/comm_impl.h"
#include "comm/exchange/transport_impl.h"
#include "tests/unit/comm/trial.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* ---- slots: the transport alone carries what was put into it, round after round -----------------
 */

/* What `from` sends to `to` in a round; every 13th message is a large one. */
static uint64_t slot_key(uint64_t round, int from, int to)
{
    return rng_mix64(round * 100003 + (uint64_t)from * 131 + (uint64_t)(to + 1));
}

static uint32_t slot_numel(const struct transport *t, uint64_t key)
{
    return (uint32_t)(key % 13 == 0 ? key % (t->slot_nbytes + 1) : key % 700);
}

static void fill_slot(struct transport *t, uint64_t round, int to)
{
    uint64_t key = slot_key(round, t->rank, to);
    struct slot_head *head = t->ops->slot_out(t, round, to);
    memset(head, 0, sizeof *head);
    head->round = round;
    head->kind = SLOT_MOVE;
    head->nbytes = slot_numel(t, key);
    snprintf(head->phase, sizeof head->phase, "filling slots");
    memset(head + 1, (int)(key & 255), head->nbytes);
}

static cz_status check_slot(struct transport *t, uint64_t round, int from, int to)
{
    uint64_t key = slot_key(round, from, to);
    const struct slot_head *head = t->ops->slot_in(t, round, from);
    const unsigned char *bytes = (const void *)(head + 1);
    if (head->round != round || head->nbytes != slot_numel(t, key))
        return err_set(CZ_CORRUPT, 0, "round %d: rank %d's head is of round %d", (int)round, from,
                       (int)head->round);
    for (uint32_t i = 0; i < head->nbytes; i++)
        if (bytes[i] != (key & 255))
            return err_set(CZ_CORRUPT, 0, "round %d: byte %d of rank %d", (int)round, (int)i, from);
    return CZ_OK;
}

static cz_status one_round(struct transport *t, uint64_t round)
{
    bool to_all = rng_mix64(round) % 3 == 0;
    while (!t->ops->may_fill(t, round)) TRY(t->ops->sleep(t, round));
    for (int r = 0; r < t->world_size; r++)
        if (r != t->rank && !to_all) fill_slot(t, round, r);
    if (to_all) fill_slot(t, round, COMM_ALL);
    TRY(t->ops->post(t, round, to_all));
    while (!t->ops->has_arrived(t, round)) TRY(t->ops->sleep(t, round));
    for (int r = 0; r < t->world_size; r++)
        if (r != t->rank) TRY(check_slot(t, round, r, to_all ? COMM_ALL : t->rank));
    return t->ops->release(t, round);
}

static cz_status run_slots(int n_rounds)
{
    struct transport *t;
    cz_status st = CZ_OK;
    TRY(comm_mpi_transport_create(&t));
    t->ops->set_phase(t, 1, "filling slots");
    for (int k = 0; k < n_rounds && st == CZ_OK; k++) st = one_round(t, (uint64_t)k);
    t->ops->destroy(t);
    return st;
}

/* ---- collectives: any table of spans gives what comm.h defines ---------------------------------
 */

/* One by one, then all at once with waits in the other order. */
static cz_status run_collectives(struct comm *comm, int n_trials)
{
    struct trial *t = calloc((size_t)n_trials, sizeof *t);
    if (!t) return err_set(CZ_NOMEM, 0, "no memory for trials");
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n_trials; i++) {
            size_t slot_nbytes = i % 8 == 0 ? 256 << 10 : 4096;
            trial_make(&t[i], (uint64_t)(1 + i + pass * n_trials), comm->rank, comm->world_size,
                       slot_nbytes);
            TRY(trial_begin(&t[i], comm));
            if (pass == 0) TRY(comm_wait(comm, t[i].ticket));
            if (pass == 0) TRY(trial_finish(&t[i], comm));
        }
        for (int i = n_trials - 1; pass == 1 && i >= 0; i--) {
            TRY(comm_wait(comm, t[i].ticket));
            TRY(trial_finish(&t[i], comm));
        }
    }
    free(t);
    return CZ_OK;
}

/* ---- agreement --------------------------------------------------------------------------------
 */

static cz_status expect(bool ok, const char *what)
{
    return ok ? CZ_OK : err_set(CZ_CORRUPT, 0, "%s (last error: %s)", what, cz_last_error());
}

static bool says(const char *words)
{
    return strstr(cz_last_error(), words) != NULL;
}

/* Errors that leave the communicator usable. */
static cz_status run_agree(struct comm *comm)
{
    bool is_one = comm->rank == 1;
    cz_status mine = is_one ? err_set(CZ_IO, 0, "the disk is full") : CZ_OK;
    cz_status st = comm_agree(comm, mine);
    TRY(expect(st == (is_one ? CZ_IO : CZ_PEER) && says("the disk is full"), "one rank fails"));
    TRY(expect(is_one || says("rank 1"), "the others learn which"));
    TRY(comm_agree(comm, CZ_OK));
    TRY(comm_same(comm, "the config", "stage: 2\nlr: 1\n"));
    st = comm_same(comm, "the config", is_one ? "stage: 2\nlr: 3\n" : "stage: 2\nlr: 1\n");
    TRY(expect(st == CZ_INVALID && says("rank 1") && says("lr: 3") && says("lr: 1"),
               "ranks learn what differs"));
    return comm_barrier(comm);
}

/* Rank 0 reduces while the others move: every rank learns what each rank does. */
static cz_status run_disagree(struct comm *comm)
{
    float x[64] = {0}, y[64 * 64];
    comm_set_phase(comm, 5, "reducing gradients");
    cz_status st = comm->rank == 0 ? comm_all_reduce(comm, x, x, 64, DTYPE_F32, DTYPE_F32, 1)
                                   : comm_all_gather(comm, x, y, sizeof x / 64);
    TRY(expect(st == CZ_COMM && says("rank 0") && says("rank 1") && says("step 5"),
               "ranks learn that they disagree"));
    return expect(comm_barrier(comm) == CZ_COMM, "the communicator stays broken");
}

static cz_status run_leave(struct comm *comm)
{
    comm_set_phase(comm, 7, "reading data");
    TRY(comm_barrier(comm));
    if (comm->rank == 1) {
        comm_leave(comm, "the data set has ended");
        return CZ_OK;
    }
    return expect(comm_barrier(comm) == CZ_PEER && says("rank 1") && says("step 7") &&
                      says("the data set has ended"),
                  "the others learn why");
}

/* ---- deaths and delays ------------------------------------------------------------------------
 */

/* Reduces for ever; the last rank makes a file and kills itself in the middle. */
static cz_status run_kill(struct comm *comm, const char *file)
{
    enum { NUMEL = 1 << 20 };
    float *x = calloc(NUMEL, sizeof *x);
    if (!x) return err_set(CZ_NOMEM, 0, "no memory");
    for (int step = 0; step < 100000; step++) {
        comm_set_phase(comm, step, "reducing gradients");
        const struct comm_span span = {.numel = NUMEL, .owner = step % comm->world_size};
        struct comm_reduce a = {x, x, DTYPE_F32, DTYPE_F32, DTYPE_F32, 1, false, true, &span, 1};
        struct comm_ticket ticket;
        TRY(comm_reduce_begin(comm, &a, &ticket));
        TRY(comm_progress(comm));
        if (step == 12 && comm->rank == comm->world_size - 1) {
            close(creat(file, 0600));
            kill(getpid(), SIGKILL);
        }
        TRY(comm_wait(comm, ticket));
    }
    return CZ_OK;
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Rank 1 takes its time: the others must wait without using theirs. */
static cz_status run_slow(struct comm *comm)
{
    TRY(comm_barrier(comm));
    double before = cpu_s();
    if (comm->rank == 1) sleep(2);
    TRY(comm_barrier(comm));
    double used = cpu_s() - before;
    return used < 0.4 ? CZ_OK : err_set(CZ_CORRUPT, 0, "waiting 2 s took %.2f s of a core", used);
}

/* Every rank is asked to stop, answers, and then has to wait for one that saves for long. */
static cz_status run_request(struct comm *comm)
{
    raise(SIGTERM);
    TRY(comm_barrier(comm));
    comm_interrupt_over();
    if (comm->rank == 1) sleep(2);
    return comm_barrier(comm);
}

/* ---- main -------------------------------------------------------------------------------------
 */

static void on_sigterm(int signal_number)
{
    (void)signal_number;
    comm_interrupt();
}

static cz_status run_mode(struct comm *comm, const char *mode, const char *argument)
{
    if (strcmp(mode, "collectives") == 0) return run_collectives(comm, atoi(argument));
    if (strcmp(mode, "agree") == 0) return run_agree(comm);
    if (strcmp(mode, "disagree") == 0) return run_disagree(comm);
    if (strcmp(mode, "leave") == 0) return run_leave(comm);
    if (strcmp(mode, "kill") == 0) return run_kill(comm, argument);
    if (strcmp(mode, "slow") == 0) return run_slow(comm);
    if (strcmp(mode, "request") == 0) return run_request(comm);
    return err_set(CZ_INVALID, 0, "mode %s is unknown", mode);
}

/* The last error, once. */
static void complain(void)
{
    static bool is_done;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!is_done) fprintf(stderr, "rank %s: %s\n", rank ? rank : "?", cz_last_error());
    is_done = true;
}

static cz_status run(const char *mode, const char *argument)
{
    struct comm *comm;
    if (strcmp(mode, "slots") == 0) return run_slots(atoi(argument));
    TRY(comm_create_world(&comm));
    cz_status st = run_mode(comm, mode, argument);
    if (st != CZ_OK) complain(); /* now: once a rank has ended, mpirun kills the others */
    comm_destroy(comm);
    return st;
}

int main(int argc, char **argv)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    char host[64] = "";
    signal(SIGTERM, on_sigterm);
    if (run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "") != CZ_OK) {
        complain();
        return 1;
    }
    gethostname(host, sizeof host - 1);
    printf("rank %s on %s ok\n", rank ? rank : "?", host);
    return 0;
}
