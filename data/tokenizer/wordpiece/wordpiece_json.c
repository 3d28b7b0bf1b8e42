/* WordPiece from tokenizer.json. */
#include "data/tokenizer/tokenizer_json_impl.h"
#include "data/tokenizer/wordpiece/wordpiece_impl.h"

#include "formats/file_io.h"

#include <stdlib.h>
#include <string.h>

/* A part of the file that is not known: what it is, what would be. */
static cz_status unknown_part(const struct json_node *node, const char *part, const char *type,
                              const char *known)
{
    char where[512];
    return err_set(CZ_UNSUPPORTED, 0, "%s: a %s of type %s is not known for WordPiece; %s is",
                   json_where(node, where, sizeof where), part, type, known);
}

/* A Sequence of one part is that part. NULL: nothing (also an empty sequence). */
static cz_status only_part(const struct json_node *root, const char *key, const char *list_key,
                           const struct json_node **part, const char **type)
{
    const struct json_node *node = json_get(root, key), *list;
    char where[512];
    *part = NULL;
    *type = NULL;
    if (!node || json_type(node) == JSON_NULL) return CZ_OK;
    TRY(json_need_string(node, "type", type));
    *part = node;
    if (strcmp(*type, "Sequence") != 0) return CZ_OK;
    TRY(json_need(node, list_key, JSON_ARRAY, &list));
    if (json_count(list) > 1)
        return err_set(CZ_UNSUPPORTED, 0, "%s: a sequence of several is not known for WordPiece",
                       json_where(list, where, sizeof where));
    *part = json_count(list) ? json_child(list, 0) : NULL;
    return *part ? json_need_string(*part, "type", type) : CZ_OK;
}

static cz_status read_normalizer(const struct json_node *root, struct wp_rules *rules)
{
    const struct json_node *node;
    const char *type;
    memset(rules, 0, sizeof *rules);
    TRY(only_part(root, "normalizer", "normalizers", &node, &type));
    if (!node) return CZ_OK;
    if (strcmp(type, "BertNormalizer") != 0)
        return unknown_part(node, "normalizer", type, "BertNormalizer");
    TRY(json_opt_bool(node, "clean_text", true, &rules->clean));
    TRY(json_opt_bool(node, "handle_chinese_chars", true, &rules->split_chinese));
    TRY(json_opt_bool(node, "lowercase", true, &rules->lowercase));
    return json_opt_bool(node, "strip_accents", rules->lowercase, &rules->strip_accents);
}

static cz_status check_splitting(const struct json_node *root)
{
    const struct json_node *node;
    const char *type;
    TRY(only_part(root, "pre_tokenizer", "pretokenizers", &node, &type));
    if (!node) return unknown_part(root, "pre_tokenizer", "null", "BertPreTokenizer");
    if (strcmp(type, "BertPreTokenizer") == 0) return CZ_OK;
    return unknown_part(node, "pre_tokenizer", type, "BertPreTokenizer");
}

/* Decoding here joins what the prefix continues and takes the spaces before punctuation away. */
static cz_status check_decoder(const struct json_node *root)
{
    const struct json_node *node;
    const char *type, *prefix, *own;
    bool cleanup;
    TRY(only_part(root, "decoder", "decoders", &node, &type));
    if (!node || strcmp(type, "WordPiece") != 0)
        return unknown_part(node ? node : root, "decoder", type ? type : "null", "WordPiece");
    TRY(json_opt_bool(node, "cleanup", true, &cleanup));
    TRY(json_opt_string(node, "prefix", "##", &prefix));
    TRY(json_opt_string(json_get(root, "model"), "continuing_subword_prefix", "##", &own));
    if (cleanup && own[0] && strcmp(prefix, own) == 0) return CZ_OK;
    return unknown_part(node, "decoder", "WordPiece of another kind", "the usual one");
}

/* Added tokens that are searched in normalized text are decoded as the rules write them, which is
 * not known here. */
static cz_status check_added(const struct json_node *root)
{
    const struct json_node *list = json_get(root, "added_tokens");
    for (size_t i = 0; i < json_count(list); i++) {
        const struct json_node *node = json_child(list, i);
        struct added_token token;
        const char *content;
        int64_t id;
        TRY(tokenizer_json_added(node, &token, &id, &content));
        for (const char *s = content; token.normalized && *s; s++)
            if (*s <= ' ' || *s >= 0x7F || (*s >= 'A' && *s <= 'Z'))
                return unknown_part(node, "token", "normalized", "one as it stands in the file");
    }
    return CZ_OK;
}

bool wordpiece_is_bert(const struct json_node *root)
{
    struct wp_rules rules;
    cz_status st = read_normalizer(root, &rules);
    if (st == CZ_OK) st = check_splitting(root);
    if (st == CZ_OK) st = check_decoder(root);
    if (st == CZ_OK) st = check_added(root);
    if (st == CZ_UNSUPPORTED) err_clear();
    return st != CZ_UNSUPPORTED;
}

static cz_status read_all(const char *dir, const struct json_node *root, struct wp_source *src,
                          struct wordpiece **out)
{
    const struct json_node *model = json_get(root, "model"), *vocab;
    TRY(json_need(model, "vocab", JSON_OBJECT, &vocab));
    TRY(json_opt_string(model, "unk_token", "[UNK]", &src->unk));
    TRY(json_opt_string(model, "continuing_subword_prefix", "##", &src->prefix));
    TRY(json_opt_int(model, "max_input_chars_per_word", WP_N_CHARS_DEFAULT, &src->n_chars_max));
    for (size_t i = 0; i < json_count(vocab); i++) {
        const struct json_node *node = json_child(vocab, i);
        int64_t id;
        TRY(json_as_int(node, &id));
        TRY(wp_source_add_token(src, json_key(node), strlen(json_key(node)), id));
    }
    TRY(read_normalizer(root, &src->rules));
    TRY(check_splitting(root));
    const struct json_node *list = json_get(root, "added_tokens");
    for (size_t i = 0; i < json_count(list); i++) {
        struct wp_added a = {0};
        int64_t id;
        TRY(tokenizer_json_added(json_child(list, i), &a.token, &id, &a.content));
        a.token.id = id < 0 || id > WP_ID_MAX ? -1 : (int32_t)id;
        TRY(wp_source_add_added(src, &a));
    }
    TRY(wordpiece_build(src, out));
    struct cz_tokenizer *tok = &(*out)->tok;
    for (int i = 0; i < CZ_SPECIAL_COUNT; i++) {
        const char *name = wordpiece_usual_name((enum cz_special)i);
        if (name && i != CZ_SPECIAL_UNK) tok->special[i] = wordpiece_find(*out, name);
    }
    TRY(tokenizer_read_specials(dir, wordpiece_find, *out, tok));
    TRY(tokenizer_json_post(root, wordpiece_find, *out, tok));
    return tokenizer_json_config(dir, root, wordpiece_find, *out, tok);
}

cz_status wordpiece_open_json(const char *dir, const struct json_node *root,
                              struct cz_tokenizer **out)
{
    struct wordpiece *wp = NULL;
    char *path = file_join(dir, "tokenizer.json");
    *out = NULL;
    if (!path) return err_set(CZ_NOMEM, 0, "no memory for a path");
    struct wp_source src = {.path = path};
    cz_status st = read_all(dir, root, &src, &wp);
    if (st == CZ_OK)
        *out = &wp->tok;
    else if (wp)
        cz_tokenizer_close(&wp->tok);
    wp_source_free(&src);
    free(path);
    return st;
}
