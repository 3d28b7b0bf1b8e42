/* Places for a function's registers. The text names a register per value, thousands of them; those
 * whose values are never needed at the same time share a place, so that a warp's registers stay in
 * the processor's cache.
 *
 * Which values are needed where is found by the usual backward data flow over basic blocks; it
 * holds for each lane by itself, as writes leave other lanes alone. A register then has one
 * interval of positions, and intervals get places from left to right. */
#include "ptx_decode.h"
#include "ptx_run.h"

#include <algorithm>
#include <queue>

namespace {

typedef std::vector<uint64_t> bits;

inline bool has(const bits &b, int i)
{
    return b[(size_t)i / 64] >> (i % 64) & 1;
}

inline void add(bits &b, int i)
{
    b[(size_t)i / 64] |= (uint64_t)1 << (i % 64);
}

struct basic_block {
    int first, last; /* ops */
    int next[2];     /* blocks, -1: none */
    bits needs, kills, in, out;
};

struct interval {
    int reg, first, last;
};

class allocator {
  public:
    allocator(ptx_function *f, const std::vector<int> &sizes, const std::vector<ptx_mention> &m)
        : f(f), sizes(sizes), mentions(m), n_ops((int)f->code.size())
    {
    }
    void find_blocks();
    void find_local();
    void flow();
    std::vector<interval> intervals();
    std::vector<int32_t> place(const int specials[PTX_N_SPECIAL]);

  private:
    ptx_function *f;
    const std::vector<int> &sizes;
    const std::vector<ptx_mention> &mentions;
    int n_ops;
    std::vector<basic_block> blocks;
    std::vector<int> block_of;
};

bool ends_block(const ptx_op &o)
{
    return o.run == ptx_run_branch || o.run == ptx_run_exit;
}

void allocator::find_blocks()
{
    std::vector<bool> leads((size_t)n_ops + 1, false);
    leads[0] = true;
    for (int i = 0; i < n_ops; i++) {
        const ptx_op &o = f->code[(size_t)i];
        if (o.run == ptx_run_branch) leads[(size_t)o.imm] = true;
        if (ends_block(o)) leads[(size_t)i + 1] = true;
    }
    block_of.resize((size_t)n_ops);
    for (int i = 0; i < n_ops; i++) {
        if (leads[(size_t)i]) blocks.push_back({i, i, {-1, -1}, {}, {}, {}, {}});
        blocks.back().last = i;
        block_of[(size_t)i] = (int)blocks.size() - 1;
    }
    for (basic_block &b : blocks) {
        const ptx_op &o = f->code[(size_t)b.last];
        const bool always = o.guard == PTX_NO_SLOT;
        if (o.run == ptx_run_branch) b.next[0] = block_of[(size_t)o.imm];
        if ((!ends_block(o) || !always) && b.last + 1 < n_ops)
            b.next[1] = block_of[(size_t)b.last + 1];
    }
}

/* What a block reads before it writes it, and what it writes whatever happens. */
void allocator::find_local()
{
    const size_t n = sizes.size() / 64 + 1;
    for (basic_block &b : blocks) {
        b.needs.assign(n, 0);
        b.kills.assign(n, 0);
        b.in.assign(n, 0);
        b.out.assign(n, 0);
    }
    for (size_t m = 0; m < mentions.size();) { /* an op's reads come before its writes */
        size_t end = m;
        while (end < mentions.size() && mentions[end].op == mentions[m].op) end++;
        basic_block &b = blocks[(size_t)block_of[mentions[m].op]];
        for (size_t k = m; k < end; k++)
            if (!mentions[k].is_write && !has(b.kills, mentions[k].reg))
                add(b.needs, mentions[k].reg);
        const bool always = f->code[mentions[m].op].guard == PTX_NO_SLOT;
        for (size_t k = m; k < end; k++)
            if (mentions[k].is_write && always) add(b.kills, mentions[k].reg);
        m = end;
    }
}

void allocator::flow()
{
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = blocks.size(); i-- > 0;) {
            basic_block &b = blocks[i];
            for (size_t w = 0; w < b.in.size(); w++) {
                uint64_t out = 0;
                for (int next : b.next)
                    if (next >= 0) out |= blocks[(size_t)next].in[w];
                const uint64_t in = b.needs[w] | (out & ~b.kills[w]);
                changed = changed || in != b.in[w];
                b.out[w] = out;
                b.in[w] = in;
            }
        }
    }
}

std::vector<interval> allocator::intervals()
{
    std::vector<interval> found(sizes.size());
    for (size_t r = 0; r < found.size(); r++) found[r] = {(int)r, n_ops, -1};
    auto cover = [&](int reg, int at) {
        interval &x = found[(size_t)reg];
        x.first = std::min(x.first, at);
        x.last = std::max(x.last, at);
    };
    auto cover_all = [&](const bits &regs, int at) {
        for (size_t w = 0; w < regs.size(); w++)
            for (uint64_t left = regs[w]; left; left &= left - 1)
                cover((int)(64 * w) + __builtin_ctzll(left), at);
    };
    for (const ptx_mention &m : mentions) cover(m.reg, (int)m.op);
    for (const basic_block &b : blocks) {
        cover_all(b.in, b.first);
        cover_all(b.out, b.last);
    }
    std::sort(found.begin(), found.end(),
              [](const interval &a, const interval &b) { return a.first < b.first; });
    return found;
}

/* The offset of each register; -1: never mentioned. */
std::vector<int32_t> allocator::place(const int specials[PTX_N_SPECIAL])
{
    std::vector<int32_t> at(sizes.size(), -1);
    size_t used = 0;
    auto fresh = [&](int size) {
        const size_t here = used;
        used += size == PTX_PREDICATE ? 64 : (size_t)size * PTX_WARP;
        return (int32_t)here;
    };
    for (int i = 0; i < PTX_N_SPECIAL; i++)
        if (specials[i] >= 0) at[(size_t)specials[i]] = fresh(4);
    typedef std::pair<int, int32_t> ending; /* position, place */
    std::priority_queue<ending, std::vector<ending>, std::greater<ending>> busy[9];
    for (const interval &x : intervals()) {
        if (x.last < 0 || at[(size_t)x.reg] >= 0) continue;
        const int size = sizes[(size_t)x.reg];
        auto &queue = busy[size];
        if (!queue.empty() && queue.top().first < x.first) {
            at[(size_t)x.reg] = queue.top().second;
            queue.pop();
        } else {
            at[(size_t)x.reg] = fresh(size);
        }
        queue.push({x.last, at[(size_t)x.reg]});
    }
    f->registers_nbytes = used;
    return at;
}

} // namespace

void ptx_place_registers(ptx_function *f, const std::vector<int> &sizes,
                         const std::vector<ptx_mention> &mentions,
                         const int specials[PTX_N_SPECIAL])
{
    for (const ptx_mention &m : mentions)
        if (m.where == 5) f->code[m.op].guard = 0; /* for now: there is one */
    allocator a(f, sizes, mentions);
    a.find_blocks();
    a.find_local();
    a.flow();
    std::vector<int32_t> at = a.place(specials);
    for (const ptx_mention &m : mentions) {
        ptx_op &o = f->code[m.op];
        if (m.where < 5)
            o.s[m.where] = at[(size_t)m.reg];
        else if (m.where == 5)
            o.guard = at[(size_t)m.reg];
        else
            f->more[o.more + (uint32_t)m.where - 6] = at[(size_t)m.reg];
    }
    for (int i = 0; i < PTX_N_SPECIAL; i++)
        f->special[i] = specials[i] < 0 ? PTX_NO_SLOT : at[(size_t)specials[i]];
}
