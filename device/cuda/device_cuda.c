/* A CUDA GPU as a device (CUDA Runtime API reference, version 13). Errors of the runtime become
 * sentences that say what a user can do; an error that ends the context is told apart, because
 * nothing on the GPU can be used after it. */
#include "base/size.h"
#include "device/cuda/runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The kernels are compiled for 8.0, 9.0 and, as PTX, for what comes after. */
#define CAPABILITY_MAJOR_MIN 8

struct cuda_device {
    struct device base;
    struct device_info info;
};

/* Errors after which every further call of this process fails. */
static bool is_lost(cudaError_t result)
{
    return result == cudaErrorIllegalAddress || result == cudaErrorLaunchFailure ||
           result == cudaErrorECCUncorrectable || result == cudaErrorHardwareStackError ||
           result == cudaErrorIllegalInstruction || result == cudaErrorMisalignedAddress ||
           result == cudaErrorInvalidAddressSpace || result == cudaErrorInvalidPc ||
           result == cudaErrorAssert || result == cudaErrorNvlinkUncorrectable ||
           result == cudaErrorLaunchTimeout || result == cudaErrorContextIsDestroyed ||
           result == cudaErrorContained || result == cudaErrorTensorMemoryLeak ||
           result == cudaErrorExternalDevice || result == cudaErrorMpsClientTerminated;
}

/* The runtime keeps the last error; unless it is taken here, the next launch reports it as its
 * own. */
cz_status cuda_status(cudaError_t result, const char *what)
{
    if (result == cudaSuccess) return CZ_OK;
    (void)cudaGetLastError(); /* told here: the next launch would take it for its own */
    if (result == cudaErrorMemoryAllocation)
        return err_set(CZ_NOMEM, 0, "%s: the GPU is out of memory", what);
    if (is_lost(result))
        return err_set(CZ_CUDA, 0,
                       "%s: the GPU stopped working for this process (%s); what was not saved is "
                       "lost: start again from the last checkpoint",
                       what, cudaGetErrorString(result));
    return err_set(CZ_CUDA, 0, "%s: %s (%s)", what, cudaGetErrorString(result),
                   cudaGetErrorName(result));
}

/* ---- opening --------------------------------------------------------------------------------- */

static cz_status refuse_none(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible)
        return err_set(CZ_UNSUPPORTED, 0,
                       "device cuda: no GPU is visible with CUDA_VISIBLE_DEVICES=\"%s\"; --device "
                       "cpu works",
                       visible);
    return err_set(CZ_UNSUPPORTED, 0,
                   "device cuda: there is no NVIDIA GPU in this machine; --device cpu works");
}

/* Why nothing can be started that has nothing to do with what is started. */
static const struct {
    cudaError_t result;
    cz_status status;
    const char *sentence;
} refusals[] = {
    {cudaErrorStubLibrary, CZ_UNSUPPORTED,
     "the CUDA toolkit's stub was loaded in place of the driver: take the folder \"stubs\" out of "
     "LD_LIBRARY_PATH"},
    {cudaErrorSystemNotReady, CZ_UNSUPPORTED,
     "the NVIDIA driver is not ready (is nvidia-fabricmanager running?)"},
    {cudaErrorSystemDriverMismatch, CZ_UNSUPPORTED,
     "the NVIDIA driver's library and its kernel module are of different versions: restart the "
     "machine"},
    {cudaErrorDevicesUnavailable, CZ_BUSY,
     "another process has the GPU for itself (nvidia-smi shows its compute mode)"},
    {cudaErrorCompatNotSupportedOnDevice, CZ_UNSUPPORTED,
     "CUDA's compatibility package does not go with this GPU or its driver: update the driver, or "
     "take the folder \"compat\" out of LD_LIBRARY_PATH"},
    {cudaErrorMemoryAllocation, CZ_NOMEM,
     "the GPU's memory is taken by other processes; not even a context fits"},
};

/* The runtime answers "insufficient driver" both for an old driver and for none. */
static bool is_old_driver(void)
{
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    return driver < runtime;
}

