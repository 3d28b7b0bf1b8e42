/* How fast a GPU is, where there is one: the link to the host, its own memory, matrix products. */
#include "base/log.h"
#include "engine/machine/machine_impl.h"
#include "ops/matmul/matmul.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define SHARE          0.02 /* of the time, per figure */
#define LINK_NBYTES    ((size_t)256 << 20)
#define COPY_NBYTES    ((size_t)1 << 30) /* several times any cache */
#define GEMM_N         8192
#define DIRECTIONS     2
#define MEMORY_DIVISOR 64 /* of the memory that is free, at most that part per array */

struct gpu {
    struct device *dev;
    struct ops *ops;
    struct dev_stream *stream;
    size_t nbytes; /* of both arrays */
    void *arrays[2];
    struct host_memory pinned;
    size_t pinned_nbytes;
    struct matmul_args matmul;
    void *c, *workspace;
};

/* A GPU's calls return before the work is done. */
static cz_status wait_for(struct gpu *g)
{
    return g->dev->ops->stream_sync(g->dev, g->stream);
}

static cz_status to_device(void *user)
{
    struct gpu *g = user;
    TRY(g->dev->ops->copy(g->dev, g->stream, g->arrays[0], g->pinned.base, g->pinned_nbytes));
    return wait_for(g);
}

static cz_status to_host(void *user)
{
    struct gpu *g = user;
    TRY(g->dev->ops->copy(g->dev, g->stream, g->pinned.base, g->arrays[0], g->pinned_nbytes));
    return wait_for(g);
}

static cz_status inside(void *user)
{
    struct gpu *g = user;
    TRY(g->dev->ops->copy(g->dev, g->stream, g->arrays[1], g->arrays[0], g->nbytes));
    return wait_for(g);
}

static cz_status product(void *user)
{
    struct gpu *g = user;
    TRY(ops_matmul(g->ops, g->stream, &g->matmul));
    return wait_for(g);
}

/* Without page-locked memory copies are half as fast: the profile says which it was by the log. */
static cz_status link_rates(const struct machine_run *run, struct gpu *g)
{
    struct machine_profile *p = run->out;
    struct machine_line lines[DIRECTIONS] = {{.step = to_device}, {.step = to_host}};
    g->pinned_nbytes = g->nbytes < LINK_NBYTES ? g->nbytes : LINK_NBYTES;
    TRY(host_memory_map(run->affinity, "memory to copy from", g->pinned_nbytes, &g->pinned));
    host_memory_touch(g->pinned.base, g->pinned_nbytes, 0);
    cz_status st = g->dev->ops->host_register(g->dev, g->pinned.base, g->pinned_nbytes);
    if (st != CZ_OK) {
        LOGV(LOG_WARN, SUB_OPS, "the link is measured with memory that is not page-locked: %s",
             cz_last_error());
        err_clear();
    }
    const bool is_registered = st == CZ_OK;
    st = machine_time(run, 2 * SHARE * run->seconds, lines, DIRECTIONS, g);
    if (is_registered) g->dev->ops->host_unregister(g->dev, g->pinned.base, g->pinned_nbytes);
    TRY(st);
    p->host_to_device = (double)g->pinned_nbytes / lines[0].seconds;
    p->device_to_host = (double)g->pinned_nbytes / lines[1].seconds;
    return CZ_OK;
}

/* Bytes read and bytes written. */
static cz_status copy_rate(const struct machine_run *run, struct gpu *g)
{
    struct machine_line line = {.step = inside};
    TRY(machine_time(run, SHARE * run->seconds, &line, 1, g));
    run->out->device_copy = 2.0 * (double)g->nbytes / line.seconds;
    return CZ_OK;
}

/* Numbers as weights and activations have them, the same few megabytes again and again. */
static cz_status fill(struct gpu *g, void *array, size_t nbytes, enum cz_dtype dtype)
{
    const size_t chunk = g->pinned_nbytes, numel = chunk / dtype_size(dtype);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < numel; i++)
        dtype_put(g->pinned.base, i, dtype,
                  (float)((i * 2654435761u >> 8) & 0xffff) * 0x1p-17f - 0.25f);
    for (size_t done = 0; done < nbytes; done += chunk)
        TRY(g->dev->ops->copy(g->dev, g->stream, (char *)array + done, g->pinned.base,
                              nbytes - done < chunk ? nbytes - done : chunk));
    return wait_for(g);
}

