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

/* What device.h calls a stream. */
struct dev_stream {
    cudaStream_t cuda;
    int ordinal; /* of the device it belongs to */
};

/* A stream as CUDA knows it. NULL, the device's default stream, is CUDA's legacy one, with which
 * the streams of stream_create do not synchronise by themselves. */
static inline cudaStream_t cuda_stream(const struct dev_stream *stream)
{
    return stream ? stream->cuda : NULL;
}

/* Select the stream's device for the calling thread: CUDA refuses work on a stream of another. For
 * NULL, what the thread has selected, or else the device that was opened last. */
cz_status cuda_use(const struct dev_stream *stream);
cz_status cuda_use_device(const struct device *dev);

/* Let a kernel have that much dynamic shared memory on the selected device; with its static it may
 * be more than 48 KiB. The driver is asked when it is more than before. */
cz_status cuda_allow_shared(const char *what, const void *kernel, size_t nbytes);

CZ_EXTERN_C_END
#endif
