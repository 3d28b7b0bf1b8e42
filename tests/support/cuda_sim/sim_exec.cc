/* The threads of a block as fibers: ready queue, barriers, collectives, deadlocks. See sim_exec.h.
 */
#include "sim_exec.h"

#include "sim_fiber.h"
#include "sim_settings.h"
#include "sim_tensor_copy.h"
#include "sim_warpgroup.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#define MAX_SHARED    ((size_t)227 << 10)
#define SHARED_WINDOW ((size_t)256 << 10)
#define GUARD_NBYTES  ((size_t)64 << 10) /* unmapped */
#define MAX_COPIES    64                 /* unfinished cp.async of one thread */
#define SHARED_ALIGN  128
#define ERROR_NBYTES  1024

struct sim_where sim_now;

namespace {

enum state : uint8_t { NEW = 0, READY, AT_BARRIER, AT_COLLECTIVE, AT_MEETING, DONE };

struct async_copy {
    void *dst;
    const void *src;
    int nbytes, n_valid, group;
};

struct site {
    const char *what, *file;
    int line;
};

/* A thread in a collective. */
struct waiter {
    struct sim_lane lane;
    sim_evaluate evaluate;
    unsigned mask;
    struct site site;
};

/* Threads that wait for each other, in the order in which they came. */
struct meeting {
    int n_arrived, n_wanted;
    uint16_t threads[SIM_MAX_THREADS];
    struct site site;
};

/* A thread's cp.async: unfinished copies, and the number of the group that is open. */
struct async_copies {
    int n, group;
    struct async_copy copies[MAX_COPIES];
};

/* The streaming multiprocessor: it runs one block at a time, on the OS thread that drains. */
struct worker {
    struct sim_fiber home; /* that OS thread's own stack */
    pthread_t os_thread;
    struct sim_fiber *current, *idle;
    struct sim_fiber *fibers[SIM_MAX_THREADS];
    int n_fibers;

    const struct sim_grid *grid;
    int n_threads, n_warps;
    uint8_t state[SIM_MAX_THREADS];
    struct sim_fiber *fiber_of[SIM_MAX_THREADS]; /* that carries a thread which waits */
    struct waiter waiters[SIM_MAX_THREADS];
    unsigned waiting[SIM_MAX_THREADS / SIM_WARP]; /* lanes in a collective, per warp */
    uint3 index_of[SIM_MAX_THREADS];              /* linear thread → threadIdx */
    uint16_t order[SIM_MAX_THREADS];              /* in which ready threads are taken */
    uint16_t queue[2 * SIM_MAX_THREADS];          /* ring */
    unsigned head, n_queued;

    int n_done, n_arrived, n_true, barrier_result;
    struct site barrier; /* where the first that arrived waits */
    struct meeting meetings[SIM_MEETINGS];
    struct async_copies *copies; /* of each thread; made when first used */
    char *shared_end, *shared;   /* dynamic shared memory, an unmapped page behind it */
    uint64_t random;
    bool failed;
    char error[ERROR_NBYTES];
};

struct worker *self_worker;

/* ---- order ---- */

uint32_t random_below(struct worker *w, uint32_t n)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(((w->random >> 32) * n) >> 32);
}

void shuffle(struct worker *w, uint16_t *items, int n)
{
    for (int i = n - 1; i > 0; i--) {
        uint32_t j = random_below(w, (uint32_t)i + 1);
        uint16_t swapped = items[i];
        items[i] = items[j];
        items[j] = swapped;
    }
}

void push_back(struct worker *w, int thread)
{
    w->queue[(w->head + w->n_queued++) % (2 * SIM_MAX_THREADS)] = (uint16_t)thread;
}

void push_front(struct worker *w, int thread)
{
    w->head = (w->head - 1) % (2 * SIM_MAX_THREADS);
    w->queue[w->head] = (uint16_t)thread;
    w->n_queued++;
}

int pop(struct worker *w)
{
    if (w->n_queued == 0) return -1;
    int thread = w->queue[w->head];
    w->head = (w->head + 1) % (2 * SIM_MAX_THREADS);
    w->n_queued--;
    return thread;
}

