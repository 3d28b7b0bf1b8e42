/* Claim: greedy text with a key/value cache is the text without one, also past the context's end;
 * draws follow temperature, top-k and seed; wrong prompts and wrong models are refused. */
#include "base/status.h"
#include "engine/infer/generate.h"
#include "model/model.h"
#include "tests/support/check_main.h"
#include <czero/infer.h>

#include <math.h>
#include <string.h>

#define GPT2 "models/gpt2" /* vocabulary 97, context 32 */

struct text {
    int32_t ids[256];
    size_t n;
};

static cz_status collect(void *user, int32_t token)
{
    struct text *t = user;
    ck_assert_uint_lt(t->n, CZ_ARRAY_LEN(t->ids));
    t->ids[t->n++] = token;
    return CZ_OK;
}

static struct cz_model *fixture(void)
{
    struct cz_model *m = cz_model_open(test_fixture(GPT2));
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    return m;
}

static struct text run(struct cz_model *m, const struct cz_generate_options *o,
                       const int32_t *prompt, size_t n)
{
    struct text t = {.n = 0};
    ck_ok(cz_generate(m, o, prompt, n, collect, &t));
    return t;
}

static const int32_t prompt[] = {5, 17, 96, 0, 44, 44, 3};

static struct cz_generate_options greedy(int64_t n)
{
    return (struct cz_generate_options){
        .size = sizeof(struct cz_generate_options), .max_new_tokens = n, .end_id = -1};
}

START_TEST(cache_and_no_cache_write_the_same)
{
    struct cz_model *m = fixture();
    /* 20 fit into the context of 32; 100 shift it several times */
    const int64_t lengths[] = {0, 1, 20, 25, 26, 100};
    for (size_t i = 0; i < CZ_ARRAY_LEN(lengths); i++) {
        struct cz_generate_options o = greedy(lengths[i]);
        struct text cached = run(m, &o, prompt, CZ_ARRAY_LEN(prompt));
        o.no_cache = true;
        struct text plain = run(m, &o, prompt, CZ_ARRAY_LEN(prompt));
        ck_assert_uint_eq(cached.n, (size_t)lengths[i]);
        ck_assert_uint_eq(plain.n, cached.n);
        ck_assert_mem_eq(plain.ids, cached.ids, cached.n * sizeof *cached.ids);
    }
    cz_model_destroy(m);
}
END_TEST

/* Greedy manually: the whole text so far through cz_infer_forward, largest logit last. */
START_TEST(greedy_takes_the_likeliest)
{
    struct cz_model *m = fixture();
    struct cz_infer *in;
    const struct cz_infer_options io = {.size = sizeof io, .B = 1, .T = 32};
    ck_ok(cz_infer_create(m, &io, &in));
    ck_assert(!cz_infer_can_decode(in));
    ck_assert_ptr_null(cz_infer_gradient(in, 0));
    int32_t ids[32];
    size_t n = CZ_ARRAY_LEN(prompt);
    memcpy(ids, prompt, sizeof prompt);
    float *logits = malloc(32 * 97 * sizeof *logits);
    const struct cz_generate_options o = greedy(20);
    struct text t = run(m, &o, prompt, n);
    for (size_t i = 0; i < t.n; i++) {
        const struct cz_batch batch = {.size = sizeof batch, .B = 1, .T = (int64_t)n, .ids = ids};
        ck_ok(cz_infer_forward(in, &batch, NULL, logits));
        const float *last = logits + (n - 1) * 97;
        for (int v = 0; v < 97; v++) ck_assert_float_le(last[v], last[t.ids[i]]);
        ids[n++] = t.ids[i];
    }
    free(logits);
    cz_infer_destroy(in);
    cz_model_destroy(m);
}
END_TEST

START_TEST(sixteen_bit_models_write_too)
{
    struct cz_model *m = fixture();
    const enum cz_dtype dtypes[] = {DTYPE_BF16, DTYPE_F16};
    for (int d = 0; d < 2; d++) {
        struct cz_generate_options o = greedy(40);
        o.dtype = dtypes[d];
        struct text t = run(m, &o, prompt, CZ_ARRAY_LEN(prompt));
        ck_assert_uint_eq(t.n, 40);
        for (size_t i = 0; i < t.n; i++) ck_assert(t.ids[i] >= 0 && t.ids[i] < 97);
    }
    cz_model_destroy(m);
}
END_TEST

