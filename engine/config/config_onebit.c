/* The 1-bit optimizers in a config: which keys mean less with them. They replace the gradient
 * average by an exchange of compressed momentum (docs/ranks.md), so settings of that average lose
 * their meaning; a user must hear of it once, at the start. */
#include "engine/config/config_impl.h"
#include "optim/onebit.h"

#include <math.h>
#include <string.h>

static const struct cv *value_at(const struct ds_config *d, const char *path)
{
    return config_at(d->impl->resolved, path);
}

/* ---- keys that mean less --------------------------------------------------------------------- */

static bool is_on(const struct ds_config *d, const char *path)
{
    const struct cv *value = value_at(d, path);
    return cv_is_given(value) && cv_is_true(value);
}

static void note(struct ds_config *d, bool applies, enum config_note_kind kind, const char *path,
                 const char *text)
{
    if (applies) config_say(d->impl, kind, value_at(d, path), path, "%s", text);
}

/* Keys of DeepSpeed's classes that name its communication back ends, or variants of the formula
 * that these classes never use. */
static void note_switches(struct ds_config *d)
{
    static const char cuda[] = "optimizer.params.cuda_aware";
    static const char backend[] = "optimizer.params.comm_backend_name";
    static const char bias[] = "optimizer.params.bias_correction";
    static const char root[] = "optimizer.params.eps_inside_sqrt";
    const bool is_mpi = cv_is_string(value_at(d, backend), "mpi");
    note(d, is_on(d, cuda), CONFIG_NOTE_NO_EFFECT, cuda,
         is_mpi ? "has no effect: ranks on GPUs send over NCCL or through host memory"
                : "has no effect: it is a switch of comm_backend_name \"mpi\"");
    note(d, cv_is_given(value_at(d, backend)), CONFIG_NOTE_NO_EFFECT, backend,
         "has no effect: signs use the same transport as all other messages: czero's own, MPI or "
         "NCCL");
    note(d, is_on(d, bias), CONFIG_NOTE_NO_EFFECT, bias,
         "has no effect: the 1-bit optimizers never correct for bias, in DeepSpeed neither");
    note(d, is_on(d, root), CONFIG_NOTE_NO_EFFECT, root,
         "has no effect: the 1-bit optimizers add eps outside the root, in DeepSpeed too");
}

/* ---- the warm-up ----------------------------------------------------------------------------- */

void config_check_onebit(struct ds_config *d)
{
    if (!d->optimizer.usable || !optim_is_onebit(&d->optimizer.hyper)) return;
    note_switches(d);
    /* Settings of a gradient average, which a compressed exchange has no use for. */
    static const char robin[] = "zero_optimization.round_robin_gradients";
    static const char overlap[] = "zero_optimization.overlap_comm";
    static const char type[] = "communication_data_type";
    note(d, is_on(d, robin), CONFIG_NOTE_NO_EFFECT, robin,
         "has no effect with a 1-bit optimizer: parameters are split in their own order");
    d->zero.round_robin_gradients = false;
    note(d, is_on(d, overlap), CONFIG_NOTE_CHOICE, overlap,
         "affects only steps that average gradients; a compressed exchange starts when all "
         "gradients are complete");
    note(d, is_on(d, type), CONFIG_NOTE_CHOICE, type,
         "affects only steps that average gradients; compressed steps send signs and fp32 scales");
    note(d, d->model_dtype == DTYPE_F32, CONFIG_NOTE_CHOICE, "optimizer.type",
         "in fp32 the first step moves no weight, as in DeepSpeed: it only sets up");
    /* The mean begins at 0 and has no bias correction: frozen early, it is too small for good. */
    if (optim_stage_of(d->optimizer.hyper.cls, OPTIM_TENSOR_SUMS)) {
        static const char path[] = "optimizer.params.freeze_step";
        const struct optim_hyper *h = &d->optimizer.hyper;
        const double wanted = ceil(1 / (1 - h->coeff_beta) - 1e-9);
        if (h->coeff_beta > 0 && h->freeze_step < wanted) {
            const double n_updates =
                (double)(onebit_freezes_at(h) - 1); /* the first call is none */
            config_say(d->impl, CONFIG_NOTE_CHOICE, value_at(d, path), path,
                       "%g is few: the running mean of trust ratios begins at 0, and with "
                       "coeff_beta %g it is frozen at %.0f %% of them; %.0f or more would do",
                       h->freeze_step, h->coeff_beta, 100 * (1 - pow(h->coeff_beta, n_updates)),
                       wanted);
        }
    }
}
