/* The definition, in plain loops. */
#include "ops/reduce/reduce_impl.h"

#include <math.h>

static void scan(const struct scan_args *a, size_t begin, size_t end, struct scan_result *out)
{
    for (size_t i = begin; i < end; i++) {
        float x = fabsf(dtype_get(a->x, i, a->dtype));
        if (!isfinite(x)) {
            if (out->finite) out->first_nonfinite = i;
            out->finite = false;
        } else if (x > out->max_abs) {
            out->max_abs = x;
        }
    }
}

static void squares(const struct scan_args *a, size_t begin, size_t end, struct scan_result *out,
                    struct squares_sum *sum)
{
    scan(a, begin, end, out);
    for (size_t i = begin; i < end; i++) {
        const struct float_square x = float_square(f32_bits(dtype_get(a->x, i, a->dtype)));
        squares_add(sum, (int64_t)x.mantissa, x.shift);
    }
}

const struct reduce_row reduce_scalar = {{"scalar", 0}, scan, squares};