/* The queue becomes all threads, in the order asked for. */
void queue_all(struct worker *w)
{
    if (sim_settings.order == SIM_ORDER_RANDOM) shuffle(w, w->order, w->n_threads);
    memcpy(w->queue, w->order, sizeof w->queue[0] * (size_t)w->n_threads);
    w->head = 0;
    w->n_queued = (unsigned)w->n_threads;
}

/* Lanes that met continue before others, so that forward and reverse walk warp by warp. */
void queue_lanes(struct worker *w, int warp, unsigned mask)
{
    uint16_t lanes[SIM_WARP];
    int n = 0;
    for (int l = 0; l < SIM_WARP; l++)
        if (mask >> l & 1) lanes[n++] = (uint16_t)(warp * SIM_WARP + l);
    if (sim_settings.order == SIM_ORDER_RANDOM) shuffle(w, lanes, n);
    bool back = sim_settings.order == SIM_ORDER_RANDOM && random_below(w, 2);
    for (int i = 0; i < n; i++) {
        int at = sim_settings.order == SIM_ORDER_REVERSE ? i : n - 1 - i;
        w->state[lanes[at]] = READY;
        if (back)
            push_back(w, lanes[at]);
        else
            push_front(w, lanes[at]);
    }
}

/* ---- switching ---- */

[[noreturn]] void fiber_main();

inline void become(struct worker *w, int thread)
{
    sim_now.thread = w->index_of[thread];
    sim_now.linear = thread;
    w->state[thread] = READY;
}

struct sim_fiber *idle_fiber(struct worker *w)
{
    struct sim_fiber *f = w->idle;
    if (f) {
        w->idle = f->next_idle;
        return f;
    }
    f = sim_fiber_create(w->n_fibers, fiber_main);
    if (!f) {
        fprintf(stderr, "cuda_sim: no memory for the stacks of a block's threads\n");
        abort();
    }
    w->fibers[w->n_fibers++] = f;
    return f;
}

void switch_to(struct worker *w, struct sim_fiber *to)
{
    struct sim_fiber *from = w->current;
    w->current = to;
    sim_fiber_switch(from, to);
}

/* The fiber that carries a queued thread; a thread that has not begun gets an idle one. */
struct sim_fiber *carrier(struct worker *w, int thread)
{
    if (w->state[thread] != NEW) return w->fiber_of[thread];
    struct sim_fiber *f = idle_fiber(w);
    f->thread = thread;
    return f;
}

/* Stacks are a page or more apart: fetching the one after next hides most of that. */
inline void prefetch_ahead(const struct worker *w)
{
    int thread = w->queue[(w->head + 1) % (2 * SIM_MAX_THREADS)];
    const struct sim_fiber *f = w->fiber_of[thread];
    if (w->n_queued < 2 || w->state[thread] != READY || !f) return;
    __builtin_prefetch(f->sp);
    __builtin_prefetch((const char *)f->sp + 64);
    __builtin_prefetch((const char *)f->sp + 128);
}

/* The running thread cannot continue: others run until one of them queues it. */
inline __attribute__((always_inline)) void wait_turn(struct worker *w)
{
    int self = sim_now.linear, next = pop(w);
    prefetch_ahead(w);
    if (next != self) {
        w->fiber_of[self] = w->current;
        switch_to(w, next < 0 ? &w->home : carrier(w, next));
    }
    become(w, self);
}

/* Carry one thread after another; with threads that wait on other fibers, rest. */
[[noreturn]] void fiber_main()
{
    sim_fiber_entered();
    for (;;) {
        struct worker *w = self_worker;
        struct sim_fiber *f = w->current;
        int thread = f->thread;
        become(w, thread);
        w->grid->invoke(w->grid->params);
        w->state[thread] = DONE;
        w->n_done++;
        int next = pop(w);
        if (next >= 0 && w->state[next] == NEW) {
            f->thread = next;
            continue;
        }
        f->next_idle = w->idle;
        w->idle = f;
        switch_to(w, next < 0 ? &w->home : w->fiber_of[next]);
    }
}

