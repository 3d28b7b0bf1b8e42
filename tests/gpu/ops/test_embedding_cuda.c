/* Claims: the embedding on a CUDA device gives the bits of the scalar row, forward and backward,
 * for any width, alignment, dtype, vocabulary (several passes of the sort) and number of tokens
 * (several tiles, long and short runs of one id); rows without a token become zero unless
 * accumulating; a padding id gets no gradient; an id outside the table is not looked up; bad
 * arguments are refused.
 */
#include "ops/embedding/embedding_impl.h"
#include "tests/support/gpu/cuda_orders.h"

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static const struct agree_tol tol = {.op = "embedding",
                                     .why = "fp32 sums in token order: equal to the bit"};

static struct ops scalar_ops(void)
{
    return agree_wire(embedding_wire, &embedding_rows(&(size_t){0})[0]->row);
}

/* Tokens of which about a third share one id, as padding does. */
static void ids_fill(int32_t *ids, int64_t N, int64_t V)
{
    for (int64_t n = 0; n < N; n++) {
        uint64_t u = agree_random(9, (size_t)n);
        ids[n] = u % 3 == 0 ? (int32_t)(V / 2) : (int32_t)(u % (uint64_t)V);
    }
}

static void forward_case(const struct cuda_rig *rig, enum cz_dtype dtype, int64_t N, int64_t C,
                         int64_t V, bool accumulate, size_t offset)
{
    int32_t ids[64];
    struct ops truth = scalar_ops();
    struct agree_buf table = agree_buf_make(dtype, (size_t)(V * C), offset);
    struct agree_buf y = agree_buf_make(dtype, (size_t)(N * C), offset);
    struct agree_buf want = agree_buf_make(dtype, (size_t)(N * C), 0);
    ids_fill(ids, N, V);
    agree_fill_special(&table, 1, 2.0f), agree_fill(&y, 2, 2.0f), agree_fill(&want, 2, 2.0f);
    struct embedding_args a = {.N = N,
                               .C = C,
                               .V = V,
                               .dtype = dtype,
                               .ids = ids,
                               .table = table.p,
                               .y = want.p,
                               .accumulate = accumulate};
    ck_ok(ops_embedding_forward(&truth, NULL, &a));
    struct rig_buf gtable = rig_put(rig, &table), gy = rig_put(rig, &y);
    int32_t *gids = rig_put_bytes(rig, ids, sizeof ids);
    a.table = gtable.p, a.y = gy.p, a.ids = gids;
    ck_ok(ops_embedding_forward(rig->ops, rig->stream, &a));
    rig_get(rig, &gy, &y);
    agree_check(&y, &want, &tol, "cuda", "forward");
    if (!accumulate) agree_same(&y, &want, "rows are copied bit by bit");
    rig_free(rig, &gtable), rig_free(rig, &gy), rig_free_bytes(rig, gids, sizeof ids);
    agree_buf_free(&table), agree_buf_free(&y), agree_buf_free(&want);
}

static void forward_agrees(const struct cuda_rig *rig)
{
    static const int64_t widths[] = {0, 1, 7, 8, 16, 17, 36, 768, 4104};
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t w = 0; w < CZ_ARRAY_LEN(widths); w++)
            for (int64_t N = 0; N < 40; N += 13)
                forward_case(rig, dtypes[d], N, widths[w], 29, w & 1, N == 26);
}

CUDA_ORDERS(forward_agrees, forward_agrees(&rig))

static void backward_case(const struct cuda_rig *rig, enum cz_dtype dtype, enum cz_dtype grad_dtype,
                          int64_t N, int64_t C, int64_t V, bool accumulate, bool padding,
                          size_t offset)
{
    int32_t *ids = malloc((size_t)(N + 1) * sizeof *ids);
    struct ops truth = scalar_ops();
    struct agree_buf dy = agree_buf_make(dtype, (size_t)(N * C), offset);
    struct agree_buf got = agree_buf_make(grad_dtype, (size_t)(V * C), offset);
    struct agree_buf want = agree_buf_make(grad_dtype, (size_t)(V * C), 0);
    ids_fill(ids, N, V);
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
                               .dtable = want.p,
                               .dtable_accumulate = accumulate};
    struct agree_buf host = agree_buf_make(DTYPE_U8, ops_embedding_workspace(&truth, &a), 0);
    struct agree_buf work = agree_buf_make(DTYPE_U8, ops_embedding_workspace(rig->ops, &a), 0);
    a.workspace = host.p, a.workspace_nbytes = host.nbytes;
    ck_ok(ops_embedding_backward(&truth, NULL, &a));
    struct rig_buf gdy = rig_put(rig, &dy), ggot = rig_put(rig, &got), gwork = rig_put(rig, &work);
    int32_t *gids = rig_put_bytes(rig, ids, (size_t)(N + 1) * sizeof *ids);
    a.dy = gdy.p, a.dtable = ggot.p, a.ids = gids;
    a.workspace = gwork.p, a.workspace_nbytes = work.nbytes;
    ck_ok(ops_embedding_backward(rig->ops, rig->stream, &a));
    rig_get(rig, &ggot, &got), rig_get(rig, &gwork, &work);
    agree_check(&got, &want, &tol, "cuda", "backward");
    agree_guards(&work, "embedding workspace");
    rig_free(rig, &gdy), rig_free(rig, &ggot), rig_free(rig, &gwork);
    rig_free_bytes(rig, gids, (size_t)(N + 1) * sizeof *ids);
    agree_buf_free(&dy), agree_buf_free(&got), agree_buf_free(&want);
    agree_buf_free(&host), agree_buf_free(&work);
    free(ids);
}

