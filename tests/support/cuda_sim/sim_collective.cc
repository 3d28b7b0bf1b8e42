/* What warp collectives compute, once the lanes of the mask met. */
#include "sim_collective.h"

/* What a lane reads from one that takes no part: undefined on hardware, a NaN here. */
#define UNDEFINED UINT64_MAX

/* Lane l's segment of `width` lanes begins at l & ~(width - 1). */
template <class F> static void shuffle_lanes(sim_lanes lanes, unsigned mask, F source_of)
{
    for (int l = 0; l < SIM_WARP; l++) {
        if (!(mask >> l & 1)) continue;
        int width = lanes[l]->width, first = l & ~(width - 1);
        int source = source_of(l, first, width, lanes[l]->param);
        bool taken = source >= 0 && source < SIM_WARP && (mask >> source & 1);
        lanes[l]->result = taken ? lanes[source]->value : UNDEFINED;
    }
}

void sim_shfl_idx(sim_lanes lanes, unsigned mask)
{
    shuffle_lanes(lanes, mask,
                  [](int, int first, int width, int lane) { return first + (lane & (width - 1)); });
}

void sim_shfl_up(sim_lanes lanes, unsigned mask)
{
    shuffle_lanes(lanes, mask,
                  [](int l, int first, int, int by) { return l - by < first ? l : l - by; });
}

void sim_shfl_down(sim_lanes lanes, unsigned mask)
{
    shuffle_lanes(lanes, mask, [](int l, int first, int width, int by) {
        return l + by >= first + width ? l : l + by;
    });
}

/* A partner in a later segment is out of reach, one in an earlier segment is not. */
void sim_shfl_xor(sim_lanes lanes, unsigned mask)
{
    shuffle_lanes(lanes, mask, [](int l, int first, int width, int bits) {
        return (l ^ bits) >= first + width ? l : l ^ bits;
    });
}

template <class F>
static void reduce_lanes(sim_lanes lanes, unsigned mask, uint64_t start, F combine)
{
    uint64_t sum = start;
    for (int l = 0; l < SIM_WARP; l++)
        if (mask >> l & 1) sum = combine(sum, lanes[l]->value, l);
    for (int l = 0; l < SIM_WARP; l++)
        if (mask >> l & 1) lanes[l]->result = sum;
}

void sim_ballot(sim_lanes lanes, unsigned mask)
{
    reduce_lanes(lanes, mask, 0, [](uint64_t a, uint64_t p, int l) { return a | p << l; });
}

void sim_match_any(sim_lanes lanes, unsigned mask)
{
    for (int l = 0; l < SIM_WARP; l++) {
        if (!(mask >> l & 1)) continue;
        uint64_t equal = 0;
        for (int o = 0; o < SIM_WARP; o++)
            if ((mask >> o & 1) && lanes[o]->value == lanes[l]->value) equal |= 1u << o;
        lanes[l]->result = equal;
    }
}

void sim_reduce_add(sim_lanes lanes, unsigned mask)
{
    reduce_lanes(lanes, mask, 0, [](uint64_t a, uint64_t b, int) { return a + b; });
}

/* Values came as int or unsigned widened to 64 bits: a signed comparison is right for both. */
void sim_reduce_min(sim_lanes lanes, unsigned mask)
{
    reduce_lanes(lanes, mask, INT64_MAX,
                 [](uint64_t a, uint64_t b, int) { return (int64_t)a < (int64_t)b ? a : b; });
}

void sim_reduce_max(sim_lanes lanes, unsigned mask)
{
    reduce_lanes(lanes, mask, (uint64_t)INT64_MIN,
                 [](uint64_t a, uint64_t b, int) { return (int64_t)a > (int64_t)b ? a : b; });
}

void sim_reduce_and(sim_lanes lanes, unsigned mask)
{
    reduce_lanes(lanes, mask, UINT64_MAX, [](uint64_t a, uint64_t b, int) { return a & b; });
}

void sim_reduce_or(sim_lanes lanes, unsigned mask)
{
    reduce_lanes(lanes, mask, 0, [](uint64_t a, uint64_t b, int) { return a | b; });
}

void sim_reduce_xor(sim_lanes lanes, unsigned mask)
{
    reduce_lanes(lanes, mask, 0, [](uint64_t a, uint64_t b, int) { return a ^ b; });
}