START_TEST(seeds_repeat_and_differ)
{
    struct cz_model *m = fixture();
    struct cz_generate_options o = greedy(60);
    o.temperature = 1.5f;
    o.seed = 1;
    struct text a = run(m, &o, prompt, CZ_ARRAY_LEN(prompt));
    struct text b = run(m, &o, prompt, CZ_ARRAY_LEN(prompt));
    ck_assert_mem_eq(a.ids, b.ids, a.n * sizeof *a.ids);
    o.seed = 2;
    b = run(m, &o, prompt, CZ_ARRAY_LEN(prompt));
    ck_assert_mem_ne(a.ids, b.ids, a.n * sizeof *a.ids);
    o.top_k = 1; /* nothing left to draw among */
    a = run(m, &o, prompt, CZ_ARRAY_LEN(prompt));
    o = greedy(60);
    b = run(m, &o, prompt, CZ_ARRAY_LEN(prompt));
    ck_assert_mem_eq(a.ids, b.ids, a.n * sizeof *a.ids);
    cz_model_destroy(m);
}
END_TEST

/* Zeroed options end where the model's files say, not at token 0. */
START_TEST(end_id_0_is_the_models_own)
{
    struct cz_model *m = fixture(); /* its eos_token_id is 0 */
    struct cz_generate_options o = greedy(20);
    const struct text whole = run(m, &o, prompt, CZ_ARRAY_LEN(prompt));
    for (size_t i = 0; i < whole.n; i++) ck_assert_int_ne(whole.ids[i], 0);
    o.end_id = 0;
    ck_assert_uint_eq(run(m, &o, prompt, CZ_ARRAY_LEN(prompt)).n, whole.n);
    size_t first = 0;
    while (whole.ids[first] != whole.ids[7]) first++;
    model_add_end(m, whole.ids[7]);
    ck_assert_uint_eq(run(m, &o, prompt, CZ_ARRAY_LEN(prompt)).n, first);
    o.end_id = -1;
    ck_assert_uint_eq(run(m, &o, prompt, CZ_ARRAY_LEN(prompt)).n, whole.n);
    cz_model_destroy(m);
}
END_TEST

START_TEST(text_ends_where_it_should)
{
    struct cz_model *m = fixture();
    struct cz_generate_options o = greedy(20);
    struct text whole = run(m, &o, prompt, CZ_ARRAY_LEN(prompt));
    o.end_id = whole.ids[7];
    size_t first = 0;
    while (whole.ids[first] != o.end_id) first++;
    struct text cut = run(m, &o, prompt, CZ_ARRAY_LEN(prompt));
    ck_assert_uint_eq(cut.n, first); /* the end itself is not emitted */
    o = greedy(60);
    o.n_vocab = 10;
    o.temperature = 2.0f;
    cut = run(m, &o, prompt, CZ_ARRAY_LEN(prompt));
    for (size_t i = 0; i < cut.n; i++) ck_assert_int_lt(cut.ids[i], 10);
    cz_model_destroy(m);
}
END_TEST

/* ---- choosing ---------------------------------------------------------------------------------
 */

enum { V = 6, N_DRAWS = 40000 };

/* Frequencies of N_DRAWS draws against `want`, each within five standard errors. */
static void check_frequencies(const struct cz_generate_options *o, const float *logits,
                              const double *want)
{
    int counts[V] = {0};
    float scratch[V];
    for (uint64_t i = 0; i < N_DRAWS; i++) {
        int32_t token;
        ck_ok(generate_pick(o, logits, V, i, scratch, &token));
        counts[token]++;
    }
    for (int v = 0; v < V; v++) {
        double p = (double)counts[v] / N_DRAWS, se = sqrt(want[v] * (1 - want[v]) / N_DRAWS);
        ck_assert_msg(fabs(p - want[v]) <= 5 * se, "token %d: %g instead of %g", v, p, want[v]);
    }
}

