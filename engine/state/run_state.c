/* czero_state.json: what a run needs beyond DeepSpeed's keys to continue as if it had never
 * stopped. The engine's counters, the loss scale, the data cursor and the 1-bit optimizers'
 * schedule are exact here; DeepSpeed's files hold only some of them, or imply them. Every number
 * that is read is bounded, since the file may come from anywhere. */
#include "engine/state/run_state_impl.h"

#include "checkpoint/read/names.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_MAX ((int64_t)1 << 53) /* no run gets there; sums of two cannot overflow */

void run_state_take(const struct cz_engine *e, const struct cz_data_cursor *cursor,
                    struct run_state *out)
{
    *out = (struct run_state){
        .global_steps = e->run.global_steps,
        .global_samples = e->run.global_samples,
        .skipped_steps = e->run.skipped_steps,
        .micro_steps = e->run.micro_steps,
        .n_updates = e->run.n_updates,
        .n_skipped_in_a_row = e->run.n_skipped_in_a_row,
        .n_scales = e->run.n_scales,
        .scale = e->run.scale,
        .has_schedule = e->desc.config->scheduler.usable,
        .last_batch_iteration = e->run.schedule.last_batch_iteration,
        .seed = e->desc.seed,
        .stage = e->desc.config->zero.stage,
        .world_size = e->desc.comm->world_size,
        .dtype = e->desc.dtype,
        .n_groups = e->desc.n_groups,
        .has_cursor = cursor != NULL,
    };
    memcpy(out->scale_history, e->run.scale_history, sizeof out->scale_history);
    for (size_t g = 0; g < e->desc.n_groups; g++) {
        out->lrs[g] = e->desc.groups[g].lr;
        memcpy(out->betas[g], e->desc.groups[g].betas, sizeof out->betas[g]);
    }
    if (cursor) out->cursor = *cursor;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void put_scale(struct json_writer *w, const struct loss_scale *s)
{
    json_write_key(w, "loss_scale");
    json_begin_object(w);
    json_put_bool(w, "dynamic", s->dynamic);
    json_put_bool(w, "growth_0_16", s->growth_0_16);
    json_put_bool(w, "consecutive_hysteresis", s->consecutive_hysteresis);
    json_put_double(w, "scale", s->scale);
    json_put_double(w, "factor", s->factor);
    json_put_int(w, "iter", s->iter);
    json_put_int(w, "last_overflow_iter", s->last_overflow_iter);
    json_put_int(w, "window", s->window);
    json_put_double(w, "min_scale", s->min_scale);
    json_put_int(w, "delayed_shift", s->delayed_shift);
    json_put_int(w, "hysteresis", s->hysteresis);
    json_end_object(w);
}

/* Seeds use all 64 bits: as text. */
static void put_seed(struct json_writer *w, uint64_t seed)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    json_put_string(w, "seed", text);
}

static void put_data(struct json_writer *w, const struct run_state *s)
{
    if (!s->has_cursor) return;
    json_write_key(w, "data");
    json_begin_object(w);
    json_put_int(w, "epoch", (int64_t)s->cursor.epoch);
    json_put_int(w, "sample", (int64_t)s->cursor.sample);
    json_put_int(w, "n_rows", (int64_t)s->cursor.n_rows);
    put_seed(w, s->cursor.seed);
    json_put_bool(w, "shuffle", s->cursor.shuffle);
    json_end_object(w);
}

/* Counters and values of the 1-bit optimizers, of which DeepSpeed's keys say less, or nothing at
 * stage 1. */
