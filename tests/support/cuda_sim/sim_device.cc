/* Devices, errors and faults of the simulated runtime; the lock that every call takes. */
#include "sim_runtime.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RUNTIME_VERSION    CUDART_VERSION
#define OLD_DRIVER_VERSION 12020

namespace {

pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
bool initialised;
pid_t owner; /* a child of fork() has no context */
cudaError_t lost = cudaSuccess;
__thread cudaError_t last_error;
__thread int current_device;
__thread bool has_selected;
bool any_selected; /* by any thread */
char last_message[2048];

void initialise()
{
    if (initialised) return;
    initialised = true;
    owner = getpid();
    sim_settings_read();
    sim_streams_reset();
}

cudaError_t entry_error()
{
    if (sim_is_running()) return cudaErrorNotPermitted;
    if (getpid() != owner) return cudaErrorInitializationError;
    if (sim_settings.driver != SIM_DRIVER_GOOD) return cudaErrorInsufficientDriver;
    if (sim_settings.n_devices == 0) return cudaErrorNoDevice;
    if (sim_settings.start_error) return (cudaError_t)sim_settings.start_error;
    return lost;
}

void print_sentence(const char *format, va_list args)
{
    int n = snprintf(last_message, sizeof last_message, "cuda_sim: ");
    vsnprintf(last_message + n, sizeof last_message - (size_t)n, format, args);
    fprintf(stderr, "%s\n", last_message);
}

} // namespace

sim_enter::sim_enter()
{
    pthread_mutex_lock(&lock);
    initialise();
    error = entry_error();
}

sim_enter::~sim_enter()
{
    pthread_mutex_unlock(&lock);
}

cudaError_t sim_error(cudaError_t error)
{
    if (error != cudaSuccess) last_error = error;
    return error;
}

void sim_print(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_sentence(format, args);
    va_end(args);
}

cudaError_t sim_refuse(cudaError_t error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_sentence(format, args);
    va_end(args);
    return sim_error(error);
}

void sim_lose(cudaError_t error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_sentence(format, args);
    va_end(args);
    lost = error;
}

cudaError_t sim_no_context(const char *call)
{
    if (has_selected || !any_selected) return cudaSuccess;
    return sim_refuse(cudaErrorDeviceUninitialized,
                      "%s from a thread that has selected no device: it would make a context on "
                      "device 0",
                      call);
}

int sim_device(void)
{
    return current_device;
}

cudaError_t sim_status(void)
{
    return lost;
}

const char *sim_last_message(void)
{
    return last_message;
}

void sim_reset(void)
{
    sim_enter entered;
    owner = getpid();
    any_selected = false;
    lost = last_error = cudaSuccess;
    last_message[0] = 0;
    sim_settings_read();
    sim_streams_reset();
    sim_memory_reset();
    sim_launch_reset();
}

/* ---- errors ---- */

/* The last error of this host thread; a lost device stays lost. */
cudaError_t cudaGetLastError(void)
{
    sim_enter entered;
    cudaError_t error = lost != cudaSuccess ? lost : last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    sim_enter entered;
    return lost != cudaSuccess ? lost : last_error;
}

#define ERRORS(X)                                                                                  \
    X(cudaSuccess, "no error")                                                                     \
    X(cudaErrorInvalidValue, "invalid argument")                                                   \
    X(cudaErrorMemoryAllocation, "out of memory")                                                  \
    X(cudaErrorInitializationError, "initialization error")                                        \
    X(cudaErrorInvalidConfiguration, "invalid configuration argument")                             \
    X(cudaErrorInvalidDevicePointer, "invalid device pointer")                                     \
    X(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy")                        \
    X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version") \
    X(cudaErrorInvalidDeviceFunction, "invalid device function")                                   \
    X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                     \
    X(cudaErrorInvalidDevice, "invalid device ordinal")                                            \
    X(cudaErrorDeviceUninitialized, "invalid device context")                                      \
    X(cudaErrorStubLibrary, "CUDA driver is a stub library")                                       \
    X(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable")            \
    X(cudaErrorSystemNotReady, "system not yet initialized")                                       \
    X(cudaErrorSystemDriverMismatch,                                                               \
      "system has unsupported display driver / cuda driver combination")                           \
    X(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device") \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                   \
    X(cudaErrorNotReady, "device not ready")                                                       \
    X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                         \
    X(cudaErrorLaunchOutOfResources, "too many resources requested for launch")                    \
    X(cudaErrorHostMemoryAlreadyRegistered, "part or all of the memory is already registered")     \
    X(cudaErrorHostMemoryNotRegistered, "pointer is not a registered memory region")               \
    X(cudaErrorLaunchFailure, "unspecified launch failure")                                        \
    X(cudaErrorCompatNotSupportedOnDevice,                                                         \
      "forward compatibility was attempted on non supported HW")                                   \
    X(cudaErrorUnknown, "unknown error")                                                           \
    X(cudaErrorNotPermitted, "operation not permitted")                                            \
    X(cudaErrorNotSupported, "operation not supported")

const char *cudaGetErrorString(cudaError_t error)
{
    switch ((int)error) {
#define X(code, text)                                                                              \
    case code: return text;
        ERRORS(X)
#undef X
    default: return "unrecognized error code";
    }
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch ((int)error) {
#define X(code, text)                                                                              \
    case code: return #code;
        ERRORS(X)
#undef X
    default: return "unrecognized error code";
    }
}

/* ---- versions and devices ---- */

cudaError_t cudaDriverGetVersion(int *version)
{
    sim_enter entered;
    const int versions[] = {RUNTIME_VERSION, 0, OLD_DRIVER_VERSION};
    *version = versions[sim_settings.driver];
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = RUNTIME_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 0;
    SIM_ENTER();
    *n = sim_settings.n_devices;
    return cudaSuccess;
}

