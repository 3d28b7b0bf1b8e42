/* How fast the folder of the swap files is, through the same code that swaps: a few block sizes and
 * depths are tried on a small file, the best is measured on a large one. What is measured was
 * written before: a disk answers for blocks that never were without looking. */
#include "base/size.h"
#include "engine/machine/machine_impl.h"
#include "offload/swap.h"

#include <stdio.h>
#include <string.h>

#define SHARE      0.5                /* of the time */
#define N_SLOTS    4                  /* requests under way, as a sweep has them: two each way */
#define SLOT_FIRST ((size_t)1 << 20)  /* while nothing is known */
#define SLOT_MAX   ((size_t)32 << 20) /* a tensor of the sweep's largest tile */
#define SLOT_TIME  0.02               /* seconds: what a request should take at least */
#define NBYTES_MIN ((size_t)16 << 20)
#define NBYTES_MAX ((size_t)2 << 30)
#define NBYTES_TRY ((size_t)256 << 20)
#define BETTER     1.02 /* another setting than the first must be this much faster */

struct candidate {
    size_t block_nbytes;
    int depth;
};

/* DeepSpeed's default first. */
static const struct candidate candidates[] = {{(size_t)1 << 20, 8},
                                              {(size_t)1 << 20, 32},
                                              {(size_t)4 << 20, 8},
                                              {(size_t)4 << 20, 32},
                                              {(size_t)256 << 10, 32}};

struct disk {
    const struct machine_run *run;
    unsigned char *memory; /* N_SLOTS × SLOT_MAX */
    size_t nbytes_max;     /* that a file may have */
    size_t slot_nbytes;    /* of a request */
    struct swap *swap;
    size_t nbytes;  /* of the open file */
    size_t written; /* its beginning that holds data */
};

/* One direction: slots of [base, base + nbytes) of the file, one after the other, round and round.
 */
struct lane {
    bool is_write;
    uint64_t base, at;
    size_t nbytes;
};

/* Slots go round: a file need not be as large as what is moved. */
static cz_status lane_begin(struct disk *d, struct lane *lane, unsigned char *buf, uint64_t *ticket)
{
    if (lane->at + d->slot_nbytes > lane->nbytes) lane->at = 0;
    const uint64_t off = lane->base + lane->at;
    lane->at += d->slot_nbytes;
    if (lane->is_write) return swap_write_begin(d->swap, buf, off, d->slot_nbytes, ticket);
    return swap_read_begin(d->swap, buf, off, d->slot_nbytes, ticket);
}

static bool is_over(const struct disk *d, int64_t begin_ns, double seconds)
{
    const struct machine_options *o = d->run->options;
    return machine_since(begin_ns) >= seconds || (o->stopped && o->stopped(o->user));
}

/* N_SLOTS requests under way, of one lane or of two in turns, until `seconds` are over or `limit`
 * bytes were begun. *nbytes: moved, all of them done; *rate: bytes per second, the wait for the
 * last ones included. */
static cz_status stream(struct disk *d, struct lane *even, struct lane *odd, double seconds,
                        size_t limit, size_t *nbytes, double *rate)
{
    uint64_t tickets[N_SLOTS] = {0};
    const int64_t begin_ns = clock_now_ns();
    cz_status st = CZ_OK;
    size_t moved = 0;
    for (size_t i = 0; st == CZ_OK && moved + d->slot_nbytes <= limit; i++) {
        const size_t slot = i % N_SLOTS;
        if (i >= N_SLOTS && is_over(d, begin_ns, seconds)) break;
        if (i >= N_SLOTS) st = swap_wait(d->swap, tickets[slot]);
        if (st == CZ_OK)
            st = lane_begin(d, i & 1 ? odd : even, d->memory + slot * SLOT_MAX, &tickets[slot]);
        moved += d->slot_nbytes;
    }
    const cz_status drained = swap_drain(d->swap);
    *nbytes = moved;
    *rate = (double)moved / machine_since(begin_ns);
    return st != CZ_OK ? st : drained;
}

/* Write the file from its beginning as far as `seconds` allow, N_SLOTS slots at least. */
static cz_status fill(struct disk *d, double seconds, double *rate)
{
    struct lane all = {.is_write = true, .nbytes = d->nbytes};
    return stream(d, &all, &all, seconds, d->nbytes, &d->written, rate);
}

/* Over what was written before. */
static cz_status one_way(struct disk *d, bool is_write, double seconds, double *rate)
{
    struct lane all = {.is_write = is_write, .nbytes = d->written};
    size_t nbytes;
    return stream(d, &all, &all, seconds, SIZE_MAX, &nbytes, rate);
}

/* Reading one half of what was written and writing the other. */
static cz_status both_ways(struct disk *d, double seconds, double *rate)
{
    const size_t half = d->written / 2 / SWAP_ALIGN * SWAP_ALIGN;
    struct lane reads = {.nbytes = half};
    struct lane writes = {.is_write = true, .base = half, .nbytes = half};
    size_t nbytes;
    return stream(d, &reads, &writes, seconds, SIZE_MAX, &nbytes, rate);
}

/* A file per setting: blocks and depth are fixed when it is opened. */
static cz_status file_open(struct disk *d, const struct candidate *c, size_t nbytes)
{
    const struct swap_options options = {.dir = d->run->options->nvme_path,
                                         .nbytes = nbytes,
                                         .block_nbytes = c->block_nbytes,
                                         .queue_depth = c->depth};
    d->nbytes = nbytes;
    d->written = 0;
    TRY(swap_open(&options, &d->swap));
    return swap_register(d->swap, d->memory, N_SLOTS * SLOT_MAX);
}

