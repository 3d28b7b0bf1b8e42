/* Claims: rows and their order are the stated arithmetic at any world size, batch and epoch; a
 * resumed loader continues exactly at the saved place; every kind of file gives the same tokens;
 * bad input ends in a status and a sentence that names the file; reading holds little memory and
 * allocates nothing. */
#include "base/status.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"
#include <czero/data.h>

#include <malloc.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

static char dir[64];

static const char *in_dir(const char *name)
{
    static char paths[8][256];
    static int turn;
    char *path = paths[turn++ & 7];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static void setup(void)
{
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
}

static void teardown(void)
{
    test_tmp_remove(dir);
}

/* Token i of the test stream; text is UTF-8 and has no NUL. */
static int32_t token(uint64_t i)
{
    return (int32_t)((i * 31 + i / 127) % 127) + 1;
}

static const char *write_text(const char *name, uint64_t first, size_t n)
{
    const char *path = in_dir(name);
    char *bytes = malloc(n + 1);
    for (size_t i = 0; i < n; i++) bytes[i] = (char)token(first + i);
    ck_ok(file_save(path, bytes, n));
    free(bytes);
    return path;
}

static struct cz_data_loader *open_paths(struct cz_data_options o, const char *const *paths,
                                         size_t n)
{
    struct cz_data_loader *l;
    o.paths = paths;
    o.n_paths = n;
    ck_ok(cz_data_open(&o, &l));
    return l;
}

static struct cz_data_loader *open_one(struct cz_data_options o, const char *path)
{
    return open_paths(o, &path, 1);
}

static void check_row(const struct cz_batch *batch, int64_t b, uint64_t row)
{
    for (int64_t t = 0; t < batch->T; t++) {
        uint64_t at = row * (uint64_t)batch->T + (uint64_t)t;
        ck_assert_int_eq(batch->ids[b * batch->T + t], token(at));
        ck_assert_int_eq(batch->labels[b * batch->T + t], token(at + 1));
    }
}

/* ---- order ------------------------------------------------------------------------------------
 */

START_TEST(rows_follow_the_formula)
{
    setup();
    const int64_t T = 8, micro = 3, world = 2, gas = 2;
    const char *path = write_text("text", 0, 8 * 40 + 1);
    for (int64_t rank = 0; rank < world; rank++) {
        struct cz_data_loader *l =
            open_one((struct cz_data_options){.size = sizeof(struct cz_data_options),
                                              .seq_len = T,
                                              .micro_batch = micro,
                                              .rank = rank,
                                              .world_size = world},
                     path);
        ck_assert_uint_eq(cz_data_n_rows(l), 40);
        ck_assert_uint_eq(cz_data_n_tokens(l), 321);
        ck_assert_uint_eq(cz_data_n_batches(l), 7);
        for (int64_t s = 0; s < 5; s++)
            for (int64_t g = 0; g < gas; g++) {
                struct cz_batch batch = {.size = sizeof batch};
                ck_ok(cz_data_next(l, &batch));
                ck_assert_int_eq(batch.B, micro);
                ck_assert_int_eq(batch.T, T);
                ck_assert_ptr_null(batch.types);
                ck_assert_ptr_null(batch.positions);
                ck_assert_ptr_null(batch.key_mask);
                ck_assert_ptr_null(batch.loss_weights);
                uint64_t first = (uint64_t)(((s * gas + g) * world + rank) * micro);
                ck_assert_uint_eq(batch.sample, first);
                /* 5 steps take 60 rows of 40: the last ones are the next epoch's first. */
                for (int64_t i = 0; i < micro; i++)
                    check_row(&batch, i, (first + (uint64_t)i) % 40);
            }
        cz_data_close(l);
    }
    teardown();
}
END_TEST

START_TEST(the_last_token_needs_a_target)
{
    setup();
    static const struct {
        size_t n_tokens;
        uint64_t n_rows;
    } cases[] = {{9, 1}, {16, 1}, {17, 2}, {24, 2}, {25, 3}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct cz_data_loader *l = open_one(
            (struct cz_data_options){
                .size = sizeof(struct cz_data_options), .seq_len = 8, .micro_batch = 1},
            write_text("text", 0, cases[i].n_tokens));
        ck_assert_uint_eq(cz_data_n_rows(l), cases[i].n_rows);
        cz_data_close(l);
    }
    teardown();
}
END_TEST

/* Which rows one epoch gives, over all ranks, by their first token's place. */
static void collect(const char *path, struct cz_data_options o, uint64_t n_batches, uint64_t *rows)
{
    uint64_t world = (uint64_t)o.world_size, micro = (uint64_t)o.micro_batch;
    for (o.rank = 0; o.rank < o.world_size; o.rank++) {
        struct cz_data_loader *l = open_one(o, path);
        for (uint64_t m = 0; m < n_batches; m++) {
            struct cz_batch batch = {.size = sizeof batch};
            ck_ok(cz_data_next(l, &batch));
            for (uint64_t i = 0; i < micro; i++) {
                /* tokens 2k and 2k + 1 of the file spell k */
                const int32_t *id = batch.ids + i * 2;
                rows[(m * world + (uint64_t)o.rank) * micro + i] = (uint64_t)(id[0] + 256 * id[1]);
            }
        }
        cz_data_close(l);
    }
}

/* Bytes of any kind: given as u8:FILE. */
static const char *write_numbers(const char *name, size_t n)
{
    static char plain[264];
    const char *path = in_dir(name);
    char *bytes = malloc(2 * n + 1);
    for (size_t k = 0; k <= n; k++) {
        if (k < n) bytes[2 * k + 1] = (char)(k >> 8);
        bytes[2 * k] = (char)k;
    }
    ck_ok(file_save(path, bytes, 2 * n + 1));
    free(bytes);
    snprintf(plain, sizeof plain, "u8:%s", path);
    return plain;
}

START_TEST(shuffling_visits_each_row_once_per_epoch)
{
    setup();
    enum { N = 1000 };
    static uint64_t rows[2 * N], again[2 * N], other[2 * N];
    const char *path = write_numbers("numbers", N);
    struct cz_data_options o = {.size = sizeof o,
                                .seq_len = 2,
                                .micro_batch = 5,
                                .world_size = 1,
                                .shuffle = true,
                                .seed = 7};
    collect(path, o, 2 * N / 5, rows);
    for (int epoch = 0; epoch < 2; epoch++) {
        unsigned char seen[N] = {0};
        size_t n_fixed = 0;
        for (uint64_t i = 0; i < N; i++) {
            uint64_t row = rows[(uint64_t)epoch * N + i];
            ck_assert_uint_lt(row, N);
            ck_assert_int_eq(seen[row]++, 0);
            n_fixed += row == i;
        }
        ck_assert_uint_lt(n_fixed, 20);
    }
    ck_assert_int_ne(memcmp(rows, rows + N, sizeof rows / 2), 0);
    o.micro_batch = 2,
    o.world_size = 4; /* the sequence does not depend on the division over ranks */
    collect(path, o, 2 * N / 8, again);
    ck_assert_mem_eq(rows, again, sizeof rows);
    o.seed = 8;
    collect(path, o, 2 * N / 8, other);
    ck_assert_int_ne(memcmp(rows, other, sizeof rows), 0);
    teardown();
}
END_TEST

START_TEST(drop_last_leaves_out_the_incomplete_batch)
{
    setup();
    const char *path = write_text("text", 0, 8 * 11 + 1);
    struct cz_data_options o = {.size = sizeof o,
                                .seq_len = 8,
                                .micro_batch = 2,
                                .world_size = 2,
                                .rank = 1,
                                .drop_last = true};
    struct cz_data_loader *l = open_one(o, path);
    struct cz_batch batch = {.size = sizeof batch};
    ck_assert_uint_eq(cz_data_n_batches(l), 2);
    for (uint64_t m = 0; m < 4; m++) {
        ck_ok(cz_data_next(l, &batch));
        check_row(&batch, 0, m % 2 * 4 + 2);
        check_row(&batch, 1, m % 2 * 4 + 3);
        ck_assert_uint_eq(batch.sample, m * 4 + 2);
    }
    cz_data_close(l);
    o.micro_batch = 6;
    o.paths = &path, o.n_paths = 1;
    ck_fails(cz_data_open(&o, &l), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "drop_last"));
    teardown();
}
END_TEST

