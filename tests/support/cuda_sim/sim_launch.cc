/* Launches: limits of the device, attributes of functions, the queued grid. */
#include "sim_launch.h"

#include "ptx_kernels.h"
#include "sim_exec.h"
#include "sim_runtime.h"

#include <algorithm>
#include <map>
#include <string.h>

#define SHARED_DEFAULT    ((size_t)48 << 10)
#define SHARED_RESERVED   ((size_t)1 << 10) /* per block */
#define PARAMS_NBYTES_MAX 4096
#define MIN_MAJOR         8 /* the plug-in is compiled for sm_80 and later */

namespace {

/* Of dynamic memory, by cudaFuncSetAttribute: per device and function. */
std::map<std::pair<int, const void *>, size_t> shared_limits;
uint64_t n_launches;

/* Of dynamic shared memory: static counts too. */
size_t shared_limit(const void *function)
{
    auto at = shared_limits.find({sim_device(), function});
    const size_t fixed = sim_shared_of(function);
    const size_t unasked = fixed < SHARED_DEFAULT ? SHARED_DEFAULT - fixed : 0;
    return at == shared_limits.end() ? unasked : std::max(at->second, unasked);
}

bool config_valid(const struct sim_launch_request *r)
{
    const dim3 b = r->block, g = r->grid;
    bool block = b.x >= 1 && b.y >= 1 && b.z >= 1 && b.x <= 1024 && b.y <= 1024 && b.z <= 64 &&
                 (uint64_t)b.x * b.y * b.z <= SIM_MAX_THREADS;
    bool grid =
        g.x >= 1 && g.y >= 1 && g.z >= 1 && g.x <= INT32_MAX && g.y <= 65535 && g.z <= 65535;
    return block && grid;
}

cudaError_t check(const struct sim_launch_request *r)
{
    if (sim_settings.major < MIN_MAJOR) return sim_error(cudaErrorNoKernelImageForDevice);
    if (!config_valid(r))
        return sim_refuse(cudaErrorInvalidConfiguration,
                          "launch of %s: grid (%u,%u,%u), block (%u,%u,%u) is outside the limits",
                          r->name, r->grid.x, r->grid.y, r->grid.z, r->block.x, r->block.y,
                          r->block.z);
    /* For a kernel given as text the attribute is unknown. */
    const size_t limit = r->ptx ? sim_settings.shared_block_nbytes : shared_limit(r->function);
    if (r->shared_nbytes > limit)
        return sim_refuse(cudaErrorInvalidValue,
                          "launch of %s: %zu bytes of dynamic shared memory, %zu are allowed "
                          "beside %zu of static",
                          r->name, r->shared_nbytes, limit, sim_shared_of(r->function));
    if (sim_shared_of(r->function) > SHARED_DEFAULT)
        return sim_refuse(cudaErrorInvalidValue, "launch of %s: %zu bytes of static shared memory",
                          r->name, sim_shared_of(r->function));
    if (r->abi_nbytes > PARAMS_NBYTES_MAX)
        return sim_refuse(cudaErrorInvalidValue, "launch of %s: %zu bytes of parameters", r->name,
                          r->abi_nbytes);
    return cudaSuccess;
}

/* Pointers must be this device's or pinned memory: hardware cannot reach other host memory, nor,
 * unless asked to, other devices'. Small values
 * are let through (NULL and what is counted from it), as is dead device memory: both fault when
 * touched. */
const void *host_pointer(const struct sim_launch_request *r)
{
    for (int i = 0; i < r->n_pointers; i++) {
        const void *p = r->pointers[i];
        const bool good =
            sim_is_device(p) ? !sim_is_foreign(p, sim_device()) : sim_pinned_range(p, 0);
        if ((uintptr_t)p >= 65536 && !good) return p;
    }
    return nullptr;
}

struct launched {
    struct sim_grid grid;
    std::string name;
    std::vector<max_align_t> params;
    uint64_t number;
    std::vector<const void *> pointers;
    const void *bad_pointer;
    struct sim_launch_request request;
    ptx_kernel kernel;
};

bool run_code(const launched *l, std::string *error)
{
    if (l->kernel.function || sim_settings.runs_ptx)
        return ptx_kernel_run(l->kernel, l->request, error);
    char text[1024];
    if (sim_exec_grid(&l->grid, text, sizeof text)) return true;
    *error = text;
    return false;
}

void run_grid(const launched *l)
{
    if (l->number == sim_settings.lost_at) {
        sim_lose(cudaErrorIllegalAddress, "kernel %s: the device is lost, as asked", l->grid.name);
        return;
    }
    if (l->bad_pointer) {
        sim_lose(
            cudaErrorIllegalAddress, "kernel %s: parameter %p is %s", l->grid.name, l->bad_pointer,
            sim_is_device(l->bad_pointer) ? "memory of another device" : "pageable host memory");
        return;
    }
    if (sim_settings.dry) return;
    for (const void *p : l->pointers) sim_memory_touch(p);
    std::string error;
    if (!run_code(l, &error)) sim_lose(cudaErrorLaunchFailure, "%s", error.c_str());
}

} // namespace

