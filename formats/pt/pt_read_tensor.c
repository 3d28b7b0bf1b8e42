/* Elements of a tensor, whatever its strides: runs that are contiguous are read at once, and
 * scattered elements are picked from a span that is read whole when it is small. */
#include "base/size.h"
#include "formats/file_io.h"
#include "formats/pt/pt_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SPAN_NBYTES_MAX ((size_t)4 << 20)
#define CONVERT_NBYTES  ((size_t)32 << 10)

#define ULL(x) ((unsigned long long)(x))

/* Asked by every reader, since offsets come from the caller's layout and not from the file. */
static cz_status check_range(const struct pt *pt, const struct pickle_tensor *t, uint64_t elem_off,
                             uint64_t numel)
{
    if (elem_off > t->numel || numel > t->numel - elem_off)
        return err_set(CZ_INVALID, 0,
                       "%s: record data/%s: elements %llu to %llu of a tensor that has %llu",
                       pt->path, t->key, ULL(elem_off), ULL(elem_off + numel), ULL(t->numel));
    return CZ_OK;
}

cz_status pt_count_elements(const char *name, uint64_t file_nbytes, uint64_t *nbytes,
                            uint64_t numel, size_t elem_nbytes)
{
    uint64_t max, more;
    if (__builtin_mul_overflow(file_nbytes, (uint64_t)PT_REPEAT_MAX, &max) ||
        __builtin_add_overflow(max, PT_REPEAT_FREE_NBYTES, &max))
        max = UINT64_MAX;
    if (!__builtin_mul_overflow(numel, (uint64_t)elem_nbytes, &more) &&
        !__builtin_add_overflow(*nbytes, more, nbytes) && *nbytes <= max)
        return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s: its tensors have more than %d times the bytes of its files (%" PRIu64
                   "): views repeat elements",
                   name, PT_REPEAT_MAX, file_nbytes);
}

/* ---- strides --------------------------------------------------------------------------------- */

/* A tensor's dimensions without those of one element, neighbours merged where one strides over the
 * other whole. */
struct view {
    int ndim;
    uint64_t shape[PICKLE_NDIM_MAX], stride[PICKLE_NDIM_MAX];
};

/* Where element elem_off is in the storage, and how many follow it with the last dimension's
 * stride. */
static uint64_t locate(const struct view *v, uint64_t elem_off, uint64_t *n_run)
{
    uint64_t at = 0;
    *n_run = 1;
    for (int d = v->ndim; d-- > 0;) {
        uint64_t idx = elem_off % v->shape[d];
        if (d == v->ndim - 1) *n_run = v->shape[d] - idx;
        at += idx * v->stride[d];
        elem_off /= v->shape[d];
    }
    return at;
}

static void copy_strided(char *dst, const char *src, size_t n, size_t size, size_t step)
{
    for (size_t i = 0; i < n; i++, dst += size, src += step) memcpy(dst, src, size);
}

/* Elements picked out of the tensor's whole span in memory. The caller has checked that the span
 * has every element. */
static void gather(const struct view *v, uint64_t elem_off, size_t numel, size_t size,
                   const char *span, char *dst)
{
    size_t step = (size_t)v->stride[v->ndim - 1] * size;
    while (numel > 0) {
        uint64_t n_run, at = locate(v, elem_off, &n_run);
        size_t n = n_run < numel ? (size_t)n_run : numel;
        copy_strided(dst, span + at * size, n, size, step);
        dst += n * size;
        elem_off += n;
        numel -= n;
    }
}

