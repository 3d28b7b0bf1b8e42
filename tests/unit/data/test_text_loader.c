/* Claims: an epoch gives every example exactly once for any number of examples, micro-batch,
 * accumulation and world; the examples of a step weigh the same; batches are padded as promised;
 * what is read depends on data, options, seed and epoch alone; a saved place continues exactly
 * there; the thread's errors arrive at the caller, which allocates nothing. */
#include "base/rng.h"
#include "base/status.h"
#include "data/labelled/text_loader_impl.h"
#include "data/tokenizer/tokenizer_impl.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"
#include <czero/data.h>

#include <math.h>
#include <string.h>
#include <time.h>

#define N_RANKS_MAX 5

/* ---- data -------------------------------------------------------------------------------------
 */

static struct cz_tokenizer *bytes;

/* Text i is "<i>:" and letters; labels are i mod 3. Some texts are empty but for the number. */
static size_t text_length(size_t i)
{
    return (size_t)(rng_mix64(i * 977 + 5) % 4 == 0 ? 0 : rng_mix64(i + 12345) % 50);
}

static size_t write_example(char *dst, size_t i)
{
    size_t n = (size_t)sprintf(dst, "%zu:", i), letters = text_length(i);
    memset(dst + n, 'a' + (int)(i % 26), letters);
    dst[n + letters] = '\0';
    return n + letters;
}

static struct cz_texts *make_texts(size_t n, bool labelled)
{
    char path[64] = "/tmp/czero-texts-XXXXXX", text[128];
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    FILE *f = fdopen(fd, "w");
    for (size_t i = 0; i < n; i++) {
        write_example(text, i);
        if (labelled)
            fprintf(f, "[\"%s\", %zu]\n", text, i % 3);
        else
            fprintf(f, "[\"%s\"]\n", text);
    }
    fclose(f);
    const char *paths = path;
    static const char *const names[] = {"0", "1", "2"};
    struct cz_texts_options o = {.size = sizeof o,
                                 .paths = &paths,
                                 .n_paths = 1,
                                 .labels = names,
                                 .n_labels = 3,
                                 .labels_optional = !labelled};
    struct cz_texts *t;
    ck_ok(cz_texts_open(&o, &t));
    unlink(path);
    return t;
}

static void open_bytes(void)
{
    ck_ok(cz_tokenizer_open("bytes", &bytes));
}

static void close_bytes(void)
{
    cz_tokenizer_close(bytes);
}

static struct cz_text_loader *open_loader(struct cz_text_loader_options o, const struct cz_texts *t)
{
    struct cz_text_loader *l;
    o.texts = t;
    if (!o.tokenizer) o.tokenizer = bytes;
    ck_ok(cz_text_loader_open(&o, &l));
    return l;
}

static void open_ranks(struct cz_text_loader_options o, const struct cz_texts *t,
                       struct cz_text_loader *ranks[N_RANKS_MAX])
{
    for (o.rank = 0; o.rank < o.world_size; o.rank++) ranks[o.rank] = open_loader(o, t);
}

static void close_ranks(int64_t world, struct cz_text_loader *ranks[N_RANKS_MAX])
{
    for (int64_t r = 0; r < world; r++) cz_text_loader_close(ranks[r]);
}

/* One micro-batch of one rank is what its rows promise. Returns its number of examples. */
static size_t check_batch(const struct cz_text_loader *l, const struct cz_batch *b,
                          const struct cz_text_loader_options *o, uint8_t *seen)
{
    const size_t *rows = cz_text_loader_rows(l);
    int64_t longest = 0;
    size_t n = 0;
    int n_wrong = 0;
    ck_assert_int_ge(b->B, 1);
    ck_assert_int_le(b->B, o->micro_batch);
    ck_assert_int_le(b->T, o->max_len);
    ck_assert(b->T % TEXT_LOADER_ROUND == 0 || b->T == o->max_len);
    for (int64_t r = 0; r < b->B; r++) {
        char text[128] = "";
        int64_t len = 0;
        if (rows[r] != SIZE_MAX) {
            len = (int64_t)write_example(text, rows[r]);
            n_wrong += b->labels[r] != (int)(rows[r] % 3);
            seen[rows[r]]++;
            n++;
        } else {
            ck_assert_int_eq(b->B, 1);
            ck_assert_int_eq(b->labels[r], CZ_IGNORE_LABEL);
        }
        if (len > o->max_len) len = o->max_len;
        if (len == 0) len = 1; /* a pad token stands in */
        if (len > longest) longest = len;
        for (int64_t t = 0; t < b->T; t++) {
            int64_t at = r * b->T + t;
            n_wrong += b->ids[at] != (t < len ? text[t] : 0);
            n_wrong += b->types[at] != 0 || b->key_mask[at] != (t < len);
        }
    }
    ck_assert_int_eq(n_wrong, 0);
    ck_assert(b->T - longest < TEXT_LOADER_ROUND);
    return n;
}

