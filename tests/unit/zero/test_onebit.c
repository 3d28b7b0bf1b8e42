/* Claims: the exchange gives the figures of docs/deepspeed-behaviour.md over real ranks, twice in a
 * row, so errors are fed back; elements that never had a gradient are masked and keep a momentum of
 * 0; what the ranks bring is what they get plus what stays in the errors; between the exchanges of
 * ZeroOneAdam all ranks are told the same momentum, and a weight that is set stays as set;
 * unsuitable settings are refused. */
#include "base/size.h"
#include "tests/support/ranks.h"
#include "zero/zero.h"

#include <math.h>

enum { PARAM_MAX = 1000 };

/* One fp32 parameter under OneBitAdam with beta1 0: its momentum is the gradient. */
struct tiny {
    struct param_table table;
    struct zero_unit unit;
    struct optim_group group;
    struct device *device;
    struct ops *ops;
    struct comm *comm;
    struct zero *z;
    void *blocks[ZERO_N_BLOCKS];
    size_t numel;
    double norm;        /* of the last step's gradients */
    size_t sent_nbytes; /* by the last update */
};

static const size_t the_param[] = {0}, the_group[] = {0};
static const struct zero_visit tiny_visits[] = {
    {.unit_idx = 0}, {.unit_idx = 0, .writes_grads = true, .is_backward = true}};

static cz_status fill(void *user, size_t param_idx, size_t off, size_t numel, float *dst)
{
    (void)user, (void)param_idx, (void)off;
    for (size_t i = 0; i < numel; i++) dst[i] = 0.5f;
    return CZ_OK;
}

static cz_status tiny_hyper(struct optim_hyper *hyper)
{
    TRY(optim_hyper_begin("OneBitAdam", OPTIM_FUSED, hyper));
    TRY(optim_hyper_set_pair(hyper, "betas", 0, 0.999));
    TRY(optim_hyper_set_number(hyper, "freeze_step", 2));
    return optim_hyper_finish(hyper);
}

/* Frozen after call 2 as well; exchanges in calls 3, 4, 8, 12. */
static cz_status alone_hyper(struct optim_hyper *hyper)
{
    TRY(optim_hyper_begin("ZeroOneAdam", OPTIM_FUSED, hyper));
    TRY(optim_hyper_set_number(hyper, "var_freeze_step", 1));
    TRY(optim_hyper_set_number(hyper, "local_step_scaler", 1));
    TRY(optim_hyper_set_number(hyper, "local_step_clipper", 4));
    return optim_hyper_finish(hyper);
}

static struct zero_options tiny_options(struct tiny *t, int stage)
{
    return (struct zero_options){.table = &t->table,
                                 .units = &t->unit,
                                 .n_units = 1,
                                 .visits = tiny_visits,
                                 .n_visits = 2,
                                 .group_of = the_group,
                                 .groups = &t->group,
                                 .n_groups = 1,
                                 .stage = stage,
                                 .comm = t->comm,
                                 .ops = t->ops};
}

static cz_status tiny_make(struct tiny *t, struct comm *comm, size_t numel, int stage,
                           cz_status (*make_hyper)(struct optim_hyper *))
{
    const int64_t shape[] = {(int64_t)numel};
    struct optim_hyper hyper;
    float staging[16];
    size_t idx;
    *t = (struct tiny){.comm = comm, .numel = numel, .unit = {the_param, 1}};
    param_table_init(&t->table);
    TRY(param_table_add(&t->table, "p", 1, shape, PARAM_INIT_NORMAL, 1, &idx));
    TRY(make_hyper(&hyper));
    TRY(optim_group_init(&t->group, &hyper, NULL));
    TRY(device_open("cpu", 0, &t->device));
    TRY(ops_create(t->device, &t->ops));
    const struct zero_options options = tiny_options(t, stage);
    TRY(zero_create(&options, &t->z));
    for (int b = 0; b < ZERO_N_BLOCKS; b++) {
        size_t nbytes = zero_block_nbytes(t->z, (enum zero_block)b);
        if (nbytes > 0) TRY(t->device->ops->mem_alloc(t->device, nbytes, "test", &t->blocks[b]));
    }
    TRY(zero_bind(t->z, t->blocks, NULL));
    return zero_load(t->z, fill, NULL, staging, 16);
}

