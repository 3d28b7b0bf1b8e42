/* What runs decoded PTX: warps whose 32 lanes go through an instruction together, blocks, launches.
 *
 * Lanes that have parted at a branch form paths with program counters of their own; the path that
 * is furthest behind runs, so that paths meet again. Values of lanes that an instruction does not
 * work on stay as they are. */
#ifndef CZ_TESTS_PTX_RUN_H
#define CZ_TESTS_PTX_RUN_H

#include "ptx_code.h"
#include "ptx_watch.h"

#include <vector_types.h>

#define PTX_WARP      32
#define PTX_ALL_LANES 0xffffffffu
#define PTX_BARRIERS  16

/* Addresses of spaces that a generic address may mean; never dereferenced. */
#define PTX_SHARED_WINDOW ((uint64_t)0x100000000000)
#define PTX_LOCAL_WINDOW  ((uint64_t)0x110000000000)
#define PTX_PARAM_WINDOW  ((uint64_t)0x120000000000)
#define PTX_WINDOW_NBYTES ((uint64_t)1 << 32)

/* A kernel's launch. */
struct ptx_launch {
    const ptx_function *function;
    const char *name; /* as people know it */
    const char *params;
    uint3 grid, block;
    size_t shared_nbytes; /* dynamic */
    int device;
};

/* Run all blocks in the order that the settings ask for. False: a sentence is in *error. */
bool ptx_launch_run(const ptx_launch *l, std::string *error);

/* Instructions of lanes since the process began, and how many of them were a warp's. */
struct ptx_counts {
    uint64_t lane_instructions, warp_instructions;
};
extern ptx_counts ptx_counted;

enum ptx_state { PTX_RUNS = 0, PTX_AT_BARRIER, PTX_YIELDS, PTX_DONE };

/* Lanes with a program counter of their own. */
struct ptx_path {
    int pc;
    uint32_t mask;
    bool waits; /* for other lanes, at a collective */
    bool rests; /* until the warp's next turn */
};

/* A thread's cp.async that has not been waited for. */
struct ptx_copy {
    uint32_t to; /* shared */
    uint64_t from;
    uint8_t nbytes, n_valid, lane;
    uint32_t group;
};

/* A product of a warpgroup; one of a warp's that has not been waited for. */
struct ptx_product {
    const ptx_op *op;
    uint64_t a, b; /* descriptors */
    bool adds;
};
struct ptx_under_way {
    const ptx_op *op;
    uint64_t a, b, sum; /* of the operands' bits */
    uint32_t group;
};

struct ptx_warp {
    const char *base[2];     /* registers, constants */
    uint32_t mask;           /* lanes that the running instruction works on */
    uint32_t path;           /* lanes of the running path */
    int pc, limit;           /* limit: the least pc of another path */
    uint32_t present, alive; /* lanes that the block has; that have not left the kernel */
    uint32_t carry;          /* of add.cc, a bit per lane */
    ptx_path others[PTX_WARP];
    int n_others;
    int number;
    enum ptx_state state;
    bool waits, rests; /* what the running path has to do */
    struct ptx_block *block;
    char *local; /* of 32 lanes, one after another */
    std::vector<ptx_copy> copies;
    uint32_t copy_group[PTX_WARP];        /* the open one */
    std::vector<ptx_under_way> under_way; /* wgmma */
    size_t n_products;
    uint32_t product_group;
    bool is_fenced;
    const ptx_op *now;

    template <class T> T *to(int32_t slot) { return (T *)const_cast<char *>(base[0] + slot); }
    template <class T> const T *from(int32_t slot) const
    {
        return (const T *)(base[(uint32_t)slot >> 31] + (slot ^ (slot >> 31)));
    }
    const int32_t *more(const ptx_op &o) const;
};

struct ptx_barrier {
    int n_arrived, n_expected; /* threads; n_expected 0: no thread is here */
    uint32_t warps;            /* that wait */
    ptx_clocks known;          /* what those that came know */
};

/* Arrivals that a phase still needs, and bytes; what those know that came in this phase, and what
 * those knew that ended the one before. */
struct ptx_mbarrier {
    int n, n_left;
    int64_t nbytes_left;
    uint32_t phase;
    ptx_clocks coming, ended;
};

struct ptx_block {
    const ptx_launch *launch;
    const ptx_function *function;
    uint64_t number; /* in the launch, x fastest */
    uint3 index;
    int n_threads, n_warps;
    char *shared;
    size_t shared_nbytes;
    ptx_barrier barriers[PTX_BARRIERS];
    std::map<uint32_t, ptx_mbarrier> mbarriers; /* by address */
    ptx_watch *watch;
    std::vector<ptx_warp> warps;
    std::vector<ptx_product> products[PTX_MAX_WARPS / 4]; /* that each warpgroup began */
    uint64_t random;
    int n_done; /* threads */
};

inline const int32_t *ptx_warp::more(const ptx_op &o) const
{
    return block->function->more.data() + o.more;
}

/* Do f(lane) for the lanes of a mask; all 32 are a loop that the compiler makes vectors of. */
template <class F> inline __attribute__((always_inline)) void ptx_lanes(uint32_t mask, F f)
{
    if (mask == PTX_ALL_LANES) {
#pragma GCC ivdep
        for (int l = 0; l < PTX_WARP; l++) f(l);
    } else {
        for (; mask; mask &= mask - 1) f(__builtin_ctz(mask));
    }
}

/* The running instruction broke a rule, by the given lane: ends the launch with a sentence that
 * names kernel, instruction, block and thread. */
[[noreturn]] void ptx_fail(const ptx_warp &w, int lane, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* For *.sync: all lanes of `wanted` have to be here. False: the path waits, the instruction must
 * do nothing. */
bool ptx_together(ptx_warp &w, uint32_t wanted);

/* All lanes that the running lanes' masks name; one outside of its own mask ends the launch. */
uint32_t ptx_lanes_named(ptx_warp &w, const uint32_t *members);
/* The running path lets others go first. */
void ptx_rest(ptx_warp &w);
/* After a change of paths. */
void ptx_find_limit(ptx_warp &w);
/* The running warp comes to a barrier of so many threads, and waits there or continues. */
void ptx_barrier_arrive(ptx_warp &w, int number, int n_expected, bool waits);
void ptx_run_warp_barrier(ptx_warp &w, const ptx_op &o);

uint64_t ptx_random(ptx_block *b); /* by the order's seed */

#endif
