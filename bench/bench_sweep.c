/* The optimizer's sweep with masters and moments in a swap file, beside its two limits: the disk
 * alone moving the same tiles, and the update alone with everything in memory.
 *
 *   bench_sweep DIR MPARAMS [--rounds N] [--tile N] [--depth N] [--block BYTES]
 *
 * bf16 gradients and parameters in memory, AdamW. The three are run in turns; a line each of median
 * milliseconds and rates, then the sweep's time over the longer of the other two (goal: 1.1). The
 * first round, in which the file's blocks are written for the first time, is left out. */
#include "base/clock.h"
#include "offload/host_memory.h"
#include "offload/ring.h"
#include "zero/zero.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 32 };

struct sweep_setting {
    const char *dir;
    size_t numel, tile, block_nbytes;
    int rounds, depth;
};

/* One parameter of one layer, on one rank. */
struct state {
    struct param_table table;
    struct zero_unit unit;
    struct optim_group group;
    struct comm *comm;
    struct zero *z;
    struct swap *swap;
    struct host_memory memory;
};

static const size_t the_param[] = {0}, the_group[] = {0};
static const struct zero_visit visits[] = {
    {.unit_idx = 0}, {.unit_idx = 0, .writes_grads = true, .is_backward = true}};

static cz_status zeros(void *user, size_t param_idx, size_t off, size_t numel, float *dst)
{
    (void)user, (void)param_idx, (void)off;
    for (size_t i = 0; i < numel; i++) dst[i] = (float)(i % 251) * 0.001f;
    return CZ_OK;
}

static cz_status lend(struct state *s)
{
    void *blocks[ZERO_N_BLOCKS] = {0};
    static float staging[1 << 16];
    size_t total = 0, at = 0;
    for (int b = 0; b < ZERO_N_BLOCKS; b++)
        total += zero_block_nbytes(s->z, (enum zero_block)b) + (1 << 20) + 4096 + 256;
    TRY(host_memory_map(NULL, "the state", total, &s->memory));
    for (int b = 0; b < ZERO_N_BLOCKS; b++) {
        size_t nbytes = zero_block_nbytes(s->z, (enum zero_block)b);
        blocks[b] = s->memory.base + at;
        host_memory_touch(blocks[b], nbytes, 0);
        at += (nbytes + 8191) / 4096 * 4096 + 256;
    }
    TRY(zero_bind(s->z, blocks, s->swap));
    return zero_load(s->z, zeros, NULL, staging, sizeof staging / sizeof *staging);
}

static cz_status make(const struct sweep_setting *set, struct ops *ops, bool swapped,
                      struct state *s)
{
    const int64_t shape[] = {(int64_t)set->numel};
    struct optim_hyper hyper;
    size_t idx;
    param_table_init(&s->table);
    TRY(param_table_add(&s->table, "p", 1, shape, PARAM_INIT_NORMAL, 1, &idx));
    s->unit = (struct zero_unit){the_param, 1};
    TRY(optim_hyper_begin("AdamW", OPTIM_FUSED, &hyper));
    TRY(optim_hyper_finish(&hyper));
    TRY(optim_group_init(&s->group, &hyper, NULL));
    TRY(comm_self_create(0, 1, &s->comm));
    const struct zero_options options = {
        .table = &s->table,
        .units = &s->unit,
        .n_units = 1,
        .visits = visits,
        .n_visits = 2,
        .group_of = the_group,
        .groups = &s->group,
        .n_groups = 1,
        .stage = 1,
        .dtype = DTYPE_BF16,
        .grad_dtype = DTYPE_BF16,
        .wire_dtype = DTYPE_BF16,
        .bucket_numel = set->numel,
        .swap = {.optimizer = swapped, .read_ahead = true, .write_behind = true},
        .tile_numel = set->tile,
        .comm = s->comm,
        .ops = ops};
    TRY(zero_create(&options, &s->z));
    const struct swap_options swap = {.dir = set->dir,
                                      .nbytes = zero_swap_nbytes(s->z),
                                      .block_nbytes = set->block_nbytes,
                                      .queue_depth = set->depth};
    if (swapped) TRY(swap_open(&swap, &s->swap));
    return lend(s);
}

static void drop(struct state *s)
{
    zero_destroy(s->z);
    swap_close(s->swap);
    host_memory_unmap(&s->memory);
    comm_destroy(s->comm);
    param_table_free(&s->table);
}

/* ---- the disk alone ---------------------------------------------------------------------------
 */

struct disk {
    struct ring *ring;
    struct host_memory memory;
    size_t numel, tile;
};

/* Three arrays, one after the other in the file, as the sweep has them. */
static size_t disk_pieces(void *user, size_t t, struct ring_piece *out)
{
    const struct disk *d = user;
    size_t array = (d->numel * 4 + 4095) / 4096 * 4096, begin = t * d->tile * 4;
    size_t nbytes = d->tile * 4 < array - begin ? d->tile * 4 : array - begin;
    for (size_t a = 0; a < 3; a++)
        out[a] = (struct ring_piece){.off = a * array + begin,
                                     .nbytes = nbytes,
                                     .slot_off = a * (d->tile * 4 + 5 * 4096),
                                     .is_read = true,
                                     .is_written = true};
    return 3;
}

