/* Claims: rows for masked language models are framed, masked in BERT's proportions, never at
 * special tokens and always somewhere; labels are the tokens that stood there; masks differ from
 * epoch to epoch, repeat after a resume, and do not depend on batch or world size. */
#include "base/status.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"
#include <czero/data.h>

#include <string.h>

#define VOCAB    1000
#define N_TOKENS 60000

enum { PAD = 0, UNK, CLS, SEP, MASK };

static char dir[64], path[128];
static uint16_t tokens[N_TOKENS];

static void setup(void)
{
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    for (size_t i = 0; i < N_TOKENS; i++) tokens[i] = (uint16_t)(i % 50 == 7 ? SEP : 5 + i % 900);
    snprintf(path, sizeof path, "%s/tokens", dir);
    ck_ok(file_save(path, tokens, sizeof tokens));
    snprintf(path, sizeof path, "u16:%s/tokens", dir);
}

static void teardown(void)
{
    test_tmp_remove(dir);
}

static struct cz_masking bert(float probability)
{
    return (struct cz_masking){.size = sizeof(struct cz_masking),
                               .probability = probability,
                               .mask_id = MASK,
                               .first_id = CLS,
                               .last_id = SEP,
                               .vocab_size = VOCAB,
                               .special_ids = {PAD, UNK, CLS, SEP, MASK},
                               .n_special_ids = 5};
}

/* The same as an option: lasts as long as the block around it. */
#define MASKING(probability) (&(struct cz_masking[]){bert(probability)}[0])

static struct cz_data_loader *open_loader(struct cz_data_options o)
{
    const char *paths = path;
    struct cz_data_loader *l;
    o.paths = &paths;
    o.n_paths = 1;
    ck_ok(cz_data_open(&o, &l));
    return l;
}

START_TEST(masks_have_berts_proportions)
{
    setup();
    const int64_t T = 102;
    struct cz_data_loader *l =
        open_loader((struct cz_data_options){.size = sizeof(struct cz_data_options),
                                             .seq_len = T,
                                             .micro_batch = 10,
                                             .masking = MASKING(0.15f),
                                             .seed = 3});
    ck_assert_uint_eq(cz_data_n_rows(l), N_TOKENS / 100);
    double n = 0, chosen = 0, masked = 0, kept = 0, other = 0;
    int n_wrong = 0;
    for (int m = 0; m < 60; m++) {
        struct cz_batch b = {.size = sizeof b};
        ck_ok(cz_data_next(l, &b));
        for (int64_t i = 0; i < b.B * T; i++) {
            int64_t t = i % T;
            int32_t id = b.ids[i], label = b.labels[i];
            if (t == 0 || t == T - 1) {
                n_wrong += id != (t ? SEP : CLS) || label != CZ_IGNORE_LABEL;
                continue;
            }
            int32_t was = tokens[(m * 10 + i / T) * 100 + t - 1];
            if (was == SEP || label == CZ_IGNORE_LABEL) {
                n_wrong += id != was || label != CZ_IGNORE_LABEL;
                n += was != SEP;
                continue;
            }
            n_wrong += label != was || id < 0 || id >= VOCAB;
            n++;
            chosen++;
            masked += id == MASK;
            kept += id == was;
            other += id != MASK && id != was;
        }
    }
    ck_assert_int_eq(n_wrong, 0);
    ck_assert_double_eq_tol(chosen / n, 0.15, 0.005); /* standard deviation 0.0015 */
    ck_assert_double_eq_tol(masked / chosen, 0.8, 0.015);
    ck_assert_double_eq_tol(kept / chosen, 0.1, 0.012);
    ck_assert_double_eq_tol(other / chosen, 0.1, 0.012);
    cz_data_close(l);
    teardown();
}
END_TEST

