/* Promises: any text resolves or is refused with a sentence; the resolved config written as JSON
 * loads again and gives the same bytes; its notes are sentences. */
#include "engine/config/config.h"
#include "tests/fuzz/fuzz.h"

static struct ds_config *load(const char *text, size_t nbytes)
{
    struct ds_config *config;
    cz_status st = config_load_text(text, nbytes, "in.json", NULL, &config);
    FUZZ_CHECK((st == CZ_OK) == (config != NULL));
    if (st != CZ_OK) fuzz_refused(st);
    return config;
}

static void check_notes(const struct ds_config *config)
{
    char where[256];
    for (size_t i = 0; i < config_n_notes(config); i++) {
        const struct config_note *note = config_note(config, i);
        FUZZ_CHECK(note->text && note->text[0] && note->path && note->line >= 0);
        FUZZ_CHECK(config_where(config, note->path, where, sizeof where)[0] != '\0');
    }
    cz_status st = config_check(config);
    if (st != CZ_OK) fuzz_refused(st);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    char *text = fuzz_copy(data, nbytes), *json, *lines, *json_again;
    struct ds_config *config = load(text, nbytes);
    free(text);
    if (!config) return 0;
    check_notes(config);
    FUZZ_CHECK(config_json(config, &json) == CZ_OK);
    FUZZ_CHECK(config_explain(config, &lines) == CZ_OK);
    free(lines);
    FUZZ_CHECK(config_values(config, &lines) == CZ_OK);
    free(lines);
    struct ds_config *again = load(json, strlen(json));
    FUZZ_CHECK(again);
    FUZZ_CHECK(config_json(again, &json_again) == CZ_OK);
    FUZZ_CHECK(strcmp(json, json_again) == 0);
    config_free(again);
    config_free(config);
    free(json_again);
    free(json);
    return 0;
}