static void backward_agrees(const struct cuda_rig *rig)
{
    static const int64_t widths[] = {1, 7, 8, 17, 72, 264};
    for (size_t d = 0; d < 9; d++)
        for (size_t w = 0; w < CZ_ARRAY_LEN(widths); w++)
            for (int64_t N = 0; N < 200; N += 66)
                backward_case(rig, dtypes[d % 3], dtypes[d / 3], N, widths[w], 1 + N / 3,
                              (d + w) & 1, w & 1, N == 66);
}

CUDA_ORDERS(backward_agrees, backward_agrees(&rig))

/* Vocabularies of one to three passes, tokens of several tiles, one id for all. */
static void the_sort_takes_any_size(const struct cuda_rig *rig)
{
    static const int64_t vocabularies[] = {1, 255, 256, 65535, 70001};
    for (size_t v = 0; v < CZ_ARRAY_LEN(vocabularies); v++)
        backward_case(rig, DTYPE_F32, DTYPE_F32, 2600, 1, vocabularies[v], v & 1, v & 2, 0);
    backward_case(rig, DTYPE_BF16, DTYPE_F32, 1025, 8, 3, true, false, 0);
    backward_case(rig, DTYPE_F32, DTYPE_F32, 9000, 1, 40, true, false, 0); /* a long table */
}

CUDA_ORDERS(the_sort_takes_any_size, the_sort_takes_any_size(&rig))

/* More tiles than TILES_MAX would allow at the smallest share. */
START_TEST(shares_grow_with_the_tokens)
{
    struct cuda_rig rig = cuda_rig_open();
    backward_case(&rig, DTYPE_F32, DTYPE_F32, 530000, 1, 5000, false, true, 0);
    cuda_rig_close(&rig);
}
END_TEST

START_TEST(an_id_outside_the_table_is_not_looked_up)
{
    enum { N = 4, C = 8, V = 3 };
    struct cuda_rig rig = cuda_rig_open();
    const int32_t ids[N] = {0, 3, -1, 2};
    float table[V * C], y[N * C], dtable[V * C];
    for (int i = 0; i < V * C; i++) table[i] = (float)i;
    void *gids = rig_put_bytes(&rig, ids, sizeof ids);
    void *gtable = rig_put_bytes(&rig, table, sizeof table);
    void *gy = rig_put_bytes(&rig, y, sizeof y);
    struct embedding_args a = {.N = N, .C = C, .V = V, .ids = gids, .table = gtable, .y = gy};
    ck_ok(ops_embedding_forward(rig.ops, rig.stream, &a));
    rig_get_bytes(&rig, gy, y, sizeof y);
    for (int i = 0; i < C; i++) {
        ck_assert(y[i] == table[i] && y[3 * C + i] == table[2 * C + i]);
        ck_assert(isnan(y[C + i]) && isnan(y[2 * C + i]));
    }
    for (int i = 0; i < N * C; i++) y[i] = 1;
    void *gdy = rig_put_bytes(&rig, y, sizeof y);
    a.workspace_nbytes = ops_embedding_workspace(rig.ops, &a);
    a.workspace = rig_dirty(&rig, a.workspace_nbytes);
    a.dy = gdy, a.dtable = gtable;
    ck_ok(ops_embedding_backward(rig.ops, rig.stream, &a));
    rig_get_bytes(&rig, gtable, dtable, sizeof dtable);
    for (int i = 0; i < V * C; i++) ck_assert(dtable[i] == (i / C == 1 ? 0.0f : 1.0f));
    rig_free_bytes(&rig, a.workspace, a.workspace_nbytes);
    rig_free_bytes(&rig, gids, sizeof ids), rig_free_bytes(&rig, gtable, sizeof table);
    rig_free_bytes(&rig, gy, sizeof y), rig_free_bytes(&rig, gdy, sizeof y);
    cuda_rig_close(&rig);
}
END_TEST

START_TEST(bad_arguments_are_refused)
{
    float x[6] = {0}; /* never read */
    int32_t ids[2] = {0, 1};
    struct cuda_rig rig = cuda_rig_open();
    struct ops *ops = rig.ops;
    struct embedding_args a = {.N = 2, .C = 2, .V = 3, .ids = ids, .y = x};
    ck_fails(ops_embedding_forward(ops, NULL, &a), CZ_INVALID);
    a.table = x, a.ids = NULL;
    ck_fails(ops_embedding_forward(ops, NULL, &a), CZ_INVALID);
    a.ids = ids, a.dy = x, a.dtable = x, a.workspace = x, a.workspace_nbytes = 8;
    ck_fails(ops_embedding_backward(ops, NULL, &a), CZ_INVALID);
    a.workspace_nbytes = 1 << 20, a.has_padding = true, a.padding_id = 3;
    ck_fails(ops_embedding_backward(ops, NULL, &a), CZ_INVALID);
    a.has_padding = false, a.N = -1;
    ck_fails(ops_embedding_backward(ops, NULL, &a), CZ_INVALID);
    cuda_rig_close(&rig);
}
END_TEST

TEST_MAIN("cuda embedding", CUDA_ORDERED(forward_agrees), CUDA_ORDERED(backward_agrees),
          CUDA_ORDERED(the_sort_takes_any_size), shares_grow_with_the_tokens,
          an_id_outside_the_table_is_not_looked_up, bad_arguments_are_refused)