START_TEST(draws_follow_the_probabilities)
{
    const float logits[V] = {0.5f, -1.0f, 2.0f, 2.0f, 0.0f, 1.0f};
    const float temperatures[] = {0.5f, 1.0f, 3.0f};
    for (int t = 0; t < 3; t++)
        for (int64_t k = 0; k <= V; k++) {
            const struct cz_generate_options o = {
                .size = sizeof o, .temperature = temperatures[t], .top_k = k, .seed = 9};
            /* the k-th largest, ties kept: 2 2 1 .5 0 -1 */
            const float least[] = {-1, 2, 2, 1, 0.5f, 0, -1};
            double want[V], sum = 0;
            for (int v = 0; v < V; v++) {
                want[v] =
                    logits[v] >= least[k] ? exp((double)logits[v] / (double)temperatures[t]) : 0;
                sum += want[v];
            }
            for (int v = 0; v < V; v++) want[v] /= sum;
            check_frequencies(&o, logits, want);
        }
}
END_TEST

START_TEST(kth_largest_of_many)
{
    float logits[1000], scratch[1000];
    const struct rng_key key = {.seed = 4};
    for (int i = 0; i < 1000; i++) logits[i] = (float)(rng_u32(&key, (uint64_t)i) % 200);
    for (int64_t k = 1; k <= 1000; k += 37) {
        const struct cz_generate_options o = {.size = sizeof o, .temperature = 1e6f, .top_k = k};
        for (uint64_t i = 0; i < 50; i++) {
            int32_t token;
            ck_ok(generate_pick(&o, logits, 1000, i, scratch, &token));
            int64_t n_larger = 0; /* fewer than k stand before it */
            for (int v = 0; v < 1000; v++) n_larger += logits[v] > logits[token];
            ck_assert_int_lt(n_larger, k);
        }
    }
}
END_TEST

/* All small tables: with top_k of k exactly those are drawn of which fewer than k are larger. */
START_TEST(top_k_of_every_small_table)
{
    for (int n = 1; n <= 4; n++)
        for (int table = 0; table < 81; table++) { /* 3 to the power of 4 */
            float logits[4], scratch[4];
            for (int i = 0, rest = table; i < n; i++, rest /= 3) logits[i] = (float)(rest % 3);
            for (int64_t k = 1; k <= n; k++) {
                const struct cz_generate_options o = {
                    .size = sizeof o, .temperature = 1e6f, .top_k = k};
                unsigned drawn = 0, may = 0;
                for (int v = 0; v < n; v++) {
                    int n_larger = 0;
                    for (int u = 0; u < n; u++) n_larger += logits[u] > logits[v];
                    may |= (unsigned)(n_larger < k) << v;
                }
                for (uint64_t i = 0; i < 40; i++) {
                    int32_t token;
                    if (generate_pick(&o, logits, n, i, scratch, &token) != CZ_OK) break;
                    drawn |= 1u << token;
                }
                ck_assert_msg(drawn == may, "table %d of %d, k %d: %x instead of %x", table, n,
                              (int)k, drawn, may);
            }
        }
}
END_TEST

/* All small tables: with top_p those are drawn before which less than top_p of the probability
 * stands, of those that top_k left. */
START_TEST(top_p_of_every_small_table)
{
    static const float shares[] = {0.01f, 0.3f, 0.55f, 0.8f, 0.99f, 1.0f, 0.0f};
    for (int table = 0; table < 81; table++)
        for (size_t s = 0; s < CZ_ARRAY_LEN(shares); s++)
            for (int64_t k = 0; k <= 4; k++) {
                float logits[4], scratch[4];
                for (int i = 0, rest = table; i < 4; i++, rest /= 3) logits[i] = (float)(rest % 3);
                const struct cz_generate_options o = {
                    .size = sizeof o, .temperature = 2, .top_k = k, .top_p = shares[s]};
                double total = 0;
                unsigned kept = 0, may = 0, drawn = 0;
                for (int v = 0; v < 4; v++) {
                    int n_larger = 0;
                    for (int u = 0; u < 4; u++) n_larger += logits[u] > logits[v];
                    if (k == 0 || n_larger < k) kept |= 1u << v;
                }
                for (int v = 0; v < 4; v++)
                    if (kept >> v & 1) total += exp((double)logits[v] / 2);
                for (int v = 0; v < 4; v++) {
                    double larger = 0; /* and the ties in front of the last one that fits */
                    for (int u = 0; u < 4; u++)
                        if (kept >> u & 1 && logits[u] > logits[v])
                            larger += exp((double)logits[u] / 2);
                    const bool all = shares[s] == 0 || shares[s] == 1;
                    if (kept >> v & 1 && (all || larger < (double)shares[s] * total))
                        may |= 1u << v;
                }
                for (uint64_t i = 0; i < 60; i++) {
                    int32_t token;
                    ck_ok(generate_pick(&o, logits, 4, i, scratch, &token));
                    drawn |= 1u << token;
                }
                ck_assert_msg(drawn == may, "table %d, k %d, p %g: %x instead of %x", table, (int)k,
                              (double)shares[s], drawn, may);
            }
}
END_TEST

