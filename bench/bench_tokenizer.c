/* Text to ids on one core: MB of text per second of processor time, so that others on the machine
 * count little. The file is encoded in documents of about 4 KB (cut at line ends), each time from
 * the first to the last, until a round's worth of seconds is over; the best round is printed.
 *
 *   bench_tokenizer TOKENIZER FILE [--seconds S] [--rounds R] [--nbytes N]
 *
 * bench/tokenizer.py runs this in turns with Hugging Face's tokenizers on the same documents. */
#include "base/status.h"
#include "formats/file_io.h"
#include <czero/data.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct bench {
    const char *name, *path;
    double seconds;
    int rounds;
    size_t doc_nbytes;
    char *text;
    size_t nbytes;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Up to the first line end behind doc_nbytes. */
static size_t doc_length(const struct bench *b, size_t at)
{
    size_t left = b->nbytes - at;
    if (left <= b->doc_nbytes) return left;
    const char *end = memchr(b->text + at + b->doc_nbytes, '\n', left - b->doc_nbytes);
    return end ? (size_t)(end - (b->text + at)) + 1 : left;
}

static cz_status encode_all(const struct bench *b, const struct cz_tokenizer *tok, size_t *n_ids)
{
    *n_ids = 0;
    for (size_t at = 0; at < b->nbytes;) {
        int32_t *ids;
        size_t n, len = doc_length(b, at);
        TRY(cz_tokenizer_encode(tok, b->text + at, len, &ids, &n));
        free(ids);
        *n_ids += n;
        at += len;
    }
    return CZ_OK;
}

static cz_status run(struct bench *b)
{
    struct cz_tokenizer *tok;
    size_t n_ids = 0;
    double best = 0;
    TRY(file_load(b->path, (size_t)1 << 30, &b->text, &b->nbytes));
    double start = now();
    TRY(cz_tokenizer_open(b->name, &tok));
    double opened = now() - start;
    for (int round = 0; round < b->rounds; round++) {
        double done = 0, seconds = 0;
        start = now();
        while (seconds < b->seconds) {
            TRY(encode_all(b, tok, &n_ids));
            done += (double)b->nbytes;
            seconds = now() - start;
        }
        if (done / seconds > best) best = done / seconds;
    }
    printf("%.1f MB/s, %zu ids of %zu bytes, opened in %.3f s\n", best / 1e6, n_ids, b->nbytes,
           opened);
    cz_tokenizer_close(tok);
    return CZ_OK;
}

int main(int argc, char **argv)
{
    struct bench b = {.seconds = 1.0, .rounds = 3, .doc_nbytes = 4096};
    int n_names = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
            b.seconds = atof(argv[++i]);
        } else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
            b.rounds = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--nbytes") == 0 && i + 1 < argc) {
            b.doc_nbytes = (size_t)strtoull(argv[++i], NULL, 10);
        } else if (n_names < 2) {
            *(n_names == 0 ? &b.name : &b.path) = argv[i];
            n_names++;
        } else {
            n_names = 9;
        }
    }
    if (n_names != 2) {
        fprintf(stderr, "usage: bench_tokenizer TOKENIZER FILE [--seconds S] [--rounds R] "
                        "[--nbytes N]\n");
        return 2;
    }
    cz_status st = run(&b);
    free(b.text);
    if (st == CZ_OK) return 0;
    fprintf(stderr, "bench_tokenizer: %s\n", cz_last_error());
    return 1;
}