static void put_onebit(struct json_writer *w, const struct run_state *s)
{
    const struct run_onebit *ob = &s->onebit;
    if (!ob->present) return;
    json_write_key(w, "onebit");
    json_begin_object(w);
    json_put_string(w, "optimizer", ob->optimizer);
    json_put_int(w, "step", (int64_t)ob->clock.step);
    json_put_bool(w, "frozen", ob->clock.frozen);
    json_put_int(w, "var_interval", (int64_t)ob->clock.var_interval);
    json_put_int(w, "var_counter", (int64_t)ob->clock.var_counter);
    json_put_int(w, "local_step_interval", (int64_t)ob->clock.local_step_interval);
    json_put_int(w, "local_step_counter", (int64_t)ob->clock.local_step_counter);
    json_put_bool(w, "rank_files", ob->has_files);
    if (ob->has_lrs) {
        json_write_key(w, "lrs");
        json_begin_array(w);
        for (size_t g = 0; g < s->n_groups; g++) json_write_double(w, s->onebit.lrs[g]);
        json_end_array(w);
    }
    /* OneBitLamb's coefficients, by name: another world size splits the tensors differently. */
    if (ob->n_tensors > 0) {
        json_write_key(w, "tensors");
        json_begin_array(w);
        for (size_t i = 0; i < ob->n_tensors; i++) {
            json_begin_object(w);
            json_put_string(w, "name", ob->tensors[i].name);
            json_put_double(w, "lamb_coeff_freeze", ob->tensors[i].values.lamb_coeff_freeze);
            json_put_double(w, "last_factor", ob->tensors[i].values.last_factor);
            json_put_double(w, "scaling_coeff", ob->tensors[i].values.scaling_coeff);
            json_end_object(w);
        }
        json_end_array(w);
    }
    json_end_object(w);
}

static void put_base(struct json_writer *w, const struct run_state *s)
{
    char text[24];
    if (!s->has_base) return;
    snprintf(text, sizeof text, "%016llx", (unsigned long long)s->base_hash);
    json_put_string(w, "adapter_base", text);
}

static cz_status read_base(const struct json_node *root, struct run_state *s)
{
    const struct json_node *node = json_get(root, "adapter_base");
    const char *text;
    char where[256];
    s->has_base = node != NULL;
    if (!node) return CZ_OK;
    TRY(json_as_string(node, &text));
    if (model_base_hash_parse(text, &s->base_hash)) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: 16 hexadecimal digits are expected",
                   json_where(node, where, sizeof where));
}

cz_status run_state_to_json(const struct run_state *s, const char *tag, char **text, size_t *nbytes)
{
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_put_string(&w, "format", "czero state");
    json_put_int(&w, "version", RUN_STATE_VERSION);
    json_put_int(&w, "global_steps", s->global_steps);
    if (tag) json_put_string(&w, "tag", tag);
    json_put_int(&w, "zero_stage", s->stage);
    json_put_int(&w, "world_size", s->world_size);
    json_put_string(&w, "dtype", dtype_name(s->dtype));
    json_put_int(&w, "global_samples", s->global_samples);
    json_put_int(&w, "skipped_steps", s->skipped_steps);
    json_put_int(&w, "micro_steps", s->micro_steps);
    json_put_int(&w, "n_updates", (int64_t)s->n_updates);
    json_put_int(&w, "n_skipped_in_a_row", s->n_skipped_in_a_row);
    json_put_int(&w, "n_scales", s->n_scales);
    json_write_key(&w, "scale_history");
    json_begin_array(&w);
    for (size_t i = 0; i < SCALE_HISTORY; i++) json_write_double(&w, s->scale_history[i]);
    json_end_array(&w);
    put_scale(&w, &s->scale);
    if (s->has_schedule) json_put_int(&w, "last_batch_iteration", s->last_batch_iteration);
    put_seed(&w, s->seed);
    json_write_key(&w, "groups");
    json_begin_array(&w);
    for (size_t g = 0; g < s->n_groups; g++) {
        json_begin_object(&w);
        json_put_double(&w, "lr", s->lrs[g]);
        json_write_key(&w, "betas");
        json_begin_array(&w);
        json_write_double(&w, s->betas[g][0]);
        json_write_double(&w, s->betas[g][1]);
        json_end_array(&w);
        json_end_object(&w);
    }
    json_end_array(&w);
    put_onebit(&w, s);
    put_base(&w, s);
    put_data(&w, s);
    json_end_object(&w);
    json_write_text(&w, "\n");
    return json_writer_take(&w, text, nbytes);
}

