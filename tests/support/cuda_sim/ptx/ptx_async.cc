/* cp.async: copies of 4, 8 or 16 bytes that are in flight until their thread has waited;
 * cp.async.bulk.tensor, and the mbarriers that count its bytes. A tensor's copy is done at once: a
 * thread that touches what it brings without having waited is a race with the one that started it.
 * That products have to wait with a fence where it overwrites what threads stored is not seen. */
#include "ptx_access.h"
#include "ptx_decode.h"
#include "ptx_traffic.h"
#include "sim_settings.h"
#include "sim_tensor_copy.h"

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

/* ---- mbarriers ---- */

ptx_mbarrier &mbarrier_of(ptx_warp &w, int lane, int32_t slot, int64_t offset)
{
    const uint32_t at = w.from<uint32_t>(slot)[lane] + (uint32_t)offset;
    ptx_shared_at(w, lane, at, 8);
    const auto found = w.block->mbarriers.find(at);
    if (found == w.block->mbarriers.end()) ptx_fail(w, lane, "there is no mbarrier at %u", at);
    return found->second;
}

void end_phase_if_complete(ptx_mbarrier &m)
{
    if (m.n_left > 0 || m.nbytes_left != 0) return;
    m.phase++;
    m.n_left = m.n;
    m.ended = m.coming;
}

/* s: address, arrivals. */
void run_mbarrier_init(ptx_warp &w, const ptx_op &o)
{
    for (uint32_t m = w.mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m);
        const uint32_t at = w.from<uint32_t>(o.s[1])[l] + (uint32_t)o.imm;
        const int n = (int)w.from<uint32_t>(o.s[2])[l];
        ptx_shared_at(w, l, at, 8);
        w.block->mbarriers[at] = {n, n, 0, 0, {}, {}};
    }
}

/* s: state, address, bytes that are expected or none. */
void run_mbarrier_arrive(ptx_warp &w, const ptx_op &o)
{
    for (uint32_t m = w.mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m);
        ptx_mbarrier &b = mbarrier_of(w, l, o.s[1], o.imm);
        if (o.s[2] != PTX_NO_SLOT) b.nbytes_left += w.from<uint32_t>(o.s[2])[l];
        if (b.n_left-- == 0) ptx_fail(w, l, "more than %d arrive in a phase", b.n);
        w.block->watch->arrive(w.number, &b.coming);
        end_phase_if_complete(b);
    }
}

/* s: whether the phase has ended, address, parity. Where it has not others run first. */
void run_mbarrier_test(ptx_warp &w, const ptx_op &o)
{
    uint32_t ended = 0;
    for (uint32_t m = w.mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m);
        const ptx_mbarrier &b = mbarrier_of(w, l, o.s[1], o.imm);
        if ((b.phase & 1) == w.from<uint32_t>(o.s[2])[l]) continue;
        ended |= 1u << l;
        w.block->watch->learn(w.number, b.ended);
    }
    uint32_t *is = w.to<uint32_t>(o.s[0]);
    *is = (*is & ~w.mask) | ended;
    if (ended != w.mask) ptx_rest(w);
}

void decode_mbarrier(ptx_builder &b, const ptx_instruction &i)
{
    const bool tests = i.has("try_wait") || i.has("test_wait");
    if (i.has("init")) {
        b.op.run = run_mbarrier_init;
        b.address(1, i.operand(0));
        b.read(2, i.operand(1), 4);
    } else if (i.has("arrive") && !i.has("noComplete")) {
        b.op.run = run_mbarrier_arrive;
        b.write(0, i.operand(0), 8);
        b.address(1, i.operand(1));
        if (i.has("expect_tx")) b.read(2, i.operand(2), 4);
        if (!i.has("expect_tx") && i.operands.size() > 2) ptx_refuse(i, "arrivals are one by one");
    } else if (tests && i.has("parity")) {
        b.op.run = run_mbarrier_test;
        b.write(0, i.operand(0), PTX_PREDICATE);
        b.address(1, i.operand(1));
        b.read(2, i.operand(2), 4);
    } else {
        ptx_refuse(i, "this is not known of mbarriers");
    }
    if (b.op.form & 1 || b.op.s[1] == PTX_NO_SLOT)
        ptx_refuse(i, "an mbarrier's address is a register of 32 bits");
}

/* ---- tensors ---- */

/* s: to, map, barrier; more: four coordinates. */
void run_tensor_copy(ptx_warp &w, const ptx_op &o)
{
    for (uint32_t m = w.mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m);
        const uint32_t to = w.from<uint32_t>(o.s[1])[l];
        sim_tensor_map map;
        int at[4];
        for (int d = 0; d < 4; d++) at[d] = w.from<int32_t>(w.more(o)[d])[l];
        memcpy(&map, ptx_generic_at(w, l, w.from<uint64_t>(o.s[2])[l], sizeof map, PTX_READ),
               sizeof map);
        const char *wrong = sim_tensor_refuses(&map, at, to);
        if (wrong) ptx_fail(w, l, "%s", wrong);
        for (uint32_t r = 0; r < map.box[2]; r++) {
            const char *from = sim_tensor_row(&map, at, r);
            for (uint32_t c = 0; c < SIM_TENSOR_LINE / 16; c++) {
                const uint32_t place = (uint32_t)sim_tensor_chunk(to, r, c);
                char *there = ptx_shared_at(w, l, place, 16);
                w.block->watch->shared_copied(w, l, place, 16);
                if (from)
                    memcpy(there, ptx_global_at(w, l, (uint64_t)from + 16 * c, 16, PTX_READ), 16);
                else
                    memset(there, 0, 16);
            }
        }
        ptx_mbarrier &b = mbarrier_of(w, l, o.s[3], 0);
        w.block->watch->arrive(w.number, &b.coming);
        b.nbytes_left -= (int64_t)map.box[2] * SIM_TENSOR_LINE;
        end_phase_if_complete(b);
    }
}

/* cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [to], [map, {…}],
 * [barrier] */
void decode_tensor_copy(ptx_builder &b, const ptx_instruction &i)
{
    const ptx_operand &to = i.operand(0), &map = i.operand(1), &barrier = i.operand(2);
    if (!i.has("tensor") || !i.has("4d") || !i.has("shared::cluster") || map.parts.size() != 1 ||
        map.parts[0].parts.size() != 4 || to.bits || map.bits || barrier.bits ||
        i.operands.size() != 3)
        ptx_refuse(i, "this copy of a tensor is not known");
    b.op.run = run_tensor_copy;
    b.op.nbytes = 16;
    b.op.space = PTX_SHARED;
    b.address(1, to);
    b.address(2, map);
    b.address(3, barrier);
    for (const ptx_operand &x : map.parts[0].parts) b.read_more(x, 4);
}

/* cp.async.ca|cg.shared.global [to], [from], bytes{, bytes to read} */
void decode_cp(ptx_builder &b, const ptx_instruction &i)
{
    if (i.has("bulk")) return decode_tensor_copy(b, i);
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
    return base == "cp" ? decode_cp : base == "mbarrier" ? decode_mbarrier : nullptr;
}
