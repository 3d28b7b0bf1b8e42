/* How close collectives between the ranks of a host come to memory speed.
 *
 * Every line is one collective on one size of buffer per rank, timed on all ranks at once, and
 * beside it the STREAM triad that all ranks run at the same time in the same program. Bytes are
 * those that a rank must move when what is in flight stays in cache: reduce-scatter reads the
 * buffer and writes 1/W of it, an all-reduce reads and writes all of it, a gather reads 1/W and
 * writes all.
 *
 *   bench_comm [--ranks N] [--seconds S per line] [--launched] [name …]
 *     --ranks N    fork N ranks over shared memory, one core each (default 2)
 *     --launched   be one rank of `czero launch`, mpirun or srun instead
 *     name …       reduce_scatter, all_reduce, all_gather */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/threads.h"
#include "comm/comm.h"
#include "comm/shm/shm.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define NBYTES_MAX ((size_t)64 << 20)
#define N_SAMPLES  512

struct bench {
    struct comm *comm;
    float *x, *y, *z; /* NBYTES_MAX each */
    struct comm_span *spans;
    double seconds;
    double triad; /* bytes/s of one rank */
    int n_names;
    char **names;
};

struct collective {
    const char *name;
    bool is_reduction;
    cz_status (*run)(struct bench *b, size_t nbytes, enum cz_dtype dtype);
    /* Bytes a rank moves, in buffers, as (read + written)(W). */
    double (*n_moved)(double w);
};

/* ---- what is measured -------------------------------------------------------------------------
 */

static cz_status reduce_scatter(struct bench *b, size_t nbytes, enum cz_dtype dtype)
{
    size_t w = (size_t)b->comm->world_size, numel = nbytes / dtype_size(dtype);
    for (size_t r = 0; r < w; r++) {
        size_t begin = numel * r / w, end = numel * (r + 1) / w;
        b->spans[r] = (struct comm_span){.src_off = begin, .numel = end - begin, .owner = (int)r};
    }
    const struct comm_reduce args = {.src = b->x,
                                     .dst = b->y,
                                     .src_dtype = dtype,
                                     .dst_dtype = dtype,
                                     .wire = dtype,
                                     .scale = 1.0f / (float)w,
                                     .spans = b->spans,
                                     .n_spans = w};
    return comm_reduce(b->comm, &args);
}

/* In place, as gradients are. */
static cz_status all_reduce(struct bench *b, size_t nbytes, enum cz_dtype dtype)
{
    return comm_all_reduce(b->comm, b->x, b->x, nbytes / dtype_size(dtype), dtype, dtype,
                           1.0f / (float)b->comm->world_size);
}

static cz_status all_gather(struct bench *b, size_t nbytes, enum cz_dtype dtype)
{
    (void)dtype;
    return comm_all_gather(b->comm, b->x, b->y, nbytes / (size_t)b->comm->world_size);
}

static double moved_reduce_scatter(double w)
{
    return 1 + 1 / w;
}

static double moved_all_reduce(double w)
{
    (void)w;
    return 2;
}

static const struct collective table[] = {
    {"reduce_scatter", true, reduce_scatter, moved_reduce_scatter},
    {"all_reduce", true, all_reduce, moved_all_reduce},
    {"all_gather", false, all_gather, moved_reduce_scatter},
};

/* ---- timing -----------------------------------------------------------------------------------
 */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* As many runs per sample as fill a millisecond; rank 0 decides for all. */
static cz_status calibrate(struct bench *b, const struct collective *c, size_t nbytes,
                           enum cz_dtype dtype, int plan[2])
{
    double ns = 0;
    for (int i = 0; i < 3; i++) {
        int64_t start = clock_now_ns();
        TRY(c->run(b, nbytes, dtype));
        ns = (double)(clock_now_ns() - start);
    }
    double n_runs = 1e6 / ns < 1 ? 1 : 1e6 / ns, n_samples = b->seconds * 1e9 / (n_runs * ns);
    plan[0] = (int)n_runs;
    plan[1] = n_samples < 5 ? 5 : n_samples > N_SAMPLES ? N_SAMPLES : (int)n_samples;
    return comm_broadcast(b->comm, plan, 2 * sizeof *plan, 0);
}

static cz_status measure(struct bench *b, const struct collective *c, size_t nbytes,
                         enum cz_dtype dtype)
{
    double us[N_SAMPLES];
    int plan[2];
    TRY(calibrate(b, c, nbytes, dtype, plan));
    for (int i = 0; i < plan[1]; i++) {
        TRY(comm_barrier(b->comm));
        int64_t start = clock_now_ns();
        for (int k = 0; k < plan[0]; k++) TRY(c->run(b, nbytes, dtype));
        us[i] = (double)(clock_now_ns() - start) * 1e-3 / plan[0];
    }
    if (b->comm->rank != 0) return CZ_OK;
    qsort(us, (size_t)plan[1], sizeof *us, by_value);
    double median = us[plan[1] / 2];
    double rate = (double)nbytes * c->n_moved(b->comm->world_size) / median * 1e6;
    printf("%-15s %-5s %9.0f %10.1f %10.1f %10.1f %8.2f %8.2f %8.0f%%\n", c->name,
           c->is_reduction ? dtype_name(dtype) : "bytes", (double)nbytes / 1024, us[0], median,
           us[plan[1] * 9 / 10], rate * 1e-9, b->triad * 1e-9, 100 * rate / b->triad);
    return CZ_OK;
}