/* ---- each example once ------------------------------------------------------------------------
 */

/* One step on all ranks; counts its examples and checks their weights. */
static size_t check_step(struct cz_text_loader *ranks[N_RANKS_MAX],
                         const struct cz_text_loader_options *o, uint64_t step, uint8_t *seen)
{
    size_t n = 0, least = SIZE_MAX, most = 0;
    int64_t A = o->once ? 1 : o->accumulation;
    double weight = 0, divisor = 0;
    for (int64_t g = 0; g < A; g++)
        for (int64_t r = 0; r < o->world_size; r++) {
            struct cz_batch b = {.size = sizeof b};
            ck_ok(cz_text_loader_next(ranks[r], &b));
            size_t n_part = check_batch(ranks[r], &b, o, seen);
            uint64_t part = (uint64_t)(g * o->world_size + r);
            uint64_t first = step * (uint64_t)(A * o->world_size) + part;
            ck_assert_uint_eq(b.sample, first * (uint64_t)o->micro_batch);
            if (g + r == 0) divisor = (double)b.loss_divisor;
            ck_assert(divisor == (double)b.loss_divisor);
            weight += (double)n_part / (double)b.loss_divisor;
            n += n_part;
            if (n_part < least) least = n_part;
            if (n_part > most) most = n_part;
        }
    double M = (double)(A * o->world_size);
    ck_assert_double_eq_tol(weight, M, 1e-5 * M);
    ck_assert_double_eq_tol(divisor, (double)n / M, 1e-6 * divisor);
    ck_assert_uint_le(most - least, 1);
    return n;
}

static void check_epoch(struct cz_text_loader *ranks[N_RANKS_MAX],
                        const struct cz_text_loader_options *o, size_t n, uint64_t epoch)
{
    uint64_t n_steps = cz_text_loader_steps_per_epoch(ranks[0]);
    uint64_t size = (uint64_t)(o->micro_batch * o->world_size * (o->once ? 1 : o->accumulation));
    uint8_t *seen = calloc(n, 1);
    size_t n_given = 0;
    for (uint64_t s = 0; s < n_steps; s++) {
        size_t n_step = check_step(ranks, o, epoch * n_steps + s, seen);
        ck_assert_uint_eq(n_step, s * size + size <= n ? size : n - s * size);
        n_given += n_step;
    }
    ck_assert_uint_eq(n_given, o->drop_last ? n / size * size : n);
    for (size_t i = 0; i < n; i++)
        if (seen[i] != (o->drop_last ? seen[i] & 1 : 1)) ck_abort_msg("%zu: %d times", i, seen[i]);
    free(seen);
}

START_TEST(every_example_comes_once)
{
    open_bytes();
    int n_checked = 0;
    for (uint64_t c = 0; c < 250; c++) {
        uint64_t x = rng_mix64(c + 99);
        size_t n = 1 + (size_t)(x % (c % 10 == 0 ? 900 : 70));
        struct cz_text_loader_options o = {.size = sizeof o,
                                           .max_len = 1 + (int64_t)(x >> 12) % 60,
                                           .micro_batch = 1 + (int64_t)(x >> 20) % 5,
                                           .accumulation = 1 + (int64_t)(x >> 26) % 4,
                                           .world_size = 1 + (int64_t)(x >> 31) % N_RANKS_MAX,
                                           .shuffle = x >> 40 & 1,
                                           .bucket = x >> 41 & 1,
                                           .drop_last = (x >> 42 & 3) == 0,
                                           .once = (x >> 44 & 3) == 0,
                                           .seed = x};
        struct cz_text_loader *ranks[N_RANKS_MAX];
        int64_t size = o.micro_batch * o.world_size * (o.once ? 1 : o.accumulation);
        if (o.drop_last && (int64_t)n < size) continue;
        struct cz_texts *t = make_texts(n, true);
        open_ranks(o, t, ranks);
        for (uint64_t epoch = 0; epoch < (o.once ? 1 : 2); epoch++)
            check_epoch(ranks, &o, n, epoch);
        for (int64_t r = 0; r < o.world_size; r++)
            ck_assert(cz_text_loader_is_done(ranks[r]) == o.once);
        close_ranks(o.world_size, ranks);
        cz_texts_close(t);
        n_checked++;
    }
    ck_assert_int_gt(n_checked, 200);
    close_bytes();
}
END_TEST

