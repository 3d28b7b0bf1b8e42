/* Claims: whichever single call of the device, of the communicator or of an optimizer's kernel
 * fails, and whichever transfer of the swap file, the call of zero that needed it returns that
 * error, although everything afterwards would work: from binding over passes, boundaries and single
 * tensors to a restore. */
#define ZERO_WORLD_SCALE 31
#include "offload/swap/swap_impl.h"
#include "tests/support/zero/zero_world.h"
#include "zero/zero_impl.h"

#include <errno.h>
#include <stdatomic.h>

/* ---- one failure ----------------------------------------------------------------------------- */

static const char *const sentence = "this call fails";
static atomic_long n_calls, fails_at = -1;

static bool hit(void)
{
    return atomic_fetch_add(&n_calls, 1) == atomic_load(&fails_at);
}

#define FAIL_OR(call) return hit() ? err_set(CZ_CUDA, 0, "%s", sentence) : (call)

static cz_status copy(struct device *d, struct dev_stream *s, void *dst, const void *src, size_t n)
{
    FAIL_OR(device_host_ops.copy(d, s, dst, src, n));
}

static cz_status fill_zero(struct device *d, struct dev_stream *s, void *dst, size_t n)
{
    FAIL_OR(device_host_ops.fill_zero(d, s, dst, n));
}

static cz_status stream_create(struct device *d, struct dev_stream **out)
{
    FAIL_OR(device_host_ops.stream_create(d, out));
}

static cz_status stream_sync(struct device *d, struct dev_stream *s)
{
    FAIL_OR(device_host_ops.stream_sync(d, s));
}

static cz_status stream_wait(struct device *d, struct dev_stream *s, struct dev_event *e)
{
    FAIL_OR(device_host_ops.stream_wait(d, s, e));
}

static cz_status event_create(struct device *d, struct dev_event **out)
{
    FAIL_OR(device_host_ops.event_create(d, out));
}

static cz_status event_record(struct device *d, struct dev_event *e, struct dev_stream *s)
{
    FAIL_OR(device_host_ops.event_record(d, e, s));
}

static cz_status event_wait_host(struct device *d, struct dev_event *e)
{
    FAIL_OR(device_host_ops.event_wait_host(d, e));
}

static const struct comm_ops *sound_comm;

static cz_status reduce(struct comm *c, const struct comm_reduce *a, struct comm_ticket *t)
{
    FAIL_OR(sound_comm->reduce(c, a, t));
}

static cz_status move(struct comm *c, const struct comm_move *a, struct comm_ticket *t)
{
    FAIL_OR(sound_comm->move(c, a, t));
}

static cz_status wait(struct comm *c, struct comm_ticket t)
{
    FAIL_OR(sound_comm->wait(c, t));
}

static const struct optim_class *sound_class;

static cz_status first_stage(struct ops *ops, struct dev_stream *stream,
                             const struct optim_hyper *hyper, const struct step_scalars *scalars,
                             const struct optim_range *range)
{
    FAIL_OR(sound_class->stages[0].run(ops, stream, hyper, scalars, range));
}

static cz_status second_stage(struct ops *ops, struct dev_stream *stream,
                              const struct optim_hyper *hyper, const struct step_scalars *scalars,
                              const struct optim_range *range)
{
    FAIL_OR(sound_class->stages[1].run(ops, stream, hyper, scalars, range));
}

static size_t ask(void *user, const struct swap_block *b, size_t nbytes)
{
    (void)user, (void)b;
    return nbytes;
}

static long transferred(void *user, const struct swap_block *b, long result)
{
    (void)user, (void)b;
    return hit() ? -EIO : result;
}

/* From here on call number `nth` fails, or transfer number `nth` of the swap file. */
static void arm(struct world *w, long nth, bool is_transfer)
{
    static struct device_ops device;
    static struct comm_ops comm;
    static struct optim_class class;
    static struct optim_stage stages[2];
    static const struct swap_fault fault = {ask, transferred, NULL};
    device = device_host_ops;
    device.copy = copy, device.fill_zero = fill_zero;
    device.stream_create = stream_create, device.stream_sync = stream_sync;
    device.stream_wait = stream_wait, device.event_create = event_create;
    device.event_record = event_record, device.event_wait_host = event_wait_host;
    if (w->device != w->host) w->device->ops = &device;
    if (is_transfer) swap_set_fault(w->swap, &fault);
    sound_comm = w->comm->ops;
    comm = *sound_comm;
    comm.reduce = reduce, comm.move = move, comm.wait = wait;
    sound_class = w->groups[0].hyper.cls;
    class = *sound_class;
    ck_assert_uint_le(class.n_stages, CZ_ARRAY_LEN(stages));
    for (size_t i = 0; i < class.n_stages; i++) {
        stages[i] = class.stages[i];
        stages[i].run = i == 0 ? first_stage : second_stage;
    }
    class.stages = stages;
    for (int g = 0; g < 2 && !is_transfer; g++) w->groups[g].hyper.cls = &class;
    if (!is_transfer) w->comm->ops = &comm;
    atomic_store(&n_calls, 0);
    atomic_store(&fails_at, nth);
}