/* For large spans: the file is read run by run, so memory stays bounded. */
static cz_status read_runs(const struct pt *pt, const struct view *v, uint64_t base,
                           uint64_t elem_off, size_t numel, size_t size, char *span, char *dst)
{
    uint64_t stride = v->stride[v->ndim - 1];
    while (numel > 0) {
        uint64_t n_run, at = base + locate(v, elem_off, &n_run) * size;
        size_t n = n_run < numel ? (size_t)n_run : numel;
        if (stride == 1)
            TRY(file_pread(pt->fd, pt->path, dst, n * size, at));
        else {
            /* One run with a stride, in pieces whose span fits the buffer. */
            uint64_t step = stride * size;
            size_t n_max = n;
            if (step > 0 && step * (uint64_t)n > SPAN_NBYTES_MAX)
                n_max = SPAN_NBYTES_MAX / (size_t)step;
            if (step > SPAN_NBYTES_MAX / 16) n_max = 1; /* too far apart to read all between them */
            for (size_t i = 0; i < n; i += n_max) {
                size_t n_now = n - i < n_max ? n - i : n_max;
                size_t nbytes = (size_t)(step * (n_now - 1)) + size;
                TRY(file_pread(pt->fd, pt->path, span, nbytes, at + i * step));
                copy_strided(dst + i * size, span, n_now, size, (size_t)step);
            }
        }
        dst += n * size;
        elem_off += n;
        numel -= n;
    }
    return CZ_OK;
}

/* Small means: fits the buffer, and at least a sixteenth of it is asked for. */
static cz_status read_view(const struct pt *pt, const struct view *v, uint64_t base,
                           uint64_t elem_off, size_t numel, size_t size, char *dst)
{
    /* Bytes from the view's first element to the end of its farthest one. The pickle reader has
     * checked that they are inside the storage, so nothing here overflows. */
    uint64_t far = 0;
    for (int d = 0; d < v->ndim; d++) far += (v->shape[d] - 1) * v->stride[d];
    uint64_t nbytes = (far + 1) * size;
    bool is_small = nbytes <= SPAN_NBYTES_MAX && nbytes / 16 <= (uint64_t)numel * size;
    size_t span_max = nbytes < SPAN_NBYTES_MAX ? (size_t)nbytes : SPAN_NBYTES_MAX;
    char *span = malloc(span_max + size);
    if (!span) return err_set(CZ_NOMEM, 0, "%s: no memory to read a strided tensor", pt->path);
    cz_status st;
    if (is_small) {
        st = file_pread(pt->fd, pt->path, span, (size_t)nbytes, base);
        if (st == CZ_OK) gather(v, elem_off, numel, size, span, dst);
    } else
        st = read_runs(pt, v, base, elem_off, numel, size, span, dst);
    free(span);
    return st;
}

cz_status pt_read(const struct pt *pt, const struct pickle_tensor *t, uint64_t elem_off,
                  size_t numel, void *dst)
{
    size_t size = t->dtype->size, nbytes;
    TRY(check_range(pt, t, elem_off, numel));
    TRY(size_mul(numel, size, &nbytes));
    if (numel == 0) return CZ_OK;
    const struct pt_record *r = pt_storage(pt, t);
    uint64_t base = r->off + t->off * size;
    if (t->is_contiguous) {
        TRY(file_pread(pt->fd, pt->path, dst, nbytes, base + elem_off * size));
        return file_stamp_check(pt->fd, pt->path, &pt->stamp);
    }
    struct view v;
    v.ndim = 0;
    for (int d = 0; d < t->ndim; d++) {
        uint64_t n = (uint64_t)t->shape[d], stride = (uint64_t)t->stride[d];
        if (n == 1) continue;
        int last = v.ndim - 1;
        if (last >= 0 && v.stride[last] == stride * n) {
            v.shape[last] *= n;
            v.stride[last] = stride;
            continue;
        }
        v.shape[v.ndim] = n;
        v.stride[v.ndim++] = stride;
    }
    TRY(read_view(pt, &v, base, elem_off, numel, size, dst));
    return file_stamp_check(pt->fd, pt->path, &pt->stamp);
}

/* ---- as fp32 --------------------------------------------------------------------------------- */

