/* Copies and fills of the simulated runtime. Ranges are checked when they are queued.
 *
 * Pageable host memory: what is sent is staged during the call, what is received is there when the
 * call returns. Pinned: both happen when the stream gets there, so that touching the buffer before
 * waiting shows. */
#include "sim_runtime.h"

#include <memory>
#include <string.h>

namespace {

struct copy {
    char *dst;
    size_t dst_pitch;
    const char *src;
    size_t src_pitch, width, height;
};

/* Bytes from the first row's start to the last row's end. */
size_t extent(size_t pitch, const copy &c)
{
    return c.height == 0 ? 0 : pitch * (c.height - 1) + c.width;
}

void copy_rows(const copy &c)
{
    if (sim_settings.dry && sim_is_device(c.dst)) return;
    sim_memory_touch(c.dst);
    sim_memory_touch(c.src);
    if (c.dst_pitch == c.width && c.src_pitch == c.width) {
        memmove(c.dst, c.src, c.width * c.height);
        return;
    }
    for (size_t row = 0; row < c.height; row++)
        memmove(c.dst + row * c.dst_pitch, c.src + row * c.src_pitch, c.width);
}

/* Resolve cudaMemcpyDefault; cudaMemcpyDefault again when the kind contradicts the addresses. */
enum cudaMemcpyKind kind_of(const copy &c, enum cudaMemcpyKind kind)
{
    bool to = sim_is_device(c.dst), from = sim_is_device(c.src);
    enum cudaMemcpyKind found = to ? (from ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                                   : (from ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
    return kind == cudaMemcpyDefault || kind == found ? found : cudaMemcpyDefault;
}

/* Device ends are in one allocation; a host end is pinned as a whole or not at all. */
cudaError_t check_end(const char *what, const void *p, size_t nbytes)
{
    if (sim_is_device(p)) {
        if (sim_device_range(p, nbytes)) return cudaSuccess;
        return sim_refuse(cudaErrorInvalidValue, "copy: %s, %zu bytes from %s", what, nbytes,
                          sim_memory_describe(p).c_str());
    }
    if (!sim_pinned_touches(p, nbytes) || sim_pinned_range(p, nbytes)) return cudaSuccess;
    return sim_refuse(cudaErrorInvalidValue, "copy: %s, %zu bytes at %p: only a part is pinned",
                      what, nbytes, p);
}

enum sim_kind trace_kind(enum cudaMemcpyKind kind)
{
    switch (kind) {
    case cudaMemcpyHostToDevice: return SIM_COPY_H2D;
    case cudaMemcpyDeviceToHost: return SIM_COPY_D2H;
    case cudaMemcpyDeviceToDevice: return SIM_COPY_D2D;
    default: return SIM_COPY_H2H;
    }
}

/* Pageable source: keep a packed copy of it, as the driver's staging buffer does. */
std::shared_ptr<std::vector<char>> stage(copy *c)
{
    auto staged = std::make_shared<std::vector<char>>(c->width * c->height);
    copy in = {staged->data(), c->width, c->src, c->src_pitch, c->width, c->height};
    copy_rows(in);
    c->src = staged->data();
    c->src_pitch = c->width;
    return staged;
}

cudaError_t queue_copy(copy c, enum cudaMemcpyKind asked, CUstream_st *s, bool blocking)
{
    if (c.width == 0 || c.height == 0) return cudaSuccess;
    if (!c.dst || !c.src || c.dst_pitch < c.width || c.src_pitch < c.width)
        return sim_error(cudaErrorInvalidValue);
    enum cudaMemcpyKind kind = kind_of(c, asked);
    if (kind == cudaMemcpyDefault)
        return sim_refuse(cudaErrorInvalidValue, "copy of kind %d: to %s, from %s", (int)asked,
                          sim_memory_describe(c.dst).c_str(), sim_memory_describe(c.src).c_str());
    size_t to_nbytes = extent(c.dst_pitch, c), from_nbytes = extent(c.src_pitch, c);
    cudaError_t error = check_end("destination", c.dst, to_nbytes);
    if (error == cudaSuccess) error = check_end("source", c.src, from_nbytes);
    if (error != cudaSuccess) return error;
    if (c.dst < c.src + from_nbytes && c.src < c.dst + to_nbytes)
        return sim_refuse(cudaErrorInvalidValue, "copy: %zu bytes overlap where they go",
                          from_nbytes);
    bool to_host = !sim_is_device(c.dst), from_host = !sim_is_device(c.src);
    bool to_pinned = to_host && sim_pinned_range(c.dst, to_nbytes);
    bool from_pinned = from_host && sim_pinned_range(c.src, from_nbytes);
    bool pinned = (!to_host || to_pinned) && (!from_host || from_pinned);
    struct sim_op_info info = {trace_kind(kind), "", c.width * c.height, pinned};
    const char *source = c.src;
    std::shared_ptr<std::vector<char>> staged;
    if (from_host && !from_pinned && !blocking && !to_host) staged = stage(&c);
    sim_op_ref op = sim_queue(s, &info, [c, staged] { copy_rows(c); });
    if (to_pinned || from_pinned) {
        op->host = (uintptr_t)(to_pinned ? c.dst : source);
        op->host_nbytes = to_pinned ? to_nbytes : from_nbytes;
    }
    /* Between two device buffers not even the blocking call waits. */
    if (to_host ? blocking || !pinned : blocking && from_host) sim_run_until(op);
    return sim_error(sim_status());
}

copy flat(void *dst, const void *src, size_t nbytes)
{
    return copy{(char *)dst, nbytes, (const char *)src, nbytes, nbytes, 1};
}

cudaError_t queue_fill(void *dst, size_t pitch, int value, size_t width, size_t height,
                       cudaStream_t stream)
{
    CUstream_st *s = sim_stream_of(stream);
    if (!s) return sim_error(cudaErrorInvalidResourceHandle);
    if (width == 0 || height == 0) return cudaSuccess;
    copy c = {(char *)dst, pitch, nullptr, 0, width, height};
    size_t nbytes = extent(pitch, c);
    if (!sim_device_range(dst, nbytes) && !sim_pinned_range(dst, nbytes))
        return sim_refuse(cudaErrorInvalidValue, "memset: %zu bytes from %s", nbytes,
                          sim_memory_describe(dst).c_str());
    struct sim_op_info info = {SIM_MEMSET, "", width * height, true};
    sim_queue(s, &info, [c, value] {
        if (sim_settings.dry) return;
        sim_memory_touch(c.dst);
        for (size_t row = 0; row < c.height; row++)
            memset(c.dst + row * c.dst_pitch, value, c.width);
    });
    return sim_error(sim_status());
}

} // namespace

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    SIM_ENTER_CONTEXT();
    CUstream_st *s = sim_stream_of(stream);
    if (!s) return sim_error(cudaErrorInvalidResourceHandle);
    return queue_copy(flat(dst, src, nbytes), kind, s, false);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind)
{
    SIM_ENTER_CONTEXT();
    return queue_copy(flat(dst, src, nbytes), kind, sim_stream_of(nullptr), true);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    SIM_ENTER_CONTEXT();
    CUstream_st *s = sim_stream_of(stream);
    if (!s) return sim_error(cudaErrorInvalidResourceHandle);
    copy c = {(char *)dst, dst_pitch, (const char *)src, src_pitch, width, height};
    return queue_copy(c, kind, s, false);
}

cudaError_t cudaMemcpy2D(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                         size_t width, size_t height, enum cudaMemcpyKind kind)
{
    SIM_ENTER_CONTEXT();
    copy c = {(char *)dst, dst_pitch, (const char *)src, src_pitch, width, height};
    return queue_copy(c, kind, sim_stream_of(nullptr), true);
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t nbytes, cudaStream_t stream)
{
    SIM_ENTER_CONTEXT();
    return queue_fill(dst, nbytes, value, nbytes, 1, stream);
}

cudaError_t cudaMemset(void *dst, int value, size_t nbytes)
{
    SIM_ENTER_CONTEXT();
    return queue_fill(dst, nbytes, value, nbytes, 1, nullptr);
}

cudaError_t cudaMemset2DAsync(void *dst, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream)
{
    SIM_ENTER_CONTEXT();
    return queue_fill(dst, pitch, value, width, height, stream);
}