/* The largest products of which three matrices fit. */
static cz_status gemm_rate(const struct machine_run *run, struct gpu *g, enum cz_dtype dtype,
                           double *rate)
{
    struct matmul_args *a = &g->matmul;
    struct machine_line line = {.step = product};
    size_t n = GEMM_N;
    while (n > 64 && n * n * dtype_size(dtype) > g->nbytes) n /= 2;
    const size_t nbytes = n * n * dtype_size(dtype);
    *a = (struct matmul_args){.m = (int64_t)n,
                              .n = (int64_t)n,
                              .k = (int64_t)n,
                              .dtype = dtype,
                              .c_dtype = dtype,
                              .a = g->arrays[0],
                              .b = g->arrays[1]};
    TRY(fill(g, g->arrays[0], nbytes, dtype));
    TRY(fill(g, g->arrays[1], nbytes, dtype));
    TRY(ops_matmul_workspace(g->ops, a, &a->workspace_nbytes));
    cz_status st = g->dev->ops->mem_alloc(g->dev, nbytes, "a product", &a->c);
    if (st == CZ_OK)
        st = g->dev->ops->mem_alloc(g->dev, a->workspace_nbytes, "workspace", &a->workspace);
    if (st == CZ_OK) st = machine_time(run, SHARE * run->seconds, &line, 1, g);
    g->dev->ops->mem_free(g->dev, a->c, nbytes);
    g->dev->ops->mem_free(g->dev, a->workspace, a->workspace_nbytes);
    TRY(st);
    *rate = 2.0 * (double)n * (double)n * (double)n / line.seconds;
    return CZ_OK;
}

/* Memory that is in use now is not taken: others may run on this GPU. */
static cz_status gpu_open(struct gpu *g, struct machine_profile *p)
{
    struct device_info info;
    size_t free_nbytes, total_nbytes;
    TRY(g->dev->ops->info(g->dev, &info));
    TRY(g->dev->ops->mem_info(g->dev, &free_nbytes, &total_nbytes));
    TRY(ops_create(g->dev, &g->ops));
    TRY(g->dev->ops->stream_create(g->dev, &g->stream));
    snprintf(p->device, sizeof p->device, "%.63s", info.name);
    p->device_nbytes = total_nbytes;
    g->nbytes = free_nbytes / MEMORY_DIVISOR / 4096 * 4096;
    if (g->nbytes > COPY_NBYTES) g->nbytes = COPY_NBYTES;
    for (int i = 0; i < 2; i++)
        TRY(g->dev->ops->mem_alloc(g->dev, g->nbytes, "an array to measure", &g->arrays[i]));
    return CZ_OK;
}

static void gpu_close(struct gpu *g)
{
    for (int i = 0; i < 2; i++) g->dev->ops->mem_free(g->dev, g->arrays[i], g->nbytes);
    if (g->pinned.base) host_memory_unmap(&g->pinned);
    g->dev->ops->stream_destroy(g->dev, g->stream);
    ops_destroy(g->ops);
    device_close(g->dev);
}

/* Parts in the order of their need: link and copies, then products. */
static cz_status measure(const struct machine_run *run, struct gpu *g)
{
    struct machine_profile *p = run->out;
    TRY(gpu_open(g, p));
    TRY(machine_next(run, "the GPU (%s)", p->device));
    TRY(link_rates(run, g));
    TRY(copy_rate(run, g));
    TRY(gemm_rate(run, g, DTYPE_F32, &p->device_gemm_f32));
    TRY(gemm_rate(run, g, DTYPE_BF16, &p->device_gemm_bf16));
    return gemm_rate(run, g, DTYPE_F16, &p->device_gemm_f16);
}

/* No GPU is no error: its figures stay 0, which means "not measured". */
cz_status machine_measure_device(const struct machine_run *run)
{
    struct gpu g = {0};
    if (device_open("cuda", 0, &g.dev) != CZ_OK) {
        LOGV(LOG_INFO, SUB_OPS, "no GPU is measured: %s", cz_last_error());
        err_clear();
        return CZ_OK;
    }
    cz_status st = measure(run, &g);
    gpu_close(&g);
    return st;
}
