/* Launches: the arithmetic is checked as the driver checks it, then the grid is queued. */
#ifndef CZ_TESTS_SIM_LAUNCH_H
#define CZ_TESTS_SIM_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <tuple>
#include <type_traits>

/* Where a parameter is in request.params. */
struct sim_param {
    size_t offset, nbytes;
};

struct ptx_function;

struct sim_launch_request {
    const char *name;
    const void *function; /* for attributes set by cudaFuncSetAttribute */
    dim3 grid, block;
    size_t shared_nbytes;
    cudaStream_t stream;
    void (*invoke)(const void *params);
    const void *params; /* copied by the call */
    size_t params_nbytes, abi_nbytes;
    const void *const *pointers; /* parameters that are pointers: must not be host memory */
    int n_pointers;
    const struct sim_param *list; /* all parameters */
    int n_list;
    const struct ptx_function *ptx; /* run this instead of invoke(); NULL: as the settings say */
};
cudaError_t sim_launch_queue(const struct sim_launch_request *r);

template <class... P> struct sim_call {
    void (*kernel)(P...);
    std::tuple<P...> params;
    static void invoke(const void *self)
    {
        const sim_call *c = static_cast<const sim_call *>(self);
        std::apply(c->kernel, c->params);
    }
};

/* Bytes of parameters as the driver lays them out: each aligned to itself. */
template <class... P> constexpr size_t sim_params_nbytes()
{
    size_t n = 0;
    ((n = (n + alignof(P) - 1) / alignof(P) * alignof(P) + sizeof(P)), ...);
    return n;
}

template <class T> inline void sim_note_pointer(const void **pointers, int *n, const T &value)
{
    if constexpr (std::is_pointer_v<T> && !std::is_function_v<std::remove_pointer_t<T>>)
        pointers[(*n)++] = (const void *)value;
}

/* Launch kernel<<<grid, block, shared_nbytes, stream>>>(args...). Returns what cudaGetLastError
 * would after it: a launch that breaks a limit is cudaErrorInvalidConfiguration and queues nothing;
 * what goes wrong while it runs shows in later calls. */
template <class... P, class... A>
inline cudaError_t sim_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                              size_t shared_nbytes, cudaStream_t stream, A... args)
{
    static_assert(sizeof...(P) == sizeof...(A), "as many arguments as parameters");
    static_assert((std::is_trivially_copyable_v<P> && ...), "parameters are copied as bytes");
    sim_call<P...> call{kernel, std::tuple<P...>(static_cast<P>(args)...)};
    const void *pointers[sizeof...(P) + 1];
    int n_pointers = 0;
    std::apply([&](const P &...p) { (sim_note_pointer(pointers, &n_pointers, p), ...); },
               call.params);
    struct sim_param list[sizeof...(P) + 1];
    int n_list = 0;
    auto note = [&](const void *p, size_t nbytes) {
        list[n_list++] = {(size_t)((const char *)p - (const char *)&call), nbytes};
    };
    std::apply([&](const P &...p) { (note(&p, sizeof p), ...); }, call.params);
    struct sim_launch_request r = {};
    r.name = name;
    r.function = reinterpret_cast<const void *>(kernel);
    r.grid = grid;
    r.block = block;
    r.shared_nbytes = shared_nbytes;
    r.stream = stream;
    r.invoke = sim_call<P...>::invoke;
    r.params = &call;
    r.params_nbytes = sizeof call;
    r.abi_nbytes = sim_params_nbytes<P...>();
    r.pointers = pointers;
    r.n_pointers = n_pointers;
    r.list = list;
    r.n_list = n_list;
    return sim_launch_queue(&r);
}

/* The typed forms that the toolkit declares for nvcc only. */
template <class... P>
inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attr, int value)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attr, value);
}
template <class... P>
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attr, void (*kernel)(P...))
{
    return cudaFuncGetAttributes(attr, reinterpret_cast<const void *>(kernel));
}
template <class... P>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void (*kernel)(P...),
                                                                 int n_threads, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, reinterpret_cast<const void *>(kernel),
                                                         n_threads, shared);
}
template <class T> inline cudaError_t cudaMalloc(T **out, size_t nbytes)
{
    return cudaMalloc((void **)out, nbytes);
}
template <class T> inline cudaError_t cudaHostAlloc(T **out, size_t nbytes, unsigned flags)
{
    return cudaHostAlloc((void **)out, nbytes, flags);
}

#endif
