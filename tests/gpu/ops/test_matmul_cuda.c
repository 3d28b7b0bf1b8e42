/* Claims: products on a CUDA device agree with the scalar row for all dtypes, orientations,
 * strides, with bias and accumulation, also when cuBLASLt refuses epilogues or everything; so do
 * the passes that come along, which are one call where cuBLASLt has them, and residuals; nothing
 * but C (and aux and the bias gradient) is written; empty dimensions are fine; calls repeat to the
 * bit, wherever their tensors are, though cuBLASLt may compute otherwise for each alignment; a
 * workspace for any shape serves every other; bad arguments are refused. */
#include "ops/matmul/matmul_common_impl.h"
#include "ops/matmul/matmul_impl.h"
#include "tests/support/cuda_sim/sim_trace.h"
#include "tests/support/gpu/cuda_orders.h"

struct shape {
    int64_t m, n, k;
};

static const struct {
    enum cz_dtype dtype, c_dtype;
} kinds[] = {{DTYPE_F32, DTYPE_F32},
             {DTYPE_BF16, DTYPE_BF16},
             {DTYPE_BF16, DTYPE_F32},
             {DTYPE_F16, DTYPE_F16},
             {DTYPE_F16, DTYPE_F32}};

/* The scalar row adds k products of at most 1 one after another in fp32, the device in another
 * order; in 16 bits an activation sees P before the device rounds it and after the host did (two
 * roundings instead of one), and where it is nearly 0 its relative error has no bound. */
static struct agree_tol tolerance(const struct matmul_args *a)
{
    struct agree_tol tol = {.op = "matmul", .rtol = 1e-5f, .why = "sums in another order"};
    tol.atol = 1e-6f * (float)(a->k + 8);
    if (a->c_dtype == DTYPE_F32) return tol;
    tol.rtol = 2e-2f;
    if (a->epilogue != MATMUL_PLAIN) tol.atol += 0.04f;
    return tol;
}

/* ---- one product on both sides ----------------------------------------------------------------
 */

struct pair {
    struct matmul_args args;
    struct agree_buf a, b, bias, c, aux, sums; /* C, aux, sums: row 0's, then the device's */
    struct agree_buf got_c, got_aux, got_sums;
};

static struct agree_buf filled(enum cz_dtype dtype, int64_t numel, size_t offset, uint64_t seed,
                               float range)
{
    struct agree_buf b = agree_buf_make(dtype, (size_t)numel, offset);
    agree_fill(&b, seed, range);
    return b;
}

static void pair_make(struct pair *p, const struct matmul_args *args, bool bias, int64_t pad,
                      size_t offset)
{
    p->args = *args;
    struct matmul_args *a = &p->args;
    if (pad > 0) {
        a->lda = matmul_lda(a) + pad;
        a->ldb = matmul_ldb(a) + pad + 1;
        a->ldc = matmul_ldc(a) + pad + 2;
    }
    const int64_t n_sums = a->m > a->n ? a->m : a->n;
    p->a = filled(a->dtype, (a->trans_a ? a->k : a->m) * matmul_lda(a), offset, 1, 1.0f);
    p->b = filled(a->dtype, (a->trans_b ? a->n : a->k) * matmul_ldb(a), offset / 2, 2, 1.0f);
    p->bias = bias ? filled(a->dtype, a->n, offset, 3, 4.0f) : (struct agree_buf){0};
    for (int device = 0; device < 2; device++) {
        *(device ? &p->got_c : &p->c) = filled(a->c_dtype, a->m * matmul_ldc(a), offset, 4, 4.0f);
        *(device ? &p->got_aux : &p->aux) = filled(a->dtype, a->m * a->n, offset, 5, 3.0f);
        *(device ? &p->got_sums : &p->sums) = filled(a->c_dtype, n_sums, offset, 6, 1.0f);
    }
}

static void pair_free(struct pair *p)
{
    agree_buf_free(&p->a), agree_buf_free(&p->b), agree_buf_free(&p->bias);
    agree_buf_free(&p->c), agree_buf_free(&p->aux), agree_buf_free(&p->sums);
    agree_buf_free(&p->got_c), agree_buf_free(&p->got_aux), agree_buf_free(&p->got_sums);
}

