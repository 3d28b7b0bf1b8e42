/* The steps around the model in tokenizer.json: normalizer, pre_tokenizer and decoder. What is
 * refused here is read as a chain of steps (data/tokenizer/pipe), which says what it does not know.
 */
#include "data/tokenizer/bpe/bpe_open_impl.h"

#include <string.h>

static bool is_absent(const struct json_node *node)
{
    return !node || json_type(node) == JSON_NULL;
}

/* ---- normalizer ------------------------------------------------------------------------------ */

static cz_status read_normalizer(struct bpe *b, const struct json_node *node, int depth)
{
    const char *type;
    char where[512];
    const struct json_node *list;
    if (is_absent(node)) return CZ_OK;
    TRY(json_need_string(node, "type", &type));
    if (strcmp(type, "NFC") == 0) {
        b->nfc = true;
        return CZ_OK;
    }
    if (strcmp(type, "Sequence") == 0 && depth < 8) {
        TRY(json_need(node, "normalizers", JSON_ARRAY, &list));
        for (size_t i = 0; i < json_count(list); i++)
            TRY(read_normalizer(b, json_child(list, i), depth + 1));
        return CZ_OK;
    }
    return err_set(CZ_UNSUPPORTED, 0, "%s: a normalizer of type %s is not known; NFC is",
                   json_where(node, where, sizeof where), type);
}

/* ---- pre_tokenizer --------------------------------------------------------------------------- */

cz_status bpe_add_step(struct bpe *b, const struct bpe_split *split, bool add_prefix_space)
{
    if (b->n_steps == BPE_STEPS_MAX)
        return err_set(CZ_UNSUPPORTED, 0, "text is split in more than %d steps", BPE_STEPS_MAX);
    b->steps[b->n_steps++] =
        (struct bpe_step){.split = split, .add_prefix_space = add_prefix_space};
    return CZ_OK;
}

/* The patterns match whole texts: what they match is isolated, or what they do not match (nothing)
 * is removed. */
static cz_status check_behavior(const struct json_node *node)
{
    const char *behavior;
    bool invert;
    char where[512];
    TRY(json_need_string(node, "behavior", &behavior));
    TRY(json_opt_bool(node, "invert", false, &invert));
    if (strcmp(behavior, "Isolated") == 0 || (strcmp(behavior, "Removed") == 0 && invert))
        return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0, "%s: behavior %s is not known; Isolated is",
                   json_where(node, where, sizeof where), behavior);
}

static cz_status read_split(struct bpe *b, const struct json_node *node)
{
    const struct json_node *pattern;
    const char *text;
    char where[512];
    TRY(check_behavior(node));
    TRY(json_need(node, "pattern", JSON_OBJECT, &pattern));
    TRY(json_opt_string(pattern, "Regex", NULL, &text));
    const struct bpe_split *split = text ? bpe_split_find(text) : NULL;
    if (split) return bpe_add_step(b, split, false);
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s: this splitting pattern is not known; those of %s are, as they are written "
                   "there",
                   json_where(pattern, where, sizeof where), bpe_split_names());
}

/* *is_bytes: ByteLevel was seen; nothing may follow it, since text is letters for bytes then. */
static cz_status read_pre_tokenizer(struct bpe *b, const struct json_node *node, int depth,
                                    bool *is_bytes)
{
    const char *type;
    char where[512];
    const struct json_node *list;
    TRY(json_need_string(node, "type", &type));
    if (strcmp(type, "Sequence") == 0 && depth < 8) {
        TRY(json_need(node, "pretokenizers", JSON_ARRAY, &list));
        for (size_t i = 0; i < json_count(list); i++)
            TRY(read_pre_tokenizer(b, json_child(list, i), depth + 1, is_bytes));
        return CZ_OK;
    }
    if (*is_bytes)
        return err_set(CZ_UNSUPPORTED, 0, "%s: %s after ByteLevel",
                       json_where(node, where, sizeof where), type);
    if (strcmp(type, "Split") == 0) return read_split(b, node);
    if (strcmp(type, "Digits") == 0) {
        bool individual;
        TRY(json_opt_bool(node, "individual_digits", false, &individual));
        return bpe_add_step(b, individual ? &bpe_split_digits : &bpe_split_digit_runs, false);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        *is_bytes = true;
        bool add_prefix_space, use_regex;
        TRY(json_opt_bool(node, "add_prefix_space", true, &add_prefix_space));
        TRY(json_opt_bool(node, "use_regex", true, &use_regex));
        if (!use_regex && !add_prefix_space) return CZ_OK;
        return bpe_add_step(b, use_regex ? &bpe_split_gpt2 : &bpe_split_whole, add_prefix_space);
    }
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s: a pre-tokenizer of type %s is not known; ByteLevel, Split, Digits and "
                   "Sequence are",
                   json_where(node, where, sizeof where), type);
}

/* ---- decoder --------------------------------------------------------------------------------- */

/* Fuse joins what is joined anyway. */
static cz_status read_decoder(const struct json_node *node, int depth, int *n_byte_level)
{
    const char *type;
    char where[512];
    const struct json_node *list;
    TRY(json_need_string(node, "type", &type));
    if (strcmp(type, "ByteLevel") == 0) ++*n_byte_level;
    if (strcmp(type, "ByteLevel") == 0 || strcmp(type, "Fuse") == 0) return CZ_OK;
    if (strcmp(type, "Sequence") == 0 && depth < 8) {
        TRY(json_need(node, "decoders", JSON_ARRAY, &list));
        for (size_t i = 0; i < json_count(list); i++)
            TRY(read_decoder(json_child(list, i), depth + 1, n_byte_level));
        return CZ_OK;
    }
    return err_set(CZ_UNSUPPORTED, 0, "%s: a decoder of type %s is not known; ByteLevel is",
                   json_where(node, where, sizeof where), type);
}

cz_status bpe_read_steps(struct bpe *b, const struct json_node *root)
{
    const struct json_node *pre = json_get(root, "pre_tokenizer");
    bool is_bytes = false;
    char where[512];
    TRY(read_normalizer(b, json_get(root, "normalizer"), 0));
    if (!is_absent(pre)) TRY(read_pre_tokenizer(b, pre, 0, &is_bytes));
    if (!is_bytes)
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: the BPE of this file is not byte-level: its pre_tokenizer has no "
                       "ByteLevel",
                       json_where(pre ? pre : root, where, sizeof where));
    const struct json_node *decoder = json_get(root, "decoder");
    int n_byte_level = 0;
    b->is_spaced = is_absent(decoder);
    if (b->is_spaced) return CZ_OK;
    TRY(read_decoder(decoder, 0, &n_byte_level));
    if (n_byte_level != 1)
        return err_set(CZ_UNSUPPORTED, 0, "%s: has %d steps of type ByteLevel instead of one",
                       json_where(decoder, where, sizeof where), n_byte_level);
    return CZ_OK;
}
