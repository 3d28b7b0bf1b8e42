/* Reading labelled texts, and what training waits for them.
 *
 *   bench_text_loader FILE [--tokenizer NAME] [--max-len N] [--batch B] [--step-ms T] [--steps N]
 *                     [--strip-spaces]
 *
 * Prints how fast cz_texts_open() reads (MB of the file per second of a core), how fast the
 * loader's thread makes micro-batches on an otherwise idle machine, what share of positions is
 * padding with and without buckets, and how long cz_text_loader_next() waits per micro-batch when
 * each is used for T ms: once by a caller that sleeps (an accelerator computes) and once by one
 * that computes on all cores. */
#include "base/clock.h"
#include "base/status.h"
#include "base/threads.h"
#include <czero/data.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

struct bench {
    const char *path, *tokenizer_name;
    int64_t max_len, micro_batch, step_ms, n_steps;
    bool strip_spaces;
    struct cz_texts *texts;
    struct cz_tokenizer *tokenizer;
};

static double seconds_since(int64_t since)
{
    return (double)(clock_now_ns() - since) / 1e9;
}

/* Processor seconds of this thread: others may use the machine. */
static double cpu_seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static cz_status bench_open(struct bench *b)
{
    const struct cz_texts_options o = {.size = sizeof o,
                                       .paths = &b->path,
                                       .n_paths = 1,
                                       .strip_spaces = b->strip_spaces,
                                       .labels_optional = true};
    struct stat info = {0};
    double best = 1e9;
    stat(b->path, &info);
    for (int k = 0; k < 5; k++) {
        cz_texts_close(b->texts);
        double since = cpu_seconds();
        TRY(cz_texts_open(&o, &b->texts));
        double s = cpu_seconds() - since;
        if (s < best) best = s;
    }
    printf("cz_texts_open: %zu texts, %.1f MB in %.4f s of a core: %.0f MB/s (best of 5)\n",
           cz_texts_count(b->texts), (double)info.st_size / 1e6, best,
           (double)info.st_size / 1e6 / best);
    return CZ_OK;
}

static cz_status open_loader(const struct bench *b, bool bucket, bool once,
                             struct cz_text_loader **out)
{
    const struct cz_text_loader_options o = {.size = sizeof o,
                                             .texts = b->texts,
                                             .tokenizer = b->tokenizer,
                                             .max_len = b->max_len,
                                             .micro_batch = b->micro_batch,
                                             .accumulation = 1,
                                             .shuffle = true,
                                             .bucket = bucket,
                                             .once = once};
    return cz_text_loader_open(&o, out);
}

/* One epoch as fast as it comes. */
static cz_status bench_epoch(const struct bench *b, bool bucket)
{
    struct cz_text_loader *l;
    double n_tokens = 0, n_all = 0, n_rows = 0;
    int64_t since = clock_now_ns();
    TRY(open_loader(b, bucket, true, &l));
    cz_status st = CZ_OK;
    while (st == CZ_OK && !cz_text_loader_is_done(l)) {
        struct cz_batch batch = {.size = sizeof batch};
        st = cz_text_loader_next(l, &batch);
        n_rows += (double)batch.B;
        n_all += (double)(batch.B * batch.T);
        for (int64_t i = 0; st == CZ_OK && i < batch.B * batch.T; i++)
            n_tokens += batch.key_mask[i];
    }
    double s = seconds_since(since);
    printf("%s: an epoch of %.0f rows in %.3f s: %.0f rows/s, %.0f tokens/s; %.1f %% padding\n",
           bucket ? "buckets" : "no buckets", n_rows, s, n_rows / s, n_tokens / s,
           100 * (1 - n_tokens / n_all));
    cz_text_loader_close(l);
    return st;
}

static void sleep_ms(int64_t ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* All threads of the pool count until the time is over. */
static void compute_ms(int64_t ms)
{
    int64_t until = clock_now_ns() + ms * 1000000;
#pragma omp parallel
    {
        volatile double x = 1;
        while (clock_now_ns() < until)
            for (int i = 0; i < 1000; i++) x = x * 1.0000001;
    }
}

static cz_status bench_wait(const struct bench *b, bool computes)
{
    struct cz_text_loader *l;
    TRY(open_loader(b, true, false, &l));
    cz_status st = CZ_OK;
    for (int64_t m = 0; st == CZ_OK && m < b->n_steps; m++) {
        struct cz_batch batch = {.size = sizeof batch};
        st = cz_text_loader_next(l, &batch);
        if (computes)
            compute_ms(b->step_ms);
        else
            sleep_ms(b->step_ms);
    }
    double ms = 1e3 * cz_text_loader_waited_s(l) / (double)b->n_steps;
    printf("a caller that %s %lld ms per micro-batch waits %.4f ms (%.3f %%)\n",
           computes ? "computes" : "sleeps", (long long)b->step_ms, ms,
           100 * ms / (double)b->step_ms);
    cz_text_loader_close(l);
    return st;
}

static cz_status run(struct bench *b)
{
    TRY(bench_open(b));
    TRY(cz_tokenizer_open(b->tokenizer_name, &b->tokenizer));
    TRY(bench_epoch(b, false));
    TRY(bench_epoch(b, true));
    TRY(bench_wait(b, false));
    return bench_wait(b, true);
}

int main(int argc, char **argv)
{
    struct bench b = {.tokenizer_name = "bytes",
                      .max_len = 128,
                      .micro_batch = 32,
                      .step_ms = 20,
                      .n_steps = 100};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        int64_t *number = strcmp(argv[i], "--max-len") == 0   ? &b.max_len
                          : strcmp(argv[i], "--batch") == 0   ? &b.micro_batch
                          : strcmp(argv[i], "--step-ms") == 0 ? &b.step_ms
                          : strcmp(argv[i], "--steps") == 0   ? &b.n_steps
                                                              : NULL;
        if (strcmp(argv[i], "--strip-spaces") == 0) {
            b.strip_spaces = true;
        } else if (strcmp(argv[i], "--tokenizer") == 0) {
            b.tokenizer_name = value;
            i++;
        } else if (number) {
            *number = atoll(value);
            i++;
        } else {
            b.path = argv[i];
        }
    }
    if (!b.path || b.step_ms < 1 || b.n_steps < 1) {
        fprintf(stderr,
                "usage: bench_text_loader FILE [--tokenizer NAME] [--max-len N] [--batch B] "
                "[--step-ms T] [--steps N] [--strip-spaces]\n");
        return 2;
    }
    threads_init(1);
    cz_status st = run(&b);
    if (st != CZ_OK) fprintf(stderr, "bench_text_loader: %s\n", cz_last_error());
    cz_texts_close(b.texts);
    cz_tokenizer_close(b.tokenizer);
    return st != CZ_OK;
}