static void tiny_free(struct tiny *t)
{
    size_t nbytes[ZERO_N_BLOCKS];
    for (int b = 0; b < ZERO_N_BLOCKS; b++) nbytes[b] = zero_block_nbytes(t->z, (enum zero_block)b);
    zero_destroy(t->z);
    for (int b = 0; b < ZERO_N_BLOCKS; b++)
        if (t->blocks[b]) t->device->ops->mem_free(t->device, t->blocks[b], nbytes[b]);
    ops_destroy(t->ops);
    device_close(t->device);
    param_table_free(&t->table);
}

/* A backward pass that gives these gradients. */
static cz_status tiny_backward(struct tiny *t, const float *g)
{
    TRY(zero_pass_begin(t->z, ZERO_PASS_LAST));
    TRY(zero_unit_acquire(t->z, 0));
    TRY(zero_unit_release(t->z, 0));
    TRY(zero_unit_acquire(t->z, 0));
    memcpy(zero_grads(t->z)[0], g, t->numel * sizeof *g);
    TRY(zero_grads_ready(t->z, 0));
    TRY(zero_unit_release(t->z, 0));
    return zero_pass_end(t->z);
}

/* An update by these gradients. */
static cz_status tiny_step(struct tiny *t, uint64_t n, const float *g)
{
    struct zero_scan scan;
    TRY(tiny_backward(t, g));
    TRY(zero_reduce(t->z));
    TRY(zero_scan(t->z, &scan));
    TRY(zero_norm(t->z, &t->norm));
    const uint64_t before = t->comm->traffic.move_sent_nbytes;
    TRY(zero_step(t->z, n, 1, 1));
    t->sent_nbytes = t->comm->traffic.move_sent_nbytes - before;
    TRY(zero_gather(t->z));
    zero_grads_drop(t->z);
    return CZ_OK;
}

/* INIT, and the one FULL update after which the variance is frozen. */
static cz_status tiny_warm(struct tiny *t, const float *g)
{
    rank_check(zero_averages(t->z));
    TRY(tiny_step(t, 1, g));
    rank_check(zero_averages(t->z) && zero_onebit(t->z).clock->step == 1);
    TRY(tiny_step(t, 2, g));
    rank_check(!zero_averages(t->z) && zero_onebit(t->z).clock->frozen);
    return CZ_OK;
}

static const float *range_of(const struct tiny *t, enum zero_onebit_what what)
{
    return (const float *)(const void *)zero_onebit_range(t->z, what, 0).memory;
}

static bool near(float a, double b)
{
    return fabs((double)a - b) <= 2e-6 * fmax(1, fabs(b));
}

/* ---- the figures of docs/deepspeed-behaviour.md, "Compressed all-reduce" ----------------- */

static const float spec_x[2][5] = {{1, -2, 3, 0, -.5f}, {2, 2, -1, 0, .5f}};

/* An exchange sends what the figures say. */
static cz_status check_sent(const struct tiny *t)
{
    const struct zero_figures f = zero_figures(t->z);
    rank_check(t->sent_nbytes == f.signs_nbytes + f.sums_nbytes);
    return CZ_OK;
}

static cz_status check_spec(struct tiny *t, int rank)
{
    static const float ones[5] = {1, 1, 1, 1, 1};
    static const double first[5] = {.6759309, -.6759309, .6759309, .6759309, -.6759309},
                        second[5] = {1.161633, 1.161633, -1.161633, -1.161633, 1.161633};
    static const double worker[5] = {.0562707, -1.0562707, 2.0562707, -.9437293, .4437293};
    static const double server[8] = {.1761065, .5842389, -.5842389, .1761065,
                                     .5842389, .1761065, .1761065,  .1761065};
    float m[5];
    TRY(tiny_warm(t, ones));
    rank_check(near((float)t->norm, sqrt(5))); /* of the mean */
    TRY(tiny_step(t, 3, spec_x[rank]));
    rank_check(near((float)t->norm, sqrt((14.25 + 9.25) / 2))); /* the ranks' own, per rank */
    TRY(zero_read(t->z, ZERO_STATE, 0, 0, 0, 5, m));
    for (int i = 0; i < 5; i++) rank_check(near(m[i], first[i]));
    for (int i = 0; i < 16 && rank == 0; i++)
        rank_check(near(range_of(t, ZERO_WORKER_ERROR)[i], i < 5 ? worker[i] : -.9437293));
    for (int i = 0; i < 8; i++)
        rank_check(near(range_of(t, ZERO_SERVER_ERROR)[i], rank == 0 ? server[i] : 0));
    TRY(tiny_step(t, 4, spec_x[rank]));
    TRY(zero_read(t->z, ZERO_STATE, 0, 0, 0, 5, m));
    for (int i = 0; i < 5; i++) rank_check(near(m[i], second[i]));
    return CZ_OK;
}

