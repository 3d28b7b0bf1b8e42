/* What the tests of the config share: loading from text, looking at values and notes. */
#ifndef CZ_TESTS_ENGINE_CONFIG_SUPPORT_H
#define CZ_TESTS_ENGINE_CONFIG_SUPPORT_H

#include "engine/config/config.h"
#include "engine/config/config_impl.h"
#include "tests/support/check_main.h"

#include <string.h>

static inline struct ds_config *config_of(const char *text, const struct config_options *options)
{
    struct ds_config *config;
    ck_ok(config_load_text(text, strlen(text), "f.json", options, &config));
    return config;
}

/* The text is refused, and what cz_last_error() says holds `sentence`. */
static inline void config_refused(const char *text, const struct config_options *options,
                                  const char *sentence)
{
    struct ds_config *config;
    cz_status st = config_load_text(text, strlen(text), "f.json", options, &config);
    ck_assert_msg(st == CZ_INVALID || st == CZ_UNSUPPORTED, "%s was accepted", text);
    ck_assert_ptr_null(config);
    ck_assert_msg(strstr(cz_last_error(), sentence), "\"%s\" does not hold \"%s\"", cz_last_error(),
                  sentence);
}

/* The resolved value at a path, as one line of JSON. */
static inline const char *config_value(const struct ds_config *config, const char *path)
{
    const struct cv *value = config_at(config->impl->resolved, path);
    return value ? cv_show(&config->impl->pool, value) : "absent";
}

/* The sentence of the first note of a kind whose text holds `part`, or NULL. */
static inline const char *config_has_note(const struct ds_config *config,
                                          enum config_note_kind kind, const char *part)
{
    for (size_t i = 0; i < config_n_notes(config); i++) {
        const struct config_note *note = config_note(config, i);
        if (note->kind == kind && strstr(note->text, part)) return note->text;
    }
    return NULL;
}

#endif
