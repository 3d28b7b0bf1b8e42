/* Tiles of an optimizer (step_agree.h) on a CUDA device. */
#ifndef CZ_TESTS_CUDA_STEP_H
#define CZ_TESTS_CUDA_STEP_H

#include "tests/support/gpu/cuda_orders.h"
#include "tests/support/gpu/step_ops.h"

struct device_tile {
    struct rig_buf p, g, states[STEP_STATES_MAX], out;
    struct step_tensors t;
};

static inline struct device_tile tile_put(const struct cuda_rig *rig, const struct step_tile *host)
{
    struct device_tile d = {.p = rig_put(rig, &host->p),
                            .g = rig_put(rig, &host->g),
                            .out = rig_put(rig, &host->out),
                            .t = host->t};
    for (size_t i = 0; i < STEP_STATES_MAX; i++) d.states[i] = rig_put(rig, &host->states[i]);
    d.t.p = d.p.p, d.t.g = d.g.p;
    for (size_t i = 0; i < STEP_STATES_MAX; i++)
        d.t.states[i] = host->t.states[i] ? d.states[i].p : NULL;
    if (host->t.out) d.t.out = d.out.p;
    return d;
}

/* Back over the host's copy; the device's is given back. */
static inline void tile_get(const struct cuda_rig *rig, struct device_tile *d,
                            const struct step_tile *host)
{
    rig_get(rig, &d->p, &host->p), rig_get(rig, &d->g, &host->g);
    rig_get(rig, &d->out, &host->out);
    for (size_t i = 0; i < STEP_STATES_MAX; i++) rig_get(rig, &d->states[i], &host->states[i]);
    rig_free(rig, &d->p), rig_free(rig, &d->g), rig_free(rig, &d->out);
    for (size_t i = 0; i < STEP_STATES_MAX; i++) rig_free(rig, &d->states[i]);
}

#endif