/* Rows of a step that the run's end cuts: their number over all micro-batches, each once. */
static void check_cut_step(struct cz_data_loader **ranks, const struct cz_data_options *o,
                           uint64_t first, uint64_t n, const char *label)
{
    const uint64_t W = (uint64_t)o->world_size, A = (uint64_t)o->accumulation, n_parts = W * A;
    uint64_t next = first, n_labels = 0;
    double divisors = 0;
    for (uint64_t a = 0; a < A; a++)
        for (uint64_t r = 0; r < W; r++) {
            struct cz_batch batch = {.size = sizeof batch};
            ck_assert_msg(!cz_data_is_done(ranks[r]), "%s", label);
            ck_ok(cz_data_next(ranks[r], &batch));
            int64_t labelled = 0;
            for (int64_t i = 0; i < batch.B * batch.T; i++)
                labelled += batch.labels[i] != CZ_IGNORE_LABEL;
            const uint64_t part = a * W + r, want = n * (part + 1) / n_parts - n * part / n_parts;
            ck_assert_int_eq(batch.B, want > 0 ? (int64_t)want : 1);
            ck_assert_uint_eq(batch.sample, next);
            ck_assert_int_eq(labelled > 0, want > 0);
            if (want > 0 && !o->masking) ck_assert_int_eq(labelled, (int64_t)want * batch.T);
            ck_assert_int_le(batch.B, o->micro_batch);
            n_labels += (uint64_t)labelled;
            divisors += (double)batch.loss_divisor;
            next += want;
        }
    ck_assert_uint_eq(next, first + n);
    ck_assert_double_eq_tol(divisors, (double)n_labels, 1e-4 * (double)n_labels);
}

