/* Small values on their way from kernels to the host (cuda_impl.h). */
#include "ops/cuda_impl.h"

#include <stdlib.h>

#define PAGE_NBYTES 4096
#define RING_NBYTES (CUDA_RESULTS * CUDA_RESULT_NBYTES) /* whole pages */

struct cuda_results {
    void *device, *host; /* RING_NBYTES each */
    bool registered;     /* the host's, for the device to write */
    struct cuda_result slots[CUDA_RESULTS];
    size_t next; /* where the search for a free one begins */
};

cz_status cuda_results_open(struct ops *ops)
{
    struct cuda_results *r = calloc(1, sizeof *r);
    if (!r) return err_set(CZ_NOMEM, 0, "ops_create: out of memory");
    ops->cuda->results = r;
    TRY(ops->device->ops->mem_alloc(ops->device, RING_NBYTES, "results of reductions", &r->device));
    r->host = aligned_alloc(PAGE_NBYTES, RING_NBYTES);
    if (!r->host) return err_set(CZ_NOMEM, 0, "ops_create: out of memory");
    TRY(ops->device->ops->host_register(ops->device, r->host, RING_NBYTES));
    r->registered = true;
    for (size_t i = 0; i < CUDA_RESULTS; i++) {
        r->slots[i].device = (char *)r->device + i * CUDA_RESULT_NBYTES;
        r->slots[i].host = (char *)r->host + i * CUDA_RESULT_NBYTES;
    }
    return CZ_OK;
}

void cuda_results_close(struct ops *ops)
{
    struct cuda_results *r = ops->cuda->results;
    if (!r) return;
    if (cuda_use_device(ops->device) == CZ_OK)
        (void)cudaDeviceSynchronize(); /* a lost device has nothing under way */
    if (r->registered) ops->device->ops->host_unregister(ops->device, r->host, RING_NBYTES);
    free(r->host);
    ops->device->ops->mem_free(ops->device, r->device, RING_NBYTES);
    free(r);
    ops->cuda->results = NULL;
}

static bool is_busy(const struct cuda_result *slot)
{
    return __atomic_load_n(&slot->busy, __ATOMIC_ACQUIRE);
}

/* The next free slot, NULL when all are under way. */
static struct cuda_result *find_free(struct cuda_results *r)
{
    for (size_t i = 0; i < CUDA_RESULTS; i++) {
        struct cuda_result *slot = &r->slots[(r->next + i) % CUDA_RESULTS];
        if (is_busy(slot)) continue;
        r->next = (r->next + i + 1) % CUDA_RESULTS;
        return slot;
    }
    return NULL;
}

cz_status cuda_result_begin(struct ops *ops, struct dev_stream *stream, struct cuda_result **out)
{
    struct cuda_results *r = ops->cuda->results;
    struct cuda_result *slot = find_free(r);
    TRY(cuda_use(stream));
    if (!slot) {
        CUDA_TRY(cudaDeviceSynchronize(), "waiting for results of reductions");
        slot = find_free(r);
    }
    if (!slot) return err_set(CZ_CUDA, 0, "results of reductions did not come");
    CUDA_TRY(cudaMemsetAsync(slot->device, 0, CUDA_RESULT_NBYTES, cuda_stream(stream)),
             "zeroing a result");
    *out = slot;
    return CZ_OK;
}

static void CUDART_CB hand_over(void *user)
{
    struct cuda_result *slot = user;
    slot->take(slot->host, slot->to);
    __atomic_store_n(&slot->busy, 0, __ATOMIC_RELEASE);
}

cz_status cuda_result_deliver(struct dev_stream *stream, struct cuda_result *result,
                              void (*take)(const void *values, void *to), void *to)
{
    result->take = take;
    result->to = to;
    CUDA_TRY(cudaMemcpyAsync(result->host, result->device, CUDA_RESULT_NBYTES,
                             cudaMemcpyDeviceToHost, cuda_stream(stream)),
             "copying a result");
    result->busy = 1;
    cudaError_t queued = cudaLaunchHostFunc(cuda_stream(stream), hand_over, result);
    if (queued != cudaSuccess) result->busy = 0;
    CUDA_TRY(queued, "handing a result over");
    return CZ_OK;
}
