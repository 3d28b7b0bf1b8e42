/* The CUDA plug-in's table of kernels. */
#include "ops/cuda_impl.h"
#include "ops/table_impl.h"

#include <stdlib.h>
#include <string.h>

/* Each op folder's part, in <op>_cuda.cu. Declared here and not in a header, so that a folder more
 * does not compile all of them again. */
cz_status activation_wire_cuda(struct ops *ops);
cz_status attention_wire_cuda(struct ops *ops);
cz_status cross_entropy_head_wire_cuda(struct ops *ops);
cz_status cross_entropy_wire_cuda(struct ops *ops);
cz_status dora_wire_cuda(struct ops *ops);
cz_status dropout_wire_cuda(struct ops *ops);
cz_status elementwise_wire_cuda(struct ops *ops);
cz_status embedding_wire_cuda(struct ops *ops);
cz_status lamb_wire_cuda(struct ops *ops);
cz_status matmul_wire_cuda(struct ops *ops);
void matmul_unwire_cuda(struct ops *ops);
cz_status norm_wire_cuda(struct ops *ops);
cz_status onebit_wire_cuda(struct ops *ops);
cz_status reduce_wire_cuda(struct ops *ops);
cz_status rope_wire_cuda(struct ops *ops);
cz_status router_wire_cuda(struct ops *ops);
cz_status step_wire_cuda(struct ops *ops);

/* One line per op folder. */
static const struct {
    cz_status (*wire)(struct ops *ops);
    void (*unwire)(struct ops *ops);
} folders[] = {
    {activation_wire_cuda, NULL},
    {attention_wire_cuda, NULL},
    {cross_entropy_head_wire_cuda, NULL},
    {cross_entropy_wire_cuda, NULL},
    {dora_wire_cuda, NULL},
    {dropout_wire_cuda, NULL},
    {elementwise_wire_cuda, NULL},
    {embedding_wire_cuda, NULL},
    {lamb_wire_cuda, NULL},
    {matmul_wire_cuda, matmul_unwire_cuda},
    {norm_wire_cuda, NULL},
    {onebit_wire_cuda, NULL},
    {reduce_wire_cuda, NULL},
    {rope_wire_cuda, NULL},
    {router_wire_cuda, NULL},
    {step_wire_cuda, NULL},
};

cz_status cuda_scratch(struct ops *ops, const struct dev_stream *stream, void **out)
{
    struct cuda_ops *c = ops->cuda;
    *out = c->scratch;
    TRY(cuda_use_device(ops->device));
    if (c->scratch_used && c->scratch_stream != stream)
        CUDA_TRY(cudaDeviceSynchronize(), "waiting for another stream's scratch");
    c->scratch_stream = stream;
    c->scratch_used = true;
    return CZ_OK;
}

static void unwire(struct ops *ops)
{
    if (!ops->cuda) return;
    for (size_t i = 0; i < CZ_ARRAY_LEN(folders); i++)
        if (folders[i].unwire) folders[i].unwire(ops);
    cuda_results_close(ops);
    ops->device->ops->mem_free(ops->device, ops->cuda->scratch, CUDA_SCRATCH_NBYTES);
    free(ops->cuda);
    ops->cuda = NULL;
}

static cz_status make(struct ops *ops)
{
    struct device *dev = ops->device;
    const char *tf32 = getenv("CZERO_TF32");
    ops->allow_tf32 = tf32 && strcmp(tf32, "1") == 0;
    TRY(cuda_use_device(dev)); /* cuBLASLt's handle is made for what is selected */
    TRY(dev->ops->info(dev, &ops->cuda->info));
    TRY(dev->ops->mem_alloc(dev, CUDA_SCRATCH_NBYTES, "scratch of reductions",
                            &ops->cuda->scratch));
    TRY(cuda_results_open(ops));
    for (size_t i = 0; i < CZ_ARRAY_LEN(folders); i++) TRY(folders[i].wire(ops));
    LOGV(LOG_INFO, SUB_OPS, "%s, compute capability %d.%d, %d multiprocessors, CUDA kernels",
         ops->cuda->info.name, ops->cuda->info.capability_major, ops->cuda->info.capability_minor,
         ops->cuda->info.n_multiprocessors);
    return CZ_OK;
}

cz_status czero_ops_wire(struct ops *ops, size_t ops_nbytes)
{
    if (ops_nbytes != sizeof *ops)
        return err_set(CZ_UNSUPPORTED, 0,
                       "device cuda: the plug-in's kernels belong to another version of czero");
    ops->cuda = calloc(1, sizeof *ops->cuda);
    if (!ops->cuda) return err_set(CZ_NOMEM, 0, "ops_create: out of memory");
    ops->cuda_unwire = unwire; /* ops_destroy() calls it, also after a failure below */
    return make(ops);
}