static void disarm(struct world *w)
{
    atomic_store(&fails_at, -1);
    w->device->ops = &device_host_ops;
    w->comm->ops = sound_comm;
    for (int g = 0; g < 2; g++) w->groups[g].hyper.cls = sound_class;
}

/* ---- what is done with a model state --------------------------------------------------------- */

static cz_status pass(struct world *w, enum zero_pass kind)
{
    size_t n = kind == ZERO_PASS_EVAL ? N_UNITS : CZ_ARRAY_LEN(visits);
    TRY(zero_pass_begin(w->z, kind));
    for (size_t v = 0; v < n; v++) {
        size_t u = visits[v].unit_idx;
        TRY(zero_unit_acquire(w->z, u));
        if (visits[v].is_backward) TRY(zero_grads_ready(w->z, u));
        TRY(zero_unit_release(w->z, u));
    }
    return zero_pass_end(w->z);
}

static cz_status update(struct world *w, uint64_t t, bool updates_first)
{
    struct zero_scan scan;
    double norm;
    TRY(zero_reduce(w->z));
    if (updates_first) TRY(zero_step(w->z, t, 1, 1));
    TRY(zero_scan(w->z, &scan));
    TRY(zero_norm(w->z, &norm));
    if (!updates_first) TRY(zero_step(w->z, t, 1, 1));
    TRY(zero_gather(w->z));
    zero_grads_drop(w->z);
    return CZ_OK;
}

static cz_status any_fetch(void *user, enum zero_what what, size_t state_idx, size_t param_idx,
                           size_t off, size_t numel, float *dst)
{
    (void)user, (void)what, (void)state_idx, (void)param_idx, (void)off;
    for (size_t i = 0; i < numel; i++) dst[i] = 0.5f;
    return CZ_OK;
}

static cz_status tensors(struct world *w)
{
    static float x[OF(45)];
    for (size_t i = 0; i < N_PARAMS && w->comm->world_size == 1; i++) {
        TRY(zero_read(w->z, ZERO_WEIGHT, 0, i, 0, numels[i], x));
        TRY(zero_read(w->z, ZERO_GRAD, 0, i, 0, numels[i], x));
        TRY(zero_read(w->z, ZERO_STATE, 0, i, 0, numels[i], x));
        TRY(zero_write(w->z, ZERO_WEIGHT, 0, i, 0, numels[i], x));
        TRY(zero_write(w->z, ZERO_STATE, 0, i, 0, numels[i], x));
    }
    const struct zero_restore restore = {
        .fetch = any_fetch, .states = true, .staging = x, .staging_numel = 500};
    return zero_restore(w->z, &restore);
}

static cz_status ranges(struct world *w)
{
    static unsigned char x[TOTAL * 8];
    for (size_t g = 0; g < w->z->options.n_groups; g++) {
        struct zero_range r[2];
        const size_t own = zero_group_layout(w->z, g).own_numel;
        size_t n = zero_source_ranges(w->z, ZERO_FROM_MASTERS, g, 0, 0, 0, own, r);
        for (size_t i = 0; i < n; i++) TRY(zero_range_read(w->z, &r[i], x));
    }
    return CZ_OK;
}

static cz_status life(struct world *w)
{
    TRY(world_begin(w));
    TRY(pass(w, ZERO_PASS_TRAIN));
    TRY(pass(w, ZERO_PASS_LAST));
    TRY(update(w, 1, true));
    TRY(pass(w, ZERO_PASS_EVAL));
    TRY(pass(w, ZERO_PASS_LAST));
    TRY(update(w, 2, false));
    TRY(pass(w, ZERO_PASS_LAST));
    TRY(tensors(w));
    TRY(ranges(w));
    return w->swap ? swap_drain(w->swap) : CZ_OK;
}

/* Each call in turn; later ones at larger steps, since they resemble earlier ones. */
static void fail_everywhere(struct world_setting s, cz_status want, const char *says)
{
    char dir[64];
    snprintf(dir, sizeof dir, "%s", test_tmp_make_fast());
    s.swap_dir = dir;
    bool was_hit = true;
    for (long nth = 0; was_hit; nth += 1 + nth / 24) {
        struct world w;
        world_lay_out(&w, s);
        arm(&w, nth, want == CZ_IO);
        cz_status st = life(&w);
        was_hit = atomic_load(&n_calls) > nth;
        disarm(&w);
        ck_assert_msg(st == (was_hit ? want : CZ_OK), "call %ld: %s, %s", nth, cz_status_name(st),
                      cz_last_error());
        if (was_hit) ck_assert_msg(strstr(cz_last_error(), says), "%s", cz_last_error());
        world_free(&w);
    }
    ck_assert_int_eq(rmdir(dir), 0);
}

