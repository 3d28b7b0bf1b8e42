/* Comparing the rows of an op with row 0: inputs, guarded outputs, tolerances.
 *
 * A test walks the table of its op (`<op>_rows()`), wires a struct ops for each row that this CPU
 * runs (agree_wire), and feeds all of them the same input. Inputs and outputs are in agree_bufs,
 * whose guard bytes show a write outside; sizes come from agree_numels(), start offsets from the
 * test. Everything here fails the running Check test with a sentence. */
#ifndef CZ_TESTS_AGREE_H
#define CZ_TESTS_AGREE_H

#include "base/cpu.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "ops/ops_impl.h"
#include "ops/table_impl.h"
#include "tests/support/check_main.h"

#include <float.h>
#include <math.h>

#define AGREE_GUARD   128 /* guard bytes on each side */
#define AGREE_BYTE    0xA5
#define AGREE_FILLING 0xFF /* of a tensor at first: NaNs in every dtype */

/* How far a row may be from row 0. 16-bit outputs are allowed one step of their grid on top, since
 * a difference in fp32 may fall on either side of a rounding edge; {0, 0} means equal to the bit.
 */
struct agree_tol {
    const char *op;
    float rtol, atol;
    const char *why;
};

/* A tensor with guard bytes before and after, starting `offset` elements past a 64-byte line. It
 * begins as NaNs, which show what a kernel forgets to write. */
struct agree_buf {
    unsigned char *block; /* what was allocated */
    void *p;              /* the tensor */
    size_t numel, nbytes;
    enum cz_dtype dtype;
};

static inline struct agree_buf agree_buf_make(enum cz_dtype dtype, size_t numel, size_t offset)
{
    struct agree_buf b = {.numel = numel, .nbytes = numel * dtype_size(dtype), .dtype = dtype};
    size_t lead = AGREE_GUARD + offset * dtype_size(dtype);
    size_t total = (lead + b.nbytes + AGREE_GUARD + 63) / 64 * 64;
    b.block = aligned_alloc(64, total);
    if (!b.block) ck_abort_msg("out of memory");
    memset(b.block, AGREE_BYTE, total);
    b.p = b.block + lead;
    memset(b.p, AGREE_FILLING, b.nbytes);
    return b;
}

/* ck_assert_msg for inner loops: Check writes to a file at every ck_assert that passes. */
#define agree_assert(ok, ...)                                                                      \
    do {                                                                                           \
        if (!(ok)) ck_abort_msg(__VA_ARGS__);                                                      \
    } while (0)

/* Fail when a guard byte changed. */
static inline void agree_guards(const struct agree_buf *b, const char *what)
{
    const unsigned char *p = b->p;
    for (size_t i = 0; i < AGREE_GUARD; i++) {
        agree_assert(*(p - 1 - i) == AGREE_BYTE, "%s: byte %zu before the tensor changed", what,
                     i + 1);
        agree_assert(p[b->nbytes + i] == AGREE_BYTE, "%s: byte %zu past the tensor changed", what,
                     i);
    }
}

static inline void agree_buf_free(struct agree_buf *b)
{
    free(b->block);
    b->block = NULL;
}

static inline float agree_get(const struct agree_buf *b, size_t i)
{
    return dtype_get(b->p, i, b->dtype);
}

static inline void agree_set(struct agree_buf *b, size_t i, float x)
{
    dtype_put(b->p, i, b->dtype, x);
}

/* 64 random bits of element i; cheaper than base/rng.h, and not what kernels use. */
static inline uint64_t agree_random(uint64_t seed, size_t i)
{
    return rng_mix64((seed << 40) + i + 1);
}

/* Values spread over [−range, range]; the same for the same seed. */
static inline void agree_fill(struct agree_buf *b, uint64_t seed, float range)
{
    for (size_t i = 0; i < b->numel; i++)
        agree_set(b, i, range * ((float)(agree_random(seed, i) >> 40) * 0x1p-23f - 1.0f));
}

/* The same, with about one element in eight replaced by something special. */
static inline void agree_fill_special(struct agree_buf *b, uint64_t seed, float range)
{
    static const uint32_t special[] = {
        0x7fc00000, 0xffc12345, 0x7fa00001,             /* NaN: quiet, with payload, signalling */
        0x7f800000, 0xff800000,                         /* ±infinity */
        0x80000000, 0x00000000,                         /* ±0 */
        0x00000001, 0x807fffff, 0x00012345, 0x33000000, /* denormals of fp32 and of fp16 */
        0x7f7fffff, 0xff7f8000, 0x477ff000, 0x477fefff, /* where each format overflows */
        0x3f808000, 0x3f818000, 0x3f801000, 0x3f803000, /* ties of bf16 and of fp16 */
    };
    agree_fill(b, seed, range);
    for (size_t i = 0; i < b->numel; i++) {
        uint32_t u = (uint32_t)agree_random(seed + 1000, i);
        if (u % 8 != 0) continue;
        uint32_t bits = special[(u >> 3) % CZ_ARRAY_LEN(special)];
        if (b->dtype == DTYPE_F32)
            memcpy((float *)b->p + i, &bits, sizeof bits); /* a load may quiet a NaN */
        else
            agree_set(b, i, f32_from_bits(bits));
    }
}

