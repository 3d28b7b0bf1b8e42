/* Inside the CUDA plug-in: how CUDA's results become czero's, for its C files and its .cu files. */
#ifndef CZ_DEVICE_CUDA_RUNTIME_H
#define CZ_DEVICE_CUDA_RUNTIME_H

#include "device/plugin.h"

#include <cuda_runtime_api.h>

CZ_EXTERN_C_BEGIN

/* A CUDA result as a status: CZ_NOMEM when the device is out of memory, otherwise CZ_CUDA, with
 * `what` was attempted and CUDA's own words. A result that means the context is gone says so: the
 * process has to be started again. */
cz_status cuda_status(cudaError_t result, const char *what);

extern const struct device_ops device_cuda_ops;

#define CUDA_TRY(call, what)                                                                       \
    do {                                                                                           \
        cudaError_t result_ = (call);                                                              \
        if (result_ != cudaSuccess)                                                                \
            return err_trace(cuda_status(result_, (what)), __func__, __LINE__);                    \
    } while (0)

/* A stream as CUDA knows it. NULL, the device's default stream, is CUDA's legacy one, with which
 * the streams of stream_create do not synchronise by themselves. */
static inline cudaStream_t cuda_stream(struct dev_stream *stream)
{
    return (cudaStream_t)(void *)stream;
}

CZ_EXTERN_C_END
#endif
