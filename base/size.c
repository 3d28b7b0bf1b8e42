#include "base/size.h"

#include <stdio.h>

cz_status size_mul(size_t a, size_t b, size_t *out)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return err_set(CZ_INVALID, 0, "size overflow: %zu x %zu", a, b);
    *out = product;
    return CZ_OK;
}

cz_status size_add(size_t a, size_t b, size_t *out)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return err_set(CZ_INVALID, 0, "size overflow: %zu + %zu", a, b);
    *out = sum;
    return CZ_OK;
}

const char *size_human(size_t nbytes, char *buf, size_t buf_nbytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)nbytes;
    size_t unit_idx = 0;
    /* What would be printed as 1024.00 belongs to the next unit. */
    while (value >= (unit_idx == 0 ? 1024.0 : 1023.995) && unit_idx + 1 < CZ_ARRAY_LEN(units)) {
        value /= 1024.0;
        unit_idx++;
    }
    snprintf(buf, buf_nbytes, unit_idx == 0 ? "%.0f %s" : "%.2f %s", value, units[unit_idx]);
    return buf;
}
