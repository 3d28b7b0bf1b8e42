/* The 1-bit optimizers' part of a load: their schedule counters, and the errors of all ranks.
 *
 * Legend: W ranks saved, W' ranks load. An exchange averages what ranks send, each with its worker
 * error: when W' differs from W, every new rank gets the mean of the old worker errors, so that
 * what is still to be said stays the same in sum. Server errors are one vector over a segment, of
 * which every rank holds a chunk: they are laid out again. Both go parameter by parameter, because
 * segments differ between fp32 and 16 bits. Padding begins at zero unless nothing has changed. */
#include "checkpoint/read/onebit_file.h"
#include "engine/host_scratch.h"
#include "engine/state/load_impl.h"

#include "base/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One load. */
struct reload {
    struct load *l;
    struct zero_onebit ob;
    const struct run_onebit *saved; /* NULL: by another optimizer, or by DeepSpeed */
    bool was_frozen;
    bool keeps_errors;           /* they mean the same as before */
    bool same_layout;            /* every byte goes where it was */
    size_t *segment_of, *off_in; /* (n_params) where a parameter is; n_segments: nowhere */
    size_t *param_of;            /* (tensors of the checkpoint) n_params: the model has none */
    float *staging, *sums;       /* host memory: of a file, and of what is there already */
    size_t staging_numel;        /* of each */
};

static int saved_world(const struct reload *r)
{
    return ckpt_get_info(r->l->ck)->world_size;
}

static const struct comm *comm_of(const struct reload *r)
{
    return r->l->e->desc.comm;
}

/* With as many ranks every error has the owner that it had. */
static bool same_world(const struct reload *r)
{
    return saved_world(r) == comm_of(r)->world_size;
}

/* DeepSpeed's checkpoints have none: it drops errors at every load. */
static bool has_files(const struct reload *r)
{
    return r->saved && r->saved->has_files;
}

/* ---- counters of the schedule --------------------------------------------------------------- */

/* Errors of another class mean something else, although their layout may be the same. */
static bool is_class(const struct cz_engine *e, const char *name)
{
    return strcmp(onebit_of(e->desc.groups, e->desc.n_groups)->cls->name, name) == 0;
}

/* Whether a run of this config is in its frozen phase after `step` calls. */
static bool is_frozen_at(const struct cz_engine *e, uint64_t step)
{
    return step >= onebit_freezes_at(onebit_of(e->desc.groups, e->desc.n_groups));
}

/* A count of DeepSpeed's; what is not there or makes no sense stays. */
static void take_interval(const struct load *l, const struct pickle_node *state, const char *key,
                          uint64_t least, uint64_t *out)
{
    double value;
    if (ckpt_number(l->ck, pickle_get(state, key), &value) && value >= (double)least &&
        value < 0x1p53)
        *out = (uint64_t)value;
}

/* The state dictionary of the first parameter that has one. */
static const struct pickle_node *any_state(const struct load *l)
{
    const struct param_table *table = model_params(l->e->desc.model);
    for (size_t i = 0; i < table->n_params; i++) {
        const struct pickle_node *state =
            l->weights[i] ? ckpt_state_dict(l->ck, l->tensor_of[i]) : NULL;
        if (state) return state;
    }
    return NULL;
}

/* Its counters (all tensors' are the same), unless another optimizer saved it. */
static void take_deepspeed_clock(const struct load *l, struct onebit_clock *clock)
{
    const struct pickle_node *state = any_state(l);
    clock->step = l->e->run.n_updates;
    take_interval(l, state, "var_interval", 1, &clock->var_interval);
    take_interval(l, state, "var_counter", 0, &clock->var_counter);
    take_interval(l, state, "local_step_interval", 1, &clock->local_step_interval);
    take_interval(l, state, "local_step_counter", 0, &clock->local_step_counter);
}

/* ---- OneBitLamb's values -------------------------------------------------------------------- */

static void take_float(const struct load *l, const struct pickle_node *state, const char *key,
                       float *out)
{
    double value;
    if (ckpt_number(l->ck, pickle_get(state, key), &value) && isfinite((float)value))
        *out = (float)value;
}

