/* Claims, from the record of what was put on which stream: gradients leave a GPU beside the layers
 * that follow, after the one that made them; parameters that rest in the host come beside the layer
 * before the one that uses them; updated parameters go back beside nothing that reads them, and,
 * where nothing has to be known of all gradients, beside the backward of other layers; where much
 * has, beside the layers that come before their own in the next forward. No copy of these holds up
 * the host. On a real GPU there is no record: skipped. */
#include "tests/support/cuda_sim/sim_trace.h"
#include "tests/support/zero/zero_pair.h"

#include <dlfcn.h>

static struct {
    void (*begin)(void);
    void (*end)(void);
    size_t (*count)(void);
    struct sim_trace_entry (*at)(size_t i);
    bool (*ordered)(size_t i, size_t j);
} trace;

static bool find_trace(void)
{
    void *plugin = dlopen(getenv("CZERO_CUDA_PLUGIN"), RTLD_NOW);
    if (!plugin) return false;
    *(void **)&trace.begin = dlsym(plugin, "sim_trace_begin");
    *(void **)&trace.end = dlsym(plugin, "sim_trace_end");
    *(void **)&trace.count = dlsym(plugin, "sim_trace_count");
    *(void **)&trace.at = dlsym(plugin, "sim_trace_at");
    *(void **)&trace.ordered = dlsym(plugin, "sim_trace_ordered");
    return trace.begin && trace.end && trace.count && trace.at && trace.ordered;
}

/* A layer's work, in the record: a fill of so many bytes. */
#define MARK_NBYTES(visit) (1001 + (size_t)(visit))

#define EVALUATION 9 /* in place of a visit */
#define BOUNDARY   10

static void *marks;

static void mark(struct world *w, size_t visit)
{
    ck_ok(w->device->ops->fill_zero(w->device, w->stream, marks, MARK_NBYTES(visit)));
}

/* A pass of one micro-batch whose layers do nothing but leave marks. */
static void pass(struct world *w)
{
    ck_ok(zero_pass_begin(w->z, ZERO_PASS_LAST));
    for (size_t v = 0; v < CZ_ARRAY_LEN(visits); v++) {
        size_t u = visits[v].unit_idx;
        ck_ok(zero_unit_acquire(w->z, u));
        mark(w, v);
        if (visits[v].is_backward) ck_ok(zero_grads_ready(w->z, u));
        ck_ok(zero_unit_release(w->z, u));
    }
    ck_ok(zero_pass_end(w->z));
}

/* In the n-th pass. */
static size_t nth_mark_of(size_t visit, size_t n)
{
    for (size_t i = 0; i < trace.count(); i++)
        if (trace.at(i).kind == SIM_MEMSET && trace.at(i).nbytes == MARK_NBYTES(visit) && n-- == 0)
            return i;
    ck_abort_msg("visit %zu left no mark", visit);
    return 0;
}

static size_t mark_of(size_t visit)
{
    return nth_mark_of(visit, 0);
}

static size_t n_copies(enum sim_kind kind)
{
    size_t n = 0;
    for (size_t i = 0; i < trace.count(); i++) n += trace.at(i).kind == kind;
    return n;
}

/* The k-th copy of a kind and size. */
static size_t copy_of(enum sim_kind kind, size_t nbytes, size_t k)
{
    for (size_t i = 0; i < trace.count(); i++)
        if (trace.at(i).kind == kind && trace.at(i).nbytes == nbytes && k-- == 0) return i;
    ck_abort_msg("there is no copy of %zu bytes", nbytes);
    return 0;
}

static void make(struct world *w, struct zero_offload offload, struct zero_stage3 stage3)
{
    struct world_setting s = plain;
    s.stage = 3;
    s.dtype = s.grad_dtype = DTYPE_BF16;
    s.on_gpu = true;
    s.device = "cuda";
    s.offload = offload;
    s.overlap = true;
    s.bucket = 1;
    s.stage3 = stage3;
    world_make(w, s);
    ck_ok(w->device->ops->mem_alloc(w->device, 8192, "marks", &marks));
}