/* a = b + s·c over arrays that no cache holds, all ranks at once; the best of some runs. */
static cz_status measure_triad(struct bench *b)
{
    size_t numel = NBYTES_MAX / sizeof(float);
    for (int run = 0; run < 8; run++) {
        TRY(comm_barrier(b->comm));
        int64_t start = clock_now_ns();
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < numel; i++) b->y[i] = b->x[i] + 1.5f * b->z[i];
        double rate = 3e9 * (double)NBYTES_MAX / (double)(clock_now_ns() - start);
        if (rate > b->triad) b->triad = rate;
    }
    return CZ_OK;
}

static bool wanted(const struct bench *b, const char *name)
{
    for (int i = 0; i < b->n_names; i++)
        if (strcmp(name, b->names[i]) == 0) return true;
    return b->n_names == 0;
}

static cz_status measure_all(struct bench *b)
{
    static const enum cz_dtype dtypes[] = {DTYPE_BF16, DTYPE_F32};
    TRY(measure_triad(b));
    if (b->comm->rank == 0) {
        printf("%s, %s, %d ranks × %d thread(s)\n", cpu_model_name(), b->comm->ops->name,
               b->comm->world_size, threads_count());
        printf("%-15s %-5s %9s %10s %10s %10s %8s %8s %9s\n", "collective", "dtype", "KiB/rank",
               "min us", "median", "p90", "GB/s", "triad", "of triad");
    }
    for (size_t i = 0; i < CZ_ARRAY_LEN(table); i++)
        for (size_t d = 0; d < (table[i].is_reduction ? 2 : 1) && wanted(b, table[i].name); d++)
            for (size_t nbytes = 1024; nbytes <= NBYTES_MAX; nbytes *= 4)
                TRY(measure(b, &table[i], nbytes, dtypes[d]));
    return CZ_OK;
}

/* ---- ranks ------------------------------------------------------------------------------------
 */

static float *buffer(float value)
{
    float *p = aligned_alloc(1 << 21, NBYTES_MAX);
    if (!p) return NULL;
    madvise(p, NBYTES_MAX, MADV_HUGEPAGE);
    for (size_t i = 0; i < NBYTES_MAX / sizeof *p; i++) p[i] = value + (float)(i % 1000) * 0x1p-10f;
    return p;
}

static cz_status run_rank(struct bench *b, struct comm *comm)
{
    b->comm = comm;
    threads_init(comm->n_ranks_host);
    b->x = buffer(1);
    b->y = buffer(2);
    b->z = buffer(3);
    b->spans = calloc((size_t)comm->world_size, sizeof *b->spans);
    cz_status st = b->x && b->y && b->z && b->spans ? CZ_OK : err_set(CZ_NOMEM, 0, "out of memory");
    if (st == CZ_OK) st = measure_all(b);
    if (st != CZ_OK) fprintf(stderr, "bench_comm: rank %d: %s\n", comm->rank, cz_last_error());
    comm_destroy(comm);
    free(b->x);
    free(b->y);
    free(b->z);
    free(b->spans);
    return st;
}

/* The rank-th of the cores we may use, when there are enough. */
static void bind_to_core(int rank, int n_ranks)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < n_ranks) return;
    int k = 0;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all) || k++ != rank) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
    }
}

static int fork_ranks(struct bench *b, int n_ranks)
{
    int fd, status, failed = 0;
    if (comm_shm_segment_create(n_ranks, &fd) != CZ_OK) {
        fprintf(stderr, "bench_comm: %s\n", cz_last_error());
        return EXIT_FAILURE;
    }
    for (int rank = 0; rank < n_ranks; rank++) {
        if (fork() != 0) continue;
        struct comm *comm;
        bind_to_core(rank, n_ranks);
        cz_status st = comm_shm_join(fd, rank, n_ranks, 10, &comm);
        if (st != CZ_OK) fprintf(stderr, "bench_comm: rank %d: %s\n", rank, cz_last_error());
        if (st == CZ_OK) st = run_rank(b, comm);
        exit(st == CZ_OK ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    close(fd);
    while (wait(&status) > 0) failed |= status;
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int run_launched(struct bench *b)
{
    struct comm *comm;
    if (comm_create_world(&comm) == CZ_OK)
        return run_rank(b, comm) == CZ_OK ? EXIT_SUCCESS : EXIT_FAILURE;
    fprintf(stderr, "bench_comm: %s\n", cz_last_error());
    return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    struct bench b = {.seconds = 0.2};
    int n_ranks = 2, i = 1;
    bool launched = false;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--launched") == 0)
            launched = true;
        else if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc)
            n_ranks = atoi(argv[++i]);
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            b.seconds = atof(argv[++i]);
        else {
            fprintf(stderr, "bench_comm [--ranks N] [--seconds S] [--launched] [name …]\n");
            return EXIT_FAILURE;
        }
    }
    b.names = argv + i;
    b.n_names = argc - i;
    return launched ? run_launched(&b) : fork_ranks(&b, n_ranks);
}
