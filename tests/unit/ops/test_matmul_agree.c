/* Claims: every row of matmul is as close to the exact product as fp32 sums in any order can be,
 * for all dtypes, orientations, strides, with bias and accumulation; writes nothing but C; repeats
 * to the bit, and our own panels with any number of threads; a workspace planned for the largest
 * batch serves every smaller one; what comes along with a product has the bits of the passes
 * alone, and what is kept packed those of what is not. */
#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul_impl.h"
#include "tests/support/agree.h"

#include <omp.h>

struct shape {
    int64_t m, n, k;
};

/* A dtype with one of the two dtypes that C may have. */
static const struct {
    enum cz_dtype dtype, c_dtype;
} kinds[] = {{DTYPE_F32, DTYPE_F32},
             {DTYPE_BF16, DTYPE_BF16},
             {DTYPE_BF16, DTYPE_F32},
             {DTYPE_F16, DTYPE_F16},
             {DTYPE_F16, DTYPE_F32}};

/* For each row that may run under CZERO_ISA, the definition included. */
#define FOR_EACH_ROW(ops)                                                                          \
    size_t n_rows;                                                                                 \
    const struct matmul_row *const *rows = matmul_rows(&n_rows);                                   \
    for (size_t row = 0; row < n_rows; row++)                                                      \
        if (ops_row_runs(&rows[row]->row, cpu_features()))                                         \
            for (struct ops ops = agree_wire(matmul_wire, &rows[row]->row), *once = &ops; once;    \
                 matmul_unwire(&ops), once = NULL)

/* One product with all that it needs. */
struct product {
    struct matmul_args args;
    struct agree_buf a, b, bias, c, workspace;
    int64_t a_rows, b_rows;
    float *c_before;
};

static int64_t stored_rows(bool trans, int64_t rows, int64_t cols)
{
    return trans ? cols : rows;
}

static void product_make(struct product *p, const struct matmul_args *args, bool bias, size_t pad,
                         size_t offset)
{
    struct matmul_args *a = &p->args;
    *a = *args;
    p->a_rows = stored_rows(a->trans_a, a->m, a->k),
    p->b_rows = stored_rows(a->trans_b, a->k, a->n);
    if (pad > 0) {
        a->lda = matmul_lda(a) + (int64_t)pad;
        a->ldb = matmul_ldb(a) + (int64_t)pad + 1;
        a->ldc = matmul_ldc(a) + (int64_t)pad + 2;
    }
    p->a = agree_buf_make(a->dtype, (size_t)(p->a_rows * matmul_lda(a)), offset);
    p->b = agree_buf_make(a->dtype, (size_t)(p->b_rows * matmul_ldb(a)), offset / 2);
    p->c = agree_buf_make(a->c_dtype, (size_t)(a->m * matmul_ldc(a)), offset);
    p->bias = agree_buf_make(a->dtype, (size_t)a->n, offset);
    agree_fill(&p->a, 1, 1.0f);
    agree_fill(&p->b, 2, 1.0f);
    agree_fill(&p->bias, 3, 4.0f);
    agree_fill(&p->c, 4, 4.0f);
    p->c_before = malloc((p->c.numel + 1) * sizeof(float));
    agree_assert(p->c_before, "out of memory");
    for (size_t i = 0; i < p->c.numel; i++) p->c_before[i] = agree_get(&p->c, i);
    a->a = p->a.p, a->b = p->b.p, a->c = p->c.p;
    a->bias = bias ? p->bias.p : NULL;
}

static void product_free(struct product *p)
{
    agree_buf_free(&p->a), agree_buf_free(&p->b), agree_buf_free(&p->c), agree_buf_free(&p->bias);
    free(p->c_before);
}