START_TEST(an_only_epoch_ends_on_all_ranks_together)
{
    open_bytes();
    struct cz_texts *t = make_texts(7, true);
    struct cz_text_loader_options o = {.size = sizeof o,
                                       .max_len = 16,
                                       .micro_batch = 2,
                                       .accumulation = 9,
                                       .world_size = 3,
                                       .once = true};
    struct cz_text_loader *ranks[N_RANKS_MAX];
    open_ranks(o, t, ranks);
    ck_assert_uint_eq(cz_text_loader_steps_per_epoch(ranks[0]), 2);
    for (int call = 0; call < 4; call++)
        for (int64_t r = 0; r < o.world_size; r++) {
            struct cz_batch b = {.size = sizeof b};
            ck_assert(cz_text_loader_is_done(ranks[r]) == (call >= 2));
            ck_ok(cz_text_loader_next(ranks[r], &b));
            ck_assert((b.B == 0) == (call >= 2));
            ck_assert((b.ids == NULL) == (call >= 2));
        }
    close_ranks(o.world_size, ranks);
    cz_texts_close(t);
    close_bytes();
}
END_TEST

START_TEST(texts_without_labels_are_ignored_by_the_loss)
{
    open_bytes();
    struct cz_texts *t = make_texts(5, false);
    struct cz_text_loader *l =
        open_loader((struct cz_text_loader_options){.size = sizeof(struct cz_text_loader_options),
                                                    .max_len = 16,
                                                    .micro_batch = 5,
                                                    .once = true},
                    t);
    struct cz_batch b = {.size = sizeof b};
    ck_ok(cz_text_loader_next(l, &b));
    ck_assert_int_eq(b.B, 5);
    for (int i = 0; i < 5; i++) ck_assert_int_eq(b.labels[i], CZ_IGNORE_LABEL);
    ck_assert(b.loss_divisor > 0);
    cz_text_loader_close(l);
    cz_texts_close(t);
    close_bytes();
}
END_TEST

/* ---- order ------------------------------------------------------------------------------------
 */

START_TEST(epochs_and_seeds_differ_when_shuffled)
{
    open_bytes();
    const size_t n = 300;
    struct cz_texts *t = make_texts(n, true);
    size_t orders[3][300];
    for (int k = 0; k < 3; k++) {
        struct cz_text_loader *l = open_loader(
            (struct cz_text_loader_options){.size = sizeof(struct cz_text_loader_options),
                                            .max_len = 64,
                                            .micro_batch = 10,
                                            .accumulation = 1,
                                            .shuffle = true,
                                            .bucket = true,
                                            .seed = k == 2 ? 8 : 7},
            t);
        struct cz_batch b = {.size = sizeof b};
        for (size_t m = 0; m < (k == 1 ? 60 : 30); m++) {
            ck_ok(cz_text_loader_next(l, &b));
            if (k != 1 || m >= 30)
                memcpy(&orders[k][m % 30 * 10], cz_text_loader_rows(l), 10 * sizeof(size_t));
        }
        cz_text_loader_close(l);
    }
    ck_assert_mem_ne(orders[0], orders[1], sizeof orders[0]); /* another epoch */
    ck_assert_mem_ne(orders[0], orders[2], sizeof orders[0]); /* another seed */
    struct cz_text_loader *l =
        open_loader((struct cz_text_loader_options){.size = sizeof(struct cz_text_loader_options),
                                                    .max_len = 64,
                                                    .micro_batch = 7,
                                                    .accumulation = 1},
                    t);
    struct cz_batch b = {.size = sizeof b};
    for (size_t i = 0; i < n; i += (size_t)b.B) {
        ck_ok(cz_text_loader_next(l, &b));
        for (size_t r = 0; r < (size_t)b.B; r++)
            ck_assert_uint_eq(cz_text_loader_rows(l)[r], i + r);
    }
    cz_text_loader_close(l);
    cz_texts_close(t);
    close_bytes();
}
END_TEST