/* OneBitLamb's coefficients are per tensor, so they survive a change of ranks as they are. */
static void take_tensors(struct reload *r)
{
    const struct load *l = r->l;
    const struct param_table *table = model_params(l->e->desc.model);
    for (size_t i = 0; i < table->n_params; i++) {
        struct onebit_tensor *t = &r->ob.tensors[i];
        *t = (struct onebit_tensor){.last_factor = 1, .scaling_coeff = 1};
        const struct pickle_node *state =
            l->weights[i] ? ckpt_state_dict(l->ck, l->tensor_of[i]) : NULL;
        take_float(l, state, "lamb_coeff_freeze", &t->lamb_coeff_freeze);
        take_float(l, state, "last_factor", &t->last_factor);
        take_float(l, state, "scaling_coeff", &t->scaling_coeff);
    }
    for (size_t i = 0; r->saved && i < r->saved->n_tensors; i++) {
        size_t idx;
        if (param_table_find(table, r->saved->tensors[i].name, &idx) == CZ_OK)
            r->ob.tensors[idx] = r->saved->tensors[i].values;
        err_clear();
    }
}

/* ---- both ----------------------------------------------------------------------------------- */

/* Whether the saved run was past its warm-up: without our word for it, by its step, and
 * OneBitLamb's by the coefficients that it made then. */
static bool saved_frozen(const struct reload *r, uint64_t step)
{
    const struct load *l = r->l;
    if (r->saved) return r->saved->clock.frozen;
    if (r->ob.tensors) return pickle_get(any_state(l), "scaling_coeff") != NULL;
    return is_frozen_at(l->e, step);
}

/* Σ lr of the saved group that a group's first parameter was in. */
static double saved_lrs(const struct reload *r, size_t group)
{
    const struct load *l = r->l;
    const struct param_table *table = model_params(l->e->desc.model);
    for (size_t i = 0; i < table->n_params; i++) {
        if (!l->weights[i] || !table->params[i].trainable || l->e->desc.group_of[i] != group)
            continue;
        const struct ckpt_tensor *t = ckpt_at(l->ck, l->tensor_of[i]);
        if (t->kind == CKPT_TRAINED && t->group < l->run.n_groups) return r->saved->lrs[t->group];
    }
    return 0;
}

/* A config with another freeze_step decides: the counters are taken, the phase follows from
 * them. */
static void take_clock(struct reload *r)
{
    struct load *l = r->l;
    struct cz_engine *e = l->e;
    struct onebit_clock start = onebit_clock_start(e->desc.dtype != DTYPE_F32), clock = start;
    if (r->saved)
        clock = r->saved->clock;
    else
        take_deepspeed_clock(l, &clock);
    if (clock.step < start.step) clock.step = start.step;
    r->was_frozen = saved_frozen(r, clock.step);
    /* Without coefficients OneBitLamb goes one more step, and makes them. */
    clock.frozen = is_frozen_at(e, clock.step) && (r->was_frozen || !r->ob.tensors);
    *r->ob.clock = clock;
    for (size_t g = 0; r->ob.lrs && g < e->desc.n_groups; g++)
        r->ob.lrs[g] = l->keeps_moves && r->saved->has_lrs ? saved_lrs(r, g) : 0;
    if (r->ob.tensors) take_tensors(r);
    /* Back in the warm-up: as at its beginning. */
    if (r->ob.tensors && r->was_frozen && !clock.frozen) {
        for (size_t i = 0; i < model_params(r->l->e->desc.model)->n_params; i++)
            r->ob.tensors[i] = (struct onebit_tensor){.last_factor = 1, .scaling_coeff = 1};
    }
}

/* Moves count while the variance stays frozen: DeepSpeed's are in its weights already. */
void load_onebit_plan(struct load *l)
{
    const struct run_onebit *saved = &l->run.onebit;
    const struct cz_engine *e = l->e;
    if (!zero_onebit(e->desc.zero).clock) return;
    l->saved_onebit = l->has_run_state && saved->present && is_class(e, saved->optimizer);
    l->keeps_moves = l->saved_onebit && saved->clock.frozen && is_frozen_at(e, saved->clock.step);
    for (size_t g = 0; g < e->desc.n_groups; g++)
        if (optim_moves_alone(&e->desc.groups[g].hyper) && !l->keeps_moves)
            l->state_of[g][2] = LOAD_NO_STATE;
}

/* ---- places --------------------------------------------------------------------------------- */