/* ---- reading --------------------------------------------------------------------------------- */

static cz_status need_u64(const struct json_node *node, const char *key, uint64_t *out)
{
    const char *text;
    char *end, where[256];
    TRY(json_need_string(node, key, &text));
    errno = 0;
    *out = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && *end == '\0' && errno == 0) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: \"%s\" is not a number: \"%s\"",
                   json_where(node, where, sizeof where), key, text);
}

static cz_status need_count(const struct json_node *node, const char *key, int64_t *out)
{
    char where[256];
    TRY(json_need_int(node, key, out));
    if (*out >= 0 && *out <= COUNT_MAX) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: %s is out of range: %lld",
                   json_where(node, where, sizeof where), key, (long long)*out);
}

static cz_status need_range(const struct json_node *node, const char *key, int64_t lo, int64_t hi,
                            int *out)
{
    int64_t value;
    char where[256];
    TRY(json_need_int(node, key, &value));
    if (value < lo || value > hi)
        return err_set(CZ_CORRUPT, 0, "%s: %s is outside %lld..%lld: %lld",
                       json_where(node, where, sizeof where), key, (long long)lo, (long long)hi,
                       (long long)value);
    *out = (int)value;
    return CZ_OK;
}

static cz_status read_scale(const struct json_node *root, struct loss_scale *s)
{
    const struct json_node *n;
    TRY(json_need(root, "loss_scale", JSON_OBJECT, &n));
    TRY(json_need_bool(n, "dynamic", &s->dynamic));
    TRY(json_need_bool(n, "growth_0_16", &s->growth_0_16));
    TRY(json_need_bool(n, "consecutive_hysteresis", &s->consecutive_hysteresis));
    TRY(json_need_double(n, "scale", &s->scale));
    TRY(json_need_double(n, "factor", &s->factor));
    TRY(json_need_int(n, "iter", &s->iter));
    TRY(json_need_int(n, "last_overflow_iter", &s->last_overflow_iter));
    TRY(json_need_int(n, "window", &s->window));
    TRY(json_need_double(n, "min_scale", &s->min_scale));
    TRY(json_need_int(n, "delayed_shift", &s->delayed_shift));
    TRY(json_need_int(n, "hysteresis", &s->hysteresis));
    char where[256];
    if (loss_scale_check(s) == CZ_OK) return CZ_OK;
    return err_prefix("%s", json_where(n, where, sizeof where));
}

static cz_status read_list(const struct json_node *list, size_t n, double *out)
{
    char where[256];
    if (json_count(list) != n)
        return err_set(CZ_CORRUPT, 0, "%s: %zu values instead of %zu",
                       json_where(list, where, sizeof where), json_count(list), n);
    for (size_t i = 0; i < n; i++) TRY(json_as_double(json_child(list, i), &out[i]));
    return CZ_OK;
}

static cz_status read_version(const struct json_node *root)
{
    const char *format;
    int64_t version;
    char where[256];
    TRY(json_need_string(root, "format", &format));
    TRY(json_need_int(root, "version", &version));
    json_where(root, where, sizeof where);
    if (strcmp(format, "czero state") != 0)
        return err_set(CZ_CORRUPT, 0, "%s: the format is \"%s\", not \"czero state\"", where,
                       format);
    if (version < 1 || version > RUN_STATE_VERSION)
        return err_set(CZ_VERSION, 0, "%s: version %lld; this build reads up to %d", where,
                       (long long)version, RUN_STATE_VERSION);
    return CZ_OK;
}

cz_status run_onebit_add(struct run_onebit *ob, const char *name,
                         const struct onebit_tensor *values)
{
    struct run_onebit_tensor *grown = realloc(ob->tensors, (ob->n_tensors + 1) * sizeof *grown);
    char *copy = strdup(name);
    if (grown) ob->tensors = grown;
    if (!grown || !copy) {
        free(copy);
        return err_set(CZ_NOMEM, 0, "no memory for the optimizer's values of %s", name);
    }
    grown[ob->n_tensors++] = (struct run_onebit_tensor){copy, *values};
    return CZ_OK;
}

