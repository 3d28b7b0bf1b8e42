/* What the environment asks of the simulated device; read when it is first used and by
 * sim_reset().
 *
 *   CZERO_CUDA_SIM_ORDER    forward | reverse | random[:seed]   order of ready threads and blocks
 *   CZERO_CUDA_SIM_STREAMS  lazy | eager | random[:seed]        when queued work runs
 *   CZERO_CUDA_SIM_MEMORY   bytes of device memory (1 GiB)
 *   CZERO_CUDA_SIM_DEVICES  devices (1); CUDA_VISIBLE_DEVICES chooses among them, by number
 *   CZERO_CUDA_SIM_MULTIPROCESSORS  what a device says it has of them (132)
 *   CZERO_CUDA_SIM_SHARED   KiB of shared memory that a block may have (99, 163, 227: by compute
 *                           capability); a multiprocessor has one more
 *   CZERO_CUDA_SIM_GUARD    off: host code may touch device memory (quicker for long runs)
 *   CZERO_CUDA_SIM_DRY      on: launches, products and copies are checked and queued, and then
 *                           leave memory alone: it stays zero and takes none of the host's, so
 *                           that what a step of any size calls can be counted
 *   CZERO_CUDA_SIM_CODE     c++ | ptx[:folder]   kernels as this library's compiler made them, or
 *                           as nvcc did: PTX, interpreted and watched (from build/cuda_ptx)
 *   CZERO_CUDA_SIM_APPROX   seed: approximate PTX instructions are off by up to their error, and
 *                           tensor cores cut off what hardware cuts off (0: exact)
 *   CZERO_CUDA_SIM_ECHO     on: in PTX a store of the bits that another thread has stored there is
 *                           no race (Triton lets several warps do the same work)
 *   CZERO_CUDA_SIM_COUNT    1: at its end a process says how many PTX instructions it ran, and what
 *                           each kernel asked of memory (ptx_traffic.h)
 *   CZERO_CUDA_SIM_FAULT    no-driver | old-driver | no-device | capability:7.5 | lost-at:N |
 *                           oom-at:N | host-oom-at:N | start-error:N    comma between several */
#ifndef CZ_TESTS_SIM_SETTINGS_H
#define CZ_TESTS_SIM_SETTINGS_H

#include <stddef.h>
#include <stdint.h>

#define SIM_PLACES_MAX 16

enum sim_order { SIM_ORDER_FORWARD = 0, SIM_ORDER_REVERSE, SIM_ORDER_RANDOM };
enum sim_streams { SIM_STREAMS_LAZY = 0, SIM_STREAMS_EAGER, SIM_STREAMS_RANDOM };
enum sim_driver { SIM_DRIVER_GOOD = 0, SIM_DRIVER_NONE, SIM_DRIVER_OLD };

struct sim_settings {
    enum sim_order order;
    uint64_t order_seed;
    enum sim_streams streams;
    uint64_t streams_seed;
    size_t memory_nbytes;
    int n_devices, n_multiprocessors;
    int place[SIM_PLACES_MAX]; /* of a device among those of the machine */
    bool guard, dry;
    bool runs_ptx;
    char ptx_folder[256]; /* "": beside the library */
    uint64_t approx_seed; /* 0: exact */
    bool echo, count;
    enum sim_driver driver;
    int major, minor;     /* compute capability */
    size_t shared_block_nbytes, shared_multiprocessor_nbytes;
    uint64_t start_error; /* a cudaError_t: what every call returns */
    uint64_t lost_at;     /* which launch, from 1, loses the device; 0: none */
    uint64_t oom_at;      /* which cudaMalloc fails */
    uint64_t host_oom_at; /* which pinned allocation or registration fails */
};
extern struct sim_settings sim_settings;

void sim_settings_read(void);

#endif