START_TEST(a_penalty_makes_what_was_seen_less_likely)
{
    const struct cz_generate_options o = {.size = sizeof o, .repetition_penalty = 2};
    const struct cz_generate_options none = {.size = sizeof none};
    const uint8_t seen[V] = {1, 0, 1, 0, 1, 0};
    float logits[V] = {4, 4, -3, -3, 0, 0};
    const float want[V] = {2, 4, -6, -3, 0, 0};
    generate_penalize(&none, seen, V, logits);
    ck_assert_float_eq(logits[0], 4);
    generate_penalize(&o, seen, V, logits);
    ck_assert_mem_eq(logits, want, sizeof want);
}
END_TEST

/* What cz_generate_all() hands out, by prompt. */
struct texts {
    struct text of[3];
    size_t end_after; /* tokens of prompt 1; 0: never */
};

static cz_status collect_of(void *user, size_t prompt_idx, int32_t token, bool *ends)
{
    struct texts *t = user;
    ck_assert_uint_lt(prompt_idx, CZ_ARRAY_LEN(t->of));
    ck_ok(collect(&t->of[prompt_idx], token));
    *ends = prompt_idx == 1 && t->of[1].n == t->end_after;
    return CZ_OK;
}

/* Prompts of several lengths: a text is that of its prompt alone, with and without a cache, and
 * ends when its receiver says so. */
START_TEST(several_prompts_give_what_each_gives_alone)
{
    static const struct cz_prompt prompts[] = {{prompt, 7}, {prompt + 2, 1}, {prompt + 1, 4}};
    struct cz_model *m = fixture();
    for (int no_cache = 0; no_cache < 2; no_cache++) {
        struct cz_generate_options o = greedy(9);
        struct texts all = {.end_after = 4};
        o.temperature = 0.8f;
        o.top_p = 0.9f;
        o.repetition_penalty = 1.2f;
        o.seed = 3;
        o.no_cache = no_cache;
        ck_ok(cz_generate_all(m, &o, prompts, 3, collect_of, &all));
        ck_assert_uint_eq(all.of[1].n, 4);
        for (size_t i = 0; i < 3; i++) {
            const struct text alone = run(m, &o, prompts[i].ids, prompts[i].n_ids);
            ck_assert_uint_eq(alone.n, 9);
            ck_assert_uint_eq(all.of[i].n, i == 1 ? 4 : 9);
            ck_assert_mem_eq(all.of[i].ids, alone.ids, all.of[i].n * sizeof *alone.ids);
        }
        ck_ok(cz_generate_all(m, &o, NULL, 0, collect_of, &all));
    }
    cz_model_destroy(m);
}
END_TEST

/* A session's answer, with its text as cz_generate() alone gives it within the same positions. */
static struct text answer(struct generate_session *session, const int32_t *ids, size_t n,
                          size_t n_want, bool is_full, int64_t n_kept)
{
    struct texts t = {0};
    const struct cz_prompt p = {ids, n};
    bool full = !is_full;
    ck_ok(generate_session_answer(session, &p, collect_of, &t, &full));
    ck_assert_uint_eq(t.of[0].n, n_want);
    ck_assert_int_eq(full, is_full);
    ck_assert_int_eq(generate_session_n_kept(session), n_kept);
    return t.of[0];
}

