/* Barriers of a block and collectives of a warp, with nvcc's names. Each remembers the line it was
 * called from, which a deadlock's sentence names. */
#ifndef CZ_TESTS_SIM_COLLECTIVE_H
#define CZ_TESTS_SIM_COLLECTIVE_H

#include "sim_exec.h"

#include <string.h>

#define SIM_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(SIM_SITE)
{
    sim_exec_barrier(false, "__syncthreads", file, line);
}
inline int __syncthreads_count(int p, SIM_SITE)
{
    return sim_exec_barrier(p != 0, "__syncthreads_count", file, line);
}
inline int __syncthreads_or(int p, SIM_SITE)
{
    return sim_exec_barrier(p != 0, "__syncthreads_or", file, line) > 0;
}
inline int __syncthreads_and(int p, SIM_SITE)
{
    return sim_exec_barrier(p == 0, "__syncthreads_and", file, line) == 0;
}

inline void *sim_dynamic_shared(void)
{
    return sim_exec_dynamic_shared();
}

/* How each collective computes all lanes' results once they met (sim_collective.cc). */
typedef struct sim_lane *const *sim_lanes;
void sim_shfl_idx(sim_lanes lanes, unsigned mask);
void sim_shfl_up(sim_lanes lanes, unsigned mask);
void sim_shfl_down(sim_lanes lanes, unsigned mask);
void sim_shfl_xor(sim_lanes lanes, unsigned mask);
void sim_ballot(sim_lanes lanes, unsigned mask);
void sim_match_any(sim_lanes lanes, unsigned mask);
void sim_reduce_add(sim_lanes lanes, unsigned mask);
void sim_reduce_min(sim_lanes lanes, unsigned mask);
void sim_reduce_max(sim_lanes lanes, unsigned mask);
void sim_reduce_and(sim_lanes lanes, unsigned mask);
void sim_reduce_or(sim_lanes lanes, unsigned mask);
void sim_reduce_xor(sim_lanes lanes, unsigned mask);

template <class T>
inline T sim_shuffle(sim_evaluate evaluate, const char *what, unsigned mask, T value, int param,
                     int width, const char *file, int line)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    struct sim_lane *lane = sim_exec_lane();
    lane->value = bits;
    lane->param = param;
    lane->width = width;
    uint64_t got = sim_exec_collective(evaluate, what, mask, file, line);
    memcpy(&value, &got, sizeof value);
    return value;
}

template <class T>
inline T __shfl_sync(unsigned mask, T value, int lane, int width = SIM_WARP, SIM_SITE)
{
    return sim_shuffle(sim_shfl_idx, "__shfl_sync", mask, value, lane, width, file, line);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = SIM_WARP, SIM_SITE)
{
    return sim_shuffle(sim_shfl_up, "__shfl_up_sync", mask, value, (int)by, width, file, line);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = SIM_WARP, SIM_SITE)
{
    return sim_shuffle(sim_shfl_down, "__shfl_down_sync", mask, value, (int)by, width, file, line);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = SIM_WARP, SIM_SITE)
{
    return sim_shuffle(sim_shfl_xor, "__shfl_xor_sync", mask, value, bits, width, file, line);
}

inline uint64_t sim_meet(sim_evaluate evaluate, const char *what, unsigned mask, uint64_t value,
                         const char *file, int line)
{
    sim_exec_lane()->value = value;
    return sim_exec_collective(evaluate, what, mask, file, line);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, SIM_SITE)
{
    sim_meet(nullptr, "__syncwarp", mask, 0, file, line);
}
inline unsigned __ballot_sync(unsigned mask, int p, SIM_SITE)
{
    return (unsigned)sim_meet(sim_ballot, "__ballot_sync", mask, p != 0, file, line);
}
inline int __any_sync(unsigned mask, int p, SIM_SITE)
{
    return sim_meet(sim_ballot, "__any_sync", mask, p != 0, file, line) != 0;
}
inline int __all_sync(unsigned mask, int p, SIM_SITE)
{
    return sim_meet(sim_ballot, "__all_sync", mask, p != 0, file, line) == mask;
}
/* The only lane that is certain to be here: code that assumes more is wrong on hardware, too. */
inline unsigned __activemask(void)
{
    return 1u << (sim_now.linear % SIM_WARP);
}
template <class T> inline unsigned __match_any_sync(unsigned mask, T value, SIM_SITE)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "4 or 8 bytes are compared");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return (unsigned)sim_meet(sim_match_any, "__match_any_sync", mask, bits, file, line);
}

/* Integer sums wrap, so signed and unsigned share one; min and max are compared as 64 bits. */
inline unsigned __reduce_add_sync(unsigned mask, unsigned v, SIM_SITE)
{
    return (unsigned)sim_meet(sim_reduce_add, "__reduce_add_sync", mask, v, file, line);
}
inline int __reduce_add_sync(unsigned mask, int v, SIM_SITE)
{
    return (int)sim_meet(sim_reduce_add, "__reduce_add_sync", mask, (uint64_t)v, file, line);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned v, SIM_SITE)
{
    return (unsigned)sim_meet(sim_reduce_max, "__reduce_max_sync", mask, v, file, line);
}
inline int __reduce_max_sync(unsigned mask, int v, SIM_SITE)
{
    return (int)sim_meet(sim_reduce_max, "__reduce_max_sync", mask, (uint64_t)v, file, line);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned v, SIM_SITE)
{
    return (unsigned)sim_meet(sim_reduce_min, "__reduce_min_sync", mask, v, file, line);
}
inline int __reduce_min_sync(unsigned mask, int v, SIM_SITE)
{
    return (int)sim_meet(sim_reduce_min, "__reduce_min_sync", mask, (uint64_t)v, file, line);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned v, SIM_SITE)
{
    return (unsigned)sim_meet(sim_reduce_and, "__reduce_and_sync", mask, v, file, line);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned v, SIM_SITE)
{
    return (unsigned)sim_meet(sim_reduce_or, "__reduce_or_sync", mask, v, file, line);
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned v, SIM_SITE)
{
    return (unsigned)sim_meet(sim_reduce_xor, "__reduce_xor_sync", mask, v, file, line);
}

inline void __nanosleep(unsigned)
{
    sim_exec_yield();
}

#endif
