/* Fibers: see sim_fiber.h. Under AddressSanitizer each switch is announced. */
#include "sim_fiber.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef __x86_64__
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define STACK_NBYTES ((size_t)256 << 10)
#else
#define STACK_NBYTES ((size_t)64 << 10)
#endif
#define PAGE_NBYTES 4096

#ifdef __x86_64__
/* rdi: where to save the stack pointer, rsi: the stack pointer to continue with. */
extern "C" void sim_fiber_swap(void **save, void *to);
asm(".text\n"
    ".p2align 4\n"
    ".globl sim_fiber_swap\n"
    ".hidden sim_fiber_swap\n"
    ".type sim_fiber_swap, @function\n"
    "sim_fiber_swap:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size sim_fiber_swap, .-sim_fiber_swap\n");
#endif

void sim_fiber_restart(struct sim_fiber *f, int idx, void (*entry)(void))
{
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(f->bottom, f->nbytes);
#endif
    f->fake = nullptr;
    size_t colour = (size_t)(idx % 61) * 64;
#ifdef __x86_64__
    void **top = (void **)(f->bottom + f->nbytes - 64 - colour);
    memset(top - 8, 0, 8 * sizeof *top);
    top[-2] = (void *)entry; /* popped by ret, which leaves the stack as a call would */
    f->sp = top - 8;
#else
    ucontext_t *context = (ucontext_t *)f->context;
    getcontext(context);
    context->uc_stack.ss_sp = f->bottom;
    context->uc_stack.ss_size = f->nbytes - colour;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
#endif
}

struct sim_fiber *sim_fiber_create(int idx, void (*entry)(void))
{
    struct sim_fiber *f = (struct sim_fiber *)calloc(1, sizeof *f);
    if (!f) return nullptr;
    char *map = (char *)mmap(nullptr, STACK_NBYTES + PAGE_NBYTES, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        free(f);
        return nullptr;
    }
    mprotect(map, PAGE_NBYTES, PROT_NONE);
    f->bottom = map + PAGE_NBYTES;
    f->nbytes = STACK_NBYTES;
#ifndef __x86_64__
    f->context = calloc(1, sizeof(ucontext_t));
#endif
    sim_fiber_restart(f, idx, entry);
    return f;
}

void sim_fiber_destroy(struct sim_fiber *f)
{
    munmap(f->bottom - PAGE_NBYTES, STACK_NBYTES + PAGE_NBYTES);
    free(f->context);
    free(f);
}

void sim_fiber_adopt(struct sim_fiber *f)
{
    memset(f, 0, sizeof *f);
#ifndef __x86_64__
    f->context = calloc(1, sizeof(ucontext_t));
#endif
    pthread_attr_t attr;
    if (pthread_getattr_np(pthread_self(), &attr) != 0) return;
    void *bottom;
    pthread_attr_getstack(&attr, &bottom, &f->nbytes);
    f->bottom = (char *)bottom;
    pthread_attr_destroy(&attr);
}

void sim_fiber_entered(void)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

#if !defined(__x86_64__) || defined(__SANITIZE_ADDRESS__)
void sim_fiber_switch(struct sim_fiber *from, struct sim_fiber *to)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->nbytes);
#endif
#ifdef __x86_64__
    sim_fiber_swap(&from->sp, to->sp);
#else
    swapcontext((ucontext_t *)from->context, (const ucontext_t *)to->context);
#endif
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}
#endif

bool sim_fiber_is_guard(const struct sim_fiber *f, const void *p)
{
    return (const char *)p < f->bottom && (const char *)p >= f->bottom - PAGE_NBYTES;
}
