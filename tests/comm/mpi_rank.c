/* One rank of tests/comm/test_mpi.sh and test_two_hosts.sh: mpirun … mpi_rank MODE [ARGUMENT].
 * Prints "rank R ok" and exits 0, or its error and exits 1. */
#include "comm/comm_impl.h"
#include "comm/transport_impl.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
}

/* ---- slots: the transport alone carries what was put into it, round after round -----------------
 */

/* What `from` sends to `to` in a round; every 13th message is a large one. */
static uint64_t slot_key(uint64_t round, int from, int to)
{
    return mix(round * 100003 + (uint64_t)from * 131 + (uint64_t)(to + 1));
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
    bool to_all = mix(round) % 3 == 0;
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

/* ---- main -------------------------------------------------------------------------------------
 */

static void on_sigterm(int signal_number)
{
    (void)signal_number;
    comm_interrupt();
}

static cz_status run(const char *mode, const char *argument)
{
    if (strcmp(mode, "slots") == 0) return run_slots(atoi(argument));
    return err_set(CZ_INVALID, 0, "mode %s is unknown", mode);
}

int main(int argc, char **argv)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    signal(SIGTERM, on_sigterm);
    if (run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "") != CZ_OK) {
        fprintf(stderr, "rank %s: %s\n", rank ? rank : "?", cz_last_error());
        return 1;
    }
    printf("rank %s ok\n", rank ? rank : "?");
    return 0;
}
