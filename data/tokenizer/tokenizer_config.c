/* What tokenizer_config.json and its like say beside the files that make a tokenizer.
 * tokenizer.json counts where they disagree, as in transformers 5, which is named; so are members
 * that mean nothing known. */
#include "data/tokenizer/tokenizer_json_impl.h"

#include "base/hash.h"
#include "formats/json/json_unread.h"

#include <stdio.h>
#include <string.h>

/* ---- members that no kind knows -------------------------------------------------------------- */

static const struct json_harmless config_keys[] = {
    /* read, by the kinds that have such steps, or by what follows */
    {"*_token", NULL, NULL}, /* the names of special tokens */
    {"tokenizer_class", NULL, NULL},
    {"added_tokens_decoder", NULL, NULL},
    {"additional_special_tokens", NULL, NULL},
    {"extra_special_tokens", NULL, NULL},
    {"model_specific_special_tokens", NULL, NULL},
    {"add_prefix_space", NULL, NULL},
    {"do_lower_case", NULL, NULL},
    {"strip_accents", NULL, NULL},
    {"tokenize_chinese_chars", NULL, NULL},
    {"do_basic_tokenize", NULL, NULL},
    {"split_by_punct", NULL, NULL},
    {"chat_template", NULL, NULL},
    {"default_chat_template", NULL, NULL},
    /* where the files come from, and which classes read them */
    {"name_or_path", NULL, NULL},
    {"special_tokens_map_file", NULL, NULL},
    {"tokenizer_file", NULL, NULL},
    {"processor_class", NULL, NULL},
    {"auto_map", NULL, NULL},
    {"backend", NULL, NULL},
    {"is_local", NULL, NULL},
    {"local_files_only", NULL, NULL},
    {"use_fast", NULL, NULL},
    {"from_slow", NULL, NULL},
    {"_commit_hash", NULL, NULL},
    {"transformers_version", NULL, NULL},
    {"model_input_names", NULL, NULL},
    {"device_map", NULL, NULL},
    {"unsloth_fixed", NULL, NULL},
    /* of rows that are cut and filled up: czero has options for that, and pads at the end */
    {"model_max_length", NULL, NULL},
    {"max_length", NULL, NULL},
    {"max_len", NULL, NULL},
    {"stride", NULL, NULL},
    {"padding", NULL, NULL},
    {"padding_side", NULL, NULL},
    {"truncation", NULL, NULL},
    {"truncation_side", NULL, NULL},
    {"truncation_strategy", NULL, NULL},
    {"pad_to_multiple_of", NULL, NULL},
    {"pad_token_type_id", NULL, NULL},
    {"return_token_type_ids", NULL, NULL},
    /* of text that ids become again, and of offsets */
    {"clean_up_tokenization_spaces", NULL, NULL},
    {"spaces_between_special_tokens", NULL, NULL},
    {"errors", NULL, NULL},
    {"trim_offsets", NULL, NULL},
    /* of slow classes, whose tokenizer.json holds what came of it */
    {"legacy", NULL, NULL},
    {"legacy_behaviour", NULL, NULL},
    {"sp_model_kwargs", NULL, NULL},
    {"use_default_system_prompt", NULL, NULL},
    {"vocab_file", NULL, NULL},
    {"merges_file", NULL, NULL},
    {"vocab_type", NULL, NULL},
    {"never_split", NULL, NULL},
    {"fix_mistral_regex", NULL, NULL},
    {"response_schema", NULL, NULL},
};

static const struct json_harmless map_keys[] = {
    {"*_token", NULL, NULL},
    {"additional_special_tokens", NULL, NULL},
    {"extra_special_tokens", NULL, NULL},
};

static cz_status name_keys(const char *dir, const char *name, const struct json_doc *doc,
                           const struct json_harmless *known, size_t n)
{
    struct unread unread = {.what = "members"};
    struct json_watch *watch;
    char place[512];
    TRY(json_watch_begin(doc, &watch));
    json_watch_collect(watch, known, n, NULL, &unread);
    json_watch_end(watch);
    snprintf(place, sizeof place, "%s/%s", dir, name);
    return unread_report(&unread, place);
}

/* Special tokens inside texts would be other ids. */
static cz_status refuse_split(const struct json_node *config)
{
    bool split;
    char where[512];
    TRY(json_opt_bool(config, "split_special_tokens", false, &split));
    if (!split) return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s: special tokens that are split like other text are not supported",
                   json_where(json_get(config, "split_special_tokens"), where, sizeof where));
}

