/* Fibers: stacks of their own and a switch between them that saves callee-saved registers only. */
#ifndef CZ_TESTS_SIM_FIBER_H
#define CZ_TESTS_SIM_FIBER_H

#include <stddef.h>

struct sim_fiber {
    void *sp;      /* where it stopped */
    char *bottom;  /* lowest byte of the stack, above its guard page */
    size_t nbytes; /* of the stack */
    void *fake;    /* AddressSanitizer's */
    void *context; /* ucontext_t where there is no assembly for this CPU */
    int thread;    /* which thread of the block it carries */
    struct sim_fiber *next_idle;
};

/* A fiber that will call entry() when first switched to; entry never returns. idx colours the
 * stack's top, so that the hot lines of many fibers do not share a cache set. NULL: no memory. */
struct sim_fiber *sim_fiber_create(int idx, void (*entry)(void));
/* Forget where it stopped: the next switch calls entry() again. */
void sim_fiber_restart(struct sim_fiber *f, int idx, void (*entry)(void));
void sim_fiber_destroy(struct sim_fiber *f);
/* Make `f` stand for the OS thread's own stack. */
void sim_fiber_adopt(struct sim_fiber *f);

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
/* Save where we are in *save, continue at `to`. */
extern "C" void sim_fiber_swap(void **save, void *to);
inline void sim_fiber_switch(struct sim_fiber *from, struct sim_fiber *to)
{
    sim_fiber_swap(&from->sp, to->sp);
}
#else
void sim_fiber_switch(struct sim_fiber *from, struct sim_fiber *to);
#endif

/* The first thing that entry() does. */
void sim_fiber_entered(void);
bool sim_fiber_is_guard(const struct sim_fiber *f, const void *p);

#endif