/* Source of what the runtime answers: cudart 13.0 beside drivers whose cuInit() says so. */
static cz_status refuse(cudaError_t result, const char *what)
{
    (void)cudaGetLastError();
    if (result == cudaErrorInsufficientDriver && is_old_driver()) {
        int driver = 0, runtime = 0;
        cudaDriverGetVersion(&driver);
        cudaRuntimeGetVersion(&runtime);
        if (driver == 0)
            return err_set(CZ_UNSUPPORTED, 0,
                           "device cuda: no NVIDIA driver is loaded on this machine; --device cpu "
                           "works");
        return err_set(
            CZ_UNSUPPORTED, 0,
            "device cuda: the NVIDIA driver is too old: it supports CUDA up to %d.%d, this "
            "build needs %d.%d; update the driver, or use --device cpu",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    }
    if (result == cudaErrorNoDevice) return refuse_none();
    for (size_t i = 0; i < CZ_ARRAY_LEN(refusals); i++)
        if (result == refusals[i].result)
            return err_set(refusals[i].status, 0, "device cuda: %s; --device cpu works",
                           refusals[i].sentence);
    if (is_lost(result)) return cuda_status(result, what);
    return err_set(
        CZ_UNSUPPORTED, 0,
        "%s: the NVIDIA driver says \"%s\" (%s); does nvidia-smi work? --device cpu does", what,
        cudaGetErrorString(result), cudaGetErrorName(result));
}

static cz_status cuda_count(int *n)
{
    *n = 0;
    cudaError_t result = cudaGetDeviceCount(n);
    if (result != cudaSuccess) return refuse(result, "device cuda: looking for GPUs");
    return *n > 0 ? CZ_OK : refuse_none();
}

static cz_status get_info(int ordinal, struct device_info *info)
{
    struct cudaDeviceProp p;
    CUDA_TRY(cudaGetDeviceProperties(&p, ordinal), "device cuda: its properties");
    *info = (struct device_info){.capability_major = p.major,
                                 .capability_minor = p.minor,
                                 .n_multiprocessors = p.multiProcessorCount,
                                 .shared_block_nbytes = p.sharedMemPerBlockOptin,
                                 .shared_multiprocessor_nbytes = p.sharedMemPerMultiprocessor};
    snprintf(info->name, sizeof info->name, "%.127s", p.name);
    CUDA_TRY(cudaDeviceGetPCIBusId(info->pci_bus_id, sizeof info->pci_bus_id, ordinal),
             "device cuda: its PCI address");
    if (info->capability_major >= CAPABILITY_MAJOR_MIN) return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0,
                   "device cuda:%d (%s) has compute capability %d.%d; this build needs %d.0 or "
                   "newer; --device cpu works",
                   ordinal, info->name, info->capability_major, info->capability_minor,
                   CAPABILITY_MAJOR_MIN);
}

/* ---- which device -------------------------------------------------------------------------------
 *
 * CUDA's calls go to the device that their thread has selected, and where it has selected none, to
 * number 0, on which they would make a context of some hundred megabytes. So every call here that
 * reaches the driver selects first: other threads than the opener's (a checkpoint's writer) too. */

static __thread int selected = -1;
static int newest = -1; /* what was opened last, by any thread */

/* Selecting is a call into the driver only when the thread's device changes. */
static cz_status use_ordinal(int ordinal)
{
    if (selected == ordinal || ordinal < 0) return CZ_OK;
    CUDA_TRY(cudaSetDevice(ordinal), "device cuda: selecting it");
    selected = ordinal;
    return CZ_OK;
}

static cz_status use(const struct device *dev)
{
    return use_ordinal(dev->ordinal);
}

cz_status cuda_use(const struct dev_stream *stream)
{
    if (stream) return use_ordinal(stream->ordinal);
    return selected >= 0 ? CZ_OK : use_ordinal(__atomic_load_n(&newest, __ATOMIC_ACQUIRE));
}

cz_status cuda_use_device(const struct device *dev)
{
    return use(dev);
}

/* ---- shared memory beyond 48 KiB ------------------------------------------------------------- */

#define N_ALLOWED 1024 /* kernels times devices; more are asked for at every launch */

