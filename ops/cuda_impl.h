/* Inside the CUDA plug-in: what the op folders' CUDA twins (<op>_cuda.cu) share.
 *
 * A twin's <op>_wire_cuda(), listed in ops/cuda/ops_cuda.c, fills the slots of the host's
 * <op>_wire() that it has kernels for: it checks its arguments at the entry point with the host's
 * own checks, and starts kernels on the stream. Pointers in the arguments are the device's memory
 * unless an op's header says host; what a check cannot read without waiting (ids, labels: the
 * engine's batch_check has looked at them) a kernel guards against instead: it touches nothing
 * outside its tensors. */
#ifndef CZ_OPS_CUDA_IMPL_H
#define CZ_OPS_CUDA_IMPL_H

#include "device/cuda/runtime.h"
#include "ops/ops_impl.h"
#include "ops/table_impl.h"

CZ_EXTERN_C_BEGIN

#define CUDA_SCRATCH_NBYTES ((size_t)4 << 20)

/* What a table of CUDA kernels keeps from ops_create() to ops_destroy(). */
struct cuda_ops {
    struct device_info info;
    void *scratch; /* CUDA_SCRATCH_NBYTES of device memory: cuda_scratch() */
    const struct dev_stream *scratch_stream; /* whose work may be in there */
    bool scratch_used;
    struct cuda_results *results; /* on their way to the host (below) */
    void *matmul;                 /* handle and heuristics of ops/matmul/matmul_cuda.cu */
};

/* The symbol czero_ops_wire: fill the slots that there are kernels for. ops_nbytes: sizeof(struct
 * ops) of the caller. Errors: CZ_UNSUPPORTED (another version), CZ_NOMEM, CZ_CUDA. */
CZ_API cz_status czero_ops_wire(struct ops *ops, size_t ops_nbytes);

/* The scratch, for partial results of one call on that stream: what was queued before is through
 * with it. A caller that changes the stream must wait for the device: use one stream. */
cz_status cuda_scratch(struct ops *ops, const struct dev_stream *stream, void **out);

/* ---- small values for the host -----------------------------------------------------------------
 *
 * A kernel leaves a few numbers in a slot of device memory; they are copied to the slot's
 * page-locked twin, and the stream hands them over as soon as it gets there: nothing waits, and
 * the caller of the op finds them after stream_sync. As many slots may be under way as there are;
 * then the next call waits for all of them. */

#define CUDA_RESULT_NBYTES 256
#define CUDA_RESULTS       256

struct cuda_result {
    void *device; /* CUDA_RESULT_NBYTES of device memory, zeroed in stream order */
    void *host;   /* page-locked */
    void (*take)(const void *values, void *to);
    void *to;
    int busy; /* the stream has not handed it over */
};

cz_status cuda_results_open(struct ops *ops);
void cuda_results_close(struct ops *ops); /* waits for the device; accepts what open left */

/* A slot for what is started on the stream next. It is free again if nothing is delivered. */
cz_status cuda_result_begin(struct ops *ops, struct dev_stream *stream, struct cuda_result **out);

/* Once the stream gets here: take(the slot's bytes, to), on a thread of CUDA's, which may call
 * nothing of CUDA. `to` must last until then. */
cz_status cuda_result_deliver(struct dev_stream *stream, struct cuda_result *result,
                              void (*take)(const void *values, void *to), void *to);

CZ_EXTERN_C_END
#endif