static cz_status take_count(const struct json_node *node, const char *key, int64_t least,
                            uint64_t *out)
{
    int64_t value;
    char where[256];
    TRY(need_count(node, key, &value));
    if (value < least)
        return err_set(CZ_CORRUPT, 0, "%s: %s cannot be %lld",
                       json_where(node, where, sizeof where), key, (long long)value);
    *out = (uint64_t)value;
    return CZ_OK;
}

static cz_status need_float(const struct json_node *node, const char *key, float *out)
{
    double value;
    char where[256];
    TRY(json_need_double(node, key, &value));
    *out = (float)value;
    if (isfinite(*out)) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: %s cannot be %g", json_where(node, where, sizeof where), key,
                   value);
}

static cz_status read_tensor(const struct json_node *n, struct run_onebit *ob)
{
    const char *name;
    struct onebit_tensor values;
    TRY(json_need_string(n, "name", &name));
    TRY(need_float(n, "lamb_coeff_freeze", &values.lamb_coeff_freeze));
    TRY(need_float(n, "last_factor", &values.last_factor));
    TRY(need_float(n, "scaling_coeff", &values.scaling_coeff));
    return run_onebit_add(ob, name, &values);
}

static cz_status opt_array(const struct json_node *node, const char *key,
                           const struct json_node **out)
{
    *out = NULL;
    return json_get(node, key) ? json_need(node, key, JSON_ARRAY, out) : CZ_OK;
}

static cz_status read_onebit(const struct json_node *root, struct run_state *s)
{
    const struct json_node *n, *lrs, *tensors;
    const char *optimizer;
    struct run_onebit *ob = &s->onebit;
    ob->present = json_get(root, "onebit") != NULL;
    if (!ob->present) return CZ_OK;
    TRY(json_need(root, "onebit", JSON_OBJECT, &n));
    TRY(json_need_string(n, "optimizer", &optimizer));
    snprintf(ob->optimizer, sizeof ob->optimizer, "%s", optimizer);
    /* The counters of the 1-bit schedule; intervals of 0 would divide by zero. */
    TRY(take_count(n, "step", 0, &ob->clock.step));
    TRY(json_need_bool(n, "frozen", &ob->clock.frozen));
    TRY(take_count(n, "var_interval", 1, &ob->clock.var_interval));
    TRY(take_count(n, "var_counter", 0, &ob->clock.var_counter));
    TRY(take_count(n, "local_step_interval", 1, &ob->clock.local_step_interval));
    TRY(take_count(n, "local_step_counter", 0, &ob->clock.local_step_counter));
    TRY(json_need_bool(n, "rank_files", &ob->has_files));
    TRY(opt_array(n, "lrs", &lrs));
    /* Checkpoints of other optimizers hold none. */
    char where[256];
    s->onebit.has_lrs = lrs != NULL;
    if (lrs && json_count(lrs) != s->n_groups)
        return err_set(CZ_CORRUPT, 0, "%s: %zu values for %zu groups",
                       json_where(lrs, where, sizeof where), json_count(lrs), s->n_groups);
    for (size_t g = 0; lrs && g < s->n_groups; g++)
        TRY(json_as_double(json_child(lrs, g), &s->onebit.lrs[g]));
    TRY(opt_array(n, "tensors", &tensors));
    for (size_t i = 0; tensors && i < json_count(tensors); i++)
        TRY(read_tensor(json_child(tensors, i), ob));
    return CZ_OK;
}

