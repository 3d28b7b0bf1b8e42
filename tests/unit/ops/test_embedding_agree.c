/* Claims: every row of the embedding gives the bits of the definition; backward equals adding up by
 * hand in token order, zeroes rows without a token unless accumulating, leaves a padding id out,
 * and does not depend on the number of threads; an id outside the table is refused with nothing
 * written. */
#include "ops/embedding/embedding_impl.h"
#include "tests/support/agree.h"

#include <omp.h>

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static const struct agree_tol tol = {.op = "embedding",
                                     .why = "fp32 sums in token order: equal to the bit"};

#define FOR_EACH_ROW(ops)                                                                          \
    size_t n_rows;                                                                                 \
    const struct embedding_row *const *rows = embedding_rows(&n_rows);                             \
    for (size_t row = 0; row < n_rows && agree_row_runs(&rows[row]->row); row++)                   \
        for (struct ops ops = agree_wire(embedding_wire, &rows[row]->row), *once = &ops; once;     \
             once = NULL)

/* Tokens of which about a third share one id, as padding does. */
static int32_t *ids_make(int64_t N, int64_t V)
{
    int32_t *ids = malloc((size_t)(N > 0 ? N : 1) * sizeof *ids);
    for (int64_t n = 0; n < N; n++) {
        uint64_t u = agree_random(9, (size_t)n);
        ids[n] = u % 3 == 0 ? (int32_t)(V / 2) : (int32_t)(u % (uint64_t)V);
    }
    return ids;
}

static void forward_case(struct ops *ops, enum cz_dtype dtype, int64_t N, int64_t C, int64_t V,
                         bool accumulate, size_t offset)
{
    int32_t *ids = ids_make(N, V);
    struct agree_buf table = agree_buf_make(dtype, (size_t)(V * C), offset);
    struct agree_buf y = agree_buf_make(dtype, (size_t)(N * C), offset / 2);
    struct agree_buf want = agree_buf_make(dtype, (size_t)(N * C), 0);
    agree_fill(&table, 1, 2.0f), agree_fill(&y, 2, 2.0f), agree_fill(&want, 2, 2.0f);
    for (size_t i = 0; i < want.numel; i++) {
        float from = agree_get(&table, (size_t)(ids[i / (size_t)C] * C) + i % (size_t)C);
        agree_set(&want, i, accumulate ? agree_get(&want, i) + from : from);
    }
    struct embedding_args a = {.N = N,
                               .C = C,
                               .V = V,
                               .dtype = dtype,
                               .ids = ids,
                               .table = table.p,
                               .y = y.p,
                               .accumulate = accumulate};
    ck_ok(ops_embedding_forward(ops, NULL, &a));
    agree_check(&y, &want, &tol, ops_isa(ops), "forward");
    agree_buf_free(&table), agree_buf_free(&y), agree_buf_free(&want);
    free(ids);
}

START_TEST(forward_looks_up_and_adds)
{
    static const int64_t widths[] = {1, 7, 8, 15, 16, 17, 35, 768};
    FOR_EACH_ROW(ops)
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t w = 0; w < CZ_ARRAY_LEN(widths); w++)
            for (int64_t N = 0; N < 40; N += 13)
                forward_case(&ops, dtypes[d], N, widths[w], 29, w & 1, w + (size_t)N);
}
END_TEST

/* Token by token, in fp32, then once onto what was there. */
static void backward_by_hand(const struct embedding_args *a, const struct agree_buf *dy,
                             struct agree_buf *dtable)
{
    size_t C = (size_t)a->C;
    for (size_t id = 0; id < (size_t)a->V; id++)
        for (size_t c = 0; c < C; c++) {
            float sum = 0;
            bool named = false;
            const bool is_padding = a->has_padding && (int64_t)id == a->padding_id;
            for (size_t n = 0; n < (size_t)a->N && !is_padding; n++)
                if ((size_t)a->ids[n] == id) sum += agree_get(dy, n * C + c), named = true;
            if (a->dtable_accumulate && named) sum = agree_get(dtable, id * C + c) + sum;
            if (named || !a->dtable_accumulate) agree_set(dtable, id * C + c, sum);
        }
}

static void backward_case(struct ops *ops, enum cz_dtype dtype, enum cz_dtype grad_dtype, int64_t N,
                          int64_t C, int64_t V, bool accumulate, bool padding, size_t offset)
{
    int32_t *ids = ids_make(N, V);
    struct agree_buf dy = agree_buf_make(dtype, (size_t)(N * C), offset);
    struct agree_buf got = agree_buf_make(grad_dtype, (size_t)(V * C), offset / 2);
    struct agree_buf want = agree_buf_make(grad_dtype, (size_t)(V * C), 0);
    agree_fill(&dy, 3, 1.0f), agree_fill(&got, 4, 1.0f), agree_fill(&want, 4, 1.0f);
    struct embedding_args a = {.N = N,
                               .C = C,
                               .V = V,
                               .dtype = dtype,
                               .ids = ids,
                               .has_padding = padding,
                               .padding_id = V / 2,
                               .dy = dy.p,
                               .grad_dtype = grad_dtype,
                               .dtable = got.p,
                               .dtable_accumulate = accumulate};
    struct agree_buf work = agree_buf_make(DTYPE_U8, ops_embedding_workspace(ops, &a), 0);
    a.workspace = work.p, a.workspace_nbytes = work.nbytes;
    ck_ok(ops_embedding_backward(ops, NULL, &a));
    backward_by_hand(&a, &dy, &want);
    agree_check(&got, &want, &tol, ops_isa(ops), "backward");
    agree_guards(&work, "embedding workspace");
    agree_buf_free(&dy), agree_buf_free(&got), agree_buf_free(&want), agree_buf_free(&work);
    free(ids);
}