/* Magnitudes of `octaves` powers of two up to max_abs, which is among them; zeros too. */
static inline void agree_fill_octaves(struct agree_buf *x, uint64_t seed, float max_abs,
                                      uint64_t octaves)
{
    agree_fill(x, seed, 1.0f);
    for (size_t i = 0; i < x->numel; i++) {
        int down = (int)(agree_random(seed + 1, i) % octaves);
        agree_set(x, i, i % 19 == 5 ? 0 : ldexpf(agree_get(x, i) * max_abs, -down));
    }
    if (x->numel > 0) agree_set(x, x->numel / 2, -max_abs);
}

/* Sizes around the vector width w, and one that uses all threads. Returns how many. */
#define AGREE_NUMELS 8
static inline size_t agree_numels(size_t w, size_t out[AGREE_NUMELS])
{
    const size_t sizes[AGREE_NUMELS] = {0, 1, w - 1, w, w + 1, 2 * w + 3, 1000, 1 << 20};
    memcpy(out, sizes, sizeof sizes);
    return AGREE_NUMELS;
}

/* The widest vector of any row, in fp32 lanes: start offsets run below it. */
#define AGREE_WIDTH 16

static inline bool agree_row_runs(const struct ops_row *row)
{
    return ops_row_runs(row, cpu_features_hardware());
}

/* A table with only one op folder wired, to exactly the given row. */
static inline struct ops agree_wire(cz_status (*wire)(struct ops *, uint32_t),
                                    const struct ops_row *row)
{
    struct ops ops = {.isa = row->name};
    ck_ok(wire(&ops, row->features));
    return ops;
}

static inline uint32_t agree_bits(const struct agree_buf *b, size_t i)
{
    uint32_t u = 0;
    memcpy(&u, (const char *)b->p + i * dtype_size(b->dtype), dtype_size(b->dtype));
    return u;
}

/* One step of the grid of a 16-bit dtype at x; 0 for fp32. */
static inline float agree_step(enum cz_dtype dtype, float x)
{
    if (dtype == DTYPE_BF16) return fmaxf(fabsf(x) * 0x1p-7f, 0x1p-133f);
    if (dtype == DTYPE_F16) return fmaxf(fabsf(x) * 0x1p-10f, 0x1p-24f);
    return 0;
}

static inline bool agree_close(float got, float want, enum cz_dtype dtype,
                               const struct agree_tol *tol)
{
    if (isnan(got) || isnan(want)) return isnan(got) && isnan(want);
    if (tol->rtol == 0 && tol->atol == 0) return f32_bits(got) == f32_bits(want);
    if (isinf(got) || isinf(want)) {
        /* 16-bit formats overflow early: the largest finite value is one step from infinity. */
        if (got == want) return true;
        float edge = dtype == DTYPE_F16 ? 65504.0f : dtype == DTYPE_BF16 ? 0x1.fep127f : FLT_MAX;
        return (got > 0) == (want > 0) && fminf(fabsf(got), fabsf(want)) >= edge;
    }
    return fabsf(got - want) <= tol->atol + tol->rtol * fabsf(want) + agree_step(dtype, want);
}

/* Fail at the first element of `got` that is not as close to `want` as `tol` asks. NaN must meet
 * NaN (of any payload). `row` and `what` name the case. */
static inline void agree_check(const struct agree_buf *got, const struct agree_buf *want,
                               const struct agree_tol *tol, const char *row, const char *what)
{
    agree_assert(got->numel == want->numel, "%s: sizes differ", what);
    for (size_t i = 0; i < got->numel; i++) {
        float g = agree_get(got, i), w = agree_get(want, i);
        agree_assert(agree_close(g, w, got->dtype, tol),
                     "%s %s (%s, numel %zu): element %zu is %.9g (%08x), row 0 gives %.9g (%08x)",
                     tol->op, row, what, got->numel, i, (double)g, agree_bits(got, i), (double)w,
                     agree_bits(want, i));
    }
    agree_guards(got, row);
}

/* Central difference of `loss` with respect to element i of x (fp32), with step eps: the yardstick
 * of a backward pass. `loss` should add up in double. */
static inline double agree_difference(struct agree_buf *x, size_t i, float eps,
                                      double (*loss)(void *user), void *user)
{
    float at = agree_get(x, i);
    agree_set(x, i, at + eps);
    double above = loss(user), step_above = (double)agree_get(x, i);
    agree_set(x, i, at - eps);
    double below = loss(user), step_below = (double)agree_get(x, i);
    agree_set(x, i, at);
    return (above - below) / (step_above - step_below);
}

/* Fail unless `got` is within rtol·scale of `want`, scale = max(|want|, 1). */
static inline void agree_gradient(double got, double want, double rtol, const char *what, size_t i)
{
    double scale = fabs(want) > 1 ? fabs(want) : 1;
    agree_assert(fabs(got - want) <= rtol * scale,
                 "%s[%zu]: backward gives %.7g, differences of forward %.7g", what, i, got, want);
}

/* Fail unless both hold the same bytes. */
static inline void agree_same(const struct agree_buf *a, const struct agree_buf *b,
                              const char *what)
{
    agree_assert(a->nbytes == b->nbytes, "%s: sizes differ", what);
    agree_assert(a->nbytes == 0 || memcmp(a->p, b->p, a->nbytes) == 0, "%s: bytes differ", what);
}

#endif
