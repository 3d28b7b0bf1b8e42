/* The best value of a metric so far, and since when: for early stopping and for keeping the best
 * checkpoint. It travels in a checkpoint's client state, so that a resumed run does not forget
 * it. */
#include "engine/report/best.h"

#include "formats/json/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void engine_best_init(struct engine_best *b, const char *metric, bool smaller_is_better)
{
    *b = (struct engine_best){
        .metric = metric, .smaller_is_better = smaller_is_better, .value = NAN};
}

/* NaN never is the best; the first finite value always is. */
bool engine_best_update(struct engine_best *b, double value, int64_t step)
{
    const bool better =
        isfinite(value) &&
        (isnan(b->value) || (b->smaller_is_better ? value < b->value : value > b->value));
    b->n_since = better ? 0 : b->n_since + 1;
    if (!better) return false;
    b->value = value;
    b->step = step;
    return true;
}

/* 17 digits: the value must compare equal after a resume. */
void engine_best_to_json(const struct engine_best *b, char text[ENGINE_BEST_NBYTES])
{
    if (!b->metric || isnan(b->value)) {
        snprintf(text, ENGINE_BEST_NBYTES, "{}");
        return;
    }
    snprintf(text, ENGINE_BEST_NBYTES,
             "{\"czero_best\": {\"metric\": \"%s\", \"value\": %.17g, \"step\": %lld, "
             "\"since\": %lld}}",
             b->metric, b->value, (long long)b->step, (long long)b->n_since);
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
