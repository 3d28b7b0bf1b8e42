/* Claims: whole runs of the 1-bit optimizers on CUDA devices learn what ranks on CPUs learn, in
 * the warm-up, at the freeze and past it, with the same steps skipped in fp16; staged and over NCCL
 * they have the same bits; a run that stops and continues is the same run, to the bit; a checkpoint
 * of the CPU's is the same state on a GPU. CZ_CUDA_ALL=1: more of the same. */
#include "tests/support/zero/onebit_trial.h"

#include <math.h>
#include <stdlib.h>

enum { ADAM = 0, ZERO_ONE, LAMB, N_OPTIMIZERS };
enum { FP32 = 0, BF16, FP16 };

static const char *const kinds[] = {"staged", "nccl"};

/* Over NCCL only the simulated device lets ranks share a GPU. */
static bool may_use(const char *kind)
{
    const char *plugin = getenv("CZERO_CUDA_PLUGIN");
    return strcmp(kind, "nccl") != 0 || (plugin && strstr(plugin, "cuda_sim"));
}

static struct leg_outcome run(struct leg_shared *s, const struct onebit_cell *c)
{
    onebit_configure(&s->leg, c);
    s->leg.device = c->device;
    s->leg.probe = onebit_own;
    s->leg.from = 0;
    s->leg.to = onebit_optimizers[c->optimizer].steps;
    return leg_outcome_of(s, c->world);
}

/* ---- beside the CPU ---------------------------------------------------------------------------
 */

static void follows(const struct leg_outcome *have, const struct leg_outcome *want,
                    const struct onebit_cell *c)
{
    const struct onebit_optimizer *o = &onebit_optimizers[c->optimizer];
    for (int s = 0; s < o->steps; s++) {
        /* sums in another order; in 16 bits they round elsewhere, too; past the freeze
         * (ZeroOneAdam: from the start) an element near 0 may have the other sign, and weighs as
         * much as any */
        bool signs = s + 1 >= o->at[1] || c->optimizer == ZERO_ONE;
        double tol = c->dtype != FP32 ? 2e-2 : signs ? 5e-3 : 1e-5;
        ck_assert_msg(fabs(have->losses[s] - want->losses[s]) <= tol * want->losses[s],
                      "%s, %d ranks, step %d: loss %.9g, the CPU's %.9g", o->type, c->world, s + 1,
                      have->losses[s], want->losses[s]);
        ck_assert_double_eq(have->scales[s], want->scales[s]);
    }
    ck_assert_int_eq(have->skipped, want->skipped);
    ck_assert_int_eq(have->global_steps, want->global_steps);
}

static void beside_cpu(struct onebit_cell c)
{
    struct leg_shared *s = leg_make();
    c.device = NULL;
    struct leg_outcome want = run(s, &c);
    c.device = "cuda";
    struct leg_outcome have = run(s, &c);
    follows(&have, &want, &c);
    if (c.dtype == FP16) ck_assert_int_gt(have.skipped, 0);
    munmap(s, sizeof *s);
}

START_TEST(one_rank_learns_what_it_does_on_the_cpu)
{
    beside_cpu((struct onebit_cell){ADAM, 1, 0, FP32, NULL});
    beside_cpu((struct onebit_cell){ZERO_ONE, 1, 0, BF16, NULL});
    beside_cpu((struct onebit_cell){LAMB, 1, 1, FP16, NULL});
}
END_TEST

START_TEST(two_ranks_do)
{
    setenv("CZERO_DEVICE_COMM", "staged", 1);
    beside_cpu((struct onebit_cell){ADAM, 2, 0, FP16, NULL});
    beside_cpu((struct onebit_cell){ZERO_ONE, 2, 1, FP32, NULL});
    beside_cpu((struct onebit_cell){LAMB, 2, 1, BF16, NULL});
    if (getenv("CZ_CUDA_ALL")) beside_cpu((struct onebit_cell){LAMB, 2, 0, FP32, NULL});
}
END_TEST

/* ---- the same bits ----------------------------------------------------------------------------
 */

START_TEST(stages_and_communicators_change_no_bit)
{
    const bool all = getenv("CZ_CUDA_ALL") != NULL;
    struct leg_shared *s = leg_make();
    for (int o = 0; o < N_OPTIMIZERS; o++) {
        struct leg_outcome want = {0};
        for (int stage = 0; stage <= 1; stage++)
            for (size_t k = 0; k < CZ_ARRAY_LEN(kinds); k++) {
                const struct onebit_cell c = {o, 2, stage, o % 2 ? FP32 : BF16, "cuda"};
                if (!may_use(kinds[k]) || (stage == 0 && k > 0)) continue;
                if (!all && o > 0 && stage == 1 && k == 0 && may_use(kinds[1])) continue;
                setenv("CZERO_DEVICE_COMM", kinds[k], 1);
                struct leg_outcome have = run(s, &c);
                if (want.weights == 0) want = have;
                ck_assert_msg(have.weights == want.weights, "%s: %s", kinds[k], s->leg.config);
                ck_assert_msg(have.states == want.states, "%s: %s", kinds[k], s->leg.config);
            }
    }
}
END_TEST

START_TEST(a_run_goes_on_as_if_it_had_never_stopped)
{
    setenv("CZERO_DEVICE_COMM", "staged", 1);
    onebit_check_cell(&(const struct onebit_cell){ADAM, 2, 1, FP16, "cuda"}, true);
    if (!getenv("CZ_CUDA_ALL")) return;
    onebit_check_cell(&(const struct onebit_cell){ZERO_ONE, 2, 0, BF16, "cuda"}, false);
    onebit_check_cell(&(const struct onebit_cell){LAMB, 2, 1, FP32, "cuda"}, true);
}
END_TEST

START_TEST(one_rank_goes_on_too)
{
    onebit_check_cell(&(const struct onebit_cell){ZERO_ONE, 1, 0, FP16, "cuda"}, false);
}
END_TEST

/* Saved by 2 ranks on CPUs; what GPUs have of it, of 2 ranks and of 3, is what CPUs have. */
START_TEST(a_checkpoint_of_the_cpu_is_the_same_on_a_gpu)
{
    setenv("CZERO_DEVICE_COMM", "staged", 1);
    for (int o = 0; o < N_OPTIMIZERS; o++) {
        const struct onebit_cell c = {o, 2, o % 2, o % 2 ? FP32 : BF16, NULL};
        struct leg_shared *cpu = leg_make(), *gpu = leg_make();
        const char *dir = test_tmp_make();
        const int at = onebit_optimizers[o].at[3];
        onebit_whole(cpu, &c, dir);
        cpu->leg.to = at; /* loaded, and no step */
        gpu->leg = cpu->leg;
        gpu->leg.device = "cuda";
        for (int world = 2; world <= 3; world++) {
            onebit_rest(cpu, dir, at, world);
            onebit_rest(gpu, dir, at, world);
            onebit_same_end(gpu, cpu, world, "on a GPU");
        }
        munmap(cpu, sizeof *cpu);
        munmap(gpu, sizeof *gpu);
        test_tmp_remove(dir);
    }
}
END_TEST

TEST_MAIN_SECONDS(600, "cuda 1-bit runs", one_rank_learns_what_it_does_on_the_cpu, two_ranks_do,
                  stages_and_communicators_change_no_bit, a_run_goes_on_as_if_it_had_never_stopped,
                  one_rank_goes_on_too, a_checkpoint_of_the_cpu_is_the_same_on_a_gpu)
