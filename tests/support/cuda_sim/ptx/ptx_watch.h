/* What is watched while PTX runs: which thread touched which byte, and what orders them.
 *
 * Shared memory: a cell per grain (the smallest access that the kernel makes) remembers the last
 * write and two reads since. A warp's clock advances at barriers; a barrier lets the warps that
 * meet there know each other's clocks, and lanes of a warp each other. What was touched at a clock
 * that the toucher of now does not know is a race.
 *
 * Global memory: a cell per grain remembers which block of the running launch wrote it, and which
 * read it. What a block did is known to those that acquire what it has released since. */
#ifndef CZ_TESTS_PTX_WATCH_H
#define CZ_TESTS_PTX_WATCH_H

#include <map>
#include <memory>
#include <set>
#include <stddef.h>
#include <stdint.h>
#include <vector>

struct ptx_warp;
enum ptx_touch { PTX_READ = 0, PTX_WRITE, PTX_ATOMIC };

#define PTX_MAX_WARPS 32

/* 10 bits thread; 1 bit: of reads "and other lanes of its warp", of writes "no fence.proxy.async
 * since"; 21 bits clock; 0: no thread. */
struct ptx_cell {
    uint32_t write, read[2];
};

/* What a warp, or a barrier, knows of a block's warps: the clock at which each was; and up to which
 * clock a fence.proxy.async is between what it wrote and now. */
struct ptx_clocks {
    uint32_t of[PTX_MAX_WARPS], fenced[PTX_MAX_WARPS];
};

class ptx_watch {
  public:
    /* A launch begins: grains in bytes, number of blocks. */
    void launch(int shared_grain, int global_grain, uint64_t n_blocks);
    /* A block begins, with so many bytes of shared memory, all unwritten. */
    void block(uint64_t number, size_t shared_nbytes, int n_warps);

    bool was_written(uint32_t at, uint32_t nbytes) const; /* in this block; no copy flies there */
    void shared(const ptx_warp &w, int lane, uint32_t at, uint32_t nbytes, ptx_touch touch);
    /* Bytes that an asynchronous copy of this thread will write, or has written. */
    void shared_flies(const ptx_warp &w, int lane, uint32_t at, uint32_t nbytes);
    void shared_landed(const ptx_warp &w, int lane, uint32_t at, uint32_t nbytes);
    /* What a copy of the engine that this thread started writes: seen by products without a fence,
     * and by others once they know of this. */
    void shared_copied(const ptx_warp &w, int lane, uint32_t at, uint32_t nbytes);
    /* What a product reads: as by the warp's lane 0, but not past the fence for the async proxy. */
    void shared_by_proxy(const ptx_warp &w, uint32_t at, uint32_t nbytes);
    /* fence.proxy.async by the lanes in w.mask: what they wrote, and what others wrote that has
     * happened before, is seen by products of theirs and of those that meet them later. */
    void fence_proxy(const ptx_warp &w);
    void global(const ptx_warp &w, int lane, uint64_t at, uint32_t nbytes, ptx_touch touch);

    /* The running block releases, or acquires, at an address. */
    void release(uint64_t at);
    void acquire(uint64_t at);

    /* A warp comes to a barrier and leaves there what it knows; one that has waited learns that. */
    void arrive(int warp, ptx_clocks *known);
    void learn(int warp, const ptx_clocks &known);
    /* Lanes of one warp have met. */
    void meet_lanes(int warp);
    /* Device memory was freed: what is known of it goes. */
    static void freed(uint64_t at, size_t nbytes);

  private:
    bool knows(uint32_t block) const;
    bool ordered(int warp, int lane, uint32_t record) const;
    void note_read(ptx_cell *c, int warp, int lane);
    uint32_t record(int warp, int lane) const;

    int shared_shift, global_shift;
    std::vector<ptx_cell> cells;
    ptx_clocks clocks[PTX_MAX_WARPS];          /* what each warp knows of all */
    uint32_t ids_begin = 1, ids_end = 1, self; /* of the launch's blocks; of the running one */
    std::set<uint32_t> known;                  /* blocks whose deeds the running one knows */
    std::map<uint64_t, std::set<uint32_t>> released;
};

#endif