/* What kernels have been allowed so far: asking is a call into the driver, and a step launches
 * thousands of kernels. */
static struct {
    const void *kernel;
    int ordinal;
    size_t nbytes;
} allowed[N_ALLOWED];
static pthread_mutex_t allowed_lock = PTHREAD_MUTEX_INITIALIZER;

/* Where this kernel's entry is, or goes; N_ALLOWED: nowhere. Lock held. */
static size_t allowed_at(const void *kernel, int ordinal)
{
    const uint64_t h = ((uint64_t)(uintptr_t)kernel + (uint64_t)ordinal) * 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < N_ALLOWED; i++) {
        const size_t at = (size_t)((h >> 32) + i) % N_ALLOWED;
        if (!allowed[at].kernel) return at;
        if (allowed[at].kernel == kernel && allowed[at].ordinal == ordinal) return at;
    }
    return N_ALLOWED;
}

cz_status cuda_allow_shared(const char *what, const void *kernel, size_t nbytes)
{
    const int ordinal = selected;
    pthread_mutex_lock(&allowed_lock);
    const size_t at = allowed_at(kernel, ordinal);
    const bool is_known = at < N_ALLOWED && allowed[at].kernel && allowed[at].nbytes >= nbytes;
    const cudaError_t result =
        is_known ? cudaSuccess
                 : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        (int)nbytes);
    if (result == cudaSuccess && !is_known && at < N_ALLOWED) {
        allowed[at].kernel = kernel;
        allowed[at].ordinal = ordinal;
        allowed[at].nbytes = nbytes;
    }
    pthread_mutex_unlock(&allowed_lock);
    return cuda_status(result, what);
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* The context is made now: it takes a second, and may fail. */
static cz_status cuda_open(int ordinal, struct device **out)
{
    int n = 0;
    struct device_info info;
    cudaError_t result;
    TRY(cuda_count(&n));
    if (ordinal < 0 || ordinal >= n)
        return err_set(CZ_INVALID, 0, "device cuda:%d: there %s %d, counted from 0", ordinal,
                       n == 1 ? "is" : "are", n);
    TRY(get_info(ordinal, &info));
    result = cudaSetDevice(ordinal);
    selected = ordinal;
    if (result == cudaSuccess) result = cudaFree(NULL); /* makes its context */
    if (result != cudaSuccess) return refuse(result, "device cuda: starting its context");
    struct cuda_device *dev = calloc(1, sizeof *dev);
    if (!dev) return err_set(CZ_NOMEM, 0, "device cuda: out of memory");
    /* Kernels are given host addresses of page-locked memory. Where a device sees that elsewhere
     * they would fault: no such device is known that runs this build's kernels. */
    int same = 1;
    (void)cudaDeviceGetAttribute(&same, cudaDevAttrCanUseHostPointerForRegisteredMem, ordinal);
    if (!same)
        LOGV(LOG_WARN, SUB_OPS,
             "cuda:%d has other addresses for page-locked host memory: kernels that read it fail",
             ordinal);
    dev->base.ops = &device_cuda_ops;
    dev->base.ordinal = ordinal;
    dev->info = info;
    __atomic_store_n(&newest, ordinal, __ATOMIC_RELEASE);
    /* What a context was allowed ended with it: nothing is known of one that is made. */
    pthread_mutex_lock(&allowed_lock);
    memset(allowed, 0, sizeof allowed);
    pthread_mutex_unlock(&allowed_lock);
    *out = &dev->base;
    return CZ_OK;
}

static void cuda_close(struct device *dev)
{
    free(dev);
}