/* Run it with a workspace of exactly the bytes asked for, without having shown the pointers. */
static void product_run(struct ops *ops, struct product *p)
{
    struct matmul_args shape_only = p->args;
    shape_only.a = shape_only.b = shape_only.bias = NULL;
    shape_only.c = NULL;
    ck_ok(ops_matmul_workspace(ops, &shape_only, &p->args.workspace_nbytes));
    struct agree_buf workspace = agree_buf_make(DTYPE_U8, p->args.workspace_nbytes, 4);
    p->args.workspace = workspace.p;
    ck_ok(ops_matmul(ops, NULL, &p->args));
    agree_guards(&workspace, "workspace");
    agree_buf_free(&workspace);
}

/* The exact value of C (i, j), and the sum of its terms' magnitudes. */
static double exact(const struct product *p, int64_t i, int64_t j, double *magnitude)
{
    const struct matmul_args *a = &p->args;
    const int64_t lda = matmul_lda(a), ldb = matmul_ldb(a);
    double sum = 0;
    *magnitude = 0;
    for (int64_t l = 0; l < a->k; l++) {
        double x = (double)agree_get(&p->a, (size_t)(a->trans_a ? l * lda + i : i * lda + l));
        double y = (double)agree_get(&p->b, (size_t)(a->trans_b ? j * ldb + l : l * ldb + j));
        sum += x * y;
        *magnitude += fabs(x * y);
    }
    double more = 0;
    if (a->bias) more = (double)agree_get(&p->bias, (size_t)j);
    if (a->accumulate) more = (double)p->c_before[i * matmul_ldc(a) + j];
    *magnitude += fabs(more);
    return sum + more;
}

/* Each of k products and k sums rounds once in fp32, whatever the order; one step of C on top. */
static void product_check(const struct product *p, const char *row, const char *what)
{
    const struct matmul_args *a = &p->args;
    for (int64_t i = 0; i < a->m; i++)
        for (int64_t j = 0; j < matmul_ldc(a); j++) {
            size_t idx = (size_t)(i * matmul_ldc(a) + j);
            float got = agree_get(&p->c, idx);
            if (j >= a->n) {
                agree_assert(got == p->c_before[idx], "%s: wrote between the rows of C", row);
                continue;
            }
            double magnitude, want = exact(p, i, j, &magnitude);
            double bound = magnitude * (double)(a->k + 2) * 0x1p-24 +
                           (double)agree_step(a->c_dtype, (float)want) / 2 * (1 + 1e-6);
            agree_assert(fabs((double)got - want) <= bound,
                         "matmul %s, %s: %lld×%lld×%lld %s→%s %c%c: C(%lld,%lld) is %.9g, exactly "
                         "%.9g, off by more than %.3g",
                         row, what, (long long)a->m, (long long)a->n, (long long)a->k,
                         dtype_name(a->dtype), dtype_name(a->c_dtype), "NT"[a->trans_a],
                         "NT"[a->trans_b], (long long)i, (long long)j, (double)got, want, bound);
        }
    agree_guards(&p->c, row);
}

static void run_case(struct ops *ops, const struct matmul_args *args, bool bias, size_t pad,
                     size_t offset, const char *what)
{
    struct product p;
    product_make(&p, args, bias, pad, offset);
    product_run(ops, &p);
    product_check(&p, ops_isa(ops), what);
    product_free(&p);
}

static void all_forms(struct ops *ops, struct shape s, size_t kind, size_t offset)
{
    for (int orientation = 0; orientation < 4; orientation++) {
        struct matmul_args args = {.m = s.m,
                                   .n = s.n,
                                   .k = s.k,
                                   .dtype = kinds[kind].dtype,
                                   .c_dtype = kinds[kind].c_dtype,
                                   .trans_a = orientation & 1,
                                   .trans_b = orientation & 2};
        run_case(ops, &args, false, 0, offset, "plain");
        run_case(ops, &args, true, 0, offset, "bias");
        run_case(ops, &args, true, 5, offset, "bias, strides");
        args.accumulate = true;
        run_case(ops, &args, false, 0, offset, "accumulate");
        run_case(ops, &args, false, 3, offset, "accumulate, strides");
    }
}

