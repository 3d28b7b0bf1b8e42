/* --save and --resume of `czero train`: when checkpoints are written, and where a run continues. */
#ifndef CZ_TOOLS_CZERO_TRAIN_SAVER_H
#define CZ_TOOLS_CZERO_TRAIN_SAVER_H

#include "base/status.h"
#include "data/chat/chat_template.h"
#include "engine/engine.h"
#include <czero/data.h>
#include <czero/engine.h>

struct saver {
    const char *dir;        /* NULL: nothing is saved */
    int64_t interval, keep; /* 0: at the end alone; all */
    bool weights_only;
    int64_t saved_step; /* of the newest save, or of what was loaded from the same folder; -1 */
};

/* Find out now, not after hours of training, that checkpoints have nowhere to go. */
cz_status saver_check(const struct saver *s);

#define SAVER_BEST_FOLDER "best" /* DIR/best: checkpoints of the best evaluations */

/* CZ_INVALID when the folder holds checkpoints: those of another run, which this one would replace
 * and remove. */
cz_status saver_check_unused(const struct saver *s);

/* Moves them, with their best and their model, into a folder of their own, DIR/earlier-N. */
cz_status saver_set_aside(const struct saver *s);

/* DIR/model: what shards do not tell, the model's config.json (heads, names of classes), its
 * tokenizer, and the template of its chats (NULL: none), so that czero export needs no more than
 * the folder. */
#define SAVER_MODEL_FOLDER "model"
cz_status saver_describe(const struct saver *s, const struct cz_model *model,
                         const struct cz_tokenizer *tokenizer, const struct chat_template *chat);

/* A run continues from tag_dir: when that is what the folder's `latest` names, this step is saved
 * already. Collective. Errors: CZ_PEER, CZ_COMM. */
cz_status saver_resumed(struct saver *s, struct cz_engine *engine, const char *tag_dir);

/* Whether this step is to be saved. */
bool saver_is_due(const struct saver *s, const struct cz_engine *engine);

/* Save it in the background, with the data's place and the program's own state (an object). A save
 * that fails is a warning. */
void saver_step(struct saver *s, struct cz_engine *engine, const struct cz_data_cursor *cursor,
                const char *state_json);

/* The last one, unless this step has been saved or none was made; durable on return. */
cz_status saver_end(struct saver *s, struct cz_engine *engine, const struct cz_data_cursor *cursor,
                    const char *state_json);

/* "DIR" or "DIR:TAG". */
struct resume_point {
    char *dir, *tag;            /* tag NULL: latest */
    const char *const *renames; /* as cz_load_options has them */
    bool has_run;               /* saved by czero: */
    struct cz_saved_run run;
};
cz_status resume_parse(const char *text, struct resume_point *out);
void resume_free(struct resume_point *p); /* accepts zeroed */

/* Load into the engine; *result as engine_load_checkpoint_ex(). */
cz_status resume_load(const struct resume_point *p, struct cz_engine *engine,
                      struct cz_load_result *result);

/* Whether a folder holds checkpoints (and not a Hugging Face model). Errors: reading fails, or what
 * names the newest one is damaged: not knowing is no "no". */
cz_status find_checkpoint(const char *dir, bool *found);

/* The weights of a folder's latest checkpoint, and nothing else of it; renames as above. */
cz_status init_weights(const char *dir, const char *const *renames, struct cz_engine *engine);

/* Put the data where the run stopped. A checkpoint without a cursor (DeepSpeed's) has seen
 * global_samples rows. */
cz_status resume_data(const struct cz_load_result *result, const struct cz_engine *engine,
                      bool drop_last, struct cz_data_loader *data);

#endif