/* Where each parameter is in this run's segments, to look up a file's names. */
static cz_status find_places(struct reload *r)
{
    const struct load *l = r->l;
    struct zero *z = l->e->desc.zero;
    size_t n = model_params(l->e->desc.model)->n_params, n_segments = zero_n_segments(z);
    size_t n_tensors = ckpt_count(l->ck);
    r->segment_of = calloc(n + 1, sizeof *r->segment_of);
    r->off_in = calloc(n + 1, sizeof *r->off_in);
    r->param_of = calloc(n_tensors + 1, sizeof *r->param_of);
    if (!r->segment_of || !r->off_in || !r->param_of)
        return err_set(CZ_NOMEM, 0, "no memory to place the errors of %zu parameters", n);
    for (size_t i = 0; i < n; i++) r->segment_of[i] = n_segments;
    for (size_t t = 0; t < n_tensors; t++) r->param_of[t] = n;
    for (size_t i = 0; i < n; i++)
        if (l->weights[i]) r->param_of[l->tensor_of[i]] = i;
    for (size_t s = 0; s < n_segments; s++) {
        const struct zero_segment segment = zero_segment(z, s);
        size_t at = 0;
        for (size_t k = 0; k < segment.n_params; k++) {
            size_t i = segment.param_idx[k];
            r->segment_of[i] = s;
            r->off_in[i] = at;
            at += model_params(l->e->desc.model)->params[i].numel;
        }
    }
    return CZ_OK;
}

/* Elements of what this rank has of its own, from `off` on. */
struct own {
    enum zero_onebit_what what;
    size_t idx, off;
};

/* Ranges are in bytes, elements are fp32. */
static size_t own_numel(const struct reload *r, enum zero_onebit_what what, size_t idx)
{
    return zero_onebit_range(r->l->e->desc.zero, what, idx).nbytes / sizeof(float);
}

/* Elements [at, at + n) of it += scale · what is staged. */
static cz_status add_staged(struct reload *r, const struct own *to, size_t at, size_t n,
                            float scale)
{
    struct zero *z = r->l->e->desc.zero;
    TRY(zero_onebit_read(z, to->what, to->idx, to->off + at, n, r->sums));
    for (size_t i = 0; i < n; i++) r->sums[i] += scale * r->staging[i];
    return zero_onebit_write(z, to->what, to->idx, to->off + at, n, r->sums);
}

/* ---- errors from one file ------------------------------------------------------------------- */

/* A parameter's elements in a segment of a file. */
struct old_run {
    size_t segment, off, numel; /* off: in the segment */
    size_t param_idx;
};

typedef cz_status (*run_fn)(struct reload *r, const struct ckpt_onebit_file *file,
                            const struct old_run *run, int rank);

/* The parameters of a file's segments, those that the model has. */
static cz_status each_run(struct reload *r, const struct ckpt_onebit_file *file, int rank,
                          run_fn fn)
{
    const struct load *l = r->l;
    size_t n = model_params(l->e->desc.model)->n_params;
    for (size_t s = 0; s < ckpt_onebit_n_segments(file); s++) {
        const struct ckpt_onebit_segment segment = ckpt_onebit_segment_at(file, s);
        struct old_run run = {.segment = s};
        for (size_t k = 0; k < segment.n_params; k++) {
            const char *name = ckpt_onebit_param(file, s, k);
            size_t tensor = ckpt_find(l->ck, name);
            if (tensor == ckpt_count(l->ck) ||
                ckpt_at(l->ck, tensor)->numel > segment.numel - run.off)
                return err_set(CZ_CORRUPT, 0, "%s: segment %zu: %s is not a matching parameter",
                               ckpt_onebit_path(file), s, name);
            run.numel = ckpt_at(l->ck, tensor)->numel;
            run.param_idx = r->param_of[tensor];
            if (run.param_idx < n) TRY(fn(r, file, &run, rank));
            run.off += run.numel;
        }
    }
    return CZ_OK;
}

/* += scale · elements [off, + numel) of an error of the file's segment. */
static cz_status add_error(struct reload *r, const struct ckpt_onebit_file *file, size_t segment,
                           size_t off, size_t numel, float scale, const struct own *to)
{
    bool is_server = to->what == ZERO_SERVER_ERROR;
    for (size_t at = 0, n; at < numel; at += n) {
        n = numel - at < r->staging_numel ? numel - at : r->staging_numel;
        TRY(ckpt_onebit_read(file, segment, is_server, off + at, n, r->staging));
        TRY(add_staged(r, to, at, n, scale));
    }
    return CZ_OK;
}