/* Tokens and padding of an epoch on all ranks; *spread: most different widths of ranks at once. */
static double padding(struct cz_text_loader_options o, const struct cz_texts *t, int64_t *spread)
{
    struct cz_text_loader *ranks[N_RANKS_MAX];
    double n_all = 0, n_tokens = 0;
    open_ranks(o, t, ranks);
    uint64_t n_micro =
        cz_text_loader_steps_per_epoch(ranks[0]) * (uint64_t)(o.once ? 1 : o.accumulation);
    *spread = 0;
    for (uint64_t m = 0; m < n_micro; m++) {
        int64_t least = INT64_MAX, most = 0;
        for (int64_t r = 0; r < o.world_size; r++) {
            struct cz_batch b = {.size = sizeof b};
            ck_ok(cz_text_loader_next(ranks[r], &b));
            for (int64_t i = 0; i < b.B * b.T; i++) n_tokens += b.key_mask[i];
            n_all += (double)(b.B * b.T);
            if (b.T < least) least = b.T;
            if (b.T > most) most = b.T;
        }
        if (m + 1 < n_micro && most - least > *spread) *spread = most - least;
    }
    close_ranks(o.world_size, ranks);
    return 1 - n_tokens / n_all;
}

START_TEST(buckets_save_padding)
{
    open_bytes();
    struct cz_texts *t = make_texts(5000, true);
    struct cz_text_loader_options o = {.size = sizeof o,
                                       .max_len = 64,
                                       .micro_batch = 8,
                                       .accumulation = 2,
                                       .world_size = 2,
                                       .shuffle = true,
                                       .seed = 3};
    int64_t spread, without;
    double plain = padding(o, t, &without);
    o.bucket = true;
    double bucketed = padding(o, t, &spread);
    ck_assert_double_gt(plain, 0.35);
    ck_assert_double_lt(bucketed, 0.15);
    ck_assert_int_le(spread, TEXT_LOADER_ROUND);
    cz_texts_close(t);
    close_bytes();
}
END_TEST

static void same_batch(struct cz_text_loader *a, struct cz_text_loader *b)
{
    struct cz_batch x = {.size = sizeof x}, y = {.size = sizeof y};
    ck_ok(cz_text_loader_next(a, &x));
    ck_ok(cz_text_loader_next(b, &y));
    size_t n = (size_t)(x.B * x.T);
    ck_assert(x.B == y.B && x.T == y.T && x.sample == y.sample && x.loss_divisor == y.loss_divisor);
    ck_assert_mem_eq(x.ids, y.ids, n * sizeof *x.ids);
    ck_assert_mem_eq(x.types, y.types, n * sizeof *x.types);
    ck_assert_mem_eq(x.key_mask, y.key_mask, n);
    ck_assert_mem_eq(x.labels, y.labels, (size_t)x.B * sizeof *x.labels);
    ck_assert_mem_eq(cz_text_loader_rows(a), cz_text_loader_rows(b), (size_t)x.B * sizeof(size_t));
}

START_TEST(a_saved_place_goes_on_exactly_there)
{
    open_bytes();
    struct cz_texts *t = make_texts(333, true);
    for (uint64_t c = 0; c < 40; c++) {
        uint64_t x = rng_mix64(c + 7);
        struct cz_text_loader_options o = {.size = sizeof o,
                                           .max_len = 40,
                                           .micro_batch = 1 + (int64_t)(x % 4),
                                           .accumulation = 1 + (int64_t)(x >> 4 & 1),
                                           .world_size = 2,
                                           .rank = (int64_t)(x >> 5 & 1),
                                           .shuffle = x >> 6 & 1,
                                           .bucket = x >> 7 & 1,
                                           .seed = c};
        struct cz_text_loader *through = open_loader(o, t), *resumed = open_loader(o, t);
        struct cz_batch b = {.size = sizeof b};
        struct cz_data_cursor place, again;
        uint64_t n = (x >> 10) % 300 * (uint64_t)o.accumulation;
        for (uint64_t m = 0; m < n; m++) ck_ok(cz_text_loader_next(through, &b));
        for (uint64_t m = 0; m < x >> 60; m++) ck_ok(cz_text_loader_next(resumed, &b));
        cz_text_loader_tell(through, &place);
        ck_ok(cz_text_loader_seek(resumed, &place));
        cz_text_loader_tell(resumed, &again);
        ck_assert_uint_eq(place.epoch, again.epoch);
        ck_assert_uint_eq(place.sample, again.sample);
        for (int m = 0; m < 20; m++) same_batch(through, resumed);
        cz_text_loader_close(through);
        cz_text_loader_close(resumed);
    }
    cz_texts_close(t);
    close_bytes();
}
END_TEST