/* ---- blocks ---- */

const struct meeting *meeting_of(const struct worker *w, int thread)
{
    for (const struct meeting &m : w->meetings)
        for (int i = 0; i < m.n_arrived; i++)
            if (m.threads[i] == thread) return &m;
    return &w->meetings[0];
}

/* Threads that wait for ever: say where the first of them stands and what it lacks. */
void explain_deadlock(struct worker *w)
{
    int first = 0;
    while (first < w->n_threads && (w->state[first] == DONE || w->state[first] == NEW)) first++;
    bool at_barrier = w->state[first] == AT_BARRIER;
    const struct waiter *waiter = &w->waiters[first];
    const struct meeting *meeting = w->state[first] == AT_MEETING ? meeting_of(w, first) : nullptr;
    const struct site *site = at_barrier ? &w->barrier : meeting ? &meeting->site : &waiter->site;
    int warp = first / SIM_WARP;
    char detail[160];
    if (at_barrier)
        snprintf(detail, sizeof detail, "%d of %d threads left the kernel, %d wait there",
                 w->n_done, w->n_threads, w->n_arrived);
    else if (meeting)
        snprintf(detail, sizeof detail, "%d of %d threads wait there", meeting->n_arrived,
                 meeting->n_wanted);
    else
        snprintf(detail, sizeof detail, "lanes 0x%08x of warp %d never come",
                 waiter->mask & ~w->waiting[warp], warp);
    uint3 b = sim_now.block, t = w->index_of[first];
    snprintf(w->error, sizeof w->error,
             "kernel %s, block (%u,%u,%u), thread (%u,%u,%u) waits for ever in %s at %s:%d: %s",
             w->grid->name, b.x, b.y, b.z, t.x, t.y, t.z, site->what, site->file, site->line,
             detail);
    w->failed = true;
}

void abandon_fibers(struct worker *w)
{
    w->idle = nullptr;
    for (int i = 0; i < w->n_fibers; i++) {
        sim_fiber_restart(w->fibers[i], i, fiber_main);
        w->fibers[i]->next_idle = w->idle;
        w->idle = w->fibers[i];
    }
}

void block_run(struct worker *w, uint64_t linear)
{
    const struct sim_grid *g = w->grid;
    sim_now.block.x = (unsigned)(linear % g->grid.x);
    sim_now.block.y = (unsigned)(linear / g->grid.x % g->grid.y);
    sim_now.block.z = (unsigned)(linear / g->grid.x / g->grid.y);
    memset(w->state, NEW, (size_t)w->n_threads);
    memset(w->waiting, 0, sizeof w->waiting[0] * (size_t)w->n_warps);
    w->n_done = w->n_arrived = w->n_true = 0;
    for (int t = 0; w->copies && t < w->n_threads; t++) w->copies[t].n = w->copies[t].group = 0;
    for (struct meeting &m : w->meetings) m.n_arrived = 0;
    sim_warpgroup_begin_block(w->n_threads);
    sim_tensor_copy_begin_block();
    if (g->shared_nbytes > 0) memset(w->shared, 0xFF, g->shared_nbytes);
    queue_all(w);
    for (int next; !w->failed && (next = pop(w)) >= 0;) {
        w->current = &w->home;
        switch_to(w, carrier(w, next));
    }
    if (!w->failed && w->n_done < w->n_threads) explain_deadlock(w);
    const char *unfinished = w->failed ? nullptr : sim_warpgroup_end_block();
    if (!unfinished && !w->failed) unfinished = sim_tensor_copy_end_block();
    if (unfinished) {
        snprintf(w->error, sizeof w->error, "kernel %s, block (%u,%u,%u): %s", g->name,
                 sim_now.block.x, sim_now.block.y, sim_now.block.z, unfinished);
        w->failed = true;
    }
    if (w->failed) abandon_fibers(w);
}

/* Dynamic shared memory ends at an unmapped page, so that writing far beyond it cannot pass; and at
 * a multiple of SHARED_WINDOW, so that the lower bits of its addresses are those of a GPU's: none
 * carries into the bit above. */