/* N passes of 11 rows in steps of any size: whole steps as without an end, then the cut one. */
START_TEST(epochs_end_the_run_to_the_row)
{
    setup();
    static const struct {
        int64_t B, A, W;
        double epochs;
        uint64_t end;
    } cases[] = {{1, 1, 1, 1, 11},  {2, 1, 1, 1, 11},   {2, 3, 2, 2, 22},  {4, 1, 3, 3, 33},
                 {11, 1, 1, 2, 22}, {30, 1, 1, 1, 11},  {1, 25, 2, 2, 22}, {2, 2, 1, 0.5, 6},
                 {2, 1, 1, 0.1, 2}, {2, 1, 1, 0.09, 1}, {5, 1, 2, 1.1, 13}};
    const char *path = write_text("text", 0, 8 * 11 + 1);
    const struct cz_masking masking = {.size = sizeof masking,
                                       .probability = 0.3f,
                                       .mask_id = 3,
                                       .first_id = -1,
                                       .last_id = -1,
                                       .vocab_size = 256};
    for (size_t i = 0; i < 2 * CZ_ARRAY_LEN(cases); i++) {
        const bool masks = i % 2 == 1;
        const int64_t W = cases[i / 2].W, A = cases[i / 2].A, B = cases[i / 2].B;
        struct cz_data_options o = {.size = sizeof o,
                                    .seq_len = 8,
                                    .micro_batch = B,
                                    .accumulation = A,
                                    .world_size = W,
                                    .masking = masks ? &masking : NULL,
                                    .epochs = cases[i / 2].epochs};
        struct cz_data_loader *ranks[3];
        char label[32];
        snprintf(label, sizeof label, "case %zu", i);
        for (o.rank = 0; o.rank < W; o.rank++) ranks[o.rank] = open_one(o, path);
        ck_assert_uint_eq(cz_data_rows_per_epoch(ranks[0]), 11);
        const uint64_t size = (uint64_t)(B * A * W), end = cases[i / 2].end;
        uint64_t first = 0;
        for (; first + size <= end; first += size)
            for (int64_t a = 0; a < A; a++)
                for (int64_t r = 0; r < W; r++) {
                    struct cz_batch batch = {.size = sizeof batch};
                    ck_ok(cz_data_next(ranks[r], &batch));
                    ck_assert_int_eq(batch.B, B);
                    ck_assert(batch.loss_divisor == 0);
                    ck_assert_uint_eq(batch.sample, first + (uint64_t)((a * W + r) * B));
                }
        if (first < end) check_cut_step(ranks, &o, first, end - first, label);
        for (int64_t r = 0; r < W; r++) {
            struct cz_batch batch = {.size = sizeof batch};
            struct cz_data_cursor at;
            ck_assert_msg(cz_data_is_done(ranks[r]), "%s", label);
            ck_ok(cz_data_next(ranks[r], &batch));
            ck_assert_int_eq(batch.B, 0);
            ck_assert_ptr_null(batch.ids);
            cz_data_tell(ranks[r], &at);
            ck_assert_uint_eq(at.epoch * 11 + at.sample, end);
            /* A place in front of the end continues, whatever was done of a step before. */
            at.epoch = 0, at.sample = 0;
            ck_ok(cz_data_seek(ranks[r], &at));
            ck_assert(!cz_data_is_done(ranks[r]));
            cz_data_close(ranks[r]);
        }
    }
    struct cz_data_options o = {.size = sizeof o, .seq_len = 8, .micro_batch = 1};
    struct cz_data_loader *l;
    o.paths = &path, o.n_paths = 1;
    static const double impossible[] = {-1, 1e300, NAN};
    for (size_t i = 0; i < CZ_ARRAY_LEN(impossible); i++) {
        o.epochs = impossible[i];
        ck_fails(cz_data_open(&o, &l), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "epochs"));
        ck_assert_int_eq(strstr(cz_last_error(), "too many steps") != NULL, impossible[i] > 0);
    }
    o.epochs = 1;
    o.accumulation = -1;
    ck_fails(cz_data_open(&o, &l), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "micro-batches"));
    teardown();
}
END_TEST

START_TEST(once_ends_after_an_epoch)
{
    setup();
    const char *path = write_text("text", 0, 8 * 7 + 1);
    static const int64_t want[2][3] = {{2, 2, 0}, {2, 1, 0}}; /* 7 rows over 2 ranks × 2 */
    for (int64_t rank = 0; rank < 2; rank++) {
        struct cz_data_loader *l =
            open_one((struct cz_data_options){.size = sizeof(struct cz_data_options),
                                              .seq_len = 8,
                                              .micro_batch = 2,
                                              .rank = rank,
                                              .world_size = 2,
                                              .once = true},
                     path);
        for (int m = 0; m < 3; m++) {
            struct cz_batch batch = {.size = sizeof batch};
            ck_assert_int_eq(cz_data_is_done(l), m == 2);
            ck_ok(cz_data_next(l, &batch));
            ck_assert_int_eq(batch.B, want[rank][m]);
            ck_assert_int_eq(batch.ids != NULL, batch.B > 0);
            for (int64_t i = 0; i < batch.B; i++)
                check_row(&batch, i, (uint64_t)(4 * m + 2 * rank + i));
        }
        cz_data_close(l);
    }
    teardown();
}
END_TEST

