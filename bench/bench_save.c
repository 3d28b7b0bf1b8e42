/* How fast a state in memory becomes a durable .pt file: laid out, written, checksummed, synced,
 * renamed.
 *
 * The state is what a rank of an Adam run saves: fp32 masters and two moments, three storages of
 * equal size, filled with numbers that do not compress. They are written in pieces of 4 MiB, as a
 * checkpoint is.
 *
 *   bench_save FILE MIB [--threads N] [--runs N]
 *
 * Prints one line per run: seconds. Removes the file. bench/save.py runs the peers beside it. */
#include "base/clock.h"
#include "formats/pt/pt.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_STORAGES   3
#define PIECE_NBYTES ((size_t)4 << 20)

struct state {
    const char *path;
    size_t numel; /* of each storage */
    float *storages[N_STORAGES];
    unsigned char *pickle;
    size_t pickle_nbytes;
    int n_threads;
};

struct save {
    const struct state *state;
    struct pt_writer *w;
    atomic_size_t next;
    atomic_int status;
};

/* ---- the state --------------------------------------------------------------------------------
 */

static cz_status make_pickle(struct state *s)
{
    static const char *const names[N_STORAGES] = {"fp32", "exp_avg", "exp_avg_sq"};
    struct pickle_writer *w = pickle_writer_create();
    const int64_t shape = (int64_t)s->numel;
    pickle_dict_begin(w);
    for (size_t i = 0; i < N_STORAGES; i++) {
        pickle_put_string(w, names[i]);
        pickle_put_tensor(w, &(struct pickle_tensor_desc){.dtype = DTYPE_F32,
                                                          .storage_idx = i,
                                                          .storage_numel = s->numel,
                                                          .ndim = 1,
                                                          .shape = &shape});
    }
    pickle_dict_end(w);
    cz_status st = pickle_writer_take(w, &s->pickle, &s->pickle_nbytes);
    pickle_writer_destroy(w);
    return st;
}

static bool make_storages(struct state *s)
{
    uint64_t x = 88172645463325252u; /* xorshift64 */
    for (size_t i = 0; i < N_STORAGES; i++) {
        s->storages[i] = malloc(s->numel * sizeof(float));
        if (!s->storages[i]) return false;
        for (size_t k = 0; k + 1 < s->numel; k += 2) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            memcpy(s->storages[i] + k, &x, sizeof x);
        }
    }
    return true;
}

/* ---- a save -----------------------------------------------------------------------------------
 */

static void *write_pieces(void *arg)
{
    struct save *save = arg;
    const struct state *s = save->state;
    size_t nbytes = s->numel * sizeof(float), n = (nbytes + PIECE_NBYTES - 1) / PIECE_NBYTES, i;
    while ((i = atomic_fetch_add(&save->next, 1)) < n * N_STORAGES) {
        size_t off = i % n * PIECE_NBYTES;
        size_t n_now = nbytes - off < PIECE_NBYTES ? nbytes - off : PIECE_NBYTES;
        const char *src = (const char *)s->storages[i / n] + off;
        cz_status st = pt_write(save->w, i / n, off, n_now, src, NULL);
        if (st == CZ_OK) continue;
        fprintf(stderr, "%s\n", cz_last_error());
        atomic_store(&save->status, st);
        break;
    }
    return NULL;
}

static void write_all(struct save *save)
{
    pthread_t threads[64];
    int n = 0;
    while (n < save->state->n_threads - 1 &&
           pthread_create(&threads[n], NULL, write_pieces, save) == 0)
        n++;
    write_pieces(save);
    while (n > 0) pthread_join(threads[--n], NULL);
}

static cz_status save_once(const struct state *s, double *seconds)
{
    const uint64_t nbytes = s->numel * sizeof(float), sizes[] = {nbytes, nbytes, nbytes};
    struct save save = {.state = s};
    int64_t begin = clock_now_ns();
    TRY(pt_create(&(struct pt_create_options){.path = s->path,
                                              .pickle = s->pickle,
                                              .pickle_nbytes = s->pickle_nbytes,
                                              .storage_nbytes = sizes,
                                              .n_storages = N_STORAGES},
                  &save.w));
    write_all(&save);
    struct pt_written written;
    cz_status st = (cz_status)atomic_load(&save.status);
    if (st == CZ_OK) st = pt_finish(save.w, true, &written);
    *seconds = (double)(clock_now_ns() - begin) * 1e-9;
    pt_writer_destroy(save.w);
    return st;
}

static int option(int argc, char **argv, const char *name, int standard)
{
    for (int i = 3; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0) return atoi(argv[i + 1]);
    return standard;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "use: bench_save FILE MIB [--threads N] [--runs N]\n");
        return 2;
    }
    struct state s = {.path = argv[1]};
    s.numel = strtoull(argv[2], NULL, 10) * ((size_t)1 << 20) / sizeof(float) / N_STORAGES;
    s.n_threads = option(argc, argv, "--threads", 1);
    if (s.n_threads > 64) s.n_threads = 64;
    if (!make_storages(&s)) {
        fprintf(stderr, "no memory for the state\n");
        return 1;
    }
    cz_status st = make_pickle(&s);
    for (int run = option(argc, argv, "--runs", 1); st == CZ_OK && run > 0; run--) {
        double seconds = 0;
        st = save_once(&s, &seconds);
        unlink(s.path);
        if (st == CZ_OK) printf("%.4f\n", seconds);
        fflush(stdout);
    }
    if (st != CZ_OK) fprintf(stderr, "%s\n", cz_last_error());
    for (size_t i = 0; i < N_STORAGES; i++) free(s.storages[i]);
    free(s.pickle);
    return st == CZ_OK ? 0 : 1;
}