/* What a rank of W brings to this one's worker error and own states. */
static float share_of(const struct reload *r, int rank)
{
    if (!same_world(r)) return 1.0f / (float)saved_world(r);
    return rank == comm_of(r)->rank ? 1 : 0;
}

static cz_status add_worker(struct reload *r, const struct ckpt_onebit_file *file,
                            const struct old_run *run, int rank)
{
    const struct own to = {ZERO_WORKER_ERROR, r->segment_of[run->param_idx],
                           r->off_in[run->param_idx]};
    if (to.idx == zero_n_segments(r->l->e->desc.zero) || share_of(r, rank) == 0) return CZ_OK;
    return add_error(r, file, run->segment, run->off, run->numel, share_of(r, rank), &to);
}

/* The part of the run that is in the chunk of the old rank and in this rank's. */
static cz_status add_server(struct reload *r, const struct ckpt_onebit_file *file,
                            const struct old_run *run, int rank)
{
    size_t segment = r->segment_of[run->param_idx], off = r->off_in[run->param_idx];
    if (segment == zero_n_segments(r->l->e->desc.zero)) return CZ_OK;
    const struct ckpt_onebit_segment old = ckpt_onebit_segment_at(file, run->segment);
    size_t chunk = (size_t)old.numel_padded / (size_t)saved_world(r);
    size_t mine = own_numel(r, ZERO_SERVER_ERROR, segment);
    size_t old_begin = chunk * (size_t)rank, new_begin = mine * (size_t)comm_of(r)->rank;
    /* Elements [lo, hi) of the parameter. */
    size_t lo = 0, hi = run->numel;
    if (old_begin > run->off) lo = old_begin - run->off;
    if (new_begin > off && new_begin - off > lo) lo = new_begin - off;
    if (old_begin + chunk < run->off + hi)
        hi = old_begin + chunk > run->off ? old_begin + chunk - run->off : 0;
    if (new_begin + mine < off + hi) hi = new_begin + mine > off ? new_begin + mine - off : 0;
    if (lo >= hi) return CZ_OK;
    const struct own to = {ZERO_SERVER_ERROR, segment, off + lo - new_begin};
    return add_error(r, file, run->segment, run->off + lo - old_begin, hi - lo, 1, &to);
}

/* A rank's own momentum and moves, in pieces of the scratch. */
static cz_status add_state(struct reload *r, const struct ckpt_onebit_file *file,
                           enum zero_onebit_what what, const struct old_run *run, float scale)
{
    const char *key = what == ZERO_LOCAL_MOMENTUM ? "exp_avg" : "momentum_accumulator";
    const char *name = ckpt_at(r->l->ck, r->l->tensor_of[run->param_idx])->name;
    const struct own to = {what, run->param_idx, 0};
    size_t numel = own_numel(r, what, run->param_idx);
    for (size_t at = 0, n; at < numel; at += n) {
        n = numel - at < r->staging_numel ? numel - at : r->staging_numel;
        TRY(ckpt_onebit_read_state(file, name, key, at, n, r->staging));
        TRY(add_staged(r, &to, at, n, scale));
    }
    return CZ_OK;
}

/* A rank's own momentum and moves. When the variance is to change again ranks go together: momenta
 * are averaged, and the few moves since the last exchange are given up. */
static cz_status add_states(struct reload *r, const struct ckpt_onebit_file *file,
                            const struct old_run *run, int rank)
{
    const float share = r->l->keeps_moves ? share_of(r, rank) : 1.0f / (float)saved_world(r);
    if (share == 0) return CZ_OK;
    TRY(add_state(r, file, ZERO_LOCAL_MOMENTUM, run, share));
    return r->l->keeps_moves ? add_state(r, file, ZERO_LOCAL_MOVES, run, share) : CZ_OK;
}

/* ---- all files ------------------------------------------------------------------------------ */

/* The file must be of this very step: errors of another one would be added twice. */
static cz_status open_file(const struct reload *r, int rank, struct ckpt_onebit_file **file)
{
    const struct load *l = r->l;
    const struct ckpt_onebit_want want = {.tag_dir = ckpt_get_info(l->ck)->tag_dir,
                                          .optimizer = r->saved->optimizer,
                                          .rank = rank,
                                          .world_size = saved_world(r),
                                          .step = (int64_t)r->saved->clock.step,
                                          .global_steps = l->run.global_steps};
    return ckpt_onebit_open(&want, file);
}