void sim_launch_reset(void)
{
    shared_limits.clear();
    n_launches = 0;
}

cudaError_t sim_launch_queue(const struct sim_launch_request *r)
{
    SIM_ENTER_CONTEXT();
    CUstream_st *s = sim_stream_of(r->stream);
    if (!s) return sim_error(cudaErrorInvalidResourceHandle);
    cudaError_t error = sim_stream_takes(s, r->name);
    if (error == cudaSuccess) error = check(r);
    if (error != cudaSuccess) return error;
    auto l = std::make_shared<launched>();
    l->name = r->name;
    l->params.resize((r->params_nbytes + sizeof(max_align_t) - 1) / sizeof(max_align_t));
    memcpy((void *)l->params.data(), r->params, r->params_nbytes);
    l->grid = {l->name.c_str(), r->invoke, l->params.data(), r->grid, r->block, r->shared_nbytes};
    l->number = ++n_launches;
    l->pointers.assign(r->pointers, r->pointers + r->n_pointers);
    l->bad_pointer = host_pointer(r);
    l->request = *r;
    l->request.name = l->grid.name;
    l->request.params = l->params.data();
    l->kernel = {r->ptx, std::vector<sim_param>(r->list, r->list + r->n_list), sim_device()};
    struct sim_op_info info = {SIM_KERNEL, l->grid.name, 0, false};
    sim_queue(s, &info, [l] { run_grid(l.get()); });
    return sim_error(sim_status());
}

/* ---- functions ---- */

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attr, int value)
{
    SIM_ENTER_CONTEXT();
    if (sim_settings.major < MIN_MAJOR) return sim_error(cudaErrorNoKernelImageForDevice);
    if (attr == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        (size_t)value + sim_shared_of(function) > sim_settings.shared_block_nbytes)
        return sim_error(cudaErrorInvalidValue);
    shared_limits[{sim_device(), function}] = (size_t)value;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attr, const void *function)
{
    SIM_ENTER_CONTEXT();
    if (sim_settings.major < MIN_MAJOR) return sim_error(cudaErrorNoKernelImageForDevice);
    memset(attr, 0, sizeof *attr);
    attr->maxThreadsPerBlock = SIM_MAX_THREADS;
    attr->numRegs = 32;
    attr->ptxVersion = attr->binaryVersion = sim_settings.major * 10 + sim_settings.minor;
    attr->sharedSizeBytes = sim_shared_of(function);
    attr->maxDynamicSharedSizeBytes = (int)shared_limit(function);
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *,
                                                                   int n_threads, size_t shared,
                                                                   unsigned)
{
    SIM_ENTER_CONTEXT();
    if (n_threads < 1 || n_threads > SIM_MAX_THREADS) return sim_error(cudaErrorInvalidValue);
    int by_threads = 2048 / ((n_threads + 31) / 32 * 32);
    const struct sim_settings *s = &sim_settings;
    int by_shared = shared > s->shared_block_nbytes
                        ? 0
                        : (int)(s->shared_multiprocessor_nbytes / (shared + SHARED_RESERVED));
    *n = std::min(32, std::min(by_threads, by_shared));
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *function,
                                                          int n_threads, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, function, n_threads, shared,
                                                                  0);
}