static cz_status spec_rank(struct ranks *ranks, int rank, void *arg)
{
    struct comm *comm;
    struct tiny t;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(tiny_make(&t, comm, 5, *(const int *)arg, tiny_hyper));
    TRY(check_spec(&t, rank));
    tiny_free(&t);
    comm_destroy(comm);
    return CZ_OK;
}

START_TEST(an_exchange_gives_the_figures_of_the_specification)
{
    for (int stage = 0; stage <= 1; stage++) {
        struct ranks ranks;
        ranks_start(&ranks, 2, spec_rank, &stage);
        ranks_expect_ok(&ranks, 60);
    }
}
END_TEST

/* ---- what is masked, and what is kept -------------------------------------------------------- */

static float grad_of(int rank, int step, size_t i)
{
    if (i % 7 == 3) return 0; /* never a gradient */
    return sinf((float)(i * 31 + (size_t)step * 17) + 0.7f * (float)rank) + 0.25f;
}

/* Σ over ranks of what they brought since the errors began = W · Σ of what they got, plus what
 * waits in the errors: nothing is lost. */
static cz_status check_kept(struct tiny *t, int rank, const double *brought, const double *got)
{
    int w = t->comm->world_size;
    const struct zero_segment s = zero_segment(t->z, 0);
    size_t chunk = s.numel_padded / (size_t)w;
    double *all = calloc((size_t)w * s.numel_padded, 2 * sizeof *all), *mine;
    rank_check(all != NULL);
    mine = all + 2 * (size_t)rank * s.numel_padded;
    for (size_t i = 0; i < s.numel; i++) {
        mine[2 * i] = (double)range_of(t, ZERO_WORKER_ERROR)[i] - brought[i];
        if (i / chunk == (size_t)rank)
            mine[2 * i + 1] = range_of(t, ZERO_SERVER_ERROR)[i - (size_t)rank * chunk];
    }
    TRY(comm_all_gather(t->comm, mine, all, 2 * s.numel_padded * sizeof *all));
    for (size_t i = 0; i < s.numel; i++) {
        double sum = 0, served = 0;
        for (int r = 0; r < w; r++) {
            sum += all[2 * ((size_t)r * s.numel_padded + i)] / w;
            served += all[2 * ((size_t)r * s.numel_padded + i) + 1];
        }
        if (i % 7 != 3) rank_check(fabs(sum + served + got[i]) < 1e-4);
    }
    free(all);
    return CZ_OK;
}

static cz_status exchange_often(struct tiny *t, int rank)
{
    float g[PARAM_MAX], m[PARAM_MAX], p;
    double brought[PARAM_MAX] = {0}, got[PARAM_MAX] = {0};
    const struct zero_segment segment = zero_segment(t->z, 0);
    size_t errors = segment.numel_padded + segment.numel_padded / (size_t)t->comm->world_size;
    for (size_t i = 0; i < t->numel; i++) g[i] = grad_of(rank, 0, i);
    TRY(tiny_warm(t, g));
    rank_check(zero_block_nbytes(t->z, ZERO_ERRORS) == size_round_up(errors * sizeof(float), 256));
    for (int step = 1; step <= 20; step++) {
        for (size_t i = 0; i < t->numel; i++) g[i] = grad_of(rank, step, i);
        TRY(tiny_step(t, (uint64_t)step + 2, g));
        TRY(zero_read(t->z, ZERO_STATE, 0, 0, 0, t->numel, m));
        for (size_t i = 0; i < t->numel; i++) {
            if (i % 7 == 3) rank_check(m[i] == 0);
            brought[i] += (double)g[i];
            got[i] += (double)m[i];
        }
        if (step > 1) TRY(check_sent(t)); /* masks go with the first exchange */
    }
    if (t->numel > 3) { /* no decay: what never had a gradient has not moved */
        TRY(zero_read(t->z, ZERO_WEIGHT, 0, 0, 3, 1, &p));
        rank_check(p == 0.5f);
    }
    return check_kept(t, rank, brought, got);
}

static cz_status lamb_hyper(struct optim_hyper *hyper)
{
    TRY(optim_hyper_begin("OneBitLamb", OPTIM_FUSED, hyper));
    TRY(optim_hyper_set_number(hyper, "freeze_step", 2));
    return optim_hyper_finish(hyper);
}