START_TEST(backward_sums_in_token_order)
{
    static const int64_t widths[] = {1, 7, 8, 15, 16, 17, 35, 64, 67, 131};
    FOR_EACH_ROW(ops)
    for (size_t d = 0; d < 6; d++)
        for (size_t w = 0; w < CZ_ARRAY_LEN(widths); w++)
            for (int64_t N = 0; N < 60; N += 19)
                for (int padding = 0; padding < 2; padding++)
                    backward_case(&ops, dtypes[d % 3], dtypes[d / 2], N, widths[w], 1 + N,
                                  (d + w) & 1, padding, w);
}
END_TEST

START_TEST(backward_does_not_depend_on_threads)
{
    FOR_EACH_ROW(ops)
    for (int n_threads = 1; n_threads <= 7; n_threads++) {
        omp_set_num_threads(n_threads);
        backward_case(&ops, DTYPE_F32, DTYPE_F32, 300, 260, 90, n_threads & 1, n_threads & 2, 0);
        backward_case(&ops, DTYPE_F32, DTYPE_F32, 900, 40, 1, n_threads & 1, false, 0); /* one id */
    }
}
END_TEST

START_TEST(a_large_vocabulary_takes_several_passes_of_the_sort)
{
    static const int64_t vocabularies[] = {2048, 2049, 50257, 4200000};
    FOR_EACH_ROW(ops)
    for (size_t v = 0; v < CZ_ARRAY_LEN(vocabularies); v++) {
        enum { N = 400 };
        int64_t V = vocabularies[v];
        int32_t *ids = ids_make(N, V);
        ids[0] = (int32_t)V - 1, ids[1] = 0, ids[N - 1] = (int32_t)V - 1;
        struct agree_buf dy = agree_buf_make(DTYPE_F32, N, 0);
        struct agree_buf dtable = agree_buf_make(DTYPE_F32, (size_t)V, 0);
        float *want = calloc((size_t)V, sizeof *want);
        agree_fill(&dy, 5, 1.0f);
        for (size_t n = 0; n < N; n++) want[ids[n]] += agree_get(&dy, n);
        struct embedding_args a = {
            .N = N, .C = 1, .V = V, .ids = ids, .dy = dy.p, .dtable = dtable.p};
        struct agree_buf work = agree_buf_make(DTYPE_U8, ops_embedding_workspace(&ops, &a), 0);
        a.workspace = work.p, a.workspace_nbytes = work.nbytes;
        ck_ok(ops_embedding_backward(&ops, NULL, &a));
        ck_assert_int_eq(memcmp(dtable.p, want, dtable.nbytes), 0);
        agree_buf_free(&dy), agree_buf_free(&dtable), agree_buf_free(&work);
        free(want), free(ids);
    }
}
END_TEST

START_TEST(bad_arguments_are_refused)
{
    float table[6] = {1, 2, 3, 4, 5, 6}, y[4] = {9, 9, 9, 9};
    int32_t ids[] = {0, 3}, negative[] = {-1, 0};
    uint64_t work[64];
    struct ops ops = agree_wire(embedding_wire, &embedding_rows(&(size_t){0})[0]->row);
    struct embedding_args a = {.N = 2, .C = 2, .V = 3, .ids = ids, .table = table, .y = y};
    ck_fails(ops_embedding_forward(&ops, NULL, &a), CZ_INVALID);
    ck_assert_msg(strstr(cz_last_error(), "id 3 of token 1") != NULL, "%s", cz_last_error());
    ck_assert(y[0] == 9 && y[3] == 9);
    a.ids = negative;
    ck_fails(ops_embedding_forward(&ops, NULL, &a), CZ_INVALID);
    a.ids = ids, ids[1] = 2, a.table = NULL;
    ck_fails(ops_embedding_forward(&ops, NULL, &a), CZ_INVALID);
    a.dy = y, a.dtable = table, a.workspace = work, a.workspace_nbytes = 8;
    ck_fails(ops_embedding_backward(&ops, NULL, &a), CZ_INVALID);
    a.workspace_nbytes = sizeof work;
    ck_ok(ops_embedding_backward(&ops, NULL, &a));
    a.has_padding = true, a.padding_id = 3;
    ck_fails(ops_embedding_backward(&ops, NULL, &a), CZ_INVALID);
    a.has_padding = false, a.N = -1;
    ck_fails(ops_embedding_backward(&ops, NULL, &a), CZ_INVALID);
}
END_TEST

TEST_MAIN("ops/embedding", forward_looks_up_and_adds, backward_sums_in_token_order,
          backward_does_not_depend_on_threads, a_large_vocabulary_takes_several_passes_of_the_sort,
          bad_arguments_are_refused)