START_TEST(small_shapes_are_exact_to_fp32_sums)
{
    static const struct shape shapes[] = {{1, 1, 1},  {1, 7, 3},   {5, 1, 2},    {3, 2, 1},
                                          {2, 3, 64}, {7, 13, 17}, {31, 33, 65}, {64, 48, 96},
                                          {4, 35, 9}, {1, 64, 33}, {5, 16, 16}};
    FOR_EACH_ROW(ops)
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        for (size_t kind = 0; kind < CZ_ARRAY_LEN(kinds); kind++)
            all_forms(&ops, shapes[s], kind, s);
}
END_TEST

/* Sides past 1024 make the blocked form cut: one side at a time, and k in three. The last shape
 * makes the form of a few rows cut its columns. */
START_TEST(large_shapes_are_cut_into_blocks)
{
    static const struct shape shapes[] = {{1031, 5, 7}, {6, 1030, 11}, {5, 6, 2053}, {3, 1030, 9}};
    FOR_EACH_ROW(ops)
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        for (size_t kind = 0; kind < CZ_ARRAY_LEN(kinds); kind++)
            all_forms(&ops, shapes[s], kind, 1);
}
END_TEST

START_TEST(empty_dimensions_are_fine)
{
    FOR_EACH_ROW(ops)
    for (size_t kind = 0; kind < CZ_ARRAY_LEN(kinds); kind++) {
        all_forms(&ops, (struct shape){0, 3, 4}, kind, 0);
        all_forms(&ops, (struct shape){3, 0, 4}, kind, 0);
        all_forms(&ops, (struct shape){3, 4, 0}, kind, 0);
    }
}
END_TEST

START_TEST(memory_is_needed_where_there_is_a_c)
{
    float x[16] = {0};
    FOR_EACH_ROW(ops)
    {
        ck_ok(ops_matmul(&ops, NULL, &(struct matmul_args){.m = 0, .n = 3, .k = 4}));
        ck_ok(ops_matmul(&ops, NULL, &(struct matmul_args){.m = 3, .n = 0, .k = 4}));
        ck_ok(ops_matmul(&ops, NULL, &(struct matmul_args){.m = 0, .n = 0, .k = 0}));
        ck_ok(ops_matmul(&ops, NULL, &(struct matmul_args){.m = 2, .n = 3, .k = 0, .c = x}));
        ck_fails(ops_matmul(&ops, NULL, &(struct matmul_args){.m = 2, .n = 3, .k = 0}), CZ_INVALID);
        ck_fails(ops_matmul(&ops, NULL,
                            &(struct matmul_args){.m = 2, .n = 3, .k = 1, .a = x, .c = x + 8}),
                 CZ_INVALID);
        ck_assert_str_eq(cz_last_error(), "matmul: a, b and c are needed");
        ck_fails(ops_matmul(&ops, NULL,
                            &(struct matmul_args){.m = 0, .n = ((int64_t)1 << 40) + 1, .k = 4}),
                 CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "each must be 0 to 2^40"));
    }
}
END_TEST

START_TEST(calls_repeat_to_the_bit)
{
    FOR_EACH_ROW(ops)
    for (size_t kind = 0; kind < CZ_ARRAY_LEN(kinds); kind++) {
        struct matmul_args args = {.m = 65,
                                   .n = 130,
                                   .k = 257,
                                   .dtype = kinds[kind].dtype,
                                   .c_dtype = kinds[kind].c_dtype,
                                   .trans_a = true};
        struct product first, again;
        product_make(&first, &args, true, 0, 0);
        product_make(&again, &args, true, 0, 0);
        product_run(&ops, &first);
        for (int i = 0; i < 5; i++) {
            product_run(&ops, &again);
            agree_same(&again.c, &first.c, ops.isa);
        }
        product_free(&first), product_free(&again);
    }
}
END_TEST