static void run_scalar(struct pair *p, bool keep)
{
    static const struct ops_row scalar = {"scalar", 0};
    struct ops ops = agree_wire(matmul_wire, &scalar);
    ck_ok(activation_wire(&ops, 0));
    ck_ok(elementwise_wire(&ops, 0));
    struct matmul_args a = p->args;
    a.a = p->a.p, a.b = p->b.p, a.bias = p->bias.p, a.c = p->c.p;
    a.aux = keep ? p->aux.p : NULL;
    a.bias_grad = p->sums.p;
    ck_ok(ops_matmul_workspace(&ops, &a, &a.workspace_nbytes));
    struct agree_buf workspace = agree_buf_make(DTYPE_U8, a.workspace_nbytes, 0);
    a.workspace = workspace.p;
    ck_ok(ops_matmul(&ops, NULL, &a));
    agree_buf_free(&workspace);
    matmul_unwire(&ops);
}

/* The workspace is made once: its size does not depend on shapes (nearly: an empty product needs
 * less). */
static struct {
    void *p;
    size_t nbytes;
} space;

static void run_device(const struct cuda_rig *rig, struct pair *p, bool keep)
{
    struct matmul_args a = p->args;
    size_t need;
    ck_ok(ops_matmul_workspace(rig->ops, &a, &need));
    agree_assert(need <= space.nbytes, "%zu bytes of workspace are needed", need);
    struct rig_buf x = rig_put(rig, &p->a), y = rig_put(rig, &p->b), bias = rig_put(rig, &p->bias);
    struct rig_buf c = rig_put(rig, &p->got_c), aux = rig_put(rig, &p->got_aux);
    struct rig_buf sums = rig_put(rig, &p->got_sums);
    a.a = x.p, a.b = y.p, a.bias = bias.p, a.c = c.p;
    a.aux = keep ? aux.p : NULL;
    a.bias_grad = sums.p;
    a.workspace = need ? space.p : NULL;
    a.workspace_nbytes = need;
    ck_ok(ops_matmul(rig->ops, rig->stream, &a));
    rig_get(rig, &c, &p->got_c), rig_get(rig, &aux, &p->got_aux);
    rig_get(rig, &sums, &p->got_sums);
    rig_free(rig, &x), rig_free(rig, &y), rig_free(rig, &bias);
    rig_free(rig, &c), rig_free(rig, &aux), rig_free(rig, &sums);
}

static void compare(const struct cuda_rig *rig, const struct matmul_args *args, bool bias,
                    int64_t pad, size_t offset, bool keep)
{
    struct pair p;
    char what[160];
    pair_make(&p, args, bias, pad, offset);
    run_scalar(&p, keep);
    run_device(rig, &p, keep);
    snprintf(what, sizeof what,
             "%lld×%lld×%lld %s→%s %c%c%s%s epilogue %d (%d), sums %d, pad %lld, offset %zu",
             (long long)args->m, (long long)args->n, (long long)args->k, dtype_name(args->dtype),
             dtype_name(args->c_dtype), "NT"[args->trans_a], "NT"[args->trans_b],
             bias ? ", bias" : "", args->accumulate ? ", accumulate" : "", (int)args->epilogue,
             (int)args->act, (int)args->bias_grad_of, (long long)pad, offset);
    const struct agree_tol tol = tolerance(args);
    agree_check(&p.got_c, &p.c, &tol, "cuda", what); /* between its rows too: not written */
    agree_check(&p.got_aux, &p.aux, &tol, "cuda: aux", what);
    agree_check(&p.got_sums, &p.sums, &tol, "cuda: bias gradient", what);
    pair_free(&p);
}

static void with_space(const struct cuda_rig *rig, void (*claim)(const struct cuda_rig *))
{
    const struct matmul_args any = {
        .m = 8,
        .n = 8,
        .k = 8,
    };
    ck_ok(ops_matmul_workspace(rig->ops, &any, &space.nbytes));
    space.p = rig_dirty(rig, space.nbytes);
    claim(rig);
    rig->dev->ops->mem_free(rig->dev, space.p, space.nbytes);
}

/* ---- claims -----------------------------------------------------------------------------------
 */

static void forms(const struct cuda_rig *rig, struct shape s, size_t kind, size_t offset)
{
    for (int orientation = 0; orientation < 4; orientation++) {
        struct matmul_args args = {.m = s.m,
                                   .n = s.n,
                                   .k = s.k,
                                   .dtype = kinds[kind].dtype,
                                   .c_dtype = kinds[kind].c_dtype,
                                   .trans_a = orientation & 1,
                                   .trans_b = orientation & 2};
        compare(rig, &args, false, 0, offset, false);
        compare(rig, &args, true, 0, offset, false);
        compare(rig, &args, true, 5, offset, false);
        args.accumulate = true;
        compare(rig, &args, false, 0, offset, false);
        compare(rig, &args, false, 3, offset, false);
    }
}