/* The same parameters in the same order and padding: then bytes need no translation. */
static bool is_same_segment(const struct reload *r, const struct ckpt_onebit_file *file, size_t s)
{
    const struct ckpt_onebit_segment old = ckpt_onebit_segment_at(file, s);
    const struct zero_segment now = zero_segment(r->l->e->desc.zero, s);
    bool same = old.n_params == now.n_params && old.numel == now.numel &&
                old.numel_padded == now.numel_padded;
    for (size_t k = 0; same && k < now.n_params; k++) {
        size_t tensor = ckpt_find(r->l->ck, ckpt_onebit_param(file, s, k));
        same = tensor < ckpt_count(r->l->ck) && r->param_of[tensor] == now.param_idx[k];
    }
    return same;
}

/* Nothing has changed: every byte as it was, padding too. */
static bool is_same_layout(const struct reload *r, const struct ckpt_onebit_file *file)
{
    size_t n = zero_n_segments(r->l->e->desc.zero);
    bool same = same_world(r) && ckpt_onebit_n_segments(file) == n;
    for (size_t s = 0; same && s < n; s++) same = is_same_segment(r, file, s);
    return same;
}

/* A segment's as they are. */
static cz_status read_error(struct reload *r, const struct ckpt_onebit_file *file,
                            enum zero_onebit_what what, size_t segment)
{
    size_t numel = own_numel(r, what, segment);
    for (size_t at = 0, n; at < numel; at += n) {
        n = numel - at < r->staging_numel ? numel - at : r->staging_numel;
        TRY(ckpt_onebit_read(file, segment, what == ZERO_SERVER_ERROR, at, n, r->staging));
        TRY(zero_onebit_write(r->l->e->desc.zero, what, segment, at, n, r->staging));
    }
    return CZ_OK;
}

/* One file at a time: errors of many ranks together might not fit. */
static cz_status take_file(struct reload *r, int rank, const struct ckpt_onebit_file *file)
{
    bool has_states = r->ob.lrs && ckpt_onebit_has_states(file);
    if (r->keeps_errors && r->same_layout) {
        /* Every segment has an error on each side of the exchange. */
        if (rank == comm_of(r)->rank) {
            for (size_t s = 0; s < zero_n_segments(r->l->e->desc.zero); s++) {
                TRY(read_error(r, file, ZERO_WORKER_ERROR, s));
                TRY(read_error(r, file, ZERO_SERVER_ERROR, s));
            }
        }
    } else if (r->keeps_errors) {
        TRY(each_run(r, file, rank, add_worker));
        TRY(each_run(r, file, rank, add_server));
    }
    return has_states ? each_run(r, file, rank, add_states) : CZ_OK;
}

/* Whether more than this rank's own file is needed. */
static cz_status look_at_own(struct reload *r, bool *needs_all)
{
    struct ckpt_onebit_file *file;
    *needs_all = true;
    if (!same_world(r)) return CZ_OK;
    TRY(open_file(r, comm_of(r)->rank, &file));
    r->same_layout = is_same_layout(r, file);
    ckpt_onebit_close(file);
    *needs_all = !r->same_layout || (r->ob.lrs && !r->l->keeps_moves);
    return CZ_OK;
}