static bool is_device(int device)
{
    return device >= 0 && device < sim_settings.n_devices;
}

cudaError_t cudaSetDevice(int device)
{
    SIM_ENTER();
    if (!is_device(device)) return sim_error(cudaErrorInvalidDevice);
    current_device = device;
    has_selected = any_selected = true;
    return cudaSuccess;
}

cudaError_t cudaInitDevice(int device, unsigned, unsigned)
{
    SIM_ENTER();
    return sim_error(is_device(device) ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaSetDeviceFlags(unsigned)
{
    SIM_ENTER();
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    SIM_ENTER();
    *device = current_device;
    return cudaSuccess;
}

/* All work is done and all memory is given back; a lost device works again. */
cudaError_t cudaDeviceReset(void)
{
    sim_enter entered;
    if (entered.error != cudaSuccess && entered.error != lost) return sim_error(entered.error);
    sim_run_all();
    sim_reset();
    return cudaSuccess;
}

static void fill_limits(struct cudaDeviceProp *p)
{
    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = INT32_MAX;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->sharedMemPerBlock = (size_t)48 << 10;
    p->sharedMemPerBlockOptin = sim_settings.shared_block_nbytes;
    p->sharedMemPerMultiprocessor = sim_settings.shared_multiprocessor_nbytes;
    p->reservedSharedMemPerBlock = 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->totalConstMem = 65536;
    p->memPitch = INT32_MAX;
    p->textureAlignment = 512;
    p->surfaceAlignment = 512;
}

/* The figures of an H100 SXM, with the memory that the environment gives. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    SIM_ENTER();
    if (!p) return sim_error(cudaErrorInvalidValue);
    if (!is_device(device)) return sim_error(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "Simulated CUDA device");
    memcpy(p->uuid.bytes, "czero simulated", 16);
    p->uuid.bytes[15] = (char)sim_settings.place[device];
    fill_limits(p);
    p->major = sim_settings.major;
    p->minor = sim_settings.minor;
    p->totalGlobalMem = sim_settings.memory_nbytes;
    p->multiProcessorCount = sim_settings.n_multiprocessors;
    p->l2CacheSize = 50 << 20;
    p->persistingL2CacheMaxSize = 32 << 20;
    p->memoryBusWidth = 5120;
    p->pciBusID = sim_settings.place[device] + 1;
    p->asyncEngineCount = 3;
    p->canMapHostMemory = p->unifiedAddressing = p->concurrentKernels = p->ECCEnabled = 1;
    p->hostRegisterSupported = p->canUseHostPointerForRegisteredMem = 1;
    p->streamPrioritiesSupported = p->cooperativeLaunch = p->globalL1CacheSupported = 1;
    p->computePreemptionSupported = 1;
    return cudaSuccess;
}

static bool attribute_of(const struct cudaDeviceProp *p, enum cudaDeviceAttr attr, int *v)
{
    switch ((int)attr) {
    case cudaDevAttrMaxThreadsPerBlock: return *v = p->maxThreadsPerBlock, true;
    case cudaDevAttrMaxSharedMemoryPerBlock: return *v = (int)p->sharedMemPerBlock, true;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return *v = (int)p->sharedMemPerBlockOptin, true;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        return *v = (int)p->sharedMemPerMultiprocessor, true;
    case cudaDevAttrWarpSize: return *v = p->warpSize, true;
    case cudaDevAttrMaxRegistersPerBlock: return *v = p->regsPerBlock, true;
    case cudaDevAttrClockRate: return *v = 1980000, true;
    case cudaDevAttrMemoryClockRate: return *v = 2619000, true;
    case cudaDevAttrGlobalMemoryBusWidth: return *v = p->memoryBusWidth, true;
    case cudaDevAttrMultiProcessorCount: return *v = p->multiProcessorCount, true;
    case cudaDevAttrL2CacheSize: return *v = p->l2CacheSize, true;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return *v = p->maxThreadsPerMultiProcessor, true;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return *v = p->maxBlocksPerMultiProcessor, true;
    case cudaDevAttrAsyncEngineCount: return *v = p->asyncEngineCount, true;
    case cudaDevAttrComputeCapabilityMajor: return *v = p->major, true;
    case cudaDevAttrComputeCapabilityMinor: return *v = p->minor, true;
    case cudaDevAttrPciBusId: return *v = p->pciBusID, true;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrCooperativeLaunch: return *v = 1, true;
    case cudaDevAttrIntegrated:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrPageableMemoryAccess:
    case cudaDevAttrComputeMode:
    case cudaDevAttrKernelExecTimeout: return *v = 0, true;
    default: return false;
    }
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    SIM_ENTER();
    struct cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceProperties(&p, device);
    if (error != cudaSuccess) return error;
    if (attribute_of(&p, attr, value)) return cudaSuccess;
    return sim_refuse(cudaErrorInvalidValue, "device attribute %d is not simulated", (int)attr);
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device)
{
    SIM_ENTER();
    if (!is_device(device)) return sim_error(cudaErrorInvalidDevice);
    if (!id || length < 13) return sim_error(cudaErrorInvalidValue);
    snprintf(id, (size_t)length, "0000:%02x:00.0", sim_settings.place[device] + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id)
{
    SIM_ENTER();
    unsigned bus;
    if (sscanf(id, "0000:%x:00.0", &bus) != 1) return sim_error(cudaErrorInvalidDevice);
    for (int i = 0; i < sim_settings.n_devices; i++)
        if (sim_settings.place[i] == (int)bus - 1) return *device = i, cudaSuccess;
    return sim_error(cudaErrorInvalidDevice);
}
