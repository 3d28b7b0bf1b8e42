/* Running a grid: the threads of a block are fibers on one OS thread.
 *
 * A thread runs until it meets a barrier or a warp collective whose partners have not arrived; then
 * the next ready thread continues. A thread that ends without having waited leaves its stack to the
 * next one, so a kernel without barriers costs little more than its function calls. Barriers that
 * can never complete, and collectives whose lanes disagree, end the grid with a sentence. */
#ifndef CZ_TESTS_SIM_EXEC_H
#define CZ_TESTS_SIM_EXEC_H

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <string>
#include <vector_types.h>

#define SIM_WARP        32
#define SIM_MAX_THREADS 1024

/* Where the running fiber is. One block runs at a time in a process (the runtime's lock is held),
 * so this and __shared__ variables are plain objects. */
struct sim_where {
    uint3 thread;
    uint3 block;
    uint3 block_dim;
    uint3 grid_dim;
    int linear; /* thread of the block, x fastest */
};
extern struct sim_where sim_now;

#define threadIdx (const_cast<const uint3 &>(sim_now.thread))
#define blockIdx  (const_cast<const uint3 &>(sim_now.block))
#define blockDim  (const_cast<const uint3 &>(sim_now.block_dim))
#define gridDim   (const_cast<const uint3 &>(sim_now.grid_dim))
#define warpSize  SIM_WARP

/* A launched kernel; params is the tuple that invoke unpacks. */
struct sim_grid {
    const char *name;
    void (*invoke)(const void *params);
    const void *params;
    dim3 grid, block;
    size_t shared_nbytes;
};

/* The order of n blocks that the settings ask for: i → offset + stride·i mod n, a permutation as
 * stride and n share no factor. */
class sim_blocks_order {
  public:
    explicit sim_blocks_order(uint64_t n);
    uint64_t at(uint64_t i) const;

  private:
    uint64_t n, offset, stride;
};

/* Run all blocks. False: a sentence is in error (error_nbytes long) and the grid was abandoned.
 */
bool sim_exec_grid(const struct sim_grid *g, char *error, size_t error_nbytes);

/* The name, block and thread that run, for a signal handler: 0 when none. */
int sim_exec_describe(char *text, size_t nbytes);

/* What a running kernel hit at an address that a guard watches; NULL: something else. */
const char *sim_exec_guard_name(const void *p);

/* Fill all __shared__ variables of kernels with 0xFF (sim_shared.cc). */
void sim_shared_poison(void);

/* Bytes of __shared__ variables that a kernel declares. Those of functions that it calls are not
 * known to be its own, and do not count. */
size_t sim_shared_of(const void *kernel);

/* A kernel's mangled name, and the source file whose own it is ("": it is not static). */
bool sim_function_symbol(const void *kernel, std::string *name, std::string *source);

/* Called by a thread of the running block: it broke a rule. Does not return. */
[[noreturn]] void sim_exec_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void *sim_exec_dynamic_shared(void);

/* The running thread lets the others go first (a spin loop would never end otherwise). */
void sim_exec_yield(void);

/* __syncthreads and its reductions: what all threads bring is counted. Returns how many brought
 * a true predicate. */
int sim_exec_barrier(bool predicate, const char *what, const char *file, int line);

/* n threads that name the same meeting (0 to SIM_MEETINGS - 1) wait for each other; the last one to
 * come calls last(arg) before any of them continues. */
#define SIM_MEETINGS 16
void sim_exec_meet(int meeting, int n, void (*last)(void *arg), void *arg, const char *what,
                   const char *file, int line);

/* Dynamic shared memory at an address whose lower 18 bits are `at`'s (all that a descriptor holds);
 * NULL: not nbytes of the kernel's own. */
void *sim_exec_shared_at(uintptr_t at, size_t nbytes);

/* Warp collectives: the lanes of mask meet, then evaluate() computes every lane's result. */
struct sim_lane {
    uint64_t value;   /* what the lane brings */
    uint64_t result;  /* what it takes away */
    const void *arg;  /* operands that do not fit */
    void *out;        /* results that do not fit */
    int param, width; /* of shuffles */
};
typedef void (*sim_evaluate)(struct sim_lane *const lanes[SIM_WARP], unsigned mask);
/* The running thread's: what a collective reads of it is filled in before the call, in place (a
 * copy of fields just written would wait for each of them). */
struct sim_lane *sim_exec_lane(void);
uint64_t sim_exec_collective(sim_evaluate evaluate, const char *what, unsigned mask,
                             const char *file, int line);

/* cp.async: copies of the running thread, done when it waits for their group. */
void sim_exec_async_copy(void *shared, const void *global, int nbytes, int n_valid);
void sim_exec_async_commit(void);
void sim_exec_async_wait(int n_newest_left);

#endif