static void give_back(struct world *w)
{
    w->device->ops->mem_free(w->device, marks, 8192);
    world_free(w);
}

/* Unit 1 (parameters 3, 4) is ready at visit 2, unit 0 (1, 2, and 0, which is tied) at visit 3. */
START_TEST(gradients_leave_beside_the_next_layer)
{
    struct world w;
    make(&w, (struct zero_offload){.optimizer = true}, (struct zero_stage3){0});
    trace.begin();
    pass(&w);
    trace.end();
    ck_assert_uint_eq(n_copies(SIM_COPY_D2H), N_PARAMS);
    size_t early = copy_of(SIM_COPY_D2H, numels[4] * 2, 0);
    size_t late = copy_of(SIM_COPY_D2H, numels[0] * 2, 0);
    ck_assert(trace.at(early).pinned && trace.at(late).pinned);
    ck_assert(trace.at(early).stream != trace.at(mark_of(2)).stream);
    ck_assert(trace.ordered(mark_of(2), early));
    ck_assert(!trace.ordered(early, mark_of(3)) && !trace.ordered(mark_of(3), early));
    ck_assert(trace.ordered(mark_of(3), late));
    give_back(&w);
}
END_TEST

/* With one bucket there is nowhere else to make the next layer's. */
START_TEST(a_bucket_is_not_written_before_it_has_been_emptied)
{
    struct world_setting s = plain;
    struct world w;
    s.stage = 2;
    s.on_gpu = true;
    s.device = "cuda";
    s.offload.optimizer = true;
    s.bucket = 1;
    world_make(&w, s);
    ck_ok(w.device->ops->mem_alloc(w.device, 8192, "marks", &marks));
    trace.begin();
    pass(&w);
    trace.end();
    ck_assert(trace.ordered(copy_of(SIM_COPY_D2H, numels[4] * 4, 0), mark_of(3)));
    give_back(&w);
}
END_TEST

/* Unit 1's parameters are fetched while unit 0 is at work; nothing comes before it has a place. */
START_TEST(parameters_come_beside_the_layer_before)
{
    struct world w;
    make(&w, (struct zero_offload){.optimizer = true, .params = true},
         (struct zero_stage3){
             .prefetch_numel = SIZE_MAX / 8, .max_live = SIZE_MAX / 8, .max_reuse = SIZE_MAX / 8});
    trace.begin();
    pass(&w);
    trace.end();
    size_t first = copy_of(SIM_COPY_H2D, numels[1] * 2, 0);
    size_t next = copy_of(SIM_COPY_H2D, numels[3] * 2, 0); /* as large as parameter 2's */
    size_t ahead = copy_of(SIM_COPY_H2D, numels[3] * 2, 1);
    ck_assert(trace.at(first).pinned);
    ck_assert(trace.ordered(first, mark_of(0)));
    ck_assert(trace.ordered(next, mark_of(1)) && trace.ordered(ahead, mark_of(1)));
    ck_assert(!trace.ordered(mark_of(0), ahead) && !trace.ordered(ahead, mark_of(0)));
    give_back(&w);
}
END_TEST

START_TEST(updated_parameters_go_back_before_anyone_reads_them)
{
    struct world w;
    make(&w, (struct zero_offload){.optimizer = true}, (struct zero_stage3){0});
    for (uint32_t t = 1; t <= 2; t++) {
        fill_grads(&w, t, DTYPE_BF16);
        if (t == 2) trace.begin();
        boundary(&w, t);
    }
    pass(&w);
    trace.end();
    size_t back = SIZE_MAX;
    for (size_t i = 0; i < trace.count() && back == SIZE_MAX; i++)
        if (trace.at(i).kind == SIM_COPY_H2D && trace.at(i).nbytes >= TOTAL * 2) back = i;
    ck_assert(back != SIZE_MAX);
    ck_assert(trace.at(back).pinned);
    ck_assert(trace.ordered(back, mark_of(0)));
    give_back(&w);
}
END_TEST

enum { TILE = 16 };