/* Our own panels cut a product by its shape; k is in four chunks here. */
START_TEST(panels_do_not_depend_on_threads)
{
    FOR_EACH_ROW(ops)
    {
        if (!rows[row]->panels) continue;
        const struct matmul_args args = {
            .m = 333, .n = 1000, .k = 2500, .dtype = DTYPE_BF16, .c_dtype = DTYPE_F32};
        struct product one, many;
        product_make(&one, &args, true, 0, 0);
        product_make(&many, &args, true, 0, 0);
        const int n_threads = omp_get_max_threads();
        omp_set_num_threads(1);
        product_run(&ops, &one);
        for (int n = 2; n <= 5; n += 3) {
            omp_set_num_threads(n);
            product_run(&ops, &many);
            agree_same(&many.c, &one.c, ops.isa);
        }
        omp_set_num_threads(n_threads);
        product_free(&one), product_free(&many);
    }
}
END_TEST

/* The same product with its B kept: C has the bits of `want`. */
static void run_kept(struct ops *ops, struct product *p, const struct agree_buf *want)
{
    product_run(ops, p);
    agree_same(&p->c, want, "with B kept");
}

/* B changes behind the back of what is kept: that shows whether it was. The second product is of
 * two groups of columns; memory holds the first B and one of the others. */
START_TEST(what_stays_is_packed_once)
{
    static const struct shape shapes[] = {{70, 130, 100}, {33, 1700, 2600}, {20, 130, 70}};
    FOR_EACH_ROW(ops)
    for (int trans_b = 0; trans_b < 2; trans_b++) {
        struct product plain[3], kept[3];
        size_t nbytes[3];
        const bool keeps = ops.matmul_cache->row->panels != NULL;
        ck_assert_uint_eq(ops_matmul_kept_nbytes(&ops, DTYPE_F32, 100, 100), 0);
        ck_assert((ops_matmul_kept_nbytes(&ops, DTYPE_BF16, 100, 100) > 0) == keeps);
        if (!keeps) continue;
        for (size_t i = 0; i < 3; i++) {
            const struct matmul_args args = {.m = shapes[i].m,
                                             .n = shapes[i].n,
                                             .k = shapes[i].k,
                                             .dtype = DTYPE_BF16,
                                             .c_dtype = DTYPE_F32,
                                             .trans_b = trans_b};
            product_make(&plain[i], &args, true, i, 0), product_make(&kept[i], &args, true, i, 0);
            kept[i].args.b_stays = true;
            nbytes[i] = ops_matmul_kept_nbytes(&ops, DTYPE_BF16, shapes[i].n, shapes[i].k);
            product_run(&ops, &plain[i]);
        }
        struct agree_buf memory = agree_buf_make(DTYPE_U8, nbytes[0] + nbytes[1], 0);
        ck_assert_uint_eq((uintptr_t)memory.p % 64, 0);
        ops_matmul_keep(&ops, memory.p, memory.numel);
        for (int round = 0; round < 2; round++)
            for (size_t i = 0; i < 3; i++) run_kept(&ops, &kept[i], &plain[i].c);
        for (size_t i = 0; i < 3; i++) {
            agree_fill(&plain[i].b, 7, 1.0f), agree_fill(&kept[i].b, 7, 1.0f);
            if (i < 2) run_kept(&ops, &kept[i], &plain[i].c);
            product_run(&ops, &plain[i]);
            if (i == 2) run_kept(&ops, &kept[i], &plain[i].c);
        }
        ops_matmul_keep(&ops, memory.p, memory.numel); /* what was kept is forgotten */
        for (size_t i = 0; i < 3; i++) run_kept(&ops, &kept[i], &plain[i].c);
        ops_matmul_keep(&ops, NULL, 0);
        agree_fill(&plain[0].b, 8, 1.0f), agree_fill(&kept[0].b, 8, 1.0f);
        product_run(&ops, &plain[0]);
        run_kept(&ops, &kept[0], &plain[0].c);
        agree_guards(&memory, "kept");
        agree_buf_free(&memory);
        for (size_t i = 0; i < 3; i++) product_free(&plain[i]), product_free(&kept[i]);
    }
}
END_TEST