cz_status tokenizer_check_companions(const char *dir)
{
    static const struct {
        const char *name;
        const struct json_harmless *known;
        size_t n;
    } files[] = {
        {"tokenizer_config.json", config_keys, CZ_ARRAY_LEN(config_keys)},
        {"special_tokens_map.json", map_keys, CZ_ARRAY_LEN(map_keys)},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(files); i++) {
        struct json_doc *doc;
        TRY(json_load_object(dir, files[i].name, &doc));
        if (!doc) continue;
        cz_status st = refuse_split(json_root(doc));
        if (st == CZ_OK) st = name_keys(dir, files[i].name, doc, files[i].known, files[i].n);
        json_free(doc);
        TRY(st);
    }
    return CZ_OK;
}

/* ---- beside tokenizer.json ------------------------------------------------------------------- */

struct beside {
    const char *dir;
    tokenizer_lookup *find;
    const void *user;
    const struct cz_tokenizer *tok;
    const struct json_node *root, *config; /* config NULL: there is none */
    const struct json_node *list;          /* tokenizer.json's added_tokens */
    struct hash_index added;               /* of them, by content */
    size_t n_missing; /* tokens that were looked for in vain, each through all of the list */
    struct unread *unread;
};

#define MISSING_MAX 64

static const char *content_at(const struct beside *b, size_t i)
{
    return tokenizer_json_content(json_child(b->list, i));
}

static bool has_content(const void *key, size_t item)
{
    const struct beside *b = ((const void *const *)key)[0];
    const char *content = content_at(b, item);
    return content && strcmp(content, ((const void *const *)key)[1]) == 0;
}

static cz_status index_added(struct beside *b)
{
    const struct json_node *list = json_get(b->root, "added_tokens");
    b->list = list && json_type(list) == JSON_ARRAY ? list : NULL;
    TRY(hash_index_reserve(&b->added, json_count(b->list)));
    for (size_t i = 0; i < json_count(b->list); i++) {
        const char *content = content_at(b, i);
        const void *key[] = {b, content};
        if (!content ||
            hash_index_find(&b->added, hash_text(content), has_content, key) != HASH_NONE)
            continue;
        TRY(hash_index_add(&b->added, hash_text(content), i));
    }
    return CZ_OK;
}

/* Its id in tokenizer.json; -1: it is not there. */
static int64_t id_of(struct beside *b, const char *content)
{
    const void *key[] = {b, content};
    const size_t at = hash_index_find(&b->added, hash_text(content), has_content, key);
    int64_t id = -1;
    if (at != HASH_NONE && json_opt_int(json_child(b->list, at), "id", -1, &id) == CZ_OK && id >= 0)
        return id;
    if (b->n_missing < MISSING_MAX) id = b->find(b->user, content);
    b->n_missing += id < 0;
    return id;
}

/* Tokens that transformers would add to those of tokenizer.json, or that have another id there. */
static void compare_token(struct beside *b, const char *content, int64_t id)
{
    const int64_t found = content ? id_of(b, content) : -1;
    if (!content || (found >= 0 && (id < 0 || id == found))) return;
    if (found < 0)
        unread_add(b->unread, content, "a token that tokenizer.json lacks");
    else
        unread_add(b->unread, content, "token %lld; %lld in tokenizer.json", (long long)id,
                   (long long)found);
}

/* {"500": {"content": …}} of the config; {"…": 500} of added_tokens.json. */
static void compare_tokens(struct beside *b, const struct json_node *added)
{
    const struct json_node *list = json_get(b->config, "added_tokens_decoder");
    for (size_t i = 0; i < json_count(list); i++) {
        const struct json_node *node = json_child(list, i);
        const char *key = json_key(node);
        int64_t id = 0;
        for (const char *c = key; c && *c >= '0' && *c <= '9' && id <= INT32_MAX; c++)
            id = 10 * id + (*c - '0');
        compare_token(b, tokenizer_json_content(node), key ? id : -1);
    }
    for (size_t i = 0; i < json_count(added); i++) {
        const struct json_node *node = json_child(added, i);
        int64_t id;
        if (json_key(node) && json_type(node) == JSON_INT && json_as_int(node, &id) == CZ_OK)
            compare_token(b, json_key(node), id);
    }
}

static void compare_specials(struct beside *b)
{
    for (size_t k = 0; k < CZ_SPECIAL_COUNT; k++) {
        const struct json_node *node =
            json_get(b->config, tokenizer_special_name((enum cz_special)k));
        if (node && json_type(node) != JSON_NULL)
            compare_token(b, tokenizer_json_content(node), -1);
    }
}

