/* Answers about a run that need no rows: how long a step takes at best, which sequence length is
 * usual, and what DeepSpeed's estimators say, which users know and compare with. */
#include "base/threads.h"
#include "engine/plan/plan_impl.h"

#include <math.h>
#include <string.h>

double plan_step_flops(const struct cz_plan *p)
{
    return p->phases[PLAN_FORWARD].flops + p->phases[PLAN_BACKWARD].flops;
}

/* Half of what a core with AVX2 can do in fp32, and the best of a GPU of 2024: a step that is
 * called slow is slow, since other kernels and attention at small widths take longer. Ranks of a
 * host share its cores. */
#define CORE_FLOPS 60e9
#define GPU_FLOPS  500e12
#define SLOW_S     60

const char *plan_slow_step(const struct cz_plan *p, char *buf, size_t nbytes)
{
    double rate =
        p->on_cuda ? GPU_FLOPS : CORE_FLOPS * threads_allowed_cores(NULL) / (double)p->world_size;
    double seconds = plan_step_flops(p) / rate;
    int64_t rows = p->B * p->accumulation;
    buf[0] = '\0';
    if (!(seconds > SLOW_S)) return buf;
    snprintf(
        buf, nbytes,
        "a step computes %.3g Tflop (%lld row%s of %lld tokens): about %.0f minutes or more%s; "
        "fewer tokens a row (--seq-len) or rows a step make it shorter",
        plan_step_flops(p) / 1e12, (long long)rows, rows == 1 ? "" : "s", (long long)p->T,
        ceil(seconds / 60), p->on_cuda ? "" : " on these cores");
    return buf;
}

int64_t plan_usual_tokens(const struct cz_model *model)
{
    int64_t longest = cz_model_t_max(model);
    return longest < 2048 ? longest : 2048;
}

/* ---- DeepSpeed's estimators ------------------------------------------------------------------ */

/* DeepSpeed counts the parameters that a module holds itself: those that share all of their name
 * but its last part. They stand side by side. */
static size_t largest_module(const struct param_table *table)
{
    size_t most = 0, sum = 0, len = 0;
    for (size_t i = 0; i < table->n_params; i++) {
        const char *name = table->params[i].name, *dot = strrchr(name, '.');
        size_t n = dot ? (size_t)(dot - name) : 0;
        bool is_same = i > 0 && n == len && strncmp(name, table->params[i - 1].name, n) == 0;
        sum = is_same ? sum + table->params[i].numel : table->params[i].numel;
        len = n;
        if (sum > most) most = sum;
    }
    return most;
}

#define BUFFER_FACTOR 1.5 /* additional_buffer_factor */

bool plan_estimate_numbers(double n, double layer, int stage, bool optimizer_away, bool params_away,
                           int64_t world_size, struct plan_estimate *out)
{
    double ranks = (double)world_size, gpu, host;
    *out = (struct plan_estimate){0};
    if (params_away && (!optimizer_away || stage < 3)) return false;
    if (stage < 3) {
        gpu = optimizer_away ? 2 * n : 2 * n + floor(18 * n / ranks);
        host = n * (optimizer_away ? fmax(4 * ranks, 16) : 4 * ranks);
    } else {
        double stays = params_away ? 0 : optimizer_away ? 2 : 18; /* bytes a parameter, split */
        gpu = 4 * layer + floor(stays * n / ranks);
        host = params_away ? 18 * n : optimizer_away ? 16 * n : 4 * layer * ranks;
    }
    *out = (struct plan_estimate){.gpu_nbytes = gpu, .host_nbytes = host * BUFFER_FACTOR};
    return true;
}

bool plan_estimate_deepspeed(const struct cz_model *model, int stage, bool optimizer_away,
                             bool params_away, int64_t world_size, struct plan_estimate *out)
{
    const struct param_table *table = model_params(model);
    return plan_estimate_numbers((double)param_table_numel(table, false),
                                 (double)largest_module(table), stage, optimizer_away, params_away,
                                 world_size, out);
}
