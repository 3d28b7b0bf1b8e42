/* flops_profiler: one step taken apart by layer, as DeepSpeed's report shows it.
 *
 * Life cycle: profiler_create() → for the step that is due: profiler_begin() before each training
 * forward, profiler_enter() / profiler_leave() around every layer of it, profiler_end() after it →
 * profiler_report() at the boundary → profiler_destroy(). Between begin and end only: elsewhere
 * enter and leave do nothing, so evaluations and recomputed layers are not counted.
 *
 * Operations are exact (struct layer_sizes, for the shape that ran) and times measured; both are
 * averages over the step's micro-batches. Nothing is allocated after profiler_create(), except for
 * writing output_file. One thread at a time. */
#ifndef CZ_ENGINE_REPORT_PROFILER_H
#define CZ_ENGINE_REPORT_PROFILER_H

#include "engine/chain/chain.h"
#include "engine/config/config.h"

CZ_EXTERN_C_BEGIN

struct profiler; /* opaque */

/* Borrows config, chain and model until profiler_destroy(). Creates output_file's folders.
 * Errors: CZ_IO (path), CZ_NOMEM. */
cz_status profiler_create(const struct config_flops_profiler *config, const struct chain *chain,
                          const struct cz_model *model, struct profiler **out);
void profiler_destroy(struct profiler *p); /* accepts NULL */

/* Whether the step that begins after `global_steps` boundaries is the one. Accepts NULL (no). */
bool profiler_is_due(const struct profiler *p, int64_t global_steps);

/* A training forward over a batch of a shape begins and ends. CZ_INVALID when a layer cannot be
 * sized. */
cz_status profiler_begin(struct profiler *p, struct chain_shape shape);
void profiler_end(struct profiler *p);

/* Around a layer. Accept NULL. */
void profiler_enter(struct profiler *p);
void profiler_leave(struct profiler *p, size_t layer_idx);

/* What the engine knows about the step. Times are sums over its micro-batches. */
struct profiler_step {
    int64_t number; /* boundaries with this one */
    int64_t world_size, micro_batch;
    int64_t forward_ns, backward_ns, update_ns;
};

/* Takes one line without newline. An error stops the report and is returned. */
typedef cz_status (*profiler_line)(void *user, const char *line);

/* The report, line by line: to output_file if there is one (it appears when complete, and replaces
 * an older one), else to `line`. Errors: CZ_IO, CZ_NOMEM, whatever `line` returns. */
cz_status profiler_report(struct profiler *p, const struct profiler_step *step, profiler_line line,
                          void *user);

CZ_EXTERN_C_END
#endif