bool shared_prepare(struct worker *w, size_t nbytes)
{
    if (!w->shared_end) {
        size_t space = SHARED_WINDOW * 2 + GUARD_NBYTES;
        char *map = (char *)mmap(nullptr, space, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED) return false;
        uintptr_t end = ((uintptr_t)map + 2 * SHARED_WINDOW) / SHARED_WINDOW * SHARED_WINDOW;
        mprotect((char *)end, GUARD_NBYTES, PROT_NONE);
        w->shared_end = (char *)end;
    }
    size_t whole = (nbytes + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN;
    w->shared = w->shared_end - whole;
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(w->shared_end - MAX_SHARED, MAX_SHARED);
    __asan_poison_memory_region(w->shared + nbytes, whole - nbytes);
#endif
    return true;
}

struct worker *worker_make()
{
    if (!self_worker) self_worker = (struct worker *)calloc(1, sizeof *self_worker);
    if (!self_worker) return nullptr;
    struct worker *w = self_worker;
    if (!w->home.bottom || !pthread_equal(w->os_thread, pthread_self())) {
        sim_fiber_adopt(&w->home);
        w->os_thread = pthread_self();
    }
    return w;
}

struct worker *worker_prepare(const struct sim_grid *g)
{
    struct worker *w = worker_make();
    if (!w || !shared_prepare(w, g->shared_nbytes)) return nullptr;
    w->grid = g;
    w->failed = false;
    w->random = sim_settings.order_seed * 0x9E3779B97F4A7C15u + 1;
    w->n_threads = (int)(g->block.x * g->block.y * g->block.z);
    w->n_warps = (w->n_threads + SIM_WARP - 1) / SIM_WARP;
    for (int t = 0; t < w->n_threads; t++) {
        unsigned u = (unsigned)t, x = g->block.x, y = g->block.y;
        w->index_of[t] = uint3{u % x, u / x % y, u / x / y};
        bool reverse = sim_settings.order == SIM_ORDER_REVERSE;
        w->order[t] = (uint16_t)(reverse ? w->n_threads - 1 - t : t);
    }
    sim_now.block_dim = (uint3)g->block;
    sim_now.grid_dim = (uint3)g->grid;
    return w;
}

} // namespace

/* ---- grids ---- */

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

sim_blocks_order::sim_blocks_order(uint64_t n) : n(n), offset(0), stride(1)
{
    if (sim_settings.order == SIM_ORDER_REVERSE) {
        offset = stride = n - 1;
    } else if (sim_settings.order == SIM_ORDER_RANDOM) {
        uint64_t random = (sim_settings.order_seed + n) * 0x9E3779B97F4A7C15u;
        offset = (random >> 20) % n;
        stride = (random >> 7) % n;
        while (gcd(stride, n) != 1) stride = (stride + 1) % (n + 1);
    }
}

uint64_t sim_blocks_order::at(uint64_t i) const
{
    return (uint64_t)(((unsigned __int128)i * stride + offset) % n);
}

bool sim_exec_grid(const struct sim_grid *g, char *error, size_t error_nbytes)
{
    struct worker *w = worker_prepare(g);
    if (!w) {
        snprintf(error, error_nbytes, "no memory for a simulated multiprocessor");
        return false;
    }
    uint64_t n = (uint64_t)g->grid.x * g->grid.y * g->grid.z;
    const sim_blocks_order order(n);
    sim_shared_poison();
    for (uint64_t i = 0; i < n && !w->failed; i++) {
        block_run(w, order.at(i));
        if (sim_settings.order == SIM_ORDER_RANDOM) sim_shared_poison();
    }
    w->grid = nullptr;
    if (w->failed) snprintf(error, error_nbytes, "%s", w->error);
    return !w->failed;
}

int sim_exec_describe(char *text, size_t nbytes)
{
    struct worker *w = self_worker;
    if (!w || !w->grid) return 0;
    uint3 b = sim_now.block, t = sim_now.thread;
    return snprintf(text, nbytes, "kernel %s, block (%u,%u,%u), thread (%u,%u,%u)", w->grid->name,
                    b.x, b.y, b.z, t.x, t.y, t.z);
}