/* m is the batch in forward and dgrad, k in wgrad. */
START_TEST(a_workspace_for_the_largest_batch_serves_smaller_ones)
{
    FOR_EACH_ROW(ops)
    for (size_t kind = 0; kind < CZ_ARRAY_LEN(kinds); kind++)
        for (int trans_a = 0; trans_a < 2; trans_a++) {
            size_t largest = 0;
            for (int64_t batch = 1100; batch > 0; batch -= batch > 128 ? 122 : 9) {
                struct matmul_args args = {.m = trans_a ? 192 : batch,
                                           .n = 320,
                                           .k = trans_a ? batch : 192,
                                           .dtype = kinds[kind].dtype,
                                           .c_dtype = kinds[kind].c_dtype,
                                           .trans_a = trans_a,
                                           .accumulate = trans_a};
                size_t nbytes = 0;
                ck_ok(ops_matmul_workspace(&ops, &args, &nbytes));
                if (largest == 0) largest = nbytes;
                agree_assert(nbytes <= largest, "%s: batch %lld needs %zu bytes, 1100 only %zu",
                             ops.isa, (long long)batch, nbytes, largest);
            }
        }
}
END_TEST

/* More shapes than the cache holds: old ones are dropped, and made again. */
START_TEST(many_shapes_come_and_go)
{
    FOR_EACH_ROW(ops)
    {
        if (row > 1) continue; /* one oneDNN row is enough */
        for (int round = 0; round < 2; round++)
            for (int64_t m = 1; m <= 600; m++)
                run_case(&ops,
                         &(struct matmul_args){
                             .m = m, .n = 2, .k = 3, .dtype = DTYPE_F32, .c_dtype = DTYPE_F32},
                         false, 0, 0, "many shapes");
    }
}
END_TEST

START_TEST(nan_and_infinity_reach_the_rows_they_touch)
{
    FOR_EACH_ROW(ops)
    for (size_t kind = 0; kind < CZ_ARRAY_LEN(kinds); kind++) {
        struct matmul_args args = {
            .m = 3, .n = 20, .k = 5, .dtype = kinds[kind].dtype, .c_dtype = kinds[kind].c_dtype};
        struct product p;
        product_make(&p, &args, false, 0, 0);
        agree_set(&p.a, 0 * 5 + 2, NAN);
        agree_set(&p.a, 1 * 5 + 2, INFINITY);
        product_run(&ops, &p);
        for (size_t j = 0; j < 20; j++) {
            agree_assert(isnan(agree_get(&p.c, j)), "%s, column %zu", ops.isa, j);
            agree_assert(!isfinite(agree_get(&p.c, 20 + j)), "%s, column %zu", ops.isa, j);
            agree_assert(isfinite(agree_get(&p.c, 40 + j)), "%s, column %zu", ops.isa, j);
        }
        product_free(&p);
    }
}
END_TEST

