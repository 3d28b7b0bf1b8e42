/* cp.async: copies of 4, 8 or 16 bytes that are in flight until their thread has waited. */
#include "ptx_access.h"
#include "ptx_decode.h"
#include "ptx_traffic.h"
#include "sim_settings.h"

#include <string.h>

namespace {

void land(ptx_warp &w, const ptx_copy &c)
{
    char *to = w.block->shared + c.to;
    if (c.n_valid > 0) memcpy(to, (const char *)c.from, c.n_valid); /* of nothing, from may be 0 */
    memset(to + c.n_valid, 0, (size_t)(c.nbytes - c.n_valid));
}

/* s: the bytes that are read, or none; shared, global address; imm: bytes of the copy. */
void run_copy(ptx_warp &w, const ptx_op &o)
{
    const uint32_t n = (uint32_t)o.nbytes;
    const uint32_t *to = w.from<uint32_t>(o.s[1]);
    const uint64_t *from = w.from<uint64_t>(o.s[2]);
    const int32_t *offsets = w.more(o);
    uint64_t source_at[PTX_WARP], target_at[PTX_WARP];
    uint32_t reading = 0;
    for (uint32_t m = w.mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m);
        const uint32_t at = to[l] + (uint32_t)offsets[0];
        const uint64_t source = from[l] + (uint64_t)(int64_t)offsets[1];
        uint32_t n_valid = o.s[0] == PTX_NO_SLOT ? n : w.from<uint32_t>(o.s[0])[l];
        if (n_valid > n) ptx_fail(w, l, "%u bytes of %u are to be read", n_valid, n);
        ptx_shared_at(w, l, at, n);
        if (source % n != 0)
            ptx_fail(w, l, "copies %u bytes from %#llx: not aligned", n,
                     (unsigned long long)source);
        const uint32_t piece = n_valid == n ? n : n_valid % 4 == 0 ? 4 : 1;
        for (uint32_t k = 0; k < n_valid; k += piece)
            ptx_global_at(w, l, source + k, piece, PTX_READ);
        w.block->watch->shared_flies(w, l, at, n);
        ptx_copy c = {at, source, (uint8_t)n, (uint8_t)n_valid, (uint8_t)l, w.copy_group[l]};
        /* Hardware may be fast: in random order some copies land at once. */
        if (sim_settings.order == SIM_ORDER_RANDOM && ptx_random(w.block) % 2) land(w, c);
        w.copies.push_back(c);
        source_at[l] = source, target_at[l] = at;
        if (n_valid > 0) reading |= 1u << l;
    }
    if (!ptx_traffic_counts()) return;
    ptx_traffic_note(o, PTX_GLOBAL, reading, source_at, n);
    ptx_traffic_note(o, PTX_SHARED, w.mask, target_at, n);
}

void run_commit(ptx_warp &w, const ptx_op &)
{
    for (uint32_t m = w.mask; m; m &= m - 1) w.copy_group[__builtin_ctz(m)]++;
}

/* imm: how many of the newest groups may be under way; -1: none, committed or not. */
void run_wait(ptx_warp &w, const ptx_op &o)
{
    size_t n_kept = 0;
    for (const ptx_copy &c : w.copies) {
        const bool mine = w.mask >> c.lane & 1;
        const bool old = o.imm < 0 || (int64_t)c.group < (int64_t)w.copy_group[c.lane] - o.imm;
        if (!mine || !old) {
            w.copies[n_kept++] = c;
            continue;
        }
        land(w, c);
        w.block->watch->shared_landed(w, c.lane, c.to, c.nbytes);
    }
    w.copies.resize(n_kept);
}

/* cp.async.ca|cg.shared.global [to], [from], bytes{, bytes to read} */
void decode_cp(ptx_builder &b, const ptx_instruction &i)
{
    if (i.parts.size() < 3 || i.parts[1] != "async") ptx_refuse(i, "this copy is not known");
    if (i.parts[2] == "commit_group") {
        b.op.run = run_commit;
    } else if (i.parts[2] == "wait_group" || i.parts[2] == "wait_all") {
        b.op.run = run_wait;
        b.op.imm = i.parts[2] == "wait_all" ? -1 : (int64_t)i.operand(0).bits;
    } else if (i.parts[2] == "ca" || i.parts[2] == "cg") {
        const ptx_operand &to = i.operand(0), &from = i.operand(1);
        const uint64_t n = i.operand(2).bits;
        if (n != 4 && n != 8 && n != 16) ptx_refuse(i, "copies are of 4, 8 or 16 bytes");
        b.op.run = run_copy;
        b.op.nbytes = (uint8_t)n;
        b.op.space = PTX_SHARED;
        b.address(1, to);
        b.f->more.push_back((int32_t)b.op.imm);
        if (b.op.form & 1) ptx_refuse(i, "the target's address has 64 bits");
        b.address(2, from);
        b.f->more.push_back((int32_t)b.op.imm);
        b.op.n_more = 2;
        if (to.reg < 0 || from.reg < 0) ptx_refuse(i, "addresses are not in registers");
        if (i.operands.size() > 3) b.read(0, i.operand(3), 4);
    } else {
        ptx_refuse(i, "this copy is not known");
    }
}

} // namespace

ptx_family ptx_find_async(const std::string &base)
{
    return base == "cp" ? decode_cp : nullptr;
}