static void all_forms(const struct cuda_rig *rig)
{
    static const struct shape shapes[] = {{1, 1, 1},    {7, 13, 17},  {64, 48, 96},
                                          {1, 264, 64}, {130, 24, 7}, {5, 300, 33},
                                          {0, 3, 4},    {3, 0, 4},    {3, 4, 0}};
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        for (size_t kind = 0; kind < CZ_ARRAY_LEN(kinds); kind++)
            forms(rig, shapes[s], kind, s % 3 == 0 ? 0 : s);
}

static void every_form(const struct cuda_rig *rig)
{
    with_space(rig, all_forms);
}

static void activations_of(const struct cuda_rig *rig, struct matmul_args args, size_t offset)
{
    for (int act = ACT_GELU_TANH; act < ACTIVATIONS; act++) {
        args.act = (enum activation)act;
        args.epilogue = MATMUL_ACT;
        for (int form = 0; form < 4; form++) compare(rig, &args, form & 1, 0, offset, form & 2);
        args.epilogue = MATMUL_ACT_GRAD;
        compare(rig, &args, false, 0, offset, true);
        compare(rig, &args, true, 0, offset, true);
    }
}

static void all_activations(const struct cuda_rig *rig)
{
    static const struct shape shapes[] = {{9, 40, 24}, {6, 13, 5}, {4, 8, 0}, {0, 8, 8}};
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        for (size_t kind = 0; kind < CZ_ARRAY_LEN(kinds); kind++) {
            if (kinds[kind].dtype != kinds[kind].c_dtype) continue;
            struct matmul_args args = {.m = shapes[s].m,
                                       .n = shapes[s].n,
                                       .k = shapes[s].k,
                                       .dtype = kinds[kind].dtype,
                                       .c_dtype = kinds[kind].c_dtype,
                                       .trans_b = s % 2};
            activations_of(rig, args, 0);
            if (s == 0) activations_of(rig, args, 3); /* an aux that cuBLASLt does not take */
        }
}

static void all_bias_gradients(const struct cuda_rig *rig)
{
    static const struct shape shapes[] = {{16, 40, 24}, {5, 13, 100}, {3, 4, 0}, {0, 5, 6}};
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        for (size_t i = 0; i < CZ_ARRAY_LEN(kinds) * 8; i++) {
            const struct matmul_args args = {.m = shapes[s].m,
                                             .n = shapes[s].n,
                                             .k = shapes[s].k,
                                             .dtype = kinds[i / 8].dtype,
                                             .c_dtype = kinds[i / 8].c_dtype,
                                             .trans_a = true,
                                             .accumulate = i & 1,
                                             .bias_grad_accumulate = i & 2,
                                             .bias_grad_of = i & 4 ? MATMUL_BIAS_GRAD_OF_A
                                                                   : MATMUL_BIAS_GRAD_OF_B};
            compare(rig, &args, false, 0, s, false);
        }
}

/* A gradient and its sums, with an activation that comes along: passes of their own. */
static void everything_at_once(const struct cuda_rig *rig)
{
    const struct matmul_args args = {.m = 16,
                                     .n = 24,
                                     .k = 8,
                                     .dtype = DTYPE_BF16,
                                     .c_dtype = DTYPE_BF16,
                                     .epilogue = MATMUL_ACT,
                                     .bias_grad_of = MATMUL_BIAS_GRAD_OF_B};
    compare(rig, &args, true, 0, 0, true);
}