START_TEST(a_saved_place_goes_on_there)
{
    setup();
    const char *path = write_text("text", 0, 8 * 23 + 1);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        struct cz_data_options o = {
            .size = sizeof o, .seq_len = 8, .micro_batch = 3, .shuffle = shuffle != 0, .seed = 5};
        struct cz_data_loader *whole = open_one(o, path), *resumed = open_one(o, path);
        struct cz_batch batch = {.size = sizeof batch}, same = {.size = sizeof same};
        struct cz_data_cursor at;
        for (int m = 0; m < 10; m++) ck_ok(cz_data_next(whole, &batch));
        cz_data_tell(whole, &at);
        ck_assert_uint_eq(at.epoch, 1);
        ck_assert_uint_eq(at.sample, 7);
        ck_assert_uint_eq(at.n_rows, 23);
        ck_ok(cz_data_seek(resumed, &at));
        for (int m = 0; m < 20; m++) {
            ck_ok(cz_data_next(whole, &batch));
            ck_ok(cz_data_next(resumed, &same));
            ck_assert_uint_eq(batch.sample, same.sample);
            ck_assert_mem_eq(batch.ids, same.ids, 24 * sizeof(int32_t));
            ck_assert_mem_eq(batch.labels, same.labels, 24 * sizeof(int32_t));
        }
        cz_data_close(resumed);
        o.micro_batch = 1, o.world_size = 2, o.rank = 1; /* another split continues there too */
        resumed = open_one(o, path);
        ck_ok(cz_data_seek(resumed, &at));
        ck_ok(cz_data_next(resumed, &same));
        ck_assert_uint_eq(same.sample, 31);
        ck_ok(cz_data_seek(resumed, &(struct cz_data_cursor){0}));
        ck_ok(cz_data_next(resumed, &same));
        ck_assert_uint_eq(same.sample, 1);
        cz_data_close(resumed);
        cz_data_close(whole);
    }
    teardown();
}
END_TEST

START_TEST(a_place_of_other_data_is_refused)
{
    setup();
    struct cz_data_options o = {
        .size = sizeof o, .seq_len = 8, .micro_batch = 1, .shuffle = true, .seed = 5};
    struct cz_data_loader *l = open_one(o, write_text("text", 0, 8 * 23 + 1));
    struct cz_data_cursor good, bad;
    cz_data_tell(l, &good);
    ck_ok(cz_data_seek(l, &good));
    bad = good, bad.n_rows = 24;
    ck_fails(cz_data_seek(l, &bad), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "24 rows; this data has 23"));
    bad = good, bad.seed = 6;
    ck_fails(cz_data_seek(l, &bad), CZ_INVALID);
    bad = good, bad.shuffle = false;
    ck_fails(cz_data_seek(l, &bad), CZ_INVALID);
    bad = good, bad.epoch = UINT64_MAX;
    ck_fails(cz_data_seek(l, &bad), CZ_INVALID);
    /* positions are counted up to INT64_MAX */
    bad = good, bad.epoch = 0, bad.sample = INT64_MAX;
    ck_ok(cz_data_seek(l, &bad));
    bad.sample++;
    ck_fails(cz_data_seek(l, &bad), CZ_INVALID);
    bad.sample = UINT64_MAX;
    ck_fails(cz_data_seek(l, &bad), CZ_INVALID);
    bad.epoch = INT64_MAX / 23, bad.sample = INT64_MAX % 23;
    ck_ok(cz_data_seek(l, &bad));
    bad.sample++;
    ck_fails(cz_data_seek(l, &bad), CZ_INVALID);
    bad.epoch = UINT64_MAX / 23, bad.sample = UINT64_MAX; /* the sum begins again at 0 */
    ck_fails(cz_data_seek(l, &bad), CZ_INVALID);
    bad.epoch = UINT64_MAX / 23 + 1, bad.sample = 0; /* the product does */
    ck_fails(cz_data_seek(l, &bad), CZ_INVALID);
    struct cz_data_cursor now; /* what is refused moves nothing */
    cz_data_tell(l, &now);
    ck_assert_uint_eq(now.epoch, INT64_MAX / 23);
    ck_assert_uint_eq(now.sample, INT64_MAX % 23);
    cz_data_close(l);
    teardown();
}
END_TEST

/* ---- files ------------------------------------------------------------------------------------
 */

struct bytes {
    unsigned char buf[8192];
    size_t n;
};

static void put(struct bytes *b, const void *src, size_t nbytes)
{
    ck_assert_uint_le(b->n + nbytes, sizeof b->buf);
    memcpy(b->buf + b->n, src, nbytes);
    b->n += nbytes;
}

static void put_int(struct bytes *b, int64_t value, size_t width)
{
    put(b, &value, width);
}