/* Tensors' factors go with an exchange where weights are partitioned. */
static cz_status lamb_rank(struct ranks *ranks, int rank, void *arg)
{
    struct comm *comm;
    struct tiny t;
    float g[97];
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(tiny_make(&t, comm, CZ_ARRAY_LEN(g), *(const int *)arg, lamb_hyper));
    for (int step = 1; step <= 5; step++) {
        for (size_t i = 0; i < t.numel; i++) g[i] = grad_of(rank, step, i);
        TRY(tiny_step(&t, (uint64_t)step, g));
        if (step > 3) TRY(check_sent(&t)); /* masks go with the first exchange */
    }
    tiny_free(&t);
    comm_destroy(comm);
    return CZ_OK;
}

START_TEST(tensors_factors_are_among_what_is_sent)
{
    for (int stage = 0; stage <= 1; stage++) {
        struct ranks ranks;
        ranks_start(&ranks, 3, lamb_rank, &stage);
        ranks_expect_ok(&ranks, 60);
    }
}
END_TEST

struct shape {
    size_t numel;
    int stage;
};

static cz_status often_rank(struct ranks *ranks, int rank, void *arg)
{
    const struct shape *shape = arg;
    struct comm *comm;
    struct tiny t;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(tiny_make(&t, comm, shape->numel, shape->stage, tiny_hyper));
    TRY(exchange_often(&t, rank));
    tiny_free(&t);
    comm_destroy(comm);
    return CZ_OK;
}

/* Worlds that are no powers of two; tensors smaller than the world. */
START_TEST(nothing_is_lost_and_nothing_moves_what_has_no_gradient)
{
    static const size_t numels[] = {1, 2, 5, 97, PARAM_MAX};
    static const int worlds[] = {2, 3, 5, 7};
    for (size_t n = 0; n < CZ_ARRAY_LEN(numels); n++)
        for (size_t w = 0; w < CZ_ARRAY_LEN(worlds); w++)
            for (int stage = 0; stage <= 1; stage++) {
                struct shape shape = {numels[n], stage};
                struct ranks ranks;
                ranks_start(&ranks, worlds[w], often_rank, &shape);
                ranks_expect_ok(&ranks, 60);
            }
}
END_TEST

/* ---- the first offender -----------------------------------------------------------------------
 */

/* Gradients that stay with their ranks: the lowest rank that has a bad one is named on all. */
static cz_status scan_bad(struct tiny *t, int rank, int first_bad)
{
    static const float ones[5] = {1, 1, 1, 1, 1};
    struct zero_scan scan;
    float g[5] = {1, 2, 3, 4, 5};
    TRY(tiny_warm(t, ones));
    if (rank >= first_bad) g[4 - rank] = rank == 2 ? INFINITY : NAN;
    TRY(tiny_backward(t, g));
    TRY(zero_reduce(t->z));
    TRY(zero_scan(t->z, &scan));
    rank_check(!scan.finite && scan.rank == first_bad);
    rank_check(scan.elem == (size_t)(4 - first_bad) && scan.param_idx == 0);
    rank_check(first_bad == 2 ? isinf(scan.value) : isnan(scan.value));
    rank_check(scan.max_abs == 5);
    return CZ_OK;
}

struct bad_trial {
    int stage, first_bad;
};

static cz_status bad_rank(struct ranks *ranks, int rank, void *arg)
{
    const struct bad_trial *trial = arg;
    struct comm *comm;
    struct tiny t;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(tiny_make(&t, comm, 5, trial->stage, tiny_hyper));
    TRY(scan_bad(&t, rank, trial->first_bad));
    tiny_free(&t);
    comm_destroy(comm);
    return CZ_OK;
}

START_TEST(of_several_ranks_with_bad_gradients_the_first_is_named)
{
    for (int stage = 0; stage <= 1; stage++)
        for (int first_bad = 0; first_bad < 3; first_bad++) {
            struct bad_trial trial = {stage, first_bad};
            struct ranks ranks;
            ranks_start(&ranks, 3, bad_rank, &trial);
            ranks_expect_ok(&ranks, 60);
        }
}
END_TEST

/* ---- ranks that move alone --------------------------------------------------------------------
 */

/* The momentum that every rank is told, after seeing that all are told the same. */
static cz_status momentum_of_all(struct tiny *t, float m[5])
{
    float all[2][5];
    TRY(zero_read(t->z, ZERO_STATE, 0, 0, 0, 5, m));
    TRY(comm_all_gather(t->comm, m, all, 5 * sizeof *m));
    rank_check(memcmp(all[0], all[1], sizeof all[0]) == 0);
    return CZ_OK;
}