/* A product with what comes along, on one call and on three: the same bytes everywhere. */
static void along_case(struct ops *ops, const struct matmul_args *args, bool bias, bool keep)
{
    struct product one, three;
    struct agree_buf aux[2], sums[2];
    product_make(&one, args, bias, 0, 0);
    product_make(&three, args, bias, 0, 0);
    for (int i = 0; i < 2; i++) {
        aux[i] = agree_buf_make(args->dtype, one.c.numel, 1);
        sums[i] = agree_buf_make(args->c_dtype, (size_t)(args->m + args->n), 3);
        agree_fill(&aux[i], 5, 3.0f);
        agree_fill(&sums[i], 6, 1.0f);
    }
    one.args.aux = keep ? aux[0].p : NULL;
    one.args.bias_grad = sums[0].p;
    product_run(ops, &one);

    const bool of_a = args->bias_grad_of == MATMUL_BIAS_GRAD_OF_A;
    three.args.epilogue = MATMUL_PLAIN;
    three.args.bias_grad_of = MATMUL_NO_BIAS_GRAD;
    product_run(ops, &three);
    struct activation_args act = {.kind = args->act, .dtype = args->dtype, .numel = one.c.numel};
    if (args->epilogue == MATMUL_ACT) {
        if (keep) memcpy(aux[1].p, three.c.p, three.c.nbytes);
        act.x = act.y = three.c.p;
        ck_ok(ops_activation_forward(ops, NULL, &act));
    } else if (args->epilogue == MATMUL_ACT_GRAD) {
        act.x = aux[1].p;
        act.dy = act.dx = three.c.p;
        ck_ok(ops_activation_backward(ops, NULL, &act));
    }
    if (args->bias_grad_of != MATMUL_NO_BIAS_GRAD) {
        struct bias_grad_args sum = {.N = args->k, .C = of_a ? args->m : args->n};
        sum.dtype = args->dtype;
        sum.grad_dtype = args->c_dtype;
        sum.dy = of_a ? three.a.p : three.b.p;
        sum.db = sums[1].p;
        sum.accumulate = args->bias_grad_accumulate;
        sum.workspace_nbytes = ops->bias_grad_workspace(ops, &sum);
        struct agree_buf workspace = agree_buf_make(DTYPE_U8, sum.workspace_nbytes, 0);
        sum.workspace = workspace.p;
        ck_ok(ops_bias_grad(ops, NULL, &sum));
        agree_buf_free(&workspace);
    }
    agree_same(&one.c, &three.c, "C");
    agree_same(&aux[0], &aux[1], "aux");
    agree_same(&sums[0], &sums[1], "bias gradient");
    agree_guards(&one.c, "C"), agree_guards(&aux[0], "aux"), agree_guards(&sums[0], "sums");
    for (int i = 0; i < 2; i++) agree_buf_free(&aux[i]), agree_buf_free(&sums[i]);
    product_free(&one), product_free(&three);
}

START_TEST(what_comes_along_has_the_bits_of_passes_alone)
{
    static const struct shape shapes[] = {{1, 1, 1}, {7, 33, 20}, {40, 48, 64}, {3, 5, 0}};
    FOR_EACH_ROW(ops)
    for (size_t i = 0; i < CZ_ARRAY_LEN(shapes) * CZ_ARRAY_LEN(kinds); i++) {
        const struct shape s = shapes[i / CZ_ARRAY_LEN(kinds)];
        const size_t kind = i % CZ_ARRAY_LEN(kinds);
        ck_ok(activation_wire(&ops, rows[row]->row.features));
        ck_ok(elementwise_wire(&ops, rows[row]->row.features));
        struct matmul_args args = {.m = s.m,
                                   .n = s.n,
                                   .k = s.k,
                                   .dtype = kinds[kind].dtype,
                                   .c_dtype = kinds[kind].c_dtype,
                                   .trans_b = true};
        if (args.dtype == args.c_dtype)
            for (int act = ACT_GELU_TANH; act < ACTIVATIONS; act++) {
                args.act = (enum activation)act;
                args.epilogue = MATMUL_ACT;
                along_case(&ops, &args, true, true);
                along_case(&ops, &args, act % 2, false);
                args.epilogue = MATMUL_ACT_GRAD;
                along_case(&ops, &args, false, true);
            }
        args.epilogue = MATMUL_PLAIN;
        args.trans_a = true, args.trans_b = false;
        for (int accumulate = 0; accumulate < 4; accumulate++) {
            args.accumulate = accumulate & 1;
            args.bias_grad_accumulate = accumulate & 2;
            args.bias_grad_of = MATMUL_BIAS_GRAD_OF_A;
            along_case(&ops, &args, false, false);
            args.bias_grad_of = MATMUL_BIAS_GRAD_OF_B;
            along_case(&ops, &args, false, false);
        }
    }
}
END_TEST