/* C = A·B [+ bias] + residual, which is C itself or another matrix (here aux). */
static void add_residual(const struct cuda_rig *rig, const struct matmul_args *args, bool bias,
                         bool in_place)
{
    struct pair p;
    pair_make(&p, args, bias, 0, 0);
    const struct agree_buf *residual = in_place ? &p.got_c : &p.got_aux;
    for (int64_t i = 0; i < args->m * args->n; i++) {
        double sum = (double)agree_get(residual, (size_t)i);
        if (bias) sum += (double)agree_get(&p.bias, (size_t)(i % args->n));
        for (int64_t l = 0; l < args->k; l++)
            sum += (double)agree_get(&p.a, (size_t)(i / args->n * args->k + l)) *
                   (double)agree_get(&p.b, (size_t)(l * args->n + i % args->n));
        agree_set(&p.c, (size_t)i, (float)sum);
    }
    struct rig_buf x = rig_put(rig, &p.a), y = rig_put(rig, &p.b), b = rig_put(rig, &p.bias);
    struct rig_buf c = rig_put(rig, &p.got_c), r = rig_put(rig, &p.got_aux);
    struct matmul_args a = p.args;
    a.a = x.p, a.b = y.p, a.bias = b.p, a.c = c.p, a.residual = in_place ? c.p : r.p;
    a.workspace = space.p, a.workspace_nbytes = space.nbytes;
    ck_ok(ops_matmul(rig->ops, rig->stream, &a));
    rig_get(rig, &c, &p.got_c), rig_get(rig, &r, &p.got_aux);
    struct agree_tol tol = tolerance(args);
    tol.op = "matmul with a residual";
    if (args->dtype != DTYPE_F32) tol.atol += 0.04f; /* what they add up to may be rounded first */
    agree_check(&p.got_c, &p.c, &tol, "cuda", in_place ? "in place" : "apart");
    agree_check(&p.got_aux, &p.aux, &(struct agree_tol){.op = "residual"}, "cuda", "residual");
    rig_free(rig, &x), rig_free(rig, &y), rig_free(rig, &b), rig_free(rig, &c), rig_free(rig, &r);
    pair_free(&p);
}

static void all_residuals(const struct cuda_rig *rig)
{
    static const struct shape shapes[] = {{33, 40, 24}, {5, 13, 9}, {3, 8, 0}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(shapes) * CZ_ARRAY_LEN(kinds) * 4; i++) {
        const struct shape s = shapes[i / 4 / CZ_ARRAY_LEN(kinds)];
        const enum cz_dtype dtype = kinds[i / 4 % CZ_ARRAY_LEN(kinds)].dtype;
        const struct matmul_args args = {
            .m = s.m, .n = s.n, .k = s.k, .dtype = dtype, .c_dtype = dtype};
        add_residual(rig, &args, i & 1, i & 2);
    }
}

static void all_along(const struct cuda_rig *rig)
{
    all_residuals(rig);
    all_activations(rig);
    all_bias_gradients(rig);
    everything_at_once(rig);
}

static void what_comes_along(const struct cuda_rig *rig)
{
    with_space(rig, all_along);
}

/* What the simulated device recorded. */
struct trace {
    void (*begin)(void);
    void (*end)(void);
    size_t (*count)(void);
    struct sim_trace_entry (*at)(size_t i);
};

static bool trace_find(struct trace *t)
{
    static const char *const names[] = {"sim_trace_begin", "sim_trace_end", "sim_trace_count",
                                        "sim_trace_at"};
    void *symbols[CZ_ARRAY_LEN(names)];
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++)
        if (device_plugin_symbol(names[i], &symbols[i]) != CZ_OK) return false;
    memcpy(t, symbols, sizeof *t);
    return true;
}

/* Fail unless the product is `n` kernels and calls of cuBLASLt. */
static void expect_launches(const struct cuda_rig *rig, const struct matmul_args *args, bool bias,
                            bool keep, size_t n)
{
    struct trace t;
    struct pair p;
    size_t found = 0;
    if (!trace_find(&t)) return;
    pair_make(&p, args, bias, 0, 0);
    t.begin();
    run_device(rig, &p, keep);
    t.end();
    for (size_t i = 0; i < t.count(); i++)
        found += t.at(i).kind == SIM_KERNEL || t.at(i).kind == SIM_LIBRARY;
    agree_assert(found == n, "epilogue %d of %d, sums %d: %zu launches instead of %zu",
                 (int)args->epilogue, (int)args->act, (int)args->bias_grad_of, found, n);
    pair_free(&p);
}

