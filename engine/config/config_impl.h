/* Inside the config: what stands behind struct ds_config, and the steps of loading it. */
#ifndef CZ_ENGINE_CONFIG_CONFIG_IMPL_H
#define CZ_ENGINE_CONFIG_CONFIG_IMPL_H

#include "engine/config/config.h"
#include "engine/config/config_keys_impl.h"
#include "engine/config/config_value_impl.h"

#define CONFIG_NOTES_MAX  200 /* the rest is counted, not kept */
#define CONFIG_ERRORS_MAX 20
#define CONFIG_AUTO       "auto"

struct config_impl {
    struct cv_pool pool;
    const char *file;
    struct json_doc *doc;
    struct cv *given;    /* the file after --set and --auto */
    struct cv *resolved; /* what config_json() prints */
    bool strict;
    bool on_gpu;
    enum config_compat compat;
    int64_t world_size;
    bool world_size_given;
    const char *errors[CONFIG_ERRORS_MAX];
    size_t n_errors, n_errors_dropped;
    bool is_trainers, lacks_optimizer, lacks_schedule; /* the file, before options */
    bool optimizer_added;
    double warmup_ratio; /* of the run; 0: not given */
    struct config_note notes[CONFIG_NOTES_MAX];
    size_t n_notes, n_notes_dropped;
};

/* Remember a problem with `value` (NULL: a key that is not in the file) at dotted `path`. */
void config_error(struct config_impl *c, const struct cv *value, const char *path, const char *fmt,
                  ...) CZ_PRINTF(4, 5);
void config_say(struct config_impl *c, enum config_note_kind kind, const struct cv *value,
                const char *path, const char *fmt, ...) CZ_PRINTF(5, 6);

/* "FILE:LINE:COL: path", "--set path", "--auto path" or "FILE: path", from the pool. */
const char *config_place(struct config_impl *c, const struct cv *value, const char *path);

/* "a.b" out of "a" and "b", from the pool; `section` may be "". */
const char *config_join(struct config_impl *c, const char *section, const char *name);

/* A name and the sections that it stands in, innermost first: a walk over a file's sections makes
 * text, which takes the pool's memory, only of the names that it tells. NULL: the root. */
struct config_path {
    const struct config_path *up;
    const char *name;
};

const char *config_path_text(struct config_impl *c, const struct config_path *path);

/* What to say about an "auto" that nothing filled: which flags would. */
const char *config_auto_text(struct config_impl *c, const char *path);

/* A value at a dotted path, or NULL. */
struct cv *config_at(const struct cv *root, const char *path);

/* Put `value` at a dotted path of c->given, in the place of what is there; sections on the way are
 * made. False, with nothing done, if one of them is no object. */
bool config_put_at(struct config_impl *c, const char *path, struct cv *value);

/* The option of a command that stands for the key, such as "--lr", or NULL. */
const char *config_option_of(const char *path);

/* Options, --set and --auto, applied to c->given. */
cz_status config_apply_wanted(struct config_impl *c, const struct config_options *options);
cz_status config_apply_sets(struct config_impl *c, const struct config_options *options);
cz_status config_apply_autos(struct config_impl *c, const struct config_options *options);

/* What the file leaves to a trainer: asked before options are applied, filled in after. */
void config_look_for_trainer(struct config_impl *c);
void config_fill_as_trainer(struct config_impl *c, const struct config_options *options);

/* A typed value by pydantic's rules, or NULL after config_error(). */
struct cv *config_coerce(struct config_impl *c, const struct config_key *key,
                         const struct cv *value, const char *path);

/* c->given to c->resolved, problems to c->errors. */
void config_resolve(struct config_impl *c);
/* The batch keys out of the resolved elasticity section, put into `given`. */
void config_resolve_elastic(struct config_impl *c, const struct cv *section, struct cv *given);
void config_resolve_batch(struct config_impl *c, struct cv *top);
void config_cross_check(struct config_impl *c, struct cv *top);

/* Notes about raw values that the engine could not use, and the typed view of everything else. */
void config_fill(struct ds_config *config);
void config_fill_optimizer(struct ds_config *config);
void config_fill_scheduler(struct ds_config *config);

/* What masters and states are kept in, and what DeepSpeed asks for before it keeps them in 16 bits.
 * After the optimizer. */
void config_fill_state_dtypes(struct ds_config *config);
void config_check_support(struct ds_config *config);

/* What config_check_support() says when the optimizer is of the 1-bit family. */
void config_check_onebit(struct ds_config *config);

#endif
