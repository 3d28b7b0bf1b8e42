/* What a test program may ask of the simulated device itself; find these with dlsym in the
 * simulated libczero_cuda.so. C and C++. Not thread safe.
 *
 * A trace lists what was queued between begin and end, in the order of the calls. Whether one entry
 * has to finish before another starts is decided by streams and events alone, so a test can say
 * that a copy overlaps a kernel: it is on another stream, and neither is ordered after the other.
 */
#ifndef CZ_TESTS_SIM_TRACE_H
#define CZ_TESTS_SIM_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIM_EXPORT __attribute__((visibility("default")))

enum sim_kind {
    SIM_KERNEL = 0,
    SIM_COPY_H2D,
    SIM_COPY_D2H,
    SIM_COPY_D2D,
    SIM_COPY_H2H,
    SIM_MEMSET,
    SIM_RECORD, /* an event was recorded */
    SIM_WAIT,   /* the stream waits for an event */
    SIM_HOST,   /* cudaLaunchHostFunc */
    SIM_LIBRARY /* a call of a library's stand-in: cuBLASLt, NCCL */
};

struct sim_trace_entry {
    enum sim_kind kind;
    int stream;        /* 0: the default stream; others by creation, from 1 */
    const char *name;  /* of kernels and library calls; "" for others. Valid until the next begin */
    size_t nbytes;     /* of copies and memsets */
    uint64_t sequence; /* position in the process's calls, from 1 */
    uint64_t ran;      /* position in which it ran, from 1; 0: has not */
    uint64_t waits_for; /* SIM_WAIT: sequence of the record it waits for; 0: of none */
    bool pinned;        /* copies: the host side is pinned, so the call did not block */
};

SIM_EXPORT void sim_trace_begin(void); /* forgets the last trace */
SIM_EXPORT void sim_trace_end(void);
SIM_EXPORT size_t sim_trace_count(void);
SIM_EXPORT struct sim_trace_entry sim_trace_at(size_t i);
/* Whether entry i has to be finished before entry j starts, whatever the timing. */
SIM_EXPORT bool sim_trace_ordered(size_t i, size_t j);

/* What a kernel's launches asked of memory, where PTX is run (ptx_traffic.h says how it is
 * counted). */
struct sim_traffic {
    const char *kernel; /* its name as C++ has it; valid until the next begin */
    uint64_t launches, warp_instructions;
    uint64_t global_requests;        /* accesses of warps to global memory */
    uint64_t sectors, sectors_least; /* 32 bytes each: asked for; the fewest that would do */
    uint64_t sectors_touched;        /* different ones in a launch, summed over launches */
    uint64_t shared_requests;        /* accesses of warps to shared memory */
    uint64_t shared_turns, shared_turns_least; /* of its banks; the fewest that would do */
    uint64_t local_requests;                   /* accesses to arrays that are not in registers */
};

SIM_EXPORT void sim_traffic_begin(void); /* forgets what was counted */
SIM_EXPORT void sim_traffic_end(void);
SIM_EXPORT size_t sim_traffic_count(void); /* kernels */
SIM_EXPORT struct sim_traffic sim_traffic_at(size_t i);

/* Drop all streams, work and memory, forget errors, and read the environment again. */
SIM_EXPORT void sim_reset(void);

/* The last sentence that was printed on stderr ("" when none was). */
SIM_EXPORT const char *sim_last_message(void);

#ifdef __cplusplus
}
#endif
#endif