const char *sim_exec_guard_name(const void *p)
{
    struct worker *w = self_worker;
    for (int i = 0; w && i < w->n_fibers; i++)
        if (sim_fiber_is_guard(w->fibers[i], p)) return "the thread's stack has no space left";
    const char *end = w ? w->shared_end : nullptr;
    if (end && (const char *)p >= end && (const char *)p < end + GUARD_NBYTES)
        return "beyond dynamic shared memory";
    return nullptr;
}

void sim_exec_fail(const char *file, int line, const char *format, ...)
{
    struct worker *w = self_worker;
    int n = sim_exec_describe(w->error, sizeof w->error);
    va_list args;
    va_start(args, format);
    char what[512];
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(w->error + n, sizeof w->error - (size_t)n, " at %s:%d: %s", file, line, what);
    w->failed = true;
    switch_to(w, &w->home);
    abort(); /* an abandoned fiber is never resumed */
}

void *sim_exec_dynamic_shared(void)
{
    return self_worker->shared;
}

void sim_exec_yield(void)
{
    struct worker *w = self_worker;
    if (w->n_queued == 0) return;
    push_back(w, sim_now.linear);
    wait_turn(w);
}

static bool same_line(const struct site *a, const char *file, int line)
{
    return a->line == line && (a->file == file || strcmp(a->file, file) == 0);
}

int sim_exec_barrier(bool predicate, const char *what, const char *file, int line)
{
    struct worker *w = self_worker;
    if (w->n_arrived == 0)
        w->barrier = {what, file, line};
    else if (!same_line(&w->barrier, file, line))
        sim_exec_fail(file, line, "%s: other threads of the block wait in %s at %s:%d", what,
                      w->barrier.what, w->barrier.file, w->barrier.line);
    w->state[sim_now.linear] = AT_BARRIER;
    w->n_true += predicate;
    if (++w->n_arrived == w->n_threads) {
        w->barrier_result = w->n_true;
        w->n_arrived = w->n_true = 0;
        memset(w->state, READY, (size_t)w->n_threads);
        queue_all(w);
    }
    wait_turn(w);
    return w->barrier_result;
}

void sim_exec_meet(int meeting, int n, void (*last)(void *arg), void *arg, const char *what,
                   const char *file, int line)
{
    struct worker *w = self_worker;
    struct meeting *m = &w->meetings[meeting];
    if (m->n_arrived == 0) m->site = {what, file, line}, m->n_wanted = n;
    if (!same_line(&m->site, file, line) || m->n_wanted != n)
        sim_exec_fail(file, line, "%s: other threads wait in %s at %s:%d", what, m->site.what,
                      m->site.file, m->site.line);
    w->state[sim_now.linear] = AT_MEETING;
    m->threads[m->n_arrived++] = (uint16_t)sim_now.linear;
    if (m->n_arrived == n) {
        last(arg);
        m->n_arrived = 0;
        if (sim_settings.order == SIM_ORDER_RANDOM) shuffle(w, m->threads, n);
        /* threads that met may be far ahead of the others */
        const bool front = sim_settings.order == SIM_ORDER_RANDOM && random_below(w, 4) > 0;
        for (int i = 0; i < n; i++) {
            w->state[m->threads[i]] = READY;
            if (front)
                push_front(w, m->threads[i]);
            else
                push_back(w, m->threads[i]);
        }
    }
    wait_turn(w);
}

void *sim_exec_shared_at(uintptr_t at, size_t nbytes)
{
    const struct worker *w = self_worker;
    const uintptr_t off = (at - (uintptr_t)w->shared) % SHARED_WINDOW;
    return off + nbytes <= w->grid->shared_nbytes ? w->shared + off : nullptr;
}

