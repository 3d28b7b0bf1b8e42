/* Warps, blocks and launches of PTX: see ptx_run.h. */
#include "ptx_run.h"

#include "ptx_decode.h"
#include "ptx_lanes.h"
#include "ptx_traffic.h"
#include "sim_exec.h"
#include "sim_settings.h"

#include <algorithm>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SHARED_ROOM ((size_t)256 << 10)
#define REGS_ALIGN  64
#define SPINS_MAX   100000 /* turns of a block in which warps do nothing but rest */
#define TURN_MAX    64     /* instructions of a warp's turn in random order */

ptx_counts ptx_counted;

/* ---- sentences ---- */

static std::string place_of(const ptx_warp &w, int lane)
{
    const ptx_block *b = w.block;
    const uint3 d = b->launch->block;
    const unsigned t = (unsigned)(w.number * PTX_WARP + lane);
    char text[512];
    snprintf(text, sizeof text, "kernel %s, block (%u,%u,%u), thread (%u,%u,%u)", b->launch->name,
             b->index.x, b->index.y, b->index.z, t % d.x, t / d.x % d.y, t / d.x / d.y);
    return text;
}

static std::string at_op(const ptx_block *b, const ptx_op &o)
{
    std::string text = " at " + ptx_where(b->function, o);
    return text;
}

void ptx_fail(const ptx_warp &w, int lane, const char *format, ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    throw ptx_stop{place_of(w, lane) + at_op(w.block, *w.now) + ": " + what};
}

/* ---- paths ---- */

/* A path that waits matters where the running one may meet it: further on. */
void ptx_find_limit(ptx_warp &w)
{
    w.limit = INT_MAX;
    for (int i = 0; i < w.n_others; i++) {
        const ptx_path &p = w.others[i];
        if (((p.waits || p.rests) && p.pc < w.pc) || p.pc >= w.limit) continue;
        w.limit = p.pc;
    }
}

bool ptx_together(ptx_warp &w, uint32_t wanted)
{
    const uint32_t left = wanted & ~w.alive;
    if (left != 0)
        ptx_fail(w, __builtin_ctz(w.mask), "waits for ever: lanes 0x%08x of warp %d %s", left,
                 w.number, left & w.present ? "have left the kernel" : "do not exist");
    if ((wanted & ~w.mask) == 0) return true;
    w.waits = true;
    w.pc--;
    w.limit = -1;
    return false;
}

void ptx_rest(ptx_warp &w)
{
    w.rests = true;
    w.limit = -1;
}