static cz_status go_alone(struct tiny *t, int rank)
{
    static const float ones[5] = {1, 1, 1, 1, 1}, set[5] = {7, 8, 9, 10, 11};
    float m[5];
    const float *here = zero_params(t->z)[0], *own = range_of(t, ZERO_LOCAL_MOMENTUM);
    t->group.lr = 0.01;
    TRY(tiny_warm(t, ones));
    TRY(tiny_step(t, 3, spec_x[rank]));
    TRY(tiny_step(t, 4, spec_x[rank]));
    t->group.lr = 0; /* momenta go apart where weights stay */
    TRY(tiny_step(t, 5, spec_x[rank]));
    rank_check(zero_onebit(t->z).lrs[0] == 0);
    TRY(momentum_of_all(t, m));
    rank_check(m[1] != own[1]);
    t->group.lr = 0.01;
    TRY(tiny_step(t, 6, spec_x[rank]));
    rank_check(range_of(t, ZERO_LOCAL_MOVES)[0] != 0);
    TRY(zero_write(t->z, ZERO_WEIGHT, 0, 0, 0, 5, set));
    t->group.lr = 0;
    TRY(tiny_step(t, 7, spec_x[rank]));
    rank_check(memcmp(here, set, sizeof set) == 0); /* as it was set, without earlier moves */
    TRY(tiny_step(t, 8, spec_x[rank]));
    TRY(momentum_of_all(t, m));
    rank_check(m[1] == own[1]);
    return CZ_OK;
}

static cz_status alone_rank(struct ranks *ranks, int rank, void *arg)
{
    struct comm *comm;
    struct tiny t;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(tiny_make(&t, comm, 5, *(const int *)arg, alone_hyper));
    TRY(go_alone(&t, rank));
    tiny_free(&t);
    comm_destroy(comm);
    return CZ_OK;
}

START_TEST(what_is_set_or_read_between_exchanges_is_everyones)
{
    for (int stage = 0; stage <= 1; stage++) {
        struct ranks ranks;
        ranks_start(&ranks, 2, alone_rank, &stage);
        ranks_expect_ok(&ranks, 60);
    }
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(what_it_cannot_do_is_refused)
{
    struct tiny t = {.unit = {the_param, 1}};
    struct optim_hyper hyper;
    struct zero *z;
    const int64_t shape[] = {8};
    size_t idx;
    param_table_init(&t.table);
    ck_ok(param_table_add(&t.table, "p", 1, shape, PARAM_INIT_NORMAL, 1, &idx));
    ck_ok(tiny_hyper(&hyper));
    ck_ok(optim_group_init(&t.group, &hyper, NULL));
    ck_ok(device_open("cpu", 0, &t.device));
    ck_ok(ops_create(t.device, &t.ops));
    ck_ok(comm_self_create(0, 2, &t.comm));
    for (int stage = 2; stage <= 3; stage++) {
        const struct zero_options options = tiny_options(&t, stage);
        ck_assert_int_eq(zero_create(&options, &z), CZ_UNSUPPORTED);
        ck_assert(strstr(cz_last_error(), "stages 0 and 1"));
    }
    struct zero_options options = tiny_options(&t, 0);
    options.swap.optimizer = true;
    ck_assert_int_eq(zero_create(&options, &z), CZ_UNSUPPORTED);
    ck_assert(strstr(cz_last_error(), "offload"));
    options = tiny_options(&t, 0);
    options.reduce_sum = true;
    ck_assert_int_eq(zero_create(&options, &z), CZ_UNSUPPORTED);
    options = tiny_options(&t, 0);
    options.state_dtype = DTYPE_BF16;
    ck_assert_int_eq(zero_create(&options, &z), CZ_UNSUPPORTED);
    comm_destroy(t.comm);
    ops_destroy(t.ops);
    device_close(t.device);
    param_table_free(&t.table);
}
END_TEST

TEST_MAIN("zero.onebit", an_exchange_gives_the_figures_of_the_specification,
          nothing_is_lost_and_nothing_moves_what_has_no_gradient,
          tensors_factors_are_among_what_is_sent,
          of_several_ranks_with_bad_gradients_the_first_is_named,
          what_is_set_or_read_between_exchanges_is_everyones, what_it_cannot_do_is_refused)