static cz_status disk_make(const struct sweep_setting *set, struct swap *swap, struct disk *d)
{
    size_t slot = 3 * (set->tile * 4 + 5 * 4096);
    d->numel = set->numel;
    d->tile = set->tile;
    TRY(host_memory_map(NULL, "a ring", RING_SLOTS * slot, &d->memory));
    host_memory_touch(d->memory.base, RING_SLOTS * slot, 0);
    TRY(swap_register(swap, d->memory.base, RING_SLOTS * slot));
    const struct ring_options options = {.swap = swap,
                                         .memory = d->memory.base,
                                         .slot_nbytes = slot,
                                         .read_ahead = true,
                                         .write_behind = true};
    return ring_create(&options, &d->ring);
}

static cz_status disk_pass(struct disk *d)
{
    size_t n_tiles = (d->numel + d->tile - 1) / d->tile;
    unsigned char *slot;
    TRY(ring_begin(d->ring, n_tiles, disk_pieces, d));
    for (size_t t = 0; t < n_tiles; t++) {
        TRY(ring_next(d->ring, &slot));
        TRY(ring_done(d->ring));
    }
    return ring_end(d->ring);
}

/* ---- in turns ---------------------------------------------------------------------------------
 */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static cz_status run(const struct sweep_setting *set, struct ops *ops)
{
    struct state memory = {0}, swapped = {0};
    struct disk disk = {0};
    double ms[3][ROUNDS_MAX];
    TRY(make(set, ops, false, &memory));
    TRY(make(set, ops, true, &swapped));
    TRY(disk_make(set, swapped.swap, &disk));
    for (int r = -1; r < set->rounds; r++) {
        uint64_t t = (uint64_t)(r + 2);
        int64_t at[4] = {clock_now_ns()};
        TRY(disk_pass(&disk));
        at[1] = clock_now_ns();
        TRY(zero_step(memory.z, t, 1, 1));
        at[2] = clock_now_ns();
        TRY(zero_step(swapped.z, t, 1, 1));
        at[3] = clock_now_ns();
        for (int k = 0; k < 3 && r >= 0; k++) ms[k][r] = (double)(at[k + 1] - at[k]) * 1e-6;
    }
    static const char *const names[] = {"disk alone", "update alone", "sweep"};
    double mid[3];
    printf("%zu Mi parameters, tiles of %zu, %s\n", set->numel >> 20, set->tile,
           swap_describe(swapped.swap));
    for (int k = 0; k < 3; k++) {
        mid[k] = median(ms[k], set->rounds);
        printf("%-14s %9.1f ms  %7.0f M parameters/s", names[k], mid[k],
               (double)set->numel / mid[k] * 1e-3);
        if (k != 1)
            printf("  %5.2f GB/s read and written each", (double)set->numel * 12e-6 / mid[k]);
        printf("\n");
    }
    printf("sweep / max(disk, update): %.3f\n", mid[2] / (mid[0] > mid[1] ? mid[0] : mid[1]));
    ring_destroy(disk.ring);
    drop(&swapped);
    drop(&memory);
    host_memory_unmap(&disk.memory);
    return CZ_OK;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"rounds", required_argument, NULL, 'r'},
                                            {"tile", required_argument, NULL, 't'},
                                            {"depth", required_argument, NULL, 'd'},
                                            {"block", required_argument, NULL, 'b'},
                                            {0}};
    struct sweep_setting set = {
        .rounds = 5, .tile = (size_t)2 << 20, .depth = 8, .block_nbytes = 1 << 20};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) switch (c) {
        case 'r': set.rounds = atoi(optarg); break;
        case 't': set.tile = (size_t)atoll(optarg); break;
        case 'd': set.depth = atoi(optarg); break;
        case 'b': set.block_nbytes = (size_t)atoll(optarg); break;
        default: return 2;
        }
    if (optind + 2 != argc || set.rounds < 1 || set.rounds > ROUNDS_MAX || set.tile % 4096 != 0) {
        fprintf(stderr,
                "usage: bench_sweep DIR MPARAMS [--rounds 1..%d] [--tile N·4096] "
                "[--depth N] [--block BYTES]\n",
                ROUNDS_MAX);
        return 2;
    }
    set.dir = argv[optind];
    set.numel = (size_t)atoll(argv[optind + 1]) << 20;
    struct device *device;
    struct ops *ops = NULL;
    cz_status st = device_open("cpu", 0, &device);
    if (st == CZ_OK) st = ops_create(device, &ops);
    if (st == CZ_OK) st = run(&set, ops);
    if (st != CZ_OK) fprintf(stderr, "bench_sweep: %s\n", cz_last_error());
    ops_destroy(ops);
    device_close(device);
    return st == CZ_OK ? 0 : 1;
}
