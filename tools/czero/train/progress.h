/* What a training run shows while it runs: one line that is redrawn on a terminal, plain lines
 * elsewhere, one JSON object per step on request. Goes to stderr; JSON to stdout. */
#ifndef CZ_TOOLS_CZERO_TRAIN_PROGRESS_H
#define CZ_TOOLS_CZERO_TRAIN_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress_options {
    int64_t first_step, last_step; /* steps first+1 … last will be reported */
    int64_t tokens_per_step;       /* over all ranks, without padding; 0: unknown … */
    int64_t samples_per_step;      /* … and these are counted */
    double n_epochs;               /* shown when > 0 */
    double lr;                     /* of the first step */
    bool quiet;
    bool log_json;
    bool show_scale;        /* fp16: loss scale and skipped steps are shown */
    int64_t plain_interval; /* steps between plain lines; 0: about 20 lines over the run */
};

struct progress_step {
    int64_t step; /* boundaries so far, this one included */
    double epoch;
    int64_t skipped;
    double accuracy; /* of the step's examples; NAN: none */
    double loss, lr_next, grad_norm, loss_scale;
    int64_t samples;
    int64_t sent_nbytes; /* by this rank to the others, in this step */
    bool swaps;          /* the run has a swap file: what follows is of this step */
    double swap_read_nbytes, swap_written_nbytes, swap_waited_s, step_s;
};

struct progress {
    struct progress_options options;
    bool terminal;
    int64_t start_ns, last_ns, last_draw_ns;
    int64_t n_steps;       /* reported so far */
    double seconds_recent; /* averaged seconds per step; the first step is left out. 0: none yet */
    double seconds_last;   /* of the last step */
    double lr;             /* of the step that is reported next */
    bool line_open;
};

void progress_begin(struct progress *p, const struct progress_options *options);

/* Report one finished step. */
void progress_update(struct progress *p, const struct progress_step *step);

/* Time since the last step is no step's: an evaluation. */
void progress_skip(struct progress *p);

/* Close the line. Call before anything else is printed, and at the end; may be called twice. */
void progress_end(struct progress *p);

#endif
