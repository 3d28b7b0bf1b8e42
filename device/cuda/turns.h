/* Blocks that take turns: a sum over blocks in a fixed order, without a kernel of its own.
 *
 * Block n waits until a counter is n, adds, and passes the turn to n + 1. Blocks may only wait for
 * those that already run, so their numbers are drawn in the order in which they start. One thread
 * calls for its block: after a barrier behind what the block wrote, it passes the turn; a barrier
 * after it has the turn holds the others back until then. Read what other blocks wrote by
 * __ldcg(). */
#ifndef CZ_DEVICE_CUDA_TURNS_H
#define CZ_DEVICE_CUDA_TURNS_H

#include "device/cuda/kernel.h"

/* The next number, from *next on. */
CUDA_FN unsigned cuda_draw_number(unsigned *next)
{
    return atomicAdd(next, 1u);
}

/* Wait until *turn is `mine`. */
CUDA_FN void cuda_await_turn(const unsigned *turn, unsigned mine)
{
    for (;;) {
        unsigned now;
#ifdef CZ_CUDA_SIM
        now = __atomic_load_n(turn, __ATOMIC_ACQUIRE);
#else
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(now)
                     : "l"(__cvta_generic_to_global(turn))
                     : "memory");
#endif
        if (now == mine) return;
        __nanosleep(32);
    }
}

/* *turn becomes `next`; a thread that sees it also sees the earlier writes of this thread's block.
 */
CUDA_FN void cuda_pass_turn(unsigned *turn, unsigned next)
{
#ifdef CZ_CUDA_SIM
    __atomic_store_n(turn, next, __ATOMIC_RELEASE);
#else
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(turn)),
                 "r"(next)
                 : "memory");
#endif
}

#endif
