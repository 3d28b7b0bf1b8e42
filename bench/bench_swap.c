/* How fast swapping is: whole passes over a swap file that was written before, in tiles of 16 MiB
 * through a ring of four, as the optimizer sweep does.
 *
 *   bench_swap DIR MIB [--engine uring|threads] [--block KIB] [--depth N] [--checksums]
 *              [--small-pages]
 *
 * The tiles are in huge pages where they are to be had, as the host tier's memory does: a block is
 * one piece for the disk then, not 256.
 * Opens and fills the file, prints its path and how it is moved; then, for each line "read" or
 * "write" on stdin, makes a pass and prints its seconds and the process's CPU seconds. The file
 * goes at the end of the input. bench/nvme.py runs the peers beside it, on the same file. */
#include "base/clock.h"
#include "offload/swap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define TILE_NBYTES ((size_t)16 << 20)
#define N_SLOTS     4
#define HUGE_NBYTES ((size_t)2 << 20)

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static cz_status pass(struct swap *s, unsigned char *slots, size_t nbytes, bool is_write)
{
    uint64_t tickets[N_SLOTS] = {0};
    for (size_t i = 0; i * TILE_NBYTES < nbytes; i++) {
        uint64_t off = i * TILE_NBYTES;
        size_t n = nbytes - off < TILE_NBYTES ? nbytes - off : TILE_NBYTES;
        unsigned char *slot = slots + i % N_SLOTS * TILE_NBYTES;
        TRY(swap_wait(s, tickets[i % N_SLOTS]));
        if (is_write)
            TRY(swap_write_begin(s, slot, off, n, &tickets[i % N_SLOTS]));
        else
            TRY(swap_read_begin(s, slot, off, n, &tickets[i % N_SLOTS]));
    }
    return swap_drain(s);
}

static cz_status timed_pass(struct swap *s, unsigned char *slots, size_t nbytes, bool is_write)
{
    double cpu = cpu_seconds();
    int64_t since = clock_now_ns();
    TRY(pass(s, slots, nbytes, is_write));
    printf("%.6f %.6f\n", (double)(clock_now_ns() - since) / 1e9, cpu_seconds() - cpu);
    fflush(stdout);
    return CZ_OK;
}

static cz_status bench(const struct swap_options *options, bool small_pages)
{
    struct swap *s;
    char line[64];
    size_t n_slots_bytes = N_SLOTS * TILE_NBYTES;
    void *memory;
    if (posix_memalign(&memory, HUGE_NBYTES, n_slots_bytes) != 0)
        return err_set(CZ_NOMEM, 0, "no memory for the tiles");
    madvise(memory, n_slots_bytes, small_pages ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    unsigned char *slots = memory;
    for (size_t i = 0; i < n_slots_bytes; i++) slots[i] = (unsigned char)(i * 2654435761u >> 24);
    TRY(swap_open(options, &s));
    cz_status st = swap_register(s, slots, n_slots_bytes);
    if (st == CZ_OK) st = pass(s, slots, options->nbytes, true);
    printf("%s\n%s\n", swap_path(s), swap_describe(s));
    fflush(stdout);
    while (st == CZ_OK && fgets(line, sizeof line, stdin))
        st = timed_pass(s, slots, options->nbytes, line[0] == 'w');
    swap_close(s);
    free(memory);
    return st;
}

int main(int argc, char **argv)
{
    struct swap_options o = {0};
    bool small_pages = false;
    if (argc < 3) {
        fprintf(stderr, "usage: bench_swap DIR MIB [--engine uring|threads] [--block KIB] "
                        "[--depth N] [--checksums] [--small-pages]\n");
        return 2;
    }
    o.dir = argv[1];
    o.nbytes = strtoull(argv[2], NULL, 10) << 20;
    for (int i = 3; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--small-pages")) small_pages = true;
        if (!strcmp(argv[i], "--checksums")) o.checksums = true;
        if (!strcmp(argv[i], "--block")) o.block_nbytes = strtoull(value, NULL, 10) << 10;
        if (!strcmp(argv[i], "--depth")) o.queue_depth = (int)strtol(value, NULL, 10);
        if (!strcmp(argv[i], "--engine"))
            o.engine = value[0] == 't' ? SWAP_ENGINE_THREADS : SWAP_ENGINE_URING;
    }
    if (bench(&o, small_pages) == CZ_OK) return 0;
    fprintf(stderr, "%s\n", cz_last_error());
    return 1;
}