/* What CZERO_CUDA_EPILOGUES leaves to products costs no pass of its own. */
static void count_launches(const struct cuda_rig *rig)
{
    struct matmul_args a = {.m = 16, .n = 24, .k = 8, .dtype = DTYPE_BF16, .c_dtype = DTYPE_BF16};
    expect_launches(rig, &a, false, false, 1);
    expect_launches(rig, &a, true, false, 1);
    a.epilogue = MATMUL_ACT;
    for (int form = 0; form < 4; form++) expect_launches(rig, &a, form & 1, form & 2, 1);
    a.epilogue = MATMUL_ACT_GRAD;
    expect_launches(rig, &a, false, true, 1);
    a.act = ACT_GELU_ERF; /* which cuBLASLt has not */
    expect_launches(rig, &a, false, true, 2);
    a.act = ACT_GELU_TANH;
    a.dtype = a.c_dtype = DTYPE_F32; /* no gain known */
    expect_launches(rig, &a, false, true, 2);
    a.epilogue = MATMUL_PLAIN;
    a.dtype = DTYPE_BF16; /* C in fp32 */
    expect_launches(rig, &a, true, false, 2);
    a.trans_a = true;
    for (int of = MATMUL_BIAS_GRAD_OF_A; of <= MATMUL_BIAS_GRAD_OF_B; of++) {
        a.bias_grad_of = (enum matmul_bias_grad)of;
        a.accumulate = true;
        expect_launches(rig, &a, false, false, 1);
    }
}

static void launches(const struct cuda_rig *rig)
{
    with_space(rig, count_launches);
}

/* fp32 operands keep 10 bits of mantissa when that is allowed, and all of them again when not. */
static void tf32(const struct cuda_rig *rig)
{
    const struct matmul_args args = {.m = 8, .n = 16, .k = 32};
    float errors[3];
    for (int i = 0; i < 3; i++) {
        struct pair p;
        pair_make(&p, &args, false, 0, 0);
        run_scalar(&p, false);
        ops_allow_tf32(rig->ops, i == 1);
        run_device(rig, &p, false);
        errors[i] = 0;
        for (size_t k = 0; k < p.c.numel; k++)
            errors[i] = fmaxf(errors[i], fabsf(agree_get(&p.got_c, k) - agree_get(&p.c, k)));
        pair_free(&p);
    }
    agree_assert(errors[0] < 1e-5f && errors[1] < 2e-2f && errors[2] < 1e-5f,
                 "errors of %g, with TF32 %g, then %g", (double)errors[0], (double)errors[1],
                 (double)errors[2]);
    agree_assert(errors[1] > 1e-5f, "TF32 was allowed and not taken");
}

static void with_tf32(const struct cuda_rig *rig)
{
    with_space(rig, tf32);
}

/* On the simulated device, whose cuBLASLt can be told to support less. */
static void everything(const struct cuda_rig *rig)
{
    static const struct shape shapes[] = {{7, 13, 17}, {33, 48, 16}, {3, 4, 0}};
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        for (size_t kind = 0; kind < CZ_ARRAY_LEN(kinds); kind++) forms(rig, shapes[s], kind, s);
    all_along(rig);
}

/* What was refused is counted: whole products, or only what comes along. A GPU refuses little of
 * these, if anything. */
static void check_counts(const struct cuda_rig *rig, bool all)
{
    const struct ops_products p = ops_products(rig->ops);
    struct device_info info;
    ck_ok(rig->dev->ops->info(rig->dev, &info));
    printf("%s: of %llu products %llu were refused, and of %llu what comes along\n", info.name,
           (unsigned long long)p.n, (unsigned long long)p.n_slow, (unsigned long long)p.n_split);
    if (!strstr(info.name, "Simulated")) return;
    agree_assert(p.n > 0 && p.n_slow == (all ? p.n : 0) && p.n_split > 0, "refusals: %llu, %llu",
                 (unsigned long long)p.n_slow, (unsigned long long)p.n_split);
}

/* One call each for what CZERO_CUDA_EPILOGUES names, two for the rest. */
static void count_chosen(const struct cuda_rig *rig)
{
    const char *chosen = getenv("CZERO_CUDA_EPILOGUES");
    struct matmul_args a = {.m = 16, .n = 24, .k = 8, .dtype = DTYPE_BF16, .c_dtype = DTYPE_BF16};
    const bool all = chosen && strcmp(chosen, "all") == 0;
    const bool none = chosen && strcmp(chosen, "none") == 0, gelu = all || !chosen;
    expect_launches(rig, &a, true, false, none ? 2 : 1);
    a.epilogue = MATMUL_ACT;
    expect_launches(rig, &a, false, true, gelu ? 1 : 2);
    a.epilogue = MATMUL_ACT_GRAD;
    expect_launches(rig, &a, false, true, none ? 2 : 1);
    a.epilogue = MATMUL_PLAIN;
    a.trans_a = true;
    a.bias_grad_of = MATMUL_BIAS_GRAD_OF_B;
    expect_launches(rig, &a, false, false, all ? 1 : 3); /* a pass of two kernels */
}