START_TEST(detectors_rows_tell_what_was_replaced)
{
    setup();
    const int64_t T = 102;
    struct cz_masking masking = bert(0.15f);
    masking.detects = true;
    struct cz_data_loader *l =
        open_loader((struct cz_data_options){.size = sizeof(struct cz_data_options),
                                             .seq_len = T,
                                             .micro_batch = 10,
                                             .masking = &masking,
                                             .seed = 3});
    double n = 0, replaced = 0;
    int n_wrong = 0;
    for (int m = 0; m < 60; m++) {
        struct cz_batch b = {.size = sizeof b};
        ck_ok(cz_data_next(l, &b));
        for (int64_t i = 0; i < b.B * T; i++) {
            const int64_t t = i % T;
            const int32_t id = b.ids[i];
            const bool framing = t == 0 || t == T - 1;
            const int32_t was = framing ? (t ? SEP : CLS) : tokens[(m * 10 + i / T) * 100 + t - 1];
            n_wrong += b.labels[i] != (id != was) || (was == SEP && id != SEP);
            n += was != SEP && !framing;
            replaced += b.labels[i];
        }
    }
    ck_assert_int_eq(n_wrong, 0);
    ck_assert_double_eq_tol(replaced / n, 0.15, 0.005);
    cz_data_close(l);
    teardown();
}
END_TEST

/* ids and labels of samples [first, first + n) at this batch and world size. */
static void collect(struct cz_data_options o, int64_t n, int32_t *out)
{
    const size_t T = (size_t)o.seq_len;
    for (o.rank = 0; o.rank < o.world_size; o.rank++) {
        struct cz_data_loader *l = open_loader(o);
        for (int64_t at = 0; at < n; at += o.micro_batch * o.world_size) {
            struct cz_batch b = {.size = sizeof b};
            ck_ok(cz_data_next(l, &b));
            for (size_t i = 0; i < (size_t)b.B; i++) {
                memcpy(out + (b.sample + i) * 2 * T, b.ids + i * T, T * sizeof *out);
                memcpy(out + ((b.sample + i) * 2 + 1) * T, b.labels + i * T, T * sizeof *out);
            }
        }
        cz_data_close(l);
    }
}

START_TEST(masks_belong_to_samples)
{
    setup();
    const int64_t T = 52, n = 48;
    const size_t nbytes = (size_t)(2 * T * n) * sizeof(int32_t);
    struct cz_data_options o = {.size = sizeof o,
                                .seq_len = T,
                                .micro_batch = 4,
                                .world_size = 1,
                                .shuffle = true,
                                .masking = MASKING(0.15f),
                                .seed = 9};
    int32_t *one = malloc(nbytes), *two = malloc(nbytes);
    collect(o, n, one);
    o.micro_batch = 3;
    o.world_size = 2;
    collect(o, n, two);
    ck_assert_mem_eq(one, two, nbytes);
    o.seed = 10;
    o.shuffle = false;
    collect(o, n, one);
    o.seed = 11;
    collect(o, n, two);
    ck_assert_mem_ne(one, two, nbytes);
    free(one);
    free(two);
    teardown();
}
END_TEST

START_TEST(epochs_differ_and_a_resume_repeats)
{
    setup();
    struct cz_data_options o = {
        .size = sizeof o, .seq_len = 202, .micro_batch = 300, .masking = MASKING(0.15f)};
    struct cz_data_loader *l = open_loader(o), *resumed = open_loader(o);
    const size_t n = 300 * 202;
    int32_t *first = malloc(n * sizeof *first);
    struct cz_batch a = {.size = sizeof a}, b = {.size = sizeof b};
    struct cz_data_cursor place;
    ck_assert_uint_eq(cz_data_n_rows(l), 300);
    ck_ok(cz_data_next(l, &a));
    memcpy(first, a.ids, n * sizeof *first);
    cz_data_tell(l, &place);
    ck_ok(cz_data_next(l, &a));
    ck_assert_mem_ne(a.ids, first, n * sizeof *first);
    ck_ok(cz_data_seek(resumed, &place));
    ck_ok(cz_data_next(resumed, &b));
    ck_assert_mem_eq(a.ids, b.ids, n * sizeof *a.ids);
    ck_assert_mem_eq(a.labels, b.labels, n * sizeof *a.labels);
    free(first);
    cz_data_close(l);
    cz_data_close(resumed);
    teardown();
}
END_TEST