static const char *save(const struct bytes *b, const char *name)
{
    const char *path = in_dir(name);
    ck_ok(file_save(path, b->buf, b->n));
    return path;
}

static void llmc(struct bytes *b, int32_t magic, int32_t version, size_t n_tokens, size_t width)
{
    b->n = 0;
    for (int i = 0; i < 256; i++)
        put_int(b, i == 0 ? magic : i == 1 ? version : i == 2 ? (int32_t)n_tokens : 0, 4);
    for (size_t i = 0; i < n_tokens; i++) put_int(b, token(i), width);
}

static void plain(struct bytes *b, uint64_t first, size_t n_tokens, size_t width)
{
    b->n = 0;
    for (size_t i = 0; i < n_tokens; i++) put_int(b, token(first + i), width);
}

/* lengths of sequences, byte offsets of each (NULL: one after the other). */
static void megatron_idx(struct bytes *b, int code, size_t width, const int32_t *lengths,
                         const int64_t *offsets, size_t n)
{
    int64_t off = 0;
    b->n = 0;
    put(b, "MMIDIDX\0\0", 9);
    put_int(b, 1, 8);
    put_int(b, code, 1);
    put_int(b, (int64_t)n, 8);
    put_int(b, (int64_t)n + 1, 8);
    for (size_t i = 0; i < n; i++) put_int(b, lengths[i], 4);
    for (size_t i = 0; i < n; i++) {
        put_int(b, offsets ? offsets[i] : off, 8);
        off += lengths[i] * (int64_t)width;
    }
    for (size_t i = 0; i <= n; i++) put_int(b, (int64_t)i, 8);
}

static void check_stream(struct cz_data_loader *l, uint64_t n_tokens)
{
    struct cz_batch batch = {.size = sizeof batch};
    ck_assert_uint_eq(cz_data_n_tokens(l), n_tokens);
    for (uint64_t row = 0; row < cz_data_n_rows(l); row++) {
        ck_ok(cz_data_next(l, &batch));
        check_row(&batch, 0, row);
    }
    cz_data_close(l);
}

static const struct cz_data_options by_seven = {
    .size = sizeof by_seven, .seq_len = 7, .micro_batch = 1};
static const int32_t lengths[] = {10, 0, 1, 40, 29};
static const struct {
    int code;
    size_t width;
} codes[] = {{1, 1}, {3, 2}, {4, 4}, {5, 8},
             {8, 2}, {6, 2}, {7, 4}, {8, 8}}; /* DeepSpeed's uint16, uint32, uint64 */

START_TEST(token_files_give_the_same_stream)
{
    setup();
    struct bytes b;
    llmc(&b, 20240520, 1, 80, 2);
    check_stream(open_one(by_seven, save(&b, "gpt2.bin")), 80);
    llmc(&b, 20240801, 7, 80, 4);
    check_stream(open_one(by_seven, save(&b, "llama3.bin")), 80);
    char path[300];
    plain(&b, 0, 80, 2);
    snprintf(path, sizeof path, "u16:%s", save(&b, "plain16.bin"));
    check_stream(open_one(by_seven, path), 80);
    plain(&b, 0, 80, 4);
    snprintf(path, sizeof path, "u32:%s", save(&b, "plain32"));
    check_stream(open_one(by_seven, path), 80);
    for (size_t c = 0; c < CZ_ARRAY_LEN(codes); c++) {
        plain(&b, 0, 80, codes[c].width);
        save(&b, "meg.bin");
        megatron_idx(&b, codes[c].code, codes[c].width, lengths, NULL, 5);
        save(&b, "meg.idx");
        check_stream(open_one(by_seven, in_dir("meg.bin")), 80);
        check_stream(open_one(by_seven, in_dir("meg.idx")), 80);
        check_stream(open_one(by_seven, in_dir("meg")), 80);
    }
    teardown();
}
END_TEST

START_TEST(megatron_sequences_may_lie_in_any_order)
{
    setup();
    struct bytes b;
    const int32_t two[] = {30, 50};
    const int64_t offsets[] = {100, 0};
    plain(&b, 30, 50, 2); /* tokens 30 … 79 come first in the file */
    for (uint64_t i = 0; i < 30; i++) put_int(&b, token(i), 2);
    save(&b, "meg.bin");
    megatron_idx(&b, 8, 2, two, offsets, 2);
    save(&b, "meg.idx");
    check_stream(open_one(by_seven, in_dir("meg")), 80);
    teardown();
}
END_TEST

START_TEST(several_paths_are_one_stream)
{
    setup();
    struct bytes b;
    char path[300];
    const char *paths[3];
    paths[0] = write_text("a.txt", 0, 33);
    plain(&b, 33, 50, 4);
    snprintf(path, sizeof path, "u32:%s", save(&b, "b"));
    paths[1] = path;
    paths[2] = write_text("c.txt", 83, 20);
    check_stream(open_paths(by_seven, paths, 3), 103);
    teardown();
}
END_TEST

/* ---- bad input --------------------------------------------------------------------------------
 */