START_TEST(what_comes_along_is_chosen)
{
    static const char *const choices[] = {NULL, "all", "none", "gelu_grad,bias"};
    struct device *dev;
    struct ops *ops;
    for (size_t i = 0; i < CZ_ARRAY_LEN(choices); i++) {
        if (choices[i])
            setenv("CZERO_CUDA_EPILOGUES", choices[i], 1);
        else
            unsetenv("CZERO_CUDA_EPILOGUES");
        struct cuda_rig rig = cuda_rig_open();
        with_space(&rig, count_chosen);
        with_space(&rig, all_along);
        cuda_rig_close(&rig);
    }
    setenv("CZERO_CUDA_EPILOGUES", "bias,gel", 1);
    ck_ok(device_open("cuda", 0, &dev));
    ck_fails(ops_create(dev, &ops), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "CZERO_CUDA_EPILOGUES=bias,gel: all, none, or"));
    device_close(dev);
    unsetenv("CZERO_CUDA_EPILOGUES");
}
END_TEST

/* ---- algorithms that were measured ----------------------------------------------------------- */

static void some_products(const struct cuda_rig *rig)
{
    static const struct shape shapes[] = {{9, 40, 24}, {64, 48, 32}};
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        for (size_t kind = 0; kind < CZ_ARRAY_LEN(kinds); kind++) forms(rig, shapes[s], kind, 0);
    all_along(rig);
}

static size_t count_lines(const char *path, const char *append)
{
    char line[1024];
    size_t n = 0;
    FILE *f = fopen(path, append ? "a+" : "r");
    ck_assert_ptr_nonnull(f);
    if (append) fputs(append, f), rewind(f);
    while (fgets(line, sizeof line, f)) n++;
    fclose(f);
    return n;
}

static void expect_refused(const char *sentence)
{
    struct device *dev;
    struct ops *ops;
    ck_ok(device_open("cuda", 0, &dev));
    ck_fails(ops_create(dev, &ops), CZ_INVALID);
    ck_assert_msg(strstr(cz_last_error(), sentence), "%s: %s", sentence, cz_last_error());
    device_close(dev);
}

/* A run that measures has right results, and leaves a table; runs that follow it have them too,
 * and write nothing. Tables of something else are refused. */
START_TEST(algorithms_are_measured_and_followed)
{
    char path[128], how[160];
    const char *dir = test_tmp_make();
    (void)snprintf(path, sizeof path, "%s/algorithms", dir);
    (void)snprintf(how, sizeof how, "measure:%s", path);
    size_t n_lines = 0;
    for (int run = 0; run < 2; run++) {
        setenv("CZERO_CUDA_ALGORITHMS", run == 0 ? how : path, 1);
        struct cuda_rig rig = cuda_rig_open();
        with_space(&rig, some_products);
        cuda_rig_close(&rig);
        const size_t n = count_lines(path, NULL);
        if (run == 0) n_lines = n;
        ck_assert_uint_gt(n, 2 + CZ_ARRAY_LEN(kinds));
        ck_assert_uint_eq(n, n_lines);
    }
    (void)count_lines(path, "1 2 3\n");
    expect_refused("is not one of a table of algorithms");
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs("czero's algorithms of products, version 1, cuBLASLt 1, another GPU\n", f);
    fclose(f);
    expect_refused("was measured for something else than this, czero's algorithms of products");
    setenv("CZERO_CUDA_ALGORITHMS", "/nonexistent/table", 1);
    expect_refused("CZERO_CUDA_ALGORITHMS=/nonexistent/table: cannot be opened");
    unsetenv("CZERO_CUDA_ALGORITHMS");
    test_tmp_remove(dir);
}
END_TEST

#define REFUSING(name, support)                                                                    \
    START_TEST(name)                                                                               \
    {                                                                                              \
        ck_assert_int_eq(setenv("CZERO_CUDA_SIM_CUBLASLT", support, 1), 0);                        \
        struct cuda_rig rig = cuda_rig_open();                                                     \
        with_space(&rig, everything);                                                              \
        check_counts(&rig, strcmp(support, "none") == 0);                                          \
        cuda_rig_close(&rig);                                                                      \
    }                                                                                              \
    END_TEST
REFUSING(products_without_epilogues_agree, "plain")
REFUSING(late_refusals_agree, "late")
REFUSING(our_own_product_agrees, "none")