START_TEST(every_row_has_something_to_guess)
{
    setup();
    const int64_t T = 5; /* three tokens: mostly none would be chosen */
    struct cz_data_loader *l =
        open_loader((struct cz_data_options){.size = sizeof(struct cz_data_options),
                                             .seq_len = T,
                                             .micro_batch = 100,
                                             .masking = MASKING(0.001f)});
    for (int m = 0; m < 20; m++) {
        struct cz_batch b = {.size = sizeof b};
        ck_ok(cz_data_next(l, &b));
        for (int64_t r = 0; r < b.B; r++) {
            int n_labels = 0;
            for (int64_t t = 0; t < T; t++) n_labels += b.labels[r * T + t] >= 0;
            ck_assert_int_ge(n_labels, 1);
        }
    }
    cz_data_close(l);
    teardown();
}
END_TEST

START_TEST(rows_without_frame_use_all_tokens)
{
    setup();
    struct cz_masking masking = bert(0.15f);
    masking.first_id = masking.last_id = -1;
    struct cz_data_loader *l =
        open_loader((struct cz_data_options){.size = sizeof(struct cz_data_options),
                                             .seq_len = 100,
                                             .micro_batch = 1,
                                             .masking = &masking});
    struct cz_batch b = {.size = sizeof b};
    ck_assert_uint_eq(cz_data_n_rows(l), N_TOKENS / 100);
    ck_ok(cz_data_next(l, &b));
    for (int64_t t = 0; t < 100; t++)
        ck_assert_int_eq(b.labels[t] >= 0 ? b.labels[t] : b.ids[t], tokens[t]);
    cz_data_close(l);
    teardown();
}
END_TEST

START_TEST(special_tokens_come_from_the_tokenizer)
{
    setup();
    struct cz_tokenizer *tok;
    struct cz_masking m = {.size = sizeof m};
    const char vocab[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n";
    char name[128];
    snprintf(name, sizeof name, "%s/vocab.txt", dir);
    ck_ok(file_save(name, vocab, sizeof vocab - 1));
    ck_ok(cz_tokenizer_open(dir, &tok));
    ck_ok(cz_masking_init(&m, tok, 0.15f));
    ck_assert_int_eq(m.mask_id, MASK);
    ck_assert_int_eq(m.first_id, CLS);
    ck_assert_int_eq(m.last_id, SEP);
    ck_assert_int_eq(m.vocab_size, 7);
    ck_assert_uint_ge(m.n_special_ids, 5);
    cz_tokenizer_close(tok);
    ck_ok(cz_tokenizer_open("bytes", &tok));
    ck_fails(cz_masking_init(&m, tok, 0.15f), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "mask token"));
    cz_tokenizer_close(tok);
    teardown();
}
END_TEST

START_TEST(impossible_masking_is_refused)
{
    setup();
    struct cz_masking bad[] = {bert(1.0f), bert(-0.1f), bert(0.15f), bert(0.15f)};
    bad[2].mask_id = VOCAB;
    bad[3].last_id = -1;
    const char *paths = path;
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad) + 1; i++) {
        struct cz_data_options o = {
            .size = sizeof o, .paths = &paths, .n_paths = 1, .seq_len = 10, .micro_batch = 1};
        struct cz_data_loader *l;
        o.masking = i < CZ_ARRAY_LEN(bad) ? &bad[i] : MASKING(0.15f);
        if (i == CZ_ARRAY_LEN(bad)) o.seq_len = 2;
        ck_fails(cz_data_open(&o, &l), CZ_INVALID);
        if (i < CZ_ARRAY_LEN(bad)) continue;
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "a sequence length of 2 leaves no tokens"));
        o.seq_len = 3; /* one token between the first and the last */
        ck_ok(cz_data_open(&o, &l));
        cz_data_close(l);
        struct cz_masking bare = bert(0.15f);
        bare.first_id = bare.last_id = -1;
        o.masking = &bare;
        o.seq_len = 1;
        ck_ok(cz_data_open(&o, &l));
        cz_data_close(l);
    }
    teardown();
}
END_TEST

TEST_MAIN("data/masking", masks_have_berts_proportions, detectors_rows_tell_what_was_replaced,
          masks_belong_to_samples, epochs_differ_and_a_resume_repeats,
          every_row_has_something_to_guess, rows_without_frame_use_all_tokens,
          special_tokens_come_from_the_tokenizer, impossible_masking_is_refused)