/* Masters in the host, updated before anything has waited for the gradients. Returns the first copy
 * of updated parameters. */
static size_t update_first(struct world *w, bool looks_between)
{
    struct world_setting s = plain;
    s.stage = 2;
    s.dtype = s.grad_dtype = DTYPE_BF16;
    s.on_gpu = true;
    s.device = "cuda";
    s.offload.optimizer = true;
    s.bucket = 1;
    s.tile = TILE;
    world_make(w, s);
    ck_ok(w->device->ops->mem_alloc(w->device, 8192, "marks", &marks));
    trace.begin();
    pass(w);
    if (looks_between) {
        ck_ok(zero_pass_begin(w->z, ZERO_PASS_EVAL));
        mark(w, EVALUATION);
    }
    ck_ok(zero_reduce(w->z));
    ck_ok(zero_step(w->z, 1, 1, 1));
    trace.end();
    return copy_of(SIM_COPY_H2D, TILE * 2, 0);
}

/* Unit 1's parameters are last, and its gradients come first. */
START_TEST(the_host_updates_what_has_come_beside_the_backward)
{
    struct world w;
    size_t back = update_first(&w, false), unit_0 = mark_of(3);
    ck_assert(trace.ordered(mark_of(2), copy_of(SIM_COPY_D2H, numels[4] * 2, 0)));
    ck_assert(!trace.ordered(unit_0, back) && !trace.ordered(back, unit_0));
    ck_assert_uint_lt(trace.at(back).ran, trace.at(unit_0).ran);
    give_back(&w);
}
END_TEST

START_TEST(who_looks_before_the_update_sees_the_old_parameters)
{
    struct world w;
    size_t back = update_first(&w, true);
    ck_assert(trace.ordered(mark_of(EVALUATION), back));
    give_back(&w);
}
END_TEST

/* Unit 0's parameters are in tiles 0 to 5, what unit 1 needs beside them in 6 to 8. A tile's copy
 * does not wait for the layers before; what used the old parameters is over. */
START_TEST(the_host_updates_a_layer_beside_the_layers_before_it)
{
    struct world w;
    struct world_setting s = plain;
    s.dtype = s.grad_dtype = DTYPE_BF16;
    s.on_gpu = true;
    s.device = "cuda";
    s.offload.optimizer = true;
    s.tile = TILE;
    s.late = true;
    world_make(&w, s);
    ck_ok(w.device->ops->mem_alloc(w.device, 8192, "marks", &marks));
    trace.begin();
    pass(&w);
    boundary(&w, 1);
    ck_assert_uint_eq(n_copies(SIM_COPY_H2D), 1); /* the step's scalars */
    mark(&w, BOUNDARY);
    pass(&w);
    trace.end();
    for (size_t k = 0; k < 8; k++) {
        const size_t back = copy_of(SIM_COPY_H2D, TILE * 2, k);
        const size_t before = nth_mark_of(0, 1), user = nth_mark_of(k < 6 ? 0 : 1, 1);
        ck_assert(trace.at(back).pinned);
        ck_assert(trace.ordered(nth_mark_of(3, 0), back)); /* the backward */
        ck_assert(trace.ordered(back, user));
        ck_assert(!trace.ordered(before, back));
        ck_assert(!trace.ordered(mark_of(BOUNDARY), back));
    }
    give_back(&w);
}
END_TEST

int main(void)
{
    const TTest *const cases[] = {gradients_leave_beside_the_next_layer,
                                  a_bucket_is_not_written_before_it_has_been_emptied,
                                  parameters_come_beside_the_layer_before,
                                  updated_parameters_go_back_before_anyone_reads_them,
                                  the_host_updates_what_has_come_beside_the_backward,
                                  who_looks_before_the_update_sees_the_old_parameters,
                                  the_host_updates_a_layer_beside_the_layers_before_it};
    if (!find_trace()) {
        printf("skipped: only the simulated device keeps a record\n");
        return TEST_SKIPPED;
    }
    return test_run("what overlaps on a CUDA device", cases, (int)CZ_ARRAY_LEN(cases));
}