/* The step of this type, alone or in a sequence; NULL: there is none. */
static const struct json_node *step_of(const struct json_node *steps, const char *list,
                                       const char *type)
{
    const struct json_node *parts = json_get(steps, list);
    for (size_t i = 0; i <= json_count(parts); i++) {
        const struct json_node *step = i == 0 ? steps : json_child(parts, i - 1);
        const struct json_node *node = json_get(step, "type");
        const char *name;
        if (node && json_type(node) == JSON_STRING && json_as_string(node, &name) == CZ_OK &&
            strcmp(name, type) == 0)
            return step;
    }
    return NULL;
}

/* What is no flag, such as null, counts as absent. */
static bool flag_of(const struct json_node *object, const char *key, bool absent)
{
    const struct json_node *node = object ? json_get(object, key) : NULL;
    bool flag = absent;
    if (node && json_type(node) == JSON_BOOL) (void)json_as_bool(node, &flag);
    return flag;
}

/* A flag of the config that a step of tokenizer.json has otherwise: the step counts. */
static void compare_flag(const struct beside *b, const char *key, const struct json_node *step,
                         const char *key_there, bool absent_there)
{
    const struct json_node *node = json_get(b->config, key);
    const bool want = flag_of(b->config, key, false), have = flag_of(step, key_there, absent_there);
    if (!step || !node || json_type(node) != JSON_BOOL || want == have) return;
    unread_add(b->unread, key, "%s; tokenizer.json has %s", want ? "true" : "false",
               have ? "true" : "false");
}

static void compare_steps(const struct beside *b)
{
    const struct json_node *bytes =
        step_of(json_get(b->root, "pre_tokenizer"), "pretokenizers", "ByteLevel");
    const struct json_node *bert =
        step_of(json_get(b->root, "normalizer"), "normalizers", "BertNormalizer");
    compare_flag(b, "add_prefix_space", bytes, "add_prefix_space", true);
    compare_flag(b, "do_lower_case", bert, "lowercase", true);
    compare_flag(b, "strip_accents", bert, "strip_accents", flag_of(bert, "lowercase", true));
    compare_flag(b, "tokenize_chinese_chars", bert, "handle_chinese_chars", true);
}

/* Whether texts begin or end with a special token: transformers 5 leaves that to tokenizer.json
 * where there is one. */
static cz_status compare_end(const struct beside *b, const char *key, enum cz_special which,
                             bool is_last)
{
    const struct json_node *node = json_get(b->config, key);
    const struct tokenizer_frame *f = &b->tok->one;
    const int64_t id = b->tok->special[which];
    bool want;
    if (!node || json_type(node) == JSON_NULL) return CZ_OK;
    TRY(json_as_bool(node, &want));
    const bool have = id >= 0 && f->n > 0 && f->items[is_last ? f->n - 1 : 0] == id;
    if (want != have)
        unread_add(b->unread, key, "%s; tokenizer.json adds %s", want ? "true" : "false",
                   have ? "it" : "none");
    return CZ_OK;
}

cz_status tokenizer_json_config(const char *dir, const struct json_node *root,
                                tokenizer_lookup *find, const void *user,
                                const struct cz_tokenizer *tok)
{
    struct unread unread = {.what = "members of tokenizer_config.json and added_tokens.json"};
    struct json_doc *config = NULL, *added = NULL;
    struct beside b = {0};
    cz_status st;
    TRY_GOTO(json_load_object(dir, "tokenizer_config.json", &config), done);
    st = json_load_object(dir, "added_tokens.json", &added);
    if (st == CZ_NOMEM) goto done;
    err_clear(); /* tokenizer.json holds them all: one that says nothing is not needed */
    b = (struct beside){.dir = dir,
                        .find = find,
                        .user = user,
                        .tok = tok,
                        .root = root,
                        .config = config ? json_root(config) : NULL,
                        .unread = &unread};
    TRY_GOTO(index_added(&b), done);
    compare_tokens(&b, added ? json_root(added) : NULL);
    compare_specials(&b);
    compare_steps(&b);
    TRY_GOTO(compare_end(&b, "add_bos_token", CZ_SPECIAL_BOS, false), done);
    TRY_GOTO(compare_end(&b, "add_eos_token", CZ_SPECIAL_EOS, true), done);
    st = unread_report(&unread, dir);
done:
    hash_index_free(&b.added);
    json_free(added);
    json_free(config);
    return st;
}
