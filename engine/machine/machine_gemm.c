/* How fast large matrix products are, by dtype. The plan divides a pass's operations by this rate,
 * so the measurement takes the size at which the rate stops growing, on data that costs what real
 * data costs. */
#include "engine/machine/machine_impl.h"
#include "ops/matmul/matmul.h"

#include <math.h>
#include <string.h>

#define SHARE   0.05 /* of the time, per dtype */
#define N_FIRST 256
#define N_LAST  4096

struct gemm {
    struct ops *ops;
    struct matmul_args args;
    size_t matrix_nbytes;
    void *matrices[3]; /* a, b, c */
};

static cz_status product(void *user)
{
    struct gemm *g = user;
    return ops_matmul(g->ops, NULL, &g->args);
}

/* Numbers as weights and activations have them: neither zeros nor denormals. */
static void fill(void *matrix, size_t numel, enum cz_dtype dtype)
{
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < numel; i++)
        dtype_put(matrix, i, dtype, (float)((i * 2654435761u >> 8) & 0xffff) * 0x1p-17f - 0.25f);
}

static void gemm_free(struct gemm *g)
{
    struct device *dev = ops_device(g->ops);
    for (int i = 0; i < 3; i++) dev->ops->mem_free(dev, g->matrices[i], g->matrix_nbytes);
    dev->ops->mem_free(dev, g->args.workspace, g->args.workspace_nbytes);
}

/* The workspace is the kernel's own wish for this shape. */
static cz_status gemm_init(struct gemm *g, enum cz_dtype dtype, size_t n)
{
    struct device *dev = ops_device(g->ops);
    struct matmul_args *a = &g->args;
    *a = (struct matmul_args){
        .m = (int64_t)n, .n = (int64_t)n, .k = (int64_t)n, .dtype = dtype, .c_dtype = dtype};
    g->matrix_nbytes = n * n * dtype_size(dtype);
    for (int i = 0; i < 3; i++)
        TRY(dev->ops->mem_alloc(dev, g->matrix_nbytes, "a matrix", &g->matrices[i]));
    a->a = g->matrices[0], a->b = g->matrices[1], a->c = g->matrices[2];
    for (int i = 0; i < 2; i++) fill(g->matrices[i], n * n, dtype);
    TRY(ops_matmul_workspace(g->ops, a, &a->workspace_nbytes));
    return dev->ops->mem_alloc(dev, a->workspace_nbytes, "workspace", &a->workspace);
}

/* Ever larger products while there is time for the next: large ones are faster, up to a point. */
static cz_status measure(const struct machine_run *run, enum cz_dtype dtype, double *rate)
{
    const int64_t start = clock_now_ns();
    const double share = SHARE * run->seconds;
    size_t room;
    TRY(machine_memory(run, &room));
    for (size_t n = N_FIRST; n <= N_LAST && 4 * n * n * sizeof(float) <= room; n *= 2) {
        struct gemm g = {.ops = run->ops};
        struct machine_line line = {.step = product};
        cz_status st = gemm_init(&g, dtype, n);
        if (st == CZ_OK) st = machine_time(run, share / 5, &line, 1, &g);
        gemm_free(&g);
        if (st != CZ_OK) return st;
        *rate = fmax(*rate, 2.0 * (double)(n * n * n) / line.seconds);
        if (machine_since(start) + 4 * 8 * line.seconds > share) break;
    }
    return CZ_OK;
}

/* bf16 and fp16 may be native or emulated: only measuring tells. */
cz_status machine_measure_gemm(const struct machine_run *run)
{
    struct machine_profile *p = run->out;
    TRY(machine_next(run, "matrix products in fp32, bf16 and fp16"));
    TRY(measure(run, DTYPE_F32, &p->gemm_f32));
    TRY(measure(run, DTYPE_BF16, &p->gemm_bf16));
    return measure(run, DTYPE_F16, &p->gemm_f16);
}