namespace {

/* Paths at the same place continue as one. */
void merge_paths(ptx_warp &w)
{
    for (int i = 0; i < w.n_others; i++)
        for (int j = w.n_others - 1; j > i; j--) {
            if (w.others[i].pc != w.others[j].pc) continue;
            w.others[i].mask |= w.others[j].mask;
            w.others[i].waits = w.others[i].rests = false;
            w.others[j] = w.others[--w.n_others];
        }
}

/* The path that is furthest behind, of those that can continue, runs next. False: there is none. */
bool pick_path(ptx_warp &w)
{
    int best = -1;
    for (int i = 0; i < w.n_others; i++) {
        const ptx_path &p = w.others[i];
        if (!p.waits && !p.rests && (best < 0 || p.pc < w.others[best].pc)) best = i;
    }
    if (best < 0) return false;
    w.path = w.others[best].mask;
    w.pc = w.others[best].pc;
    w.others[best] = w.others[--w.n_others];
    ptx_find_limit(w);
    return true;
}

/* Lanes that wait where others never come. */
[[noreturn]] void explain_stuck(ptx_warp &w)
{
    const ptx_path &p = w.others[0];
    const ptx_op &o = w.block->function->code[(size_t)p.pc];
    const ptx_path &q = w.others[w.n_others > 1 ? 1 : 0];
    const ptx_op &there = w.block->function->code[(size_t)q.pc];
    char text[160];
    snprintf(text, sizeof text, ": waits for ever: lanes 0x%08x of warp %d never come",
             w.alive & ~p.mask, w.number);
    throw ptx_stop{place_of(w, __builtin_ctz(p.mask)) + at_op(w.block, o) + text +
                   (&o == &there ? "" : "; lanes wait" + at_op(w.block, there))};
}

/* Something happened to the running path, or it has met another. False: the warp's turn ends. */
bool settle(ptx_warp &w)
{
    if (w.path != 0) w.others[w.n_others++] = {w.pc, w.path, w.waits, w.rests};
    w.path = 0;
    w.waits = w.rests = false;
    if (w.state == PTX_AT_BARRIER) return false;
    merge_paths(w);
    if (pick_path(w)) return true;
    if (w.alive == 0) {
        w.state = PTX_DONE;
        return false;
    }
    for (int i = 0; i < w.n_others; i++)
        if (w.others[i].rests) w.state = PTX_YIELDS;
    if (w.state != PTX_YIELDS) explain_stuck(w);
    return false;
}

/* Run a warp until it waits, rests or ends, n instructions at most. */
void run_warp(ptx_warp &w, int n)
{
    const ptx_op *code = w.block->function->code.data();
    uint64_t lanes = 0, ops = 0;
    w.state = PTX_RUNS;
    for (int i = 0; i < w.n_others; i++) w.others[i].rests = false;
    w.limit = -1;
    for (; n > 0; n--) {
        if (w.pc >= w.limit && !settle(w)) break;
        const ptx_op &o = code[w.pc];
        uint32_t mask = w.path;
        w.now = &o;
        if (o.guard != PTX_NO_SLOT) {
            const uint32_t p = *w.from<uint32_t>(o.guard);
            mask &= o.guard_not ? ~p : p;
            if (mask == 0) {
                w.pc++;
                continue;
            }
        }
        w.mask = mask;
        w.pc++;
        ops++;
        lanes += (unsigned)__builtin_popcount(mask);
        o.run(w, o);
    }
    ptx_counted.lane_instructions += lanes;
    ptx_counted.warp_instructions += ops;
}

/* ---- blocks ---- */

/* What the multiprocessor has; it runs one block at a time. */
struct machine {
    ptx_block block;
    ptx_watch watch;
    char *shared;
    std::vector<char> registers, local;
};

machine *the_machine()
{
    static machine *m;
    if (m) return m;
    m = new machine();
    m->shared = (char *)mmap(nullptr, SHARED_ROOM + ((size_t)64 << 10), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->shared == MAP_FAILED) ptx_stop_with("no memory for a simulated multiprocessor");
    return m;
}

void set_specials(ptx_warp &w)
{
    const ptx_block *b = w.block;
    const uint3 d = b->launch->block, g = b->launch->grid;
    auto set = [&](ptx_special s, auto value) {
        const int32_t slot = b->function->special[s];
        if (slot == PTX_NO_SLOT) return;
        uint32_t *at = w.to<uint32_t>(slot);
        for (unsigned l = 0; l < PTX_WARP; l++) at[l] = (uint32_t)value(l);
    };
    const unsigned first = (unsigned)w.number * PTX_WARP;
    set(PTX_TID_X, [=](unsigned l) { return (first + l) % d.x; });
    set(PTX_TID_Y, [=](unsigned l) { return (first + l) / d.x % d.y; });
    set(PTX_TID_Z, [=](unsigned l) { return (first + l) / d.x / d.y; });
    set(PTX_NTID_X, [=](unsigned) { return d.x; });
    set(PTX_NTID_Y, [=](unsigned) { return d.y; });
    set(PTX_NTID_Z, [=](unsigned) { return d.z; });
    set(PTX_CTAID_X, [=](unsigned) { return b->index.x; });
    set(PTX_CTAID_Y, [=](unsigned) { return b->index.y; });
    set(PTX_CTAID_Z, [=](unsigned) { return b->index.z; });
    set(PTX_NCTAID_X, [=](unsigned) { return g.x; });
    set(PTX_NCTAID_Y, [=](unsigned) { return g.y; });
    set(PTX_NCTAID_Z, [=](unsigned) { return g.z; });
    set(PTX_LANEID, [](unsigned l) { return l; });
    set(PTX_WARPID, [&](unsigned) { return w.number; });
    set(PTX_LANEMASK_EQ, [](unsigned l) { return 1u << l; });
    set(PTX_LANEMASK_LT, [](unsigned l) { return (1u << l) - 1; });
    set(PTX_LANEMASK_LE, [](unsigned l) { return (2u << l) - 1; });
    set(PTX_LANEMASK_GT, [](unsigned l) { return ~((2u << l) - 1); });
    set(PTX_LANEMASK_GE, [](unsigned l) { return ~((1u << l) - 1); });
    set(PTX_SMID, [](unsigned) { return 0u; });
    set(PTX_DYNAMIC_SMEM_SIZE, [=](unsigned) { return b->launch->shared_nbytes; });
}

void warp_begin(ptx_warp &w)
{
    const int n_lanes = std::min(PTX_WARP, w.block->n_threads - w.number * PTX_WARP);
    w.present = w.alive = n_lanes == PTX_WARP ? PTX_ALL_LANES : (1u << n_lanes) - 1;
    w.path = w.present;
    w.pc = w.n_others = 0;
    w.carry = 0;
    w.waits = w.rests = false;
    w.state = PTX_RUNS;
    w.copies.clear();
    w.under_way.clear();
    w.n_products = w.product_group = 0;
    w.is_fenced = false;
    memset(w.copy_group, 0, sizeof w.copy_group);
    set_specials(w);
}

/* Barriers at which warps wait when no warp can continue. */
[[noreturn]] void explain_barrier(ptx_block *b)
{
    for (ptx_warp &w : b->warps) {
        if (w.state != PTX_AT_BARRIER) continue;
        for (const ptx_barrier &r : b->barriers) {
            if (!(r.warps >> w.number & 1)) continue;
            char text[160];
            snprintf(text, sizeof text,
                     ": waits for ever: %d of %d threads left the kernel, %d of %d came here",
                     b->n_done, b->n_threads, r.n_arrived, r.n_expected);
            throw ptx_stop{place_of(w, __builtin_ctz(w.alive)) + at_op(b, *w.now) + text};
        }
    }
    for (ptx_warp &w : b->warps)
        if (w.state == PTX_YIELDS)
            throw ptx_stop{place_of(w, __builtin_ctz(w.alive)) + at_op(b, *w.now) +
                           ": waits for ever"};
    ptx_stop_with("a block is stuck");
}

/* Turns of its warps until all are done. */
void run_block(ptx_block *b)
{
    const bool random = sim_settings.order == SIM_ORDER_RANDOM;
    const bool reverse = sim_settings.order == SIM_ORDER_REVERSE;
    int n_idle = 0;
    for (;;) {
        bool ran = false, worked = false;
        const int first = random ? (int)(ptx_random(b) % (uint64_t)b->n_warps) : 0;
        for (int i = 0; i < b->n_warps; i++) {
            const int k = (first + i) % b->n_warps;
            ptx_warp &w = b->warps[(size_t)(reverse ? b->n_warps - 1 - k : k)];
            if (w.state == PTX_DONE || w.state == PTX_AT_BARRIER) continue;
            run_warp(w, random ? 1 + (int)(ptx_random(b) % TURN_MAX) : INT_MAX);
            ran = true;
            worked = worked || w.state != PTX_YIELDS;
        }
        n_idle = worked ? 0 : n_idle + 1;
        if (b->n_done == b->n_threads) return;
        if (!ran || n_idle > SPINS_MAX) explain_barrier(b);
    }
}

void block_begin(ptx_block *b, uint64_t number)
{
    const uint3 g = b->launch->grid;
    b->number = number;
    b->index = {(unsigned)(number % g.x), (unsigned)(number / g.x % g.y),
                (unsigned)(number / g.x / g.y)};
    b->n_done = 0;
    memset(b->barriers, 0, sizeof b->barriers);
    b->mbarriers.clear();
    for (auto &products : b->products) products.clear();
    memset(b->shared, 0xFF, b->shared_nbytes);
    b->watch->block(number, b->shared_nbytes, b->n_warps);
    for (ptx_warp &w : b->warps) warp_begin(w);
}

void launch_begin(machine *m, const ptx_launch *l)
{
    const ptx_function *f = l->function;
    ptx_block *b = &m->block;
    b->launch = l;
    b->function = f;
    b->n_threads = (int)(l->block.x * l->block.y * l->block.z);
    b->n_warps = (b->n_threads + PTX_WARP - 1) / PTX_WARP;
    b->shared = m->shared;
    b->shared_nbytes = l->shared_nbytes > 0 ? f->dynamic_at + l->shared_nbytes : f->static_shared;
    b->watch = &m->watch;
    b->random = sim_settings.order_seed * 0x9E3779B97F4A7C15u + 1;
    if (b->shared_nbytes > SHARED_ROOM) ptx_stop_with("kernel %s: too much shared memory", l->name);
    if (f->max_threads > 0 && b->n_threads > f->max_threads)
        ptx_stop_with("kernel %s: %d threads in a block, its launch bounds say %d", l->name,
                      b->n_threads, f->max_threads);
    const size_t regs = (f->registers_nbytes + REGS_ALIGN - 1) / REGS_ALIGN * REGS_ALIGN;
    m->registers.resize(std::max(m->registers.size(), (size_t)b->n_warps * regs + REGS_ALIGN));
    m->local.resize(std::max(m->local.size(), (size_t)b->n_warps * PTX_WARP * f->local_nbytes));
    char *first = m->registers.data();
    first += REGS_ALIGN - (uintptr_t)first % REGS_ALIGN;
    b->warps.resize((size_t)b->n_warps);
    for (int i = 0; i < b->n_warps; i++) {
        ptx_warp &w = b->warps[(size_t)i];
        w.number = i;
        w.block = b;
        w.base[0] = first + (size_t)i * regs;
        w.base[1] = (const char *)f->constants.data();
        w.local = m->local.data() + (size_t)i * PTX_WARP * f->local_nbytes;
        w.now = f->code.data();
    }
}

} // namespace