/* Only this rank's own file when nothing has changed, otherwise all of them. */
static cz_status take_files(struct reload *r)
{
    bool needs_all;
    /* What the files hold replaces what came with the optimizer's states. */
    const struct cz_engine *e = r->l->e;
    size_t n_segments = zero_n_segments(e->desc.zero), n = model_params(e->desc.model)->n_params;
    for (size_t s = 0; s < n_segments; s++) {
        TRY(zero_onebit_clear(e->desc.zero, ZERO_WORKER_ERROR, s));
        TRY(zero_onebit_clear(e->desc.zero, ZERO_SERVER_ERROR, s));
    }
    if (has_files(r) && r->saved->clock.frozen && r->ob.lrs) {
        for (size_t i = 0; i < n; i++) {
            const struct param_info *p = &model_params(e->desc.model)->params[i];
            if (!p->trainable || p->numel == 0 || !r->l->weights[i]) continue;
            TRY(zero_onebit_clear(e->desc.zero, ZERO_LOCAL_MOMENTUM, i));
            TRY(zero_onebit_clear(e->desc.zero, ZERO_LOCAL_MOVES, i));
        }
    }
    if (!has_files(r)) return CZ_OK;
    TRY(look_at_own(r, &needs_all));
    for (int rank = 0; rank < saved_world(r); rank++) {
        struct ckpt_onebit_file *file;
        if (!needs_all && rank != comm_of(r)->rank) continue;
        TRY(open_file(r, rank, &file));
        cz_status st = take_file(r, rank, file);
        ckpt_onebit_close(file);
        TRY(st);
    }
    return CZ_OK;
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* Why errors begin at zero. */
static const char *why_zero(const struct reload *r)
{
    if (has_files(r)) return "those of the checkpoint are of another phase";
    if (saved_world(r) == 1) return "one rank saved the checkpoint, and had none";
    return "the checkpoint does not have those of all ranks";
}

/* What became of errors, when they are not as they were. */
static void say_errors(const struct reload *r, const char *name)
{
    int world = comm_of(r)->world_size;
    if (world == 1 && has_files(r))
        LOGV(LOG_INFO, SUB_CKPT,
             "%s: one rank compresses nothing: errors of the %d that saved are dropped", name,
             saved_world(r));
    if (world == 1) return;
    if (!has_files(r) || !r->keeps_errors)
        LOGV(LOG_INFO, SUB_CKPT, "%s: compression errors begin at zero: %s", name, why_zero(r));
    else if (!same_world(r))
        LOGV(LOG_INFO, SUB_CKPT,
             "%s: compression errors of %d ranks go to %d: the mean of worker errors to each, "
             "server errors chunk by chunk",
             name, saved_world(r), world);
}

/* Their mean begins at 0: after the one step that is left it is a small part of them. */
static void warn_no_ratios(const struct reload *r)
{
    const struct cz_engine *e = r->l->e;
    const struct optim_hyper *hyper = onebit_of(e->desc.groups, e->desc.n_groups);
    uint64_t step = r->ob.clock->step;
    if (!r->ob.tensors || r->ob.clock->frozen || !is_frozen_at(e, step)) return;
    for (size_t i = 0; i < model_params(e->desc.model)->n_params; i++)
        if (r->ob.tensors[i].lamb_coeff_freeze > 0) return;
    LOGV(LOG_WARN, SUB_CKPT,
         "optimizer.params.freeze_step: %g is after step %llu, and the checkpoint has no trust "
         "ratios: with coeff_beta %g the one step until they are frozen makes them %.2g times what "
         "they should be; set it to %llu or more",
         hyper->freeze_step, (unsigned long long)step, hyper->coeff_beta, 1 - hyper->coeff_beta,
         (unsigned long long)(step + (uint64_t)ceil(1 / (1 - hyper->coeff_beta) - 1e-9)));
}

static void say(const struct reload *r)
{
    const char *name = onebit_of(r->l->e->desc.groups, r->l->e->desc.n_groups)->cls->name;
    if (comm_of(r)->rank != 0) return;
    warn_no_ratios(r);
    if (r->was_frozen && !r->ob.clock->frozen)
        LOGV(LOG_INFO, SUB_CKPT,
             "%s: the variance was frozen, but with this config it is not at step %llu: gradients "
             "are averaged again",
             name, (unsigned long long)r->ob.clock->step);
    /* Before the freeze OneBitAdam and OneBitLamb have none. */
    if (r->ob.clock->frozen || r->ob.lrs) say_errors(r, name);
}

static void reload_free(struct reload *r)
{
    free(r->segment_of);
    free(r->off_in);
    free(r->param_of);
}

/* After the states: it replaces what came with them. */
cz_status load_onebit(struct load *l)
{
    struct cz_engine *e = l->e;
    struct reload r = {
        .l = l, .ob = zero_onebit(e->desc.zero), .saved = l->saved_onebit ? &l->run.onebit : NULL};
    struct host_scratch room;
    if (!r.ob.clock || !l->with_states) return CZ_OK;
    take_clock(&r);
    r.keeps_errors = r.saved && r.saved->clock.frozen == r.ob.clock->frozen;
    cz_status st = host_scratch_take(e, &room);
    r.staging_numel = room.numel / 2;
    r.staging = room.p;
    r.sums = st == CZ_OK ? r.staging + r.staging_numel : NULL;
    if (st == CZ_OK) st = find_places(&r);
    if (st == CZ_OK) st = take_files(&r);
    if (st == CZ_OK) say(&r);
    host_scratch_give(&room);
    reload_free(&r);
    return st;
}