/* The same bytes from tensors that are elsewhere, as long as 16 bytes stay together. */
static void repeat(const struct cuda_rig *rig)
{
    for (size_t kind = 0; kind < CZ_ARRAY_LEN(kinds); kind++) {
        const struct matmul_args args = {.m = 65,
                                         .n = 56,
                                         .k = 130,
                                         .dtype = kinds[kind].dtype,
                                         .c_dtype = kinds[kind].c_dtype,
                                         .trans_a = true};
        struct pair first;
        pair_make(&first, &args, true, 0, 0);
        run_device(rig, &first, false);
        for (size_t i = 0; i < 3; i++) {
            struct pair again;
            pair_make(&again, &args, true, 0, i * 16);
            run_device(rig, &again, false);
            agree_same(&again.got_c, &first.got_c, "C");
            pair_free(&again);
        }
        pair_free(&first);
    }
}

/* A weight, or a weight's gradient and its sums, at an odd address; products are alone with it. */
static void run_odd(const struct cuda_rig *rig, const struct matmul_args *args, size_t offset,
                    struct pair *p)
{
    const bool bias = args->bias_grad_of == MATMUL_NO_BIAS_GRAD && !args->accumulate;
    pair_make(p, args, bias, 0, offset);
    agree_buf_free(&p->a), agree_buf_free(&p->got_aux);
    p->a = filled(args->dtype, args->m * args->k, 0, 1, 1.0f);
    p->got_aux = filled(args->dtype, args->m * args->n, 0, 5, 3.0f);
    run_device(rig, p, false);
    agree_guards(&p->got_c, "C"), agree_guards(&p->got_sums, "bias gradient");
}

/* How many of some products have other bits where their operands are at odd addresses. */
static size_t count_odd(const struct cuda_rig *rig)
{
    size_t n_other = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(kinds) * 4; i++) {
        struct matmul_args args = {.m = 24, .n = 40, .k = 64};
        args.dtype = kinds[i / 4].dtype, args.c_dtype = kinds[i / 4].c_dtype;
        args.trans_a = args.accumulate = i & 1;
        if (i % 4 == 3) args.bias_grad_of = MATMUL_BIAS_GRAD_OF_A;
        if (i % 4 == 2) args.trans_b = true;
        struct pair first, other;
        run_odd(rig, &args, 0, &first);
        for (size_t offset = 1; offset < 16; offset += 2) {
            run_odd(rig, &args, offset, &other);
            n_other += memcmp(other.got_c.p, first.got_c.p, first.got_c.nbytes) != 0 ||
                       memcmp(other.got_sums.p, first.got_sums.p, first.got_sums.nbytes) != 0;
            pair_free(&other);
        }
        pair_free(&first);
    }
    return n_other;
}

static void odd_addresses(const struct cuda_rig *rig)
{
    struct device_info info;
    void *memory = rig_dirty(rig, 1 << 16);
    ck_ok(rig->dev->ops->info(rig->dev, &info));
    ops_lend_aligned(rig->ops, memory, 1 << 16);
    ck_assert_uint_eq(count_odd(rig), 0);
    ops_lend_aligned(rig->ops, memory, 64); /* too little: as they are */
    const size_t n = count_odd(rig);
    if (strstr(info.name, "Simulated")) ck_assert_uint_gt(n, 50);
    ops_lend_aligned(rig->ops, NULL, 0);
    rig_free_bytes(rig, memory, 1 << 16);
}

START_TEST(odd_addresses_change_no_bit)
{
    ck_assert_int_eq(setenv("CZERO_CUDA_SIM_CUBLASLT", "keyed", 1), 0);
    setenv("CZERO_CUDA_EPILOGUES", "all", 1);
    struct cuda_rig rig = cuda_rig_open();
    with_space(&rig, odd_addresses);
    cuda_rig_close(&rig);
    unsetenv("CZERO_CUDA_EPILOGUES");
}
END_TEST

static void calls_repeat(const struct cuda_rig *rig)
{
    with_space(rig, repeat);
}

/* More shapes than there are plans: old ones give way, and are made again. */
static void many_shapes(const struct cuda_rig *rig)
{
    for (int round = 0; round < 2; round++)
        for (int64_t m = 1; m <= 1100; m += round ? 37 : 1)
            compare(rig,
                    &(struct matmul_args){
                        .m = m, .n = 2, .k = 3, .dtype = DTYPE_F32, .c_dtype = DTYPE_F32},
                    false, 0, 0, false);
}

