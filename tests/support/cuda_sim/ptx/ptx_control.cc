/* How lanes continue: branches, ends, barriers, fences. */
#include "ptx_decode.h"
#include "ptx_run.h"

/* ---- paths ---- */

void ptx_run_branch(ptx_warp &w, const ptx_op &o)
{
    const uint32_t stay = w.path & ~w.mask;
    if (stay != 0) w.others[w.n_others++] = {w.pc, stay, false, false};
    w.path = w.mask;
    w.pc = (int)o.imm;
    ptx_find_limit(w);
}

void ptx_run_exit(ptx_warp &w, const ptx_op &)
{
    w.alive &= ~w.mask;
    w.path &= ~w.mask;
    w.block->n_done += __builtin_popcount(w.mask);
    if (w.path == 0) w.limit = -1;
}

namespace {

void decode_branch(ptx_builder &b, const ptx_instruction &i)
{
    b.op.run = ptx_run_branch;
    if (i.operand(0).kind != ptx_operand::NAME) ptx_refuse(i, "a label is missing");
    b.branches.push_back({b.f->code.size(), i.operand(0).name});
}

void decode_exit(ptx_builder &b, const ptx_instruction &)
{
    b.op.run = ptx_run_exit;
}

void run_trap(ptx_warp &w, const ptx_op &)
{
    ptx_fail(w, __builtin_ctz(w.mask), "traps");
}

void decode_trap(ptx_builder &b, const ptx_instruction &)
{
    b.op.run = run_trap;
}

/* ---- barriers ---- */

enum bar { BAR_SYNC = 0, BAR_ARRIVE };

/* All lanes that are left have to come together. s: number, threads or none. */
void run_bar(ptx_warp &w, const ptx_op &o)
{
    if (!ptx_together(w, w.alive)) return;
    const int lane = __builtin_ctz(w.mask);
    const uint32_t number = w.from<uint32_t>(o.s[1])[lane];
    int expected = w.block->n_threads;
    if (o.s[2] != PTX_NO_SLOT) expected = (int)w.from<uint32_t>(o.s[2])[lane];
    if (number >= PTX_BARRIERS) ptx_fail(w, lane, "barrier %u does not exist", number);
    ptx_barrier_arrive(w, (int)number, expected, o.form == BAR_SYNC);
}

void decode_bar(ptx_builder &b, const ptx_instruction &i)
{
    if (i.has("warp")) {
        b.op.run = ptx_run_warp_barrier;
        b.read(1, i.operand(0), 4);
        return;
    }
    if (!i.has("sync") && !i.has("arrive")) ptx_refuse(i, "this barrier is not known");
    if (i.has("red")) ptx_refuse(i, "this barrier is not known");
    b.op.run = run_bar;
    b.op.form = i.has("arrive") ? BAR_ARRIVE : BAR_SYNC;
    b.read(1, i.operand(0), 4);
    if (i.operands.size() > 1) b.read(2, i.operand(1), 4);
}

/* ---- what orders memory: blocks run one after another, warps see each other's stores at once ----
 */

void run_fence_proxy(ptx_warp &w, const ptx_op &)
{
    w.block->watch->fence_proxy(w);
}

void decode_fence(ptx_builder &b, const ptx_instruction &i)
{
    b.op.run = i.has("proxy") ? run_fence_proxy : nullptr;
}

void run_nanosleep(ptx_warp &w, const ptx_op &)
{
    ptx_rest(w);
}

/* Registers are ptxas' affair; that all of a warp come is the program's. */
void run_setmaxnreg(ptx_warp &w, const ptx_op &)
{
    (void)ptx_together(w, w.alive);
}

void decode_setmaxnreg(ptx_builder &b, const ptx_instruction &i)
{
    const uint64_t n = i.operand(0).bits;
    if (n < 24 || n > 256 || n % 8 != 0) ptx_refuse(i, "registers are 24 to 256, in steps of 8");
    b.op.run = run_setmaxnreg;
}

void decode_nanosleep(ptx_builder &b, const ptx_instruction &)
{
    b.op.run = run_nanosleep;
}

} // namespace

/* __syncwarp: its lanes have done what they did before, for each other. */
void ptx_run_warp_barrier(ptx_warp &w, const ptx_op &o)
{
    const uint32_t *members = w.from<uint32_t>(o.s[1]);
    if (!ptx_together(w, ptx_lanes_named(w, members) & w.alive)) return;
    w.block->watch->meet_lanes(w.number);
}

ptx_family ptx_find_control(const std::string &base)
{
    if (base == "bra") return decode_branch;
    if (base == "ret" || base == "exit") return decode_exit;
    if (base == "trap" || base == "brkpt") return decode_trap;
    if (base == "bar" || base == "barrier") return decode_bar;
    if (base == "membar" || base == "fence") return decode_fence;
    if (base == "nanosleep") return decode_nanosleep;
    if (base == "setmaxnreg") return decode_setmaxnreg;
    return nullptr;
}
