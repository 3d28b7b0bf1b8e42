/* Choosing rows: the one place where a device's table of kernels is put together. */
#include "ops/ops_impl.h"
#include "ops/table_impl.h"

#include "base/cpu.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* What fills the table for the host; `unwire` may be NULL and must accept a table that was never
 * wired. One line per op folder. */
static const struct {
    cz_status (*wire)(struct ops *ops, uint32_t features);
    void (*unwire)(struct ops *ops);
} host_folders[] = {
    /* clang-format off: one line each */
    {activation_wire, NULL}, {attention_wire, NULL}, {cross_entropy_wire, NULL},
    {dora_wire, NULL},       {dropout_wire, NULL},   {elementwise_wire, NULL},
    {embedding_wire, NULL},  {lamb_wire, NULL},      {matmul_wire, matmul_unwire},
    {norm_wire, NULL},       {onebit_wire, NULL},    {reduce_wire, NULL},
    {rope_wire, NULL},       {router_wire, NULL},    {step_wire, NULL},
    /* clang-format on */
};

#define PLUGIN_WIRE "czero_ops_wire" /* ops_wire_cuda() of the CUDA plug-in (ops/cuda_impl.h) */

size_t ops_row_pick(const void *rows, size_t n, uint32_t features)
{
    const struct ops_row *const *heads = rows;
    size_t pick = 0;
    for (size_t i = 1; i < n; i++)
        if (ops_row_runs(heads[i], features)) pick = i;
    return pick;
}

int ops_n_parts(size_t numel, size_t grain)
{
    size_t useful = numel / grain;
    size_t n_threads = (size_t)threads_count();
    if (useful < 1) return 1;
    return (int)(useful < n_threads ? useful : n_threads);
}

/* At most OPS_PART_UNIT columns, block after block. */
static void combine_columns(const float *partial, int64_t n_blocks, int64_t stride,
                            enum cz_dtype grad_dtype, bool accumulate, void *db, size_t begin,
                            size_t end)
{
    float sums[OPS_PART_UNIT] = {0};
    for (int64_t block = 0; block < n_blocks; block++)
        for (size_t c = begin; c < end; c++)
            sums[c - begin] += partial[(size_t)(block * stride) + c];
    for (size_t c = begin; c < end; c++) {
        float sum = sums[c - begin];
        dtype_put(db, c, grad_dtype, accumulate ? dtype_get(db, c, grad_dtype) + sum : sum);
    }
}

void ops_combine_blocks(const float *partial, int64_t n_blocks, int64_t stride, int64_t C,
                        enum cz_dtype grad_dtype, bool accumulate, void *db)
{
    const int64_t n_cuts = (C + (int64_t)OPS_PART_UNIT - 1) / (int64_t)OPS_PART_UNIT;
    int n_parts = ops_n_parts((size_t)(C * n_blocks), OPS_GRAIN);
#pragma omp parallel for schedule(static) if (n_parts > 1)
    for (int64_t cut = 0; cut < n_cuts; cut++) {
        size_t begin = (size_t)cut * OPS_PART_UNIT, end = begin + OPS_PART_UNIT;
        combine_columns(partial, n_blocks, stride, grad_dtype, accumulate, db, begin,
                        end < (size_t)C ? end : (size_t)C);
    }
}

/* ---- what a device has ----------------------------------------------------------------------- */

cz_status ops_missing(const struct ops *ops, const char *name)
{
    return err_set(CZ_UNSUPPORTED, 0, "%s has no kernel for %s",
                   ops->cuda ? "the CUDA plug-in" : "the CPU device", name);
}

cz_status ops_require(const struct ops *ops, const char *name)
{
#define ANSWER(slot, args)                                                                         \
    if (strcmp(name, #slot) == 0) return ops->slot ? CZ_OK : ops_missing(ops, name);
    OPS_SLOTS(ANSWER)
#undef ANSWER
    return err_set(CZ_INVALID, 0, "no op is called %s", name);
}

/* ops_<op>() of every slot; the ops' headers declare them. */
#define CALL(slot, args)                                                                           \
    cz_status ops_##slot(struct ops *ops, struct dev_stream *stream, const struct args *a);        \
    cz_status ops_##slot(struct ops *ops, struct dev_stream *stream, const struct args *a)         \
    {                                                                                              \
        return ops->slot ? ops->slot(ops, stream, a) : ops_missing(ops, #slot);                    \
    }
OPS_SLOTS(CALL)
#undef CALL

struct device *ops_device(const struct ops *ops)
{
    return ops->device;
}

const char *ops_isa(const struct ops *ops)
{
    return ops->isa;
}

struct ops_products ops_products(const struct ops *ops)
{
    return ops->products;
}

void ops_allow_tf32(struct ops *ops, bool allow)
{
    ops->allow_tf32 = allow;
}

void ops_lend_aligned(struct ops *ops, void *memory, size_t nbytes)
{
    ops->aligned = memory;
    ops->aligned_nbytes = nbytes;
}

bool ops_adds_residual(const struct ops *ops)
{
    return ops->adds_residual;
}

/* ---- life ------------------------------------------------------------------------------------ */

static cz_status wire_host(struct ops *ops)
{
    TRY(cpu_isa_check());
    ops->isa = cpu_isa_name();
    for (size_t i = 0; i < CZ_ARRAY_LEN(host_folders); i++)
        TRY(host_folders[i].wire(ops, cpu_features()));
    LOGV(LOG_INFO, SUB_OPS, "%s, %d thread%s, %s kernels", cpu_model_name(), threads_count(),
         threads_count() == 1 ? "" : "s", ops->isa);
    return CZ_OK;
}

static cz_status wire_plugin(struct ops *ops)
{
    union { /* an object pointer from dlsym, read as the function it is */
        void *object;
        cz_status (*function)(struct ops *, size_t);
    } wire;
    TRY(device_plugin_symbol(PLUGIN_WIRE, &wire.object));
    ops->isa = "cuda";
    TRY(wire.function(ops, sizeof *ops));
    return CZ_OK;
}

cz_status ops_create(struct device *device, struct ops **out)
{
    *out = NULL;
    if (!device) return err_set(CZ_INVALID, 0, "ops_create: no device given");
    struct ops *ops = calloc(1, sizeof *ops);
    if (!ops) return err_set(CZ_NOMEM, 0, "ops_create: out of memory");
    ops->device = device;
    cz_status st = device->ops->kind == DEVICE_HOST ? wire_host(ops) : wire_plugin(ops);
    if (st != CZ_OK) {
        ops_destroy(ops);
        return err_trace(st, __func__, __LINE__);
    }
    *out = ops;
    return CZ_OK;
}

void ops_destroy(struct ops *ops)
{
    if (!ops) return;
    if (ops->cuda_unwire) ops->cuda_unwire(ops);
    for (size_t i = 0; i < CZ_ARRAY_LEN(host_folders); i++)
        if (host_folders[i].unwire) host_folders[i].unwire(ops);
    free(ops);
}