static void shapes_come_and_go(const struct cuda_rig *rig)
{
    with_space(rig, many_shapes);
}

static void nan_and_infinity(const struct cuda_rig *rig)
{
    for (size_t kind = 0; kind < CZ_ARRAY_LEN(kinds); kind++) {
        const struct matmul_args args = {
            .m = 3, .n = 24, .k = 5, .dtype = kinds[kind].dtype, .c_dtype = kinds[kind].c_dtype};
        struct pair p;
        pair_make(&p, &args, false, 0, 0);
        agree_set(&p.a, 0 * 5 + 2, NAN);
        agree_set(&p.a, 1 * 5 + 2, INFINITY);
        run_device(rig, &p, false);
        for (size_t j = 0; j < 24; j++) {
            agree_assert(isnan(agree_get(&p.got_c, j)), "column %zu", j);
            agree_assert(!isfinite(agree_get(&p.got_c, 24 + j)), "column %zu", j);
            agree_assert(isfinite(agree_get(&p.got_c, 48 + j)), "column %zu", j);
        }
        pair_free(&p);
    }
}

static void special_values(const struct cuda_rig *rig)
{
    with_space(rig, nan_and_infinity);
}

/* Nothing is queued by a call that is refused: these pointers are no memory. */
static void refuse_all(const struct cuda_rig *rig)
{
    char *p = (char *)(uintptr_t)0x1000;
    const struct matmul_args good = {.m = 2,
                                     .n = 2,
                                     .k = 2,
                                     .a = p,
                                     .b = p + 64,
                                     .c = p + 128,
                                     .workspace = p + 256,
                                     .workspace_nbytes = 64}; /* too small */
    struct matmul_args bad = good;
    ck_fails(ops_matmul(rig->ops, rig->stream, &bad), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "workspace"));
    bad = good, bad.m = -1;
    ck_fails(ops_matmul(rig->ops, rig->stream, &bad), CZ_INVALID);
    bad = good, bad.bias = p, bad.accumulate = true;
    ck_fails(ops_matmul(rig->ops, rig->stream, &bad), CZ_INVALID);
    bad = good, bad.residual = p, bad.accumulate = true;
    ck_fails(ops_matmul(rig->ops, rig->stream, &bad), CZ_INVALID);
    bad = good, bad.a = NULL;
    ck_fails(ops_matmul(rig->ops, rig->stream, &bad), CZ_INVALID);
    bad = good, bad.epilogue = MATMUL_ACT_GRAD;
    ck_fails(ops_matmul(rig->ops, rig->stream, &bad), CZ_INVALID);
    bad = good, bad.dtype = DTYPE_I32;
    ck_fails(ops_matmul(rig->ops, rig->stream, &bad), CZ_INVALID);
    rig_wait(rig);
}

CUDA_ORDERS(every_form_agrees, every_form(&rig))
CUDA_ORDERS(what_comes_along_agrees, what_comes_along(&rig))
START_TEST(what_can_come_along_is_one_call)
{
    setenv("CZERO_CUDA_EPILOGUES", "all", 1);
    struct cuda_rig rig = cuda_rig_open();
    launches(&rig);
    cuda_rig_close(&rig);
    unsetenv("CZERO_CUDA_EPILOGUES");
}
END_TEST
CUDA_ORDER(tf32_is_taken_when_allowed, forward, "forward", with_tf32(&rig))
CUDA_ORDER(calls_repeat_to_the_bit, reverse, "reverse", calls_repeat(&rig))
CUDA_ORDER(many_shapes_come_and_go, forward, "forward", shapes_come_and_go(&rig))
CUDA_ORDER(nan_and_infinity_reach_their_rows, random, "random:2", special_values(&rig))
CUDA_ORDER(bad_arguments_are_refused, forward, "forward", refuse_all(&rig))

TEST_MAIN("cuda matmul", CUDA_ORDERED(every_form_agrees), CUDA_ORDERED(what_comes_along_agrees),
          products_without_epilogues_agree, late_refusals_agree, our_own_product_agrees,
          what_can_come_along_is_one_call, what_comes_along_is_chosen,
          algorithms_are_measured_and_followed, tf32_is_taken_when_allowed_forward,
          calls_repeat_to_the_bit_reverse, odd_addresses_change_no_bit,
          many_shapes_come_and_go_forward, nan_and_infinity_reach_their_rows_random,
          bad_arguments_are_refused_forward)