static void refuses(const char *path, cz_status want, const char *says)
{
    struct cz_data_options o = {
        .size = sizeof o, .paths = &path, .n_paths = 1, .seq_len = 7, .micro_batch = 1};
    struct cz_data_loader *l = (void *)&l;
    cz_status got = cz_data_open(&o, &l);
    ck_assert_msg(got == want, "%s: %s instead of %s (%s)", path, cz_status_name(got),
                  cz_status_name(want), cz_last_error());
    ck_assert_ptr_null(l);
    ck_assert_msg(strstr(cz_last_error(), says) != NULL, "%s", cz_last_error());
}

START_TEST(bad_files_are_named)
{
    setup();
    struct bytes b;
    char path[300];
    refuses(in_dir("nowhere.txt"), CZ_NOTFOUND, "nowhere.txt: cannot be opened");
    refuses(in_dir("nowhere.bin"), CZ_NOTFOUND, "nowhere.bin: cannot be opened");
    refuses(in_dir("nowhere.idx"), CZ_NOTFOUND, "nowhere.idx: cannot be opened");
    refuses(dir, CZ_INVALID, "the folder has no file that ends in");
    refuses("/dev/null", CZ_IO, "is a special file");
    refuses(write_text("empty.txt", 0, 0), CZ_INVALID, "empty.txt: is empty");
    refuses(write_text("short.txt", 0, 7), CZ_INVALID, "short.txt: 7 tokens are too few");
    refuses(write_text("noise.bin", 0, 2000), CZ_CORRUPT, "noise.bin: has neither");
    llmc(&b, 20240520, 2, 80, 2);
    refuses(save(&b, "v.bin"), CZ_VERSION, "version 2");
    llmc(&b, 20240520, 1, 80, 2);
    b.n -= 1;
    refuses(save(&b, "t.bin"), CZ_CORRUPT, "t.bin: truncated");
    b.n = 500;
    refuses(save(&b, "h.bin"), CZ_CORRUPT, "h.bin: truncated");
    llmc(&b, 20240520, 1, 80, 4);
    refuses(save(&b, "l.bin"), CZ_CORRUPT, "l.bin: damaged");
    llmc(&b, 20240801, 7, 0, 4);
    refuses(save(&b, "n.bin"), CZ_INVALID, "n.bin: contains no tokens");
    b.n = 33;
    snprintf(path, sizeof path, "u16:%s", save(&b, "odd"));
    refuses(path, CZ_CORRUPT, "odd: 33 bytes");
    teardown();
}
END_TEST

START_TEST(bad_megatron_indexes_are_named)
{
    setup();
    struct bytes good, b;
    plain(&b, 0, 80, 2);
    save(&b, "m.bin");
    megatron_idx(&good, 8, 2, lengths, NULL, 5);
    const size_t off_lengths = 34, off_offsets = off_lengths + 20, off_marks = off_offsets + 40;
    const struct {
        size_t at, width;
        int64_t value;
        cz_status want;
        const char *says;
    } cases[] = {
        {0, 1, 'X', CZ_CORRUPT, "m.idx: does not begin with"},
        {9, 8, 2, CZ_VERSION, "version 2"},
        {17, 1, 7, CZ_UNSUPPORTED, "floating-point"}, /* 6 is uint16 where elements have 2 bytes */
        {17, 1, 9, CZ_CORRUPT, "dtype code 9"},
        {17, 1, 4, CZ_CORRUPT, "sequence 3: 40 tokens at byte 22"},
        {18, 8, 6, CZ_CORRUPT, "m.idx: truncated"},
        {18, 8, -1, CZ_CORRUPT, "m.idx: truncated"},
        {26, 8, -1, CZ_CORRUPT, "m.idx: truncated"},
        {26, 8, 5, CZ_CORRUPT, "m.idx: damaged"},
        {off_lengths, 4, -3, CZ_CORRUPT, "sequence 0: -3 tokens"},
        {off_lengths + 16, 4, 30, CZ_CORRUPT, "m.bin: truncated: sequence 4"},
        {off_lengths + 16, 4, 28, CZ_CORRUPT, "m.bin: 160 bytes, of which"},
        {off_offsets + 8, 8, -2, CZ_CORRUPT, "sequence 1"},
        {off_offsets + 8, 8, 3, CZ_CORRUPT, "sequence 1"},
        {off_offsets + 8, 8, INT64_MAX - 1, CZ_CORRUPT, "m.bin: truncated"},
        {off_marks, 8, 1, CZ_CORRUPT, "document 0"},
        {off_marks + 16, 8, 0, CZ_CORRUPT, "document 2"},
        {off_marks + 40, 8, 6, CZ_CORRUPT, "document 5"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        b = good;
        memcpy(b.buf + cases[i].at, &cases[i].value, cases[i].width);
        save(&b, "m.idx");
        refuses(in_dir("m.bin"), cases[i].want, cases[i].says);
    }
    for (size_t n = 1; n < good.n; n++) {
        b = good, b.n = n;
        save(&b, "m.idx");
        refuses(in_dir("m.bin"), CZ_CORRUPT, "m.idx: truncated");
    }
    save(&good, "lonely.idx");
    refuses(in_dir("lonely.idx"), CZ_NOTFOUND, "lonely.bin");
    teardown();
}
END_TEST

START_TEST(impossible_options_are_named)
{
    setup();
    const char *path = write_text("text", 0, 100);
    struct cz_data_options good = {
        .size = sizeof good, .paths = &path, .n_paths = 1, .seq_len = 8, .micro_batch = 1};
    struct cz_data_options o;
    struct cz_data_loader *l;
    o = good, o.n_paths = 0;
    ck_fails(cz_data_open(&o, &l), CZ_INVALID);
    o = good, o.seq_len = 0;
    ck_fails(cz_data_open(&o, &l), CZ_INVALID);
    o = good, o.seq_len = 100;
    ck_fails(cz_data_open(&o, &l), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "up to 99 would work"));
    o = good, o.micro_batch = -1;
    ck_fails(cz_data_open(&o, &l), CZ_INVALID);
    o = good, o.rank = 1;
    ck_fails(cz_data_open(&o, &l), CZ_INVALID);
    o = good, o.world_size = 2, o.rank = 2;
    ck_fails(cz_data_open(&o, &l), CZ_INVALID);
    cz_data_close(NULL);
    teardown();
}
END_TEST