uint64_t ptx_random(ptx_block *b)
{
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return b->random >> 33;
}

void ptx_barrier_arrive(ptx_warp &w, int number, int n_expected, bool waits)
{
    ptx_block *b = w.block;
    ptx_barrier &r = b->barriers[number];
    const int lane = __builtin_ctz(w.mask);
    if (r.n_expected == 0) r.n_expected = n_expected;
    if (r.n_expected != n_expected)
        ptx_fail(w, lane, "barrier %d of %d threads: others came for one of %d", number, n_expected,
                 r.n_expected);
    r.n_arrived += __builtin_popcount(w.mask);
    b->watch->arrive(w.number, &r.known);
    if (waits) r.warps |= 1u << w.number;
    if (r.n_arrived > r.n_expected)
        ptx_fail(w, lane, "%d threads come to barrier %d, which is for %d", r.n_arrived, number,
                 r.n_expected);
    if (r.n_arrived < r.n_expected) {
        if (!waits) return;
        w.state = PTX_AT_BARRIER;
        w.limit = -1;
        return;
    }
    for (uint32_t m = r.warps; m; m &= m - 1) {
        const int v = __builtin_ctz(m);
        b->watch->learn(v, r.known);
        b->warps[(size_t)v].state = PTX_RUNS;
    }
    r = {};
}

bool ptx_launch_run(const ptx_launch *l, std::string *error)
{
    try {
        machine *m = the_machine();
        ptx_approx_seed = sim_settings.approx_seed;
        launch_begin(m, l);
        const uint64_t n = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
        m->watch.launch(l->function->shared_grain, l->function->global_grain, n);
        if (ptx_traffic_counts()) ptx_traffic_begin(l->function);
        const sim_blocks_order order(n);
        for (uint64_t i = 0; i < n; i++) {
            block_begin(&m->block, order.at(i));
            run_block(&m->block);
        }
        if (ptx_traffic_counts()) ptx_traffic_end();
        return true;
    } catch (const ptx_stop &stop) {
        *error = stop.sentence;
        return false;
    }
}