static cz_status cuda_info(struct device *dev, struct device_info *out)
{
    *out = ((struct cuda_device *)dev)->info;
    return CZ_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Zeroed, as the host's memory is. */
static cz_status cuda_mem_alloc(struct device *dev, size_t nbytes, const char *what, void **out)
{
    *out = NULL;
    if (nbytes == 0) return CZ_OK;
    TRY(use(dev));
    cudaError_t result = cudaMalloc(out, nbytes);
    if (result == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* a refusal is no reason to fail later */
        size_t free_nbytes = 0, total_nbytes = 0;
        char need[32], left[32], total[32];
        cudaMemGetInfo(&free_nbytes, &total_nbytes);
        return err_set(CZ_NOMEM, 0, "%s: %s do not fit into cuda:%d, which has %s of %s left", what,
                       size_human(nbytes, need, sizeof need), dev->ordinal,
                       size_human(free_nbytes, left, sizeof left),
                       size_human(total_nbytes, total, sizeof total));
    }
    CUDA_TRY(result, what);
    result = cudaMemset(*out, 0, nbytes);
    /* our streams do not wait for the default one, on which the zeros are written */
    if (result == cudaSuccess) result = cudaStreamSynchronize(NULL);
    if (result == cudaSuccess) return CZ_OK;
    cudaFree(*out);
    *out = NULL;
    return cuda_status(result, what);
}

static void cuda_mem_free(struct device *dev, void *p, size_t nbytes)
{
    (void)nbytes;
    if (p && use(dev) == CZ_OK) cudaFree(p);
}

/* Memory that CUDA does not know is the host's, and so is what it was told of. */
static bool cuda_is_device_memory(struct device *dev, const void *p)
{
    struct cudaPointerAttributes a;
    if (!p || use(dev) != CZ_OK) return false;
    if (cudaPointerGetAttributes(&a, p) == cudaSuccess) return a.type == cudaMemoryTypeDevice;
    (void)cudaGetLastError(); /* the next launch would take it for its own */
    return false;
}

static cz_status cuda_mem_info(struct device *dev, size_t *free_nbytes, size_t *total_nbytes)
{
    TRY(use(dev));
    CUDA_TRY(cudaMemGetInfo(free_nbytes, total_nbytes), "device cuda: what memory is free");
    return CZ_OK;
}

/* The runtime knows from the addresses in which direction a copy goes. */
static cz_status cuda_copy(struct device *dev, struct dev_stream *stream, void *dst,
                           const void *src, size_t nbytes)
{
    if (nbytes == 0 || dst == src) return CZ_OK;
    TRY(use(dev));
    CUDA_TRY(cudaMemcpyAsync(dst, src, nbytes, cudaMemcpyDefault, cuda_stream(stream)),
             "device cuda: a copy");
    return CZ_OK;
}

static cz_status cuda_fill_zero(struct device *dev, struct dev_stream *stream, void *dst,
                                size_t nbytes)
{
    if (nbytes == 0) return CZ_OK;
    TRY(use(dev));
    CUDA_TRY(cudaMemsetAsync(dst, 0, nbytes, cuda_stream(stream)), "device cuda: filling memory");
    return CZ_OK;
}

/* Portable and mapped, since kernels read page-locked host memory directly. */
static cz_status cuda_host_register(struct device *dev, void *p, size_t nbytes)
{
    char need[32];
    if (nbytes == 0) return CZ_OK;
    TRY(use(dev));
    cudaError_t result =
        cudaHostRegister(p, nbytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (result == cudaSuccess) return CZ_OK;
    (void)cudaGetLastError();
    return err_set(CZ_NOMEM, 0,
                   "%s of host memory cannot be page-locked for the GPU (%s): offload less, or "
                   "free host memory",
                   size_human(nbytes, need, sizeof need), cudaGetErrorString(result));
}

static void cuda_host_unregister(struct device *dev, void *p, size_t nbytes)
{
    if (nbytes > 0 && use(dev) == CZ_OK) cudaHostUnregister(p);
}

/* ---- streams and events ---------------------------------------------------------------------- */

static cz_status cuda_stream_create(struct device *dev, struct dev_stream **out)
{
    *out = NULL;
    TRY(use(dev));
    struct dev_stream *stream = calloc(1, sizeof *stream);
    if (!stream) return err_set(CZ_NOMEM, 0, "device cuda: out of memory");
    stream->ordinal = dev->ordinal;
    cudaError_t result = cudaStreamCreateWithFlags(&stream->cuda, cudaStreamNonBlocking);
    if (result == cudaSuccess)
        *out = stream;
    else
        free(stream);
    return cuda_status(result, "device cuda: a stream");
}

static void cuda_stream_destroy(struct device *dev, struct dev_stream *stream)
{
    if (!stream) return;
    if (use(dev) == CZ_OK) cudaStreamDestroy(stream->cuda);
    free(stream);
}

/* Where what went wrong on the device is heard of: a kernel's failure shows at the next wait. */
static cz_status cuda_stream_sync(struct device *dev, struct dev_stream *stream)
{
    TRY(use(dev));
    CUDA_TRY(cudaStreamSynchronize(cuda_stream(stream)), "device cuda: waiting for it");
    return CZ_OK;
}

static cudaEvent_t cuda_event(struct dev_event *event)
{
    return (cudaEvent_t)(void *)event;
}

static cz_status make_event(struct device *dev, unsigned flags, struct dev_event **out)
{
    TRY(use(dev));
    cudaEvent_t event;
    *out = NULL;
    CUDA_TRY(cudaEventCreateWithFlags(&event, flags), "device cuda: an event");
    *out = (struct dev_event *)(void *)event;
    return CZ_OK;
}

static cz_status cuda_event_create(struct device *dev, struct dev_event **out)
{
    return make_event(dev, cudaEventDisableTiming, out);
}

static cz_status cuda_event_create_timed(struct device *dev, struct dev_event **out)
{
    return make_event(dev, cudaEventDefault, out);
}

static void cuda_event_destroy(struct device *dev, struct dev_event *event)
{
    if (event && use(dev) == CZ_OK) cudaEventDestroy(cuda_event(event));
}

static cz_status cuda_event_record(struct device *dev, struct dev_event *event,
                                   struct dev_stream *stream)
{
    TRY(use(dev));
    CUDA_TRY(cudaEventRecord(cuda_event(event), cuda_stream(stream)), "device cuda: an event");
    return CZ_OK;
}

static cz_status cuda_stream_wait(struct device *dev, struct dev_stream *stream,
                                  struct dev_event *event)
{
    TRY(use(dev));
    CUDA_TRY(cudaStreamWaitEvent(cuda_stream(stream), cuda_event(event), 0),
             "device cuda: a stream's wait");
    return CZ_OK;
}

static cz_status cuda_event_wait_host(struct device *dev, struct dev_event *event)
{
    TRY(use(dev));
    CUDA_TRY(cudaEventSynchronize(cuda_event(event)), "device cuda: waiting for it");
    return CZ_OK;
}

static cz_status cuda_event_query(struct device *dev, struct dev_event *event, bool *is_past)
{
    TRY(use(dev));
    cudaError_t result = cudaEventQuery(cuda_event(event));
    *is_past = result == cudaSuccess;
    if (result == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* not an error */
        return CZ_OK;
    }
    CUDA_TRY(result, "device cuda: looking at an event");
    return CZ_OK;
}

static cz_status cuda_event_seconds(struct device *dev, struct dev_event *from,
                                    struct dev_event *to, double *seconds)
{
    float ms = 0;
    TRY(use(dev));
    CUDA_TRY(cudaEventElapsedTime(&ms, cuda_event(from), cuda_event(to)),
             "device cuda: the time between events");
    *seconds = (double)ms * 1e-3;
    return CZ_OK;
}

const struct device_ops device_cuda_ops = {
    .name = "cuda",
    .kind = DEVICE_CUDA,
    .count = cuda_count,
    .open = cuda_open,
    .close = cuda_close,
    .mem_alloc = cuda_mem_alloc,
    .mem_free = cuda_mem_free,
    .is_device_memory = cuda_is_device_memory,
    .mem_info = cuda_mem_info,
    .copy = cuda_copy,
    .fill_zero = cuda_fill_zero,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_sync = cuda_stream_sync,
    .event_create = cuda_event_create,
    .event_create_timed = cuda_event_create_timed,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .stream_wait = cuda_stream_wait,
    .event_wait_host = cuda_event_wait_host,
    .event_query = cuda_event_query,
    .event_seconds = cuda_event_seconds,
    .host_register = cuda_host_register,
    .host_unregister = cuda_host_unregister,
    .info = cuda_info,
};