#define WIDEN(type, expr)                                                                          \
    for (size_t i = 0; i < n; i++) {                                                               \
        type x;                                                                                    \
        memcpy(&x, (const char *)src + i * sizeof x, sizeof x);                                    \
        dst[i] = (float)(expr);                                                                    \
    }                                                                                              \
    break

/* Integers beyond 2²⁴ lose digits in fp32; counters are read by pt_number() instead. */
static void widen(enum cz_dtype dtype, const void *src, size_t n, float *dst)
{
    switch (dtype) {
    case DTYPE_F32: memcpy(dst, src, n * sizeof *dst); break;
    case DTYPE_BF16: WIDEN(uint16_t, bf16_to_f32(x));
    case DTYPE_F16: WIDEN(uint16_t, f16_to_f32(x));
    case DTYPE_F64: WIDEN(double, x);
    case DTYPE_I64: WIDEN(int64_t, x);
    case DTYPE_I32: WIDEN(int32_t, x);
    case DTYPE_I16: WIDEN(int16_t, x);
    case DTYPE_I8: WIDEN(int8_t, x);
    case DTYPE_U8: WIDEN(uint8_t, x);
    case DTYPE_BOOL: WIDEN(uint8_t, x != 0);
    }
}

static cz_status check_base(const struct pt *pt, const struct pickle_tensor *t)
{
    if (t->dtype->has_base) return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0, "%s: record data/%s: numbers of type %s are not converted",
                   pt->path, t->key, t->dtype->torch_name);
}

cz_status pt_read_f32(const struct pt *pt, const struct pickle_tensor *t, uint64_t elem_off,
                      size_t numel, float *dst)
{
    char raw[CONVERT_NBYTES];
    const bool is_float8 = pickle_is_float8(t->dtype);
    if (!is_float8) TRY(check_base(pt, t));
    size_t n_max = sizeof raw / t->dtype->size;
    if (!is_float8 && t->dtype->base == DTYPE_F32) return pt_read(pt, t, elem_off, numel, dst);
    TRY(check_range(pt, t, elem_off, numel));
    for (size_t i = 0; i < numel; i += n_max) {
        size_t n = numel - i < n_max ? numel - i : n_max;
        TRY(pt_read(pt, t, elem_off + i, n, raw));
        if (is_float8)
            pickle_float8_widen(t->dtype, raw, n, dst + i);
        else
            widen(t->dtype->base, raw, n, dst + i);
    }
    return CZ_OK;
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* One element, for the types that fp32 does not hold exactly. */
static double to_double(enum cz_dtype dtype, const void *src)
{
    double x;
    int64_t i64;
    int32_t i32;
    float f32;
    switch (dtype) {
    case DTYPE_F64: memcpy(&x, src, sizeof x); return x;
    case DTYPE_I64: memcpy(&i64, src, sizeof i64); return (double)i64;
    case DTYPE_I32: memcpy(&i32, src, sizeof i32); return i32;
    default: widen(dtype, src, 1, &f32); return f32;
    }
}

/* A tensor of one element, such as a step. */
static cz_status tensor_number(const struct pt *pt, const struct pickle_tensor *t, double *out)
{
    char raw[sizeof(double)];
    if (t->numel != 1)
        return err_set(CZ_CORRUPT, 0, "%s: expected a number, found a tensor of %llu elements",
                       pt->path, ULL(t->numel));
    TRY(check_base(pt, t));
    TRY(pt_read(pt, t, 0, 1, raw));
    *out = to_double(t->dtype->base, raw);
    return CZ_OK;
}

cz_status pt_number(const struct pt *pt, const struct pickle_node *node, double *out)
{
    if (pickle_is(node, PICKLE_TENSOR)) return tensor_number(pt, node->tensor, out);
    if (pickle_to_double(node, out)) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: expected a number, found %s", pt->path,
                   node ? pickle_kind_phrase(node->kind) : "nothing");
}
