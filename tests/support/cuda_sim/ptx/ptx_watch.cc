/* Which thread touched which byte: see ptx_watch.h. */
#include "ptx_watch.h"

#include "ptx_run.h"
#include "sim_runtime.h"

#include <algorithm>
#include <string.h>
#include <sys/mman.h>

#define CLOCK_SHIFT  11
#define MANY_LANES   (1u << 10)
#define THREAD(r)    ((r)&1023u)
#define CLOCK(r)     ((r) >> CLOCK_SHIFT)
#define UNFENCED     (1u << 10)
#define FLYING_CLOCK ((1u << 21) - 1) /* of an asynchronous copy that has not been waited for */

#define SEVERAL (1u << 31) /* blocks */

namespace {

/* Of a grain of global memory. */
struct global_cell {
    uint32_t writer, reader;
};

#define N_GRAINS 5 /* 1, 2, 4, 8, 16 bytes */

/* Cells for the whole region of device memory at each grain; pages are there once touched. */
global_cell *shadow(int shift)
{
    static global_cell *at[N_GRAINS];
    if (at[shift]) return at[shift];
    void *map = mmap(nullptr, (SIM_REGION_NBYTES >> shift) * sizeof *at[0], PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) ptx_stop_with("no address space to watch global memory");
    return at[shift] = (global_cell *)map;
}

void forget(uint64_t offset, size_t nbytes)
{
    for (int shift = 0; shift < N_GRAINS; shift++) {
        char *first = (char *)(shadow(shift) + (offset >> shift));
        char *end = (char *)(shadow(shift) + ((offset + nbytes) >> shift));
        first = (char *)(((uintptr_t)first + 4095) & ~(uintptr_t)4095);
        end = (char *)((uintptr_t)end & ~(uintptr_t)4095);
        if (first < end) madvise(first, (size_t)(end - first), MADV_DONTNEED);
    }
}

int shift_of(int grain)
{
    return __builtin_ctz((unsigned)grain);
}

} // namespace

void ptx_watch::launch(int shared_grain, int global_grain, uint64_t n_blocks)
{
    shared_shift = shift_of(shared_grain);
    global_shift = shift_of(global_grain);
    if (ids_end + n_blocks >= SEVERAL) { /* no fresh numbers */
        forget(0, SIM_REGION_NBYTES);
        ids_end = 1;
    }
    ids_begin = ids_end;
    ids_end += (uint32_t)n_blocks;
    released.clear();
}

void ptx_watch::block(uint64_t number, size_t shared_nbytes, int n_warps)
{
    self = ids_begin + (uint32_t)number;
    known.clear();
    cells.assign((shared_nbytes >> shared_shift) + 1, {0, {0, 0}});
    for (int w = 0; w < n_warps; w++) {
        memset(&clocks[w], 0, sizeof clocks[w]);
        clocks[w].of[w] = 1;
    }
}

/* ---- shared memory ---- */

uint32_t ptx_watch::record(int warp, int lane) const
{
    return clocks[warp].of[warp] << CLOCK_SHIFT | (uint32_t)(warp * PTX_WARP + lane);
}

/* Whether what a record tells of has happened before what the lane does now. */
bool ptx_watch::ordered(int warp, int lane, uint32_t r) const
{
    if (r == 0) return true;
    const int by = (int)THREAD(r) / PTX_WARP;
    if (by != warp) return clocks[warp].of[by] >= CLOCK(r);
    if ((int)THREAD(r) % PTX_WARP == lane && !(r & MANY_LANES)) return true;
    return CLOCK(r) < clocks[warp].of[warp];
}

void ptx_watch::note_read(ptx_cell *c, int warp, int lane)
{
    const uint32_t mine = record(warp, lane);
    for (uint32_t &r : c->read) {
        if (r != 0 && (int)THREAD(r) / PTX_WARP != warp) continue;
        const bool same_time = r != 0 && CLOCK(r) == CLOCK(mine);
        r = same_time && ((r ^ mine) & 1023u) != 0 ? r | MANY_LANES : same_time ? r : mine;
        return;
    }
    c->read[1] = mine;
}

static std::string who(uint32_t r)
{
    char text[64];
    snprintf(text, sizeof text, "%sthread %u", r & MANY_LANES ? "lanes beside that of " : "",
             THREAD(r));
    return text;
}

bool ptx_watch::was_written(uint32_t at, uint32_t nbytes) const
{
    for (uint32_t i = at >> shared_shift; i <= (at + nbytes - 1) >> shared_shift; i++)
        if (cells[i].write == 0 || CLOCK(cells[i].write) == FLYING_CLOCK) return false;
    return true;
}

void ptx_watch::shared(const ptx_warp &w, int lane, uint32_t at, uint32_t nbytes, ptx_touch touch)
{
    const uint32_t first = at >> shared_shift, last = (at + nbytes - 1) >> shared_shift;
    for (uint32_t i = first; i <= last; i++) {
        ptx_cell *c = &cells[i];
        const uint32_t byte = std::max(at, i << shared_shift);
        if (CLOCK(c->write) == FLYING_CLOCK)
            ptx_fail(w, lane,
                     "byte %u of shared memory is the target of an asynchronous copy of "
                     "%s that was not waited for",
                     byte, who(c->write & ~UNFENCED).c_str());
        if (!ordered(w.number, lane, c->write & ~UNFENCED))
            ptx_fail(w, lane,
                     "race: byte %u of shared memory was written by %s, and no barrier "
                     "is between",
                     byte, who(c->write & ~UNFENCED).c_str());
        if (touch == PTX_WRITE) {
            for (uint32_t r : c->read)
                if (!ordered(w.number, lane, r))
                    ptx_fail(w, lane,
                             "race: byte %u of shared memory was read by %s, and no "
                             "barrier is between",
                             byte, who(r).c_str());
            *c = {record(w.number, lane) | UNFENCED, {0, 0}};
            continue;
        }
        if (c->write == 0)
            ptx_fail(w, lane, "reads byte %u of shared memory, which was not written", byte);
        if (touch == PTX_READ) note_read(c, w.number, lane);
    }
}