START_TEST(tokens_outside_the_vocabulary_are_located)
{
    setup();
    struct bytes b;
    const char *paths[2];
    struct cz_data_options o = {.size = sizeof o, .seq_len = 7, .micro_batch = 1};
    llmc(&b, 20240520, 1, 80, 2);
    memcpy(b.buf + 1024 + 2 * 17, &(int16_t){300}, 2);
    paths[0] = write_text("a.txt", 0, 50);
    paths[1] = save(&b, "b.bin");
    struct cz_data_loader *l = open_paths(o, paths, 2);
    ck_ok(cz_data_check_vocab(l, 301));
    ck_fails(cz_data_check_vocab(l, 256), CZ_INVALID);
    char want[512];
    snprintf(want, sizeof want,
             "token 300 at position 17 of %s is outside the model's vocabulary of 256", paths[1]);
    ck_assert_str_eq(cz_last_error(), want);
    ck_fails(cz_data_check_vocab(l, 0), CZ_INVALID);
    cz_data_close(l);
    /* Negative ids, and ids that only 64 or unsigned 32 bits hold. */
    static const struct {
        int code;
        size_t width;
        int64_t id;
    } ids[] = {{2, 1, -5}, {3, 2, -5}, {4, 4, -5}, {5, 8, -5}, {5, 8, (int64_t)1 << 32}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(ids); i++) {
        const int32_t one[] = {20};
        struct cz_batch batch = {.size = sizeof batch};
        b.n = 0;
        for (int k = 0; k < 20; k++) put_int(&b, k == 13 ? ids[i].id : k, ids[i].width);
        save(&b, "m.bin");
        megatron_idx(&b, ids[i].code, ids[i].width, one, NULL, 1);
        save(&b, "m.idx");
        l = open_one(o, in_dir("m"));
        ck_ok(cz_data_next(l, &batch));
        ck_fails(cz_data_next(l, &batch), CZ_INVALID); /* without a check, found on the way */
        snprintf(want, sizeof want, "token %lld at position 13", (long long)ids[i].id);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), want));
        ck_fails(cz_data_check_vocab(l, 1000), CZ_INVALID);
        cz_data_close(l);
    }
    teardown();
}
END_TEST

START_TEST(a_shrinking_file_is_an_error_not_a_crash)
{
    setup();
    const char *path = write_text("text", 0, 100000);
    struct cz_data_loader *l = open_one(by_seven, path);
    struct cz_batch batch = {.size = sizeof batch};
    ck_ok(cz_data_next(l, &batch));
    ck_assert_int_eq(truncate(path, 10), 0);
    ck_fails(cz_data_next(l, &batch), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "text: became shorter"));
    cz_data_close(l);
    teardown();
}
END_TEST

/* A file has all its bytes, or few, from one moment to the next. */
static pid_t shrink_again_and_again(const char *path, off_t few, off_t all)
{
    pid_t child = fork();
    if (child != 0) return child;
    for (;;)
        if (truncate(path, few) != 0 || truncate(path, all) != 0) _exit(1);
}

