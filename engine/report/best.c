/* The best value of a metric so far, and since when: for early stopping and for keeping the best
 * checkpoint. It travels in a checkpoint's client state, so that a resumed run does not forget
 * it. */
#include "engine/report/best.h"

#include "formats/json/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void engine_best_init(struct engine_best *b, const char *metric, bool smaller_is_better,
                      size_t n_keep)
{
    *b = (struct engine_best){
        .metric = metric, .smaller_is_better = smaller_is_better, .value = NAN, .n_keep = n_keep};
}

static bool is_better(const struct engine_best *b, double value, double than)
{
    return b->smaller_is_better ? value < than : value > than;
}

/* Behind all that are not worse. */
static int place_of(const struct engine_best *b, double value)
{
    size_t place = 0;
    while (place < b->n_kept && !is_better(b, value, b->kept[place].value)) place++;
    return place < b->n_keep ? (int)place : -1;
}

int engine_best_update(struct engine_best *b, double value, int64_t step)
{
    const int place = isfinite(value) ? place_of(b, value) : -1;
    b->n_since = place == 0 ? 0 : b->n_since + 1;
    if (place < 0) return -1;
    if (b->n_kept < b->n_keep) b->n_kept++;
    memmove(&b->kept[place + 1], &b->kept[place],
            (b->n_kept - 1 - (size_t)place) * sizeof b->kept[0]);
    b->kept[place] = (struct engine_best_entry){value, step};
    b->value = b->kept[0].value;
    b->step = b->kept[0].step;
    return place;
}

/* 17 digits: the value must compare equal after a resume. */
void engine_best_to_json(const struct engine_best *b, char text[ENGINE_BEST_NBYTES])
{
    text[0] = '\0';
    if (!b->metric || isnan(b->value)) return;
    int n = snprintf(text, ENGINE_BEST_NBYTES,
                     "\"czero_best\": {\"metric\": \"%s\", \"value\": %.17g, \"step\": %lld, "
                     "\"since\": %lld, \"kept\": [",
                     b->metric, b->value, (long long)b->step, (long long)b->n_since);
    for (size_t i = 0; i < b->n_kept; i++)
        n += snprintf(text + n, ENGINE_BEST_NBYTES - (size_t)n, "%s[%.17g, %lld]",
                      i > 0 ? ", " : "", b->kept[i].value, (long long)b->kept[i].step);
    snprintf(text + n, ENGINE_BEST_NBYTES - (size_t)n, "]}");
}

/* [value, step] */
static cz_status read_entry(const struct json_node *pair, struct engine_best_entry *out)
{
    char where[256];
    if (json_type(pair) != JSON_ARRAY || json_count(pair) != 2)
        return err_set(CZ_CORRUPT, 0, "%s: a value and a step are expected",
                       json_where(pair, where, sizeof where));
    TRY(json_as_double(json_child(pair, 0), &out->value));
    return json_as_int(json_child(pair, 1), &out->step);
}

/* Older checkpoints have the best alone. */
static cz_status read_kept(struct engine_best *b, const struct json_node *saved)
{
    const struct json_node *list = json_get(saved, "kept");
    b->n_kept = 1;
    b->kept[0] = (struct engine_best_entry){b->value, b->step};
    if (!list) return CZ_OK;
    TRY(json_need(saved, "kept", JSON_ARRAY, &list));
    for (size_t i = 1; i < json_count(list) && i < b->n_keep; i++)
        TRY(read_entry(json_child(list, i), &b->kept[b->n_kept++]));
    return CZ_OK;
}

static cz_status read_best(struct engine_best *b, const struct json_node *saved)
{
    const char *metric;
    struct engine_best found = *b;
    TRY(json_need_string(saved, "metric", &metric));
    if (strcmp(metric, b->metric) != 0) return CZ_OK; /* measured otherwise: begin anew */
    TRY(json_opt_double(saved, "value", NAN, &found.value));
    TRY(json_opt_int(saved, "step", 0, &found.step));
    TRY(json_opt_int(saved, "since", 0, &found.n_since));
    if (!isnan(found.value)) TRY(read_kept(&found, saved));
    *b = found;
    return CZ_OK;
}

/* A checkpoint without one begins anew. */
cz_status engine_best_from_json(struct engine_best *b, const char *text)
{
    if (!b->metric || !text) return CZ_OK;
    struct json_doc *doc;
    TRY(json_parse(text, strlen(text), "client state", JSON_STRICT, &doc));
    const struct json_node *saved = json_get(json_root(doc), "czero_best");
    cz_status st = saved ? read_best(b, saved) : CZ_OK;
    json_free(doc);
    return st;
}