void ptx_watch::shared_flies(const ptx_warp &w, int lane, uint32_t at, uint32_t nbytes)
{
    shared(w, lane, at, nbytes, PTX_WRITE);
    for (uint32_t i = at >> shared_shift; i <= (at + nbytes - 1) >> shared_shift; i++)
        cells[i].write |= FLYING_CLOCK << CLOCK_SHIFT;
}

void ptx_watch::shared_landed(const ptx_warp &w, int lane, uint32_t at, uint32_t nbytes)
{
    for (uint32_t i = at >> shared_shift; i <= (at + nbytes - 1) >> shared_shift; i++)
        cells[i] = {record(w.number, lane) | UNFENCED, {0, 0}};
}

void ptx_watch::shared_copied(const ptx_warp &w, int lane, uint32_t at, uint32_t nbytes)
{
    shared(w, lane, at, nbytes, PTX_WRITE);
    for (uint32_t i = at >> shared_shift; i <= (at + nbytes - 1) >> shared_shift; i++)
        cells[i].write &= ~UNFENCED;
}

void ptx_watch::shared_by_proxy(const ptx_warp &w, uint32_t at, uint32_t nbytes)
{
    const uint32_t *fenced = clocks[w.number].fenced;
    shared(w, 0, at, nbytes, PTX_READ);
    for (uint32_t i = at >> shared_shift; i <= (at + nbytes - 1) >> shared_shift; i++)
        if ((cells[i].write & UNFENCED) &&
            CLOCK(cells[i].write) > fenced[THREAD(cells[i].write) / PTX_WARP])
            ptx_fail(w, 0,
                     "a product reads byte %u of shared memory, which thread %u wrote, and no "
                     "fence.proxy.async is between",
                     i << shared_shift, THREAD(cells[i].write));
}

void ptx_watch::fence_proxy(const ptx_warp &w)
{
    for (ptx_cell &c : cells) {
        const uint32_t thread = THREAD(c.write);
        if ((int)thread / PTX_WARP == w.number && (w.mask >> thread % PTX_WARP & 1))
            c.write &= ~UNFENCED;
    }
    if (w.alive & ~w.mask) return;
    ptx_clocks *mine = &clocks[w.number];
    for (int v = 0; v < PTX_MAX_WARPS; v++) /* of its own clock it may yet write */
        mine->fenced[v] = v == w.number ? mine->of[v] - 1 : mine->of[v];
}

/* ---- what orders ---- */

static void merge(ptx_clocks *to, const ptx_clocks &from, int warp)
{
    to->of[warp] = std::max(to->of[warp], from.of[warp]);
    to->fenced[warp] = std::max(to->fenced[warp], from.fenced[warp]);
}

void ptx_watch::arrive(int warp, ptx_clocks *known)
{
    for (int v = 0; v < PTX_MAX_WARPS; v++) merge(known, clocks[warp], v);
    meet_lanes(warp);
}

void ptx_watch::learn(int warp, const ptx_clocks &known)
{
    for (int v = 0; v < PTX_MAX_WARPS; v++) merge(&clocks[warp], known, v);
}

void ptx_watch::meet_lanes(int warp)
{
    if (++clocks[warp].of[warp] >= FLYING_CLOCK) ptx_stop_with("too many barriers in a block");
}

/* ---- global memory ---- */

bool ptx_watch::knows(uint32_t block) const
{
    return block == self || known.count(block) != 0;
}

void ptx_watch::release(uint64_t at)
{
    std::set<uint32_t> all = known;
    all.insert(self);
    released[at] = all;
}

void ptx_watch::acquire(uint64_t at)
{
    const auto found = released.find(at);
    if (found != released.end()) known.insert(found->second.begin(), found->second.end());
}

void ptx_watch::global(const ptx_warp &w, int lane, uint64_t at, uint32_t nbytes, ptx_touch touch)
{
    const uint64_t offset = at - SIM_REGION_BASE;
    if (offset >= SIM_REGION_NBYTES || touch == PTX_ATOMIC) return;
    global_cell *c = shadow(global_shift) + (offset >> global_shift);
    global_cell *end = shadow(global_shift) + ((offset + nbytes - 1) >> global_shift) + 1;
    for (; c < end; c++) {
        const bool was_written = c->writer >= ids_begin,
                   was_read = (c->reader & ~SEVERAL) >= ids_begin;
        if (was_written && !knows(c->writer))
            ptx_fail(w, lane, "%s global memory at %p, which block %u of this launch has written",
                     touch == PTX_READ ? "reads" : "writes", (void *)at, c->writer - ids_begin);
        if (touch == PTX_WRITE) {
            if (was_read && !knows(c->reader))
                ptx_fail(w, lane,
                         "writes global memory at %p, which block %u of this launch has "
                         "read",
                         (void *)at, (c->reader & ~SEVERAL) - ids_begin);
            *c = {self, 0};
        } else if (!was_read || knows(c->reader)) {
            c->reader = self;
        } else if ((c->reader & ~SEVERAL) != self) {
            c->reader |= SEVERAL;
        }
    }
}

void ptx_watch::freed(uint64_t at, size_t nbytes)
{
    forget(at - SIM_REGION_BASE, nbytes);
}