START_TEST(a_place_is_counted_in_steps_and_may_move_to_another_world)
{
    open_bytes();
    struct cz_texts *t = make_texts(100, true);
    struct cz_text_loader_options o = {
        .size = sizeof o, .max_len = 40, .micro_batch = 2, .accumulation = 3, .world_size = 2};
    struct cz_text_loader *l = open_loader(o, t);
    struct cz_data_cursor c;
    struct cz_batch b = {.size = sizeof b};
    for (int m = 0; m < 7; m++) ck_ok(cz_text_loader_next(l, &b)); /* 9 steps an epoch, 12 each */
    cz_text_loader_tell(l, &c);
    ck_assert_uint_eq(c.epoch, 0);
    ck_assert_uint_eq(c.sample, 36); /* the third step is under way */
    ck_assert_uint_eq(c.n_rows, 100);
    for (int m = 7; m < 3 * 9; m++) ck_ok(cz_text_loader_next(l, &b));
    cz_text_loader_tell(l, &c);
    ck_assert_uint_eq(c.epoch, 1);
    ck_assert_uint_eq(c.sample, 0);
    cz_text_loader_close(l);

    c = (struct cz_data_cursor){.epoch = 2, .sample = 36, .n_rows = 100};
    o = (struct cz_text_loader_options){.size = sizeof(struct cz_text_loader_options),
                                        .max_len = 40,
                                        .micro_batch = 5,
                                        .accumulation = 1};
    l = open_loader(o, t);
    ck_ok(cz_text_loader_seek(l, &c));
    ck_ok(cz_text_loader_next(l, &b));
    ck_assert_uint_eq(b.sample, 2 * 100 + 35);
    ck_assert_uint_eq(cz_text_loader_rows(l)[0], 35);
    c.sample = 100;
    ck_fails(cz_text_loader_seek(l, &c), CZ_INVALID);
    c = (struct cz_data_cursor){.sample = 3, .n_rows = 99};
    ck_fails(cz_text_loader_seek(l, &c), CZ_INVALID);
    c = (struct cz_data_cursor){.sample = 3, .n_rows = 100, .shuffle = true};
    ck_fails(cz_text_loader_seek(l, &c), CZ_INVALID);
    c = (struct cz_data_cursor){.epoch = UINT64_MAX / 2, .n_rows = 100};
    ck_fails(cz_text_loader_seek(l, &c), CZ_INVALID);
    ck_ok(cz_text_loader_next(l, &b)); /* a refused place changes nothing */
    ck_assert_uint_eq(cz_text_loader_rows(l)[0], 40);
    ck_ok(cz_text_loader_seek(l, &(struct cz_data_cursor){0}));
    ck_ok(cz_text_loader_next(l, &b));
    ck_assert_uint_eq(cz_text_loader_rows(l)[0], 0);
    cz_text_loader_close(l);

    /* What drop_last leaves out stands for the next epoch. */
    o = (struct cz_text_loader_options){.size = sizeof(struct cz_text_loader_options),
                                        .max_len = 40,
                                        .micro_batch = 30,
                                        .accumulation = 1,
                                        .drop_last = true};
    l = open_loader(o, t);
    c = (struct cz_data_cursor){.epoch = 1, .sample = 95, .n_rows = 100};
    ck_ok(cz_text_loader_seek(l, &c));
    cz_text_loader_tell(l, &c);
    ck_assert_uint_eq(c.epoch, 2);
    ck_assert_uint_eq(c.sample, 0);
    cz_text_loader_close(l);
    cz_texts_close(t);
    close_bytes();
}
END_TEST

/* ---- the thread -------------------------------------------------------------------------------
 */

