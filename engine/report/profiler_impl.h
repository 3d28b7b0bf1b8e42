/* What a profile holds, and its layout as text. */
#ifndef CZ_ENGINE_REPORT_PROFILER_IMPL_H
#define CZ_ENGINE_REPORT_PROFILER_IMPL_H

#include "engine/report/profiler.h"
#include "engine/report/report_text.h"

/* One layer; sums over n_forwards. */
struct profile_layer {
    const char *cls;
    size_t numel;            /* its parameters, tied ones included */
    const size_t *param_idx; /* (n_params) */
    size_t n_params;
    double flops;
    int64_t forward_ns;
};

struct profile {
    const char *model_name;
    const struct param_table *params;
    struct profile_layer *layers;
    size_t n_layers;
    size_t numel; /* of the model, tied parameters once */
    int64_t n_forwards;
};

/* Settings of the report; see struct config_flops_profiler. */
cz_status profile_print(const struct profile *profile, const struct config_flops_profiler *config,
                        const struct profiler_step *step, profiler_line line, void *user);

/* A number with at most two decimals and a unit's prefix, as DeepSpeed shortens it: "16.78 M",
 * "100 ", "4 u". Appended to the line. */
void profile_put_number(struct report_line *line, double value);

#endif
