/* What the config asks to be printed or recorded during a run. */
#ifndef CZ_ENGINE_RUN_REPORT_H
#define CZ_ENGINE_RUN_REPORT_H

#include "engine/engine_impl.h"

/* Lines that the config asked for go to options.print or the log. Called by rank 0 and all others:
 * only rank 0 prints. */
cz_status report_start(struct cz_engine *e);
void report_forward(struct cz_engine *e, int64_t now_ns); /* a micro-batch begins */
cz_status report_step(struct cz_engine *e, bool is_boundary);
void report_memory(struct cz_engine *e, const char *where); /* memory_breakdown */

#endif