/* All lanes of mask are here: they must mean the same collective. */
static void collective_complete(struct worker *w, int warp, unsigned mask)
{
    const struct waiter *mine = &w->waiters[sim_now.linear];
    struct sim_lane *lanes[SIM_WARP] = {};
    for (int l = 0; l < SIM_WARP; l++) {
        if (!(mask >> l & 1)) continue;
        struct waiter *other = &w->waiters[warp * SIM_WARP + l];
        if (other->mask != mask || other->evaluate != mine->evaluate)
            sim_exec_fail(mine->site.file, mine->site.line,
                          "%s with mask 0x%08x: lane %d waits in %s with mask 0x%08x at %s:%d",
                          mine->site.what, mask, l, other->site.what, other->mask, other->site.file,
                          other->site.line);
        lanes[l] = &other->lane;
    }
    if (mine->evaluate) mine->evaluate(lanes, mask);
    w->waiting[warp] &= ~mask;
    queue_lanes(w, warp, mask);
}

struct sim_lane *sim_exec_lane(void)
{
    return &self_worker->waiters[sim_now.linear].lane;
}

uint64_t sim_exec_collective(sim_evaluate evaluate, const char *what, unsigned mask,
                             const char *file, int line)
{
    struct worker *w = self_worker;
    int self = sim_now.linear, warp = self / SIM_WARP;
    unsigned bit = 1u << self % SIM_WARP;
    if (!(mask & bit))
        sim_exec_fail(file, line, "%s: mask 0x%08x does not name the calling lane %d", what, mask,
                      self % SIM_WARP);
    struct waiter *me = &w->waiters[self];
    me->evaluate = evaluate;
    me->mask = mask;
    me->site.what = what;
    me->site.file = file;
    me->site.line = line;
    w->state[self] = AT_COLLECTIVE;
    w->waiting[warp] |= bit;
    if ((w->waiting[warp] & mask) == mask) collective_complete(w, warp, mask);
    wait_turn(w);
    return me->lane.result;
}

/* ---- cp.async ---- */

static void async_perform(const struct async_copy *c)
{
    sim_warpgroup_copied(c->dst, c->nbytes, sim_now.linear);
    if (c->n_valid > 0)
        memcpy(c->dst, c->src, (size_t)c->n_valid); /* of nothing, src may be NULL */
    memset((char *)c->dst + c->n_valid, 0, (size_t)(c->nbytes - c->n_valid));
}

static struct async_copies *async_of_thread(struct worker *w)
{
    if (!w->copies) w->copies = (struct async_copies *)calloc(SIM_MAX_THREADS, sizeof *w->copies);
    if (!w->copies) sim_exec_fail("cp.async", 0, "no memory to simulate it");
    return &w->copies[sim_now.linear];
}

void sim_exec_async_copy(void *shared, const void *global, int nbytes, int n_valid)
{
    struct worker *w = self_worker;
    struct async_copies *mine = async_of_thread(w);
    if ((uintptr_t)shared % (uintptr_t)nbytes != 0 ||
        (n_valid > 0 && (uintptr_t)global % (uintptr_t)nbytes != 0))
        sim_exec_fail("cp.async", 0, "%d bytes from %p to %p: not aligned to their size", nbytes,
                      global, shared);
    if (mine->n == MAX_COPIES) sim_exec_fail("cp.async", 0, "%d copies without a wait", MAX_COPIES);
    struct async_copy copy = {shared, global, nbytes, n_valid, mine->group};
    /* Hardware may be fast: in random order some copies land at once. */
    if (sim_settings.order == SIM_ORDER_RANDOM && random_below(w, 2))
        async_perform(&copy);
    else
        mine->copies[mine->n++] = copy;
}

void sim_exec_async_commit(void)
{
    async_of_thread(self_worker)->group++;
}

void sim_exec_async_wait(int n_newest_left)
{
    struct async_copies *mine = async_of_thread(self_worker);
    int n_kept = 0;
    for (int i = 0; i < mine->n; i++) {
        if (n_newest_left < 0 || mine->copies[i].group < mine->group - n_newest_left)
            async_perform(&mine->copies[i]);
        else
            mine->copies[n_kept++] = mine->copies[i];
    }
    mine->n = n_kept;
}