static void file_close(struct disk *d)
{
    swap_close(d->swap);
    d->swap = NULL;
}

/* Requests of some 20 ms: long enough for the queue to be full, short enough to stop in time. */
static size_t slot_for(const struct disk *d, double rate, size_t nbytes)
{
    size_t slot = (size_t)(rate * SLOT_TIME), most = nbytes / (2 * N_SLOTS);
    if (most > SLOT_MAX) most = SLOT_MAX;
    if (slot > most) slot = most;
    if (slot < d->slot_nbytes) slot = d->slot_nbytes;
    return slot / SWAP_ALIGN * SWAP_ALIGN;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Half of the time fills the file, half measures both directions. */
static cz_status try_one(struct disk *d, const struct candidate *c, double seconds, double *rate)
{
    double filled;
    char block[32];
    TRY(file_open(d, c, smaller(d->nbytes_max, NBYTES_TRY)));
    TRY(machine_next(d->run, "%s: blocks of %s, %d at a time", d->run->options->nvme_path,
                     size_human(c->block_nbytes, block, sizeof block), c->depth));
    TRY(fill(d, seconds / 2, &filled));
    d->slot_nbytes = slot_for(d, filled, d->written);
    return both_ways(d, seconds / 2, rate);
}

/* The fastest of those tried; *rate: what it did. A slow disk may not have time for all. */
static cz_status choose(struct disk *d, double seconds, const struct candidate **best, double *rate)
{
    const int64_t begin_ns = clock_now_ns();
    *best = &candidates[0];
    *rate = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(candidates); i++) {
        double now = 0;
        if (i > 0 && machine_since(begin_ns) > seconds) break;
        cz_status st = try_one(d, &candidates[i], seconds / CZ_ARRAY_LEN(candidates), &now);
        file_close(d);
        if (st != CZ_OK) return st;
        if (now < *rate * (i > 0 ? BETTER : 1)) continue;
        *rate = now;
        *best = &candidates[i];
    }
    return CZ_OK;
}

/* Reading, writing and both on a file as large as may be written in the time for it. */
static cz_status measure_best(struct disk *d, const struct candidate *c, double rate,
                              double seconds)
{
    struct machine_profile *p = d->run->out;
    const double part = seconds / 5;
    size_t nbytes = smaller(d->nbytes_max, (size_t)(rate * 2 * part));
    if (nbytes < NBYTES_MIN) nbytes = NBYTES_MIN;
    double filled;
    TRY(machine_next(d->run, "%s: reading, writing, both", d->run->options->nvme_path));
    TRY(file_open(d, c, nbytes / SWAP_ALIGN * SWAP_ALIGN));
    d->slot_nbytes = smaller(d->slot_nbytes, d->nbytes / (2 * N_SLOTS) / SWAP_ALIGN * SWAP_ALIGN);
    TRY(fill(d, 2 * part, &filled));
    TRY(one_way(d, false, 0.7 * part, &p->nvme_read));
    TRY(one_way(d, true, 0.7 * part, &p->nvme_write));
    TRY(both_ways(d, 1.6 * part, &p->nvme_both)); /* what a sweep does: predictions rest on it */
    snprintf(p->nvme_path, sizeof p->nvme_path, "%s", d->run->options->nvme_path);
    snprintf(p->nvme_how, sizeof p->nvme_how, "%s", swap_describe(d->swap));
    p->nvme_block_nbytes = c->block_nbytes;
    p->nvme_depth = c->depth;
    return machine_go_on(d->run);
}

/* The best setting gets the longer measurement: the others only had to be compared. */
static cz_status measure(struct disk *d)
{
    const struct candidate *best;
    double rate, seconds = SHARE * d->run->seconds;
    TRY(choose(d, seconds / 2, &best, &rate));
    cz_status st = measure_best(d, best, rate, seconds / 2);
    file_close(d);
    return st;
}

cz_status machine_measure_nvme(const struct machine_run *run)
{
    struct disk d = {.run = run, .slot_nbytes = SLOT_FIRST};
    struct device *dev = run->device;
    void *memory;
    /* A quarter of the free space at most: other programs on the machine write there, too. */
    const char *path = d.run->options->nvme_path;
    size_t free_nbytes;
    char have[32], need[32];
    TRY(swap_dir_free(path, &free_nbytes));
    d.nbytes_max = smaller(NBYTES_MAX, free_nbytes / 4 / SWAP_ALIGN * SWAP_ALIGN);
    if (d.nbytes_max < NBYTES_MIN)
        return err_set(CZ_IO, 0,
                       "%s: %s free; measuring needs %s, so that three quarters stay free", path,
                       size_human(free_nbytes, have, sizeof have),
                       size_human(4 * NBYTES_MIN, need, sizeof need));
    TRY(dev->ops->mem_alloc(dev, N_SLOTS * SLOT_MAX, "requests", &memory));
    for (size_t i = 0; i < N_SLOTS * SLOT_MAX / sizeof(uint64_t); i++)
        ((uint64_t *)memory)[i] = (i + 1) * 0x9e3779b97f4a7c15u; /* some disks compress */
    d.memory = memory;
    cz_status st = measure(&d);
    dev->ops->mem_free(dev, memory, N_SLOTS * SLOT_MAX);
    return st;
}