START_TEST(what_cannot_come_along_is_refused)
{
    float x[32] = {0};
    const struct matmul_args good = {
        .m = 2, .n = 2, .k = 2, .a = x, .b = x, .c = x + 8, .aux = x + 16, .bias_grad = x + 24};
    FOR_EACH_ROW(ops)
    for (int i = 0; i < 11; i++) {
        struct matmul_args bad = good;
        bad.epilogue = i < 7 ? MATMUL_ACT_GRAD : MATMUL_PLAIN;
        switch (i) {
        case 0: bad.epilogue = (enum matmul_epilogue)3; break;
        case 1: bad.act = (enum activation)9; break;
        case 2: bad.accumulate = true; break;
        case 3: bad.dtype = DTYPE_BF16; break; /* C is fp32 */
        case 4: bad.ldc = 3; break;
        case 5: bad.aux = NULL; break;
        case 6: bad.aux = bad.c; break;
        case 7: bad.bias_grad_of = MATMUL_BIAS_GRAD_OF_A; break; /* not trans_a */
        case 8: bad.bias_grad_of = MATMUL_BIAS_GRAD_OF_B, bad.trans_b = true; break;
        case 9: bad.bias_grad_of = MATMUL_BIAS_GRAD_OF_B, bad.ldb = 3; break;
        case 10: bad.bias_grad_of = MATMUL_BIAS_GRAD_OF_B, bad.bias_grad = NULL; break;
        }
        agree_assert(ops_matmul(&ops, NULL, &bad) == CZ_INVALID, "case %d was taken", i);
    }
}
END_TEST

START_TEST(bad_arguments_are_refused_with_a_sentence)
{
    float x[16] = {0};
    const struct matmul_args good = {.m = 2, .n = 2, .k = 2, .a = x, .b = x, .bias = x, .c = x + 8};
    FOR_EACH_ROW(ops)
    {
        struct matmul_args bad = good;
        bad.m = -1;
        ck_fails(ops_matmul(&ops, NULL, &bad), CZ_INVALID);
        bad = good, bad.accumulate = true;
        ck_fails(ops_matmul(&ops, NULL, &bad), CZ_INVALID);
        bad = good, bad.lda = 1;
        ck_fails(ops_matmul(&ops, NULL, &bad), CZ_INVALID);
        bad = good, bad.dtype = DTYPE_F32, bad.c_dtype = DTYPE_BF16;
        ck_fails(ops_matmul(&ops, NULL, &bad), CZ_INVALID);
        bad = good, bad.dtype = bad.c_dtype = DTYPE_I32;
        ck_fails(ops_matmul(&ops, NULL, &bad), CZ_INVALID);
        bad = good, bad.a = NULL;
        ck_fails(ops_matmul(&ops, NULL, &bad), CZ_INVALID);
        if (row == 0) continue;
        bad = good, bad.trans_a = true, bad.dtype = bad.c_dtype = DTYPE_F16; /* needs a workspace */
        ck_fails(ops_matmul(&ops, NULL, &bad), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "workspace"));
    }
}
END_TEST

int main(void)
{
    if (cpu_isa_check() != CZ_OK) {
        printf("skipped: %s\n", cz_last_error());
        return TEST_SKIPPED;
    }
    const TTest *const cases[] = {small_shapes_are_exact_to_fp32_sums,
                                  large_shapes_are_cut_into_blocks,
                                  empty_dimensions_are_fine,
                                  memory_is_needed_where_there_is_a_c,
                                  calls_repeat_to_the_bit,
                                  panels_do_not_depend_on_threads,
                                  what_stays_is_packed_once,
                                  a_workspace_for_the_largest_batch_serves_smaller_ones,
                                  many_shapes_come_and_go,
                                  nan_and_infinity_reach_the_rows_they_touch,
                                  what_comes_along_has_the_bits_of_passes_alone,
                                  what_cannot_come_along_is_refused,
                                  bad_arguments_are_refused_with_a_sentence};
    return test_run("ops/matmul", cases, (int)CZ_ARRAY_LEN(cases));
}