/* A tokenizer of bytes that refuses text 25. */
static cz_status picky_encode(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                              struct id_list *out)
{
    (void)tok;
    if (nbytes >= 3 && memcmp(text, "25:", 3) == 0)
        return err_set(CZ_INVALID, 0, "text 25 is not to one's liking");
    for (size_t i = 0; i < nbytes; i++) TRY(id_list_add(out, (unsigned char)text[i]));
    return CZ_OK;
}

static const struct tokenizer_class picky_class = {.name = "picky", .encode = picky_encode};

START_TEST(the_threads_errors_arrive_in_order)
{
    struct cz_texts *t = make_texts(40, true);
    struct cz_tokenizer picky;
    struct cz_batch b = {.size = sizeof b};
    tokenizer_init(&picky, &picky_class);
    picky.vocab_size = 256;
    struct cz_text_loader *l =
        open_loader((struct cz_text_loader_options){.size = sizeof(struct cz_text_loader_options),
                                                    .tokenizer = &picky,
                                                    .max_len = 8,
                                                    .micro_batch = 4,
                                                    .accumulation = 1},
                    t);
    for (int m = 0; m < 6; m++) ck_ok(cz_text_loader_next(l, &b)); /* texts 0 … 23 */
    for (int m = 0; m < 2; m++) {
        ck_fails(cz_text_loader_next(l, &b), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "text 25 is not to one's liking"));
    }
    struct cz_data_cursor c = {.sample = 28, .n_rows = 40};
    ck_ok(cz_text_loader_seek(l, &c));
    ck_ok(cz_text_loader_next(l, &b));
    ck_assert_uint_eq(cz_text_loader_rows(l)[0], 28);
    cz_text_loader_close(l);
    cz_texts_close(t);
}
END_TEST

START_TEST(loaders_close_at_any_time)
{
    open_bytes();
    struct cz_texts *t = make_texts(200, true);
    for (int k = 0; k < 100; k++) {
        struct cz_text_loader *l = open_loader(
            (struct cz_text_loader_options){.size = sizeof(struct cz_text_loader_options),
                                            .max_len = 40,
                                            .micro_batch = 4,
                                            .accumulation = 1,
                                            .bucket = k % 2,
                                            .shuffle = true},
            t);
        struct cz_batch b = {.size = sizeof b};
        for (int m = 0; m < k % 7; m++) {
            if (k % 5 == m) ck_ok(cz_text_loader_seek(l, &(struct cz_data_cursor){0}));
            ck_ok(cz_text_loader_next(l, &b));
        }
        cz_text_loader_close(l);
    }
    cz_text_loader_close(NULL);
    cz_texts_close(t);
    close_bytes();
}
END_TEST

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* Allocations of this thread; sanitizers have malloc to themselves. */
static _Thread_local size_t n_allocations;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n)
{
    n_allocations++;
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    n_allocations++;
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    n_allocations++;
    return __libc_realloc(p, n);
}
#endif

START_TEST(batches_are_lent_and_the_caller_allocates_nothing)
{
    open_bytes();
    struct cz_texts *t = make_texts(500, true);
    struct cz_text_loader_options o = {.size = sizeof o,
                                       .max_len = 40,
                                       .micro_batch = 8,
                                       .accumulation = 1,
                                       .world_size = 1,
                                       .bucket = true,
                                       .shuffle = true};
    struct cz_text_loader *l = open_loader(o, t);
    struct cz_batch b = {.size = sizeof b};
    uint8_t *seen = calloc(500, 1);
    for (int m = 0; m < 62; m++) {
        size_t before = n_allocations;
        cz_status st = cz_text_loader_next(l, &b);
        ck_assert_uint_eq(before, n_allocations);
        ck_ok(st);
        if (m % 20 == 0) pause_ms(2); /* the thread fills what it may */
        if (m == 30) {
            int32_t id = b.ids[0];
            ck_ok(cz_text_loader_seek(l, &(struct cz_data_cursor){0}));
            pause_ms(2);
            ck_assert_int_eq(b.ids[0], id); /* still lent */
        }
        check_batch(l, &b, &o, seen);
    }
    free(seen);
    cz_text_loader_close(l);
    cz_texts_close(t);
    close_bytes();
}
END_TEST

