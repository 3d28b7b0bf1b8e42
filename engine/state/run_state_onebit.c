/* The 1-bit optimizers' part of czero_state.json: counters and values of which DeepSpeed's keys say
 * less, or nothing at stage 1. */
#include "engine/state/run_state_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- writing --------------------------------------------------------------------------------- */

static void put_tensors(struct json_writer *w, const struct run_onebit *ob)
{
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

static void put_lrs(struct json_writer *w, const struct run_state *s)
{
    json_write_key(w, "lrs");
    json_begin_array(w);
    for (size_t g = 0; g < s->n_groups; g++) json_write_double(w, s->onebit.lrs[g]);
    json_end_array(w);
}

void run_onebit_put(struct json_writer *w, const struct run_state *s)
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
    if (ob->has_lrs) put_lrs(w, s);
    if (ob->n_tensors > 0) put_tensors(w, ob);
    json_end_object(w);
}

/* ---- reading --------------------------------------------------------------------------------- */

static cz_status take_count(const struct json_node *node, const char *key, int64_t least,
                            uint64_t *out)
{
    int64_t value;
    char where[256];
    TRY(run_state_need_count(node, key, &value));
    if (value < least)
        return err_set(CZ_CORRUPT, 0, "%s: %s cannot be %lld",
                       json_where(node, where, sizeof where), key, (long long)value);
    *out = (uint64_t)value;
    return CZ_OK;
}

static cz_status read_clock(const struct json_node *n, struct onebit_clock *clock)
{
    TRY(take_count(n, "step", 0, &clock->step));
    TRY(json_need_bool(n, "frozen", &clock->frozen));
    TRY(take_count(n, "var_interval", 1, &clock->var_interval));
    TRY(take_count(n, "var_counter", 0, &clock->var_counter));
    TRY(take_count(n, "local_step_interval", 1, &clock->local_step_interval));
    return take_count(n, "local_step_counter", 0, &clock->local_step_counter);
}

static cz_status read_lrs(const struct json_node *lrs, struct run_state *s)
{
    char where[256];
    s->onebit.has_lrs = lrs != NULL;
    if (lrs && json_count(lrs) != s->n_groups)
        return err_set(CZ_CORRUPT, 0, "%s: %zu values for %zu groups",
                       json_where(lrs, where, sizeof where), json_count(lrs), s->n_groups);
    for (size_t g = 0; lrs && g < s->n_groups; g++)
        TRY(json_as_double(json_child(lrs, g), &s->onebit.lrs[g]));
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

cz_status run_onebit_read(const struct json_node *root, struct run_state *s)
{
    const struct json_node *n, *lrs, *tensors;
    const char *optimizer;
    struct run_onebit *ob = &s->onebit;
    ob->present = json_get(root, "onebit") != NULL;
    if (!ob->present) return CZ_OK;
    TRY(json_need(root, "onebit", JSON_OBJECT, &n));
    TRY(json_need_string(n, "optimizer", &optimizer));
    snprintf(ob->optimizer, sizeof ob->optimizer, "%s", optimizer);
    TRY(read_clock(n, &ob->clock));
    TRY(json_need_bool(n, "rank_files", &ob->has_files));
    TRY(opt_array(n, "lrs", &lrs));
    TRY(read_lrs(lrs, s));
    TRY(opt_array(n, "tensors", &tensors));
    for (size_t i = 0; tensors && i < json_count(tensors); i++)
        TRY(read_tensor(json_child(tensors, i), ob));
    return CZ_OK;
}
