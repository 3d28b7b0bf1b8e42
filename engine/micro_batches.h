/* Forward and backward of staged micro-batches, for the calls that make a step. */
#ifndef CZ_ENGINE_MICRO_BATCHES_H
#define CZ_ENGINE_MICRO_BATCHES_H

#include "engine/engine_impl.h"

/* Stage a micro-batch of a training pass at mem.stages[stage]. */
cz_status micro_batches_stage(struct cz_engine *e, size_t stage, const struct cz_batch *batch,
                              bool wants_logits);

/* The first n staged micro-batches through the layers. Logits of each (NULL: none) begin `stride`
 * elements behind those of the one before. */
cz_status micro_batches_forward(struct cz_engine *e, size_t n, float *loss, float *logits,
                                size_t stride);

/* Their gradients; the pass of all ranks is complete when it returns. */
cz_status micro_batches_backward(struct cz_engine *e, size_t n);

/* wall_clock_breakdown asks where time goes: a GPU's work is then waited for where it is made. */
cz_status micro_batches_settle(struct cz_engine *e);

/* CZ_UNSUPPORTED in the name of a call that reads logits, if the model gives none. */
cz_status micro_batches_check_classifier(const struct cz_engine *e, const char *call);

/* Once per engine for training and once for evaluation, if no label of the micro-batch that was
 * staged counts: its loss is 0. */
void micro_batches_warn_labels(struct cz_engine *e, size_t stage, bool evaluates);

/* Add the losses of training passes that are still on their way, in the order of micro-batches. */
cz_status micro_batches_take_losses(struct cz_engine *e);

/* Drop a forward that waits for its backward, before `what` ("an evaluation") uses its memory.
 * CZ_INVALID: earlier micro-batches of the step have gradients, which would be lost. */
cz_status micro_batches_drop_forward(struct cz_engine *e, const char *what);

/* Forget the step that has begun, if one has: its gradients and its micro-steps. */
cz_status micro_batches_drop(struct cz_engine *e);

/* The same of a step whose passes have ended, back to a number of micro-steps. */
void micro_batches_forget(struct cz_engine *e, int64_t micro_steps);

#endif