START_TEST(a_session_keeps_what_prompts_begin_with)
{
    struct cz_model *m = fixture();
    struct generate_session *session;
    int32_t ids[32];
    for (int no_cache = 0; no_cache < 2; no_cache++) {
        struct cz_generate_options o = greedy(5);
        o.no_cache = no_cache;
        ck_ok(generate_session_open(m, &o, 24, &session));
        const bool keeps = !no_cache;
        memcpy(ids, prompt, sizeof prompt);
        const struct text first = answer(session, ids, 7, 5, false, 0);
        /* the answer and a message more: the last token of the answer was never fed */
        memcpy(ids + 7, first.ids, 5 * sizeof *ids);
        ids[12] = 9;
        struct text want = run(m, &o, ids, 13);
        struct text got = answer(session, ids, 13, 5, false, keeps ? 11 : 0);
        ck_assert_mem_eq(got.ids, want.ids, 5 * sizeof *ids);
        /* the same prompt again: its last token is fed; then another beginning, and a shorter one
         */
        got = answer(session, ids, 13, 5, false, keeps ? 12 : 0);
        ck_assert_mem_eq(got.ids, want.ids, 5 * sizeof *ids);
        ids[3] = 1;
        want = run(m, &o, ids, 13);
        got = answer(session, ids, 13, 5, false, keeps ? 3 : 0);
        ck_assert_mem_eq(got.ids, want.ids, 5 * sizeof *ids);
        want = run(m, &o, ids, 2);
        got = answer(session, ids, 2, 5, false, keeps ? 1 : 0);
        ck_assert_mem_eq(got.ids, want.ids, 5 * sizeof *ids);
        generate_session_close(session);
    }
    generate_session_close(NULL);
    cz_model_destroy(m);
}
END_TEST

/* 24 positions and answers of at most 5 tokens. */
START_TEST(a_session_ends_at_its_positions)
{
    struct cz_model *m = fixture();
    struct cz_generate_options o = greedy(5);
    struct generate_session *session;
    struct texts t = {0};
    int32_t ids[32] = {4, 8, 15, 16, 23, 42};
    bool full;
    ck_ok(generate_session_open(m, &o, 24, &session));
    answer(session, ids, 18, 5, false, 0);
    answer(session, ids, 19, 5, true, 18);
    ids[19] = 50; /* not what the model wrote there */
    answer(session, ids, 23, 1, true, 19);
    const struct cz_prompt whole = {ids, 24}, wrong = {(const int32_t[]){97}, 1};
    ck_fails(generate_session_answer(session, &whole, collect_of, &t, &full), CZ_INVALID);
    ck_assert(strstr(cz_last_error(), "24 tokens: the context has 24") != NULL);
    ck_fails(generate_session_answer(session, &wrong, collect_of, &t, &full), CZ_INVALID);
    /* an end token within the last positions is no full context */
    generate_session_close(session);
    const struct text all = run(m, &o, ids, 19);
    o.end_id = all.ids[2];
    ck_ok(generate_session_open(m, &o, 24, &session));
    size_t n = 0;
    while (all.ids[n] != o.end_id) n++;
    answer(session, ids, 19, n, false, 0);
    generate_session_close(session);
    o.max_new_tokens = -1;
    ck_fails(generate_session_open(m, &o, 24, &session), CZ_INVALID);
    ck_assert_ptr_null(session);
    ck_fails(
        generate_session_open(m, &(struct cz_generate_options){.size = sizeof o}, 33, &session),
        CZ_INVALID);
    cz_model_destroy(m);
}
END_TEST

START_TEST(ties_and_rubbish)
{
    float logits[V] = {1, 3, 3, 0, 3, 1}, scratch[V];
    struct cz_generate_options o = {.size = sizeof o, .temperature = 0};
    int32_t token = -1;
    ck_ok(generate_pick(&o, logits, V, 0, scratch, &token));
    ck_assert_int_eq(token, 1); /* the first of equals, as torch.argmax */
    logits[4] = NAN;
    ck_fails(generate_pick(&o, logits, V, 0, scratch, &token), CZ_CORRUPT);
    ck_assert(strstr(cz_last_error(), "token 4") != NULL);
    logits[4] = INFINITY;
    ck_fails(generate_pick(&o, logits, V, 0, scratch, &token), CZ_CORRUPT);
    o.n_vocab = 4; /* never looked at */
    ck_ok(generate_pick(&o, logits, V, 0, scratch, &token));
}
END_TEST