/* Seconds waited over 20 micro-batches, a pause after each. */
static double waited(const struct cz_texts *t, long pause)
{
    struct cz_text_loader *l =
        open_loader((struct cz_text_loader_options){.size = sizeof(struct cz_text_loader_options),
                                                    .max_len = 40,
                                                    .micro_batch = 8,
                                                    .accumulation = 1,
                                                    .bucket = true},
                    t);
    for (int m = 0; m < 20; m++) {
        struct cz_batch b = {.size = sizeof b};
        ck_ok(cz_text_loader_next(l, &b));
        pause_ms(pause);
    }
    double s = cz_text_loader_waited_s(l);
    cz_text_loader_close(l);
    return s;
}

START_TEST(a_slow_caller_never_waits)
{
    open_bytes();
    struct cz_texts *t = make_texts(400, true);
    double least = 1;
    /* On a loaded machine a thread may stall: the best of a few. */
    for (int k = 0; k < 20 && least > 0.001; k++) {
        double s = waited(t, 3);
        if (s < least) least = s;
    }
    ck_assert_double_lt(least, 0.03); /* of 0.06 */
    cz_texts_close(t);
    close_bytes();
}
END_TEST

START_TEST(cut_texts_are_counted_as_they_are_given)
{
    open_bytes();
    struct cz_texts *t = make_texts(100, true);
    struct cz_text_loader *l =
        open_loader((struct cz_text_loader_options){.size = sizeof(struct cz_text_loader_options),
                                                    .max_len = 20,
                                                    .micro_batch = 10,
                                                    .accumulation = 1},
                    t);
    uint64_t want = 0;
    for (size_t i = 0; i < 100; i++) {
        char text[128];
        struct cz_batch b = {.size = sizeof b};
        if (i % 10 == 0) {
            ck_assert_uint_eq(cz_text_loader_n_cut(l), want);
            ck_ok(cz_text_loader_next(l, &b));
        }
        want += write_example(text, i) > 20;
    }
    ck_assert_uint_eq(cz_text_loader_n_cut(l), want);
    ck_assert_uint_gt(want, 0);
    cz_text_loader_close(l);
    cz_texts_close(t);
    close_bytes();
}
END_TEST

START_TEST(impossible_options_are_refused)
{
    open_bytes();
    struct cz_texts *t = make_texts(10, true);
    static const struct cz_text_loader_options bad[] = {
        {.max_len = 0, .micro_batch = 1, .accumulation = 1},
        {.max_len = 8, .micro_batch = 0, .accumulation = 1},
        {.max_len = 8, .micro_batch = 1, .accumulation = 0},
        {.max_len = 8, .micro_batch = 1, .accumulation = 1, .rank = 1},
        {.max_len = 8, .micro_batch = 1, .accumulation = 1, .rank = -1, .world_size = 2},
        {.max_len = 8, .micro_batch = 1, .accumulation = 1, .rank = 2, .world_size = 2},
        {.max_len = 8, .micro_batch = 1, .accumulation = 1, .world_size = -1},
        {.max_len = 8, .micro_batch = 1, .accumulation = 1, .world_size = INT32_MAX},
        {.max_len = INT32_MAX, .micro_batch = 1, .accumulation = 1},
        {.max_len = 8, .micro_batch = INT32_MAX, .accumulation = 1},
        {.max_len = 8, .micro_batch = 1, .accumulation = INT32_MAX},
        {.max_len = 8, .micro_batch = 11, .accumulation = 1, .drop_last = true},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++) {
        struct cz_text_loader_options o = bad[i];
        struct cz_text_loader *l;
        o.texts = t;
        o.tokenizer = bytes;
        ck_fails(cz_text_loader_open(&o, &l), CZ_INVALID);
        ck_assert_ptr_null(l);
    }
    cz_texts_close(t);
    close_bytes();
}
END_TEST

TEST_MAIN("data/text_loader", every_example_comes_once, an_only_epoch_ends_on_all_ranks_together,
          texts_without_labels_are_ignored_by_the_loss, epochs_and_seeds_differ_when_shuffled,
          buckets_save_padding, a_saved_place_goes_on_exactly_there,
          a_place_is_counted_in_steps_and_may_move_to_another_world,
          the_threads_errors_arrive_in_order, loaders_close_at_any_time,
          batches_are_lent_and_the_caller_allocates_nothing, a_slow_caller_never_waits,
          cut_texts_are_counted_as_they_are_given, impossible_options_are_refused)