START_TEST(nothing_that_a_gpu_fails_in_is_overlooked)
{
    static const struct zero_offload offloads[] = {
        {.optimizer = false},
        {.optimizer = true},
        {.optimizer = true, .device_share = 0.5},
        {.params = true},
        {.optimizer = true, .params = true, .device_share = 0.5}};
    for (size_t k = 0; k < CZ_ARRAY_LEN(offloads); k++) {
        struct world_setting s = plain;
        s.stage = offloads[k].params ? 3 : 1;
        s.dtype = s.grad_dtype = k % 2 ? DTYPE_BF16 : DTYPE_F32;
        s.optimizer = k % 2 ? "AdamW" : "Lamb";
        s.on_gpu = true;
        s.device = "cpu"; /* stands in for one */
        s.overlap = true;
        s.tile = 1500;
        s.bucket = 3000;
        s.offload = offloads[k];
        fail_everywhere(s, CZ_CUDA, sentence);
    }
}
END_TEST

START_TEST(nothing_that_other_ranks_fail_in_is_overlooked)
{
    for (int stage = 0; stage <= 3; stage++)
        for (int d = 0; d < 2; d++) {
            struct world_setting s = plain;
            s.stage = stage;
            s.world_size = 3;
            s.rank = stage % 3;
            s.dtype = s.grad_dtype = d == 0 ? DTYPE_BF16 : DTYPE_F32;
            s.optimizer = d == 0 ? "Lamb" : "AdamW";
            s.overlap = d == 0;
            s.tile = 500;
            s.bucket = 3000;
            s.stage3.prefetch_numel = 2000;
            s.stage3.param_persistence_threshold = 300;
            s.stage3.model_persistence_threshold = SIZE_MAX;
            fail_everywhere(s, CZ_CUDA, sentence);
        }
}
END_TEST

START_TEST(no_transfer_of_the_swap_file_is_overlooked)
{
    static const struct zero_swap swaps[] = {
        {.optimizer = true, .read_ahead = true, .write_behind = true},
        {.optimizer = true, .grads = true, .params = true, .memory_share = 0.3},
        {.params = true, .read_ahead = true, .write_behind = true}};
    for (size_t k = 0; k < CZ_ARRAY_LEN(swaps); k++) {
        struct world_setting s = plain;
        s.stage = (int)k;
        s.dtype = s.grad_dtype = DTYPE_BF16;
        s.swap = swaps[k];
        fail_everywhere(s, CZ_IO, "");
        s.late = true;
        s.stage = 3;
        s.world_size = k % 2 ? 1 : 2;
        s.optimizer = k % 2 ? "Lamb" : "AdamW";
        s.overlap = true;
        s.stage3.param_persistence_threshold = 300;
        s.stage3.model_persistence_threshold = SIZE_MAX;
        fail_everywhere(s, CZ_IO, "");
    }
}
END_TEST

/* An update beside the next forward: what goes to a GPU, and what ranks send each other. */
START_TEST(nothing_in_a_late_update_is_overlooked)
{
    static const struct {
        int world;
        bool on_gpu, leaves_params;
    } cases[] = {{1, true, false}, {1, true, true},   {3, true, false},
                 {3, true, true},  {3, false, false}, {3, false, true}};
    for (size_t k = 0; k < CZ_ARRAY_LEN(cases); k++) {
        struct world_setting s = plain;
        s.world_size = cases[k].world;
        s.rank = s.world_size / 2;
        s.stage = 3;
        s.dtype = s.grad_dtype = DTYPE_BF16;
        s.optimizer = k % 2 ? "AdamW" : "Lamb";
        s.two_groups = k % 2;
        s.late = s.overlap = true;
        s.tile = 500;
        s.stage3.param_persistence_threshold = 300;
        s.stage3.model_persistence_threshold = SIZE_MAX;
        s.swap = (struct zero_swap){.optimizer = true,
                                    .params = cases[k].leaves_params,
                                    .read_ahead = true,
                                    .write_behind = true};
        if (cases[k].on_gpu) {
            s.on_gpu = true;
            s.device = "cpu"; /* stands in for one */
            s.offload = (struct zero_offload){.optimizer = true, .params = cases[k].leaves_params};
            s.swap = (struct zero_swap){.optimizer = false};
        }
        fail_everywhere(s, CZ_CUDA, sentence);
    }
}
END_TEST

TEST_MAIN("zero/failures", nothing_that_a_gpu_fails_in_is_overlooked,
          nothing_that_other_ranks_fail_in_is_overlooked,
          no_transfer_of_the_swap_file_is_overlooked, nothing_in_a_late_update_is_overlooked)