static void read_what_shrinks(const char *path)
{
    enum { ALL = 1 << 20 };
    int n_read = 0, n_failed = 0;
    const struct cz_data_options o = {
        .size = sizeof o, .seq_len = 32768, .micro_batch = 1, .world_size = 1};
    char *bytes = malloc(ALL);
    memset(bytes, 1, ALL);
    ck_ok(file_save(in_dir("tokens"), bytes, ALL));
    free(bytes);
    struct cz_data_loader *l = open_one(o, path);
    pid_t child = shrink_again_and_again(in_dir("tokens"), 100, ALL);
    for (int i = 0; i < 200000 && (i < 5000 || n_read == 0 || n_failed == 0); i++) {
        struct cz_batch batch = {.size = sizeof batch};
        cz_status st = cz_data_next(l, &batch);
        if (st != CZ_OK) ck_assert_ptr_nonnull(strstr(cz_last_error(), "tokens: became shorter"));
        ck_assert_int_eq(st, st == CZ_OK ? CZ_OK : CZ_CORRUPT);
        *(st == CZ_OK ? &n_read : &n_failed) += 1;
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    ck_assert_int_gt(n_read, 0);
    ck_assert_int_gt(n_failed, 0);
    cz_data_close(l);
}

/* A row has all its tokens, or there is an error. */
START_TEST(a_file_that_shrinks_during_a_read_is_an_error_not_a_crash)
{
    char tokens[256];
    setup();
    read_what_shrinks(in_dir("tokens"));
    snprintf(tokens, sizeof tokens, "u16:%s", in_dir("tokens"));
    read_what_shrinks(tokens);
    teardown();
}
END_TEST

START_TEST(a_text_that_shrinks_while_it_is_encoded_is_an_error_not_a_crash)
{
    static const char vocab[] = "{\"e\": 0, \"ee\": 1, \"\xC4\xA0\": 2}";
    static char text[3 << 20];
    int n_failed = 0;
    struct cz_tokenizer *tok;
    setup();
    memset(text, 'e', sizeof text);
    for (size_t i = 0; i < sizeof text; i += 5) text[i] = ' ';
    ck_ok(file_save(in_dir("vocab.json"), vocab, strlen(vocab)));
    ck_ok(file_save(in_dir("merges.txt"), "e e\n", 4));
    ck_ok(cz_tokenizer_open(dir, &tok));
    ck_ok(file_save(in_dir("text"), text, sizeof text));
    const char *path = in_dir("text");
    const struct cz_data_options o = {.size = sizeof o,
                                      .paths = &path,
                                      .n_paths = 1,
                                      .tokenizer = tok,
                                      .seq_len = 8,
                                      .micro_batch = 1,
                                      .world_size = 1};
    pid_t child = shrink_again_and_again(path, 100000, sizeof text);
    for (int i = 0; i < 5000 && n_failed < 20; i++) {
        struct cz_data_loader *l;
        cz_status st = cz_data_open(&o, &l); /* a text of 100000 bytes is a text, too */
        if (st != CZ_OK) ck_assert_ptr_nonnull(strstr(cz_last_error(), "text: became shorter"));
        ck_assert_int_eq(st, st == CZ_OK ? CZ_OK : CZ_CORRUPT);
        n_failed += st != CZ_OK;
        cz_data_close(l);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    ck_assert_int_gt(n_failed, 0);
    cz_tokenizer_close(tok);
    teardown();
}
END_TEST

/* ---- memory -----------------------------------------------------------------------------------
 */

static size_t mapped_file_kib(void)
{
    char line[256];
    size_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssFile: %zu", &kib) == 1) break;
    if (f) fclose(f);
    return kib;
}

START_TEST(reading_holds_little_and_allocates_nothing)
{
    setup();
    const size_t nbytes = (size_t)96 << 20;
    const char *path = in_dir("large");
    char *block = malloc(1 << 20);
    memset(block, 1, 1 << 20);
    FILE *f = fopen(path, "wb");
    for (size_t i = 0; i < nbytes >> 20; i++) ck_assert_uint_eq(fwrite(block, 1 << 20, 1, f), 1);
    fclose(f);
    free(block);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        struct cz_data_loader *l =
            open_one((struct cz_data_options){.size = sizeof(struct cz_data_options),
                                              .seq_len = 1024,
                                              .micro_batch = 4,
                                              .shuffle = shuffle != 0},
                     path);
        struct cz_batch batch = {.size = sizeof batch};
        ck_ok(cz_data_next(l, &batch));
        size_t before = mapped_file_kib(), held = mallinfo2().uordblks;
        for (size_t m = 1; m < cz_data_n_batches(l); m++) {
            ck_ok(cz_data_next(l, &batch));
            if (m % 64 == 0) ck_assert_uint_le(mapped_file_kib(), before + (12 << 10));
        }
        ck_assert_uint_eq(mallinfo2().uordblks, held);
        cz_data_close(l);
    }
    teardown();
}
END_TEST

TEST_MAIN("data/loader", rows_follow_the_formula, the_last_token_needs_a_target,
          shuffling_visits_each_row_once_per_epoch, drop_last_leaves_out_the_incomplete_batch,
          epochs_end_the_run_to_the_row, once_ends_after_an_epoch, a_saved_place_goes_on_there,
          a_place_of_other_data_is_refused, token_files_give_the_same_stream,
          megatron_sequences_may_lie_in_any_order, several_paths_are_one_stream,
          bad_files_are_named, bad_megatron_indexes_are_named, impossible_options_are_named,
          tokens_outside_the_vocabulary_are_located, a_shrinking_file_is_an_error_not_a_crash,
          a_file_that_shrinks_during_a_read_is_an_error_not_a_crash,
          a_text_that_shrinks_while_it_is_encoded_is_an_error_not_a_crash,
          reading_holds_little_and_allocates_nothing)