/* ---- refusals ---------------------------------------------------------------------------------
 */

START_TEST(wrong_prompts_are_refused)
{
    struct cz_model *m = fixture();
    struct cz_generate_options o = greedy(5);
    struct text t = {.n = 0};
    int32_t long_prompt[33] = {0};
    ck_fails(cz_generate(m, &o, prompt, 0, collect, &t), CZ_INVALID);
    ck_fails(cz_generate(m, &o, long_prompt, 33, collect, &t), CZ_INVALID);
    ck_assert(strstr(cz_last_error(), "33 tokens") && strstr(cz_last_error(), "32"));
    ck_ok(cz_generate(m, &o, long_prompt, 32, collect, &t));
    ck_assert_uint_eq(t.n, 5);
    long_prompt[2] = 97;
    ck_fails(cz_generate(m, &o, long_prompt, 5, collect, &t), CZ_INVALID);
    ck_assert(strstr(cz_last_error(), "token 97 in row 0 at position 2") != NULL);
    long_prompt[2] = -1;
    ck_fails(cz_generate(m, &o, long_prompt, 5, collect, &t), CZ_INVALID);
    o.temperature = NAN;
    ck_fails(cz_generate(m, &o, prompt, 5, collect, &t), CZ_INVALID);
    o = greedy(5);
    o.top_p = 1.5f;
    ck_fails(cz_generate(m, &o, prompt, 5, collect, &t), CZ_INVALID);
    o = greedy(5);
    o.repetition_penalty = -1;
    ck_fails(cz_generate(m, &o, prompt, 5, collect, &t), CZ_INVALID);
    o = greedy(-1);
    ck_fails(cz_generate(m, &o, prompt, 5, collect, &t), CZ_INVALID);
    cz_model_destroy(m);
}
END_TEST

static cz_status stop(void *user, int32_t token)
{
    (void)user, (void)token;
    return err_set(CZ_IO, 0, "the reader went away");
}

START_TEST(an_error_of_the_reader_stops)
{
    struct cz_model *m = fixture();
    struct cz_generate_options o = greedy(5);
    ck_fails(cz_generate(m, &o, prompt, 3, stop, NULL), CZ_IO);
    ck_assert_str_eq(cz_last_error(), "the reader went away");
    cz_model_destroy(m);
}
END_TEST

START_TEST(sequences_beyond_the_model_are_refused)
{
    struct cz_model *m = fixture();
    struct cz_infer *in;
    struct cz_infer_options o = {.size = sizeof o, .B = 1, .T = 33};
    ck_fails(cz_infer_create(m, &o, &in), CZ_INVALID);
    ck_assert_ptr_null(in);
    o.T = 32;
    o.dtype = DTYPE_I32;
    ck_fails(cz_infer_create(m, &o, &in), CZ_INVALID);
    o.dtype = DTYPE_F32;
    o.B = (int64_t)1 << 40;
    ck_assert_int_ne(cz_infer_create(m, &o, &in), CZ_OK);
    o.B = (int64_t)1 << 25; /* a shape that exists, on a machine that does not */
    ck_fails(cz_infer_create(m, &o, &in), CZ_NOMEM);
    ck_assert(strstr(cz_last_error(), "are free") != NULL);
    cz_infer_destroy(NULL);
    cz_model_destroy(m);
}
END_TEST

TEST_MAIN("engine/generate", cache_and_no_cache_write_the_same, greedy_takes_the_likeliest,
          sixteen_bit_models_write_too, seeds_repeat_and_differ, text_ends_where_it_should,
          end_id_0_is_the_models_own, draws_follow_the_probabilities, kth_largest_of_many,
          top_k_of_every_small_table, top_p_of_every_small_table,
          a_penalty_makes_what_was_seen_less_likely, several_prompts_give_what_each_gives_alone,
          a_session_keeps_what_prompts_begin_with, a_session_ends_at_its_positions,
          ties_and_rubbish, wrong_prompts_are_refused, an_error_of_the_reader_stops,
          sequences_beyond_the_model_are_refused)
