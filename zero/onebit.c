/* The 1-bit family's exchange. */
#include "zero/zero_impl.h"

bool zero_averages(const struct zero *z)
{
    (void)z;
    return true;
}

size_t zero_n_segments(const struct zero *z)
{
    (void)z;
    return 0;
}

struct zero_segment zero_segment(const struct zero *z, size_t segment)
{
    (void)z, (void)segment;
    return (struct zero_segment){0};
}

struct zero_onebit zero_onebit(struct zero *z)
{
    (void)z;
    return (struct zero_onebit){0};
}

struct zero_range zero_onebit_range(const struct zero *z, enum zero_onebit_what what, size_t idx)
{
    (void)z, (void)what, (void)idx;
    return (struct zero_range){0};
}

cz_status zero_onebit_restored(struct zero *z)
{
    (void)z;
    return CZ_OK;
}