static cz_status read_state(const struct json_node *root, struct run_state *s)
{
    const struct json_node *history;
    int64_t n_updates;
    char where[256];
    TRY(read_version(root));
    TRY(need_range(root, "zero_stage", 0, 3, &s->stage));
    TRY(need_range(root, "world_size", 1, INT_MAX, &s->world_size));
    TRY(need_count(root, "global_steps", &s->global_steps));
    TRY(need_count(root, "global_samples", &s->global_samples));
    TRY(need_count(root, "skipped_steps", &s->skipped_steps));
    TRY(need_count(root, "micro_steps", &s->micro_steps));
    TRY(need_count(root, "n_updates", &n_updates));
    TRY(need_count(root, "n_skipped_in_a_row", &s->n_skipped_in_a_row));
    TRY(need_count(root, "n_scales", &s->n_scales));
    s->n_updates = (uint64_t)n_updates;
    TRY(json_need(root, "scale_history", JSON_ARRAY, &history));
    TRY(read_list(history, SCALE_HISTORY, s->scale_history));
    for (size_t i = 0; i < SCALE_HISTORY; i++)
        if (s->scale_history[i] < 0)
            return err_set(CZ_CORRUPT, 0, "%s: a loss scale cannot be %g",
                           json_where(history, where, sizeof where), s->scale_history[i]);
    TRY(read_scale(root, &s->scale));
    s->has_schedule = json_get(root, "last_batch_iteration") != NULL;
    TRY(json_opt_int(root, "last_batch_iteration", -1, &s->last_batch_iteration));
    if (s->last_batch_iteration < -1 || s->last_batch_iteration > COUNT_MAX)
        return err_set(CZ_CORRUPT, 0, "%s: last_batch_iteration cannot be %lld",
                       json_where(root, where, sizeof where), (long long)s->last_batch_iteration);
    TRY(need_u64(root, "seed", &s->seed));
    /* Counts are bounded before anything is stored. */
    const struct json_node *groups, *betas;
    TRY(json_need(root, "groups", JSON_ARRAY, &groups));
    s->n_groups = json_count(groups);
    if (s->n_groups > OPTIM_GROUPS_MAX)
        return err_set(CZ_CORRUPT, 0, "%s: %zu groups of parameters; at most %d are supported",
                       json_where(groups, where, sizeof where), s->n_groups, OPTIM_GROUPS_MAX);
    for (size_t g = 0; g < s->n_groups; g++) {
        TRY(json_need_double(json_child(groups, g), "lr", &s->lrs[g]));
        TRY(json_need(json_child(groups, g), "betas", JSON_ARRAY, &betas));
        TRY(read_list(betas, 2, s->betas[g]));
    }
    /* A checkpoint without a cursor was written by a program that feeds its own batches. */
    const struct json_node *n = json_get(root, "data");
    int64_t epoch, sample, n_rows;
    s->has_cursor = n != NULL;
    if (n) {
        TRY(need_count(n, "epoch", &epoch));
        TRY(need_count(n, "sample", &sample));
        TRY(need_count(n, "n_rows", &n_rows));
        s->cursor.epoch = (uint64_t)epoch;
        s->cursor.sample = (uint64_t)sample;
        s->cursor.n_rows = (uint64_t)n_rows;
        TRY(need_u64(n, "seed", &s->cursor.seed));
        TRY(json_need_bool(n, "shuffle", &s->cursor.shuffle));
    }
    TRY(read_base(root, s));
    return read_onebit(root, s);
}

cz_status run_state_load(const char *tag_dir, struct run_state *out)
{
    struct json_doc *doc;
    memset(out, 0, sizeof *out);
    cz_status st = json_load_in(tag_dir, CKPT_STATE, JSON_STRICT, &doc);
    if (st == CZ_OK) {
        st = read_state(json_root(doc), out);
        json_free(doc);
    }
    if (st != CZ_OK) run_state_free(out);
    return st;
}

void run_state_free(struct run_state *s)
{
    for (size_t i = 0; i < s->onebit.n_tensors; i++) free(s->onebit.tensors[i].name);
    free(s->onebit.tensors);
    s->onebit.tensors = NULL;
    s->onebit.n_tensors = 0;
}
