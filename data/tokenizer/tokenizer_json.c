/* Parts of tokenizer.json and its companions that all kinds of tokenizers share: added tokens, the
 * special tokens around a text, and their names. What is not supported is refused with its place in
 * the file: a tokenizer that encodes almost right is worse than none. */
#include "data/tokenizer/tokenizer_json_impl.h"


#include <stdlib.h>
#include <string.h>

static const char *const special_names[CZ_SPECIAL_COUNT] = {
    [CZ_SPECIAL_PAD] = "pad_token",   [CZ_SPECIAL_UNK] = "unk_token",
    [CZ_SPECIAL_CLS] = "cls_token",   [CZ_SPECIAL_SEP] = "sep_token",
    [CZ_SPECIAL_MASK] = "mask_token", [CZ_SPECIAL_BOS] = "bos_token",
    [CZ_SPECIAL_EOS] = "eos_token"};

const char *tokenizer_special_name(enum cz_special which)
{
    return special_names[which];
}

/* ---- the model's type ----
 */

/* model.type; files older than that member show their kind in others. */
cz_status tokenizer_json_model_type(const struct json_node *root, const char **type)
{
    const struct json_node *model;
    TRY(json_need(root, "model", JSON_OBJECT, &model));
    TRY(json_opt_string(model, "type", NULL, type));
    if (*type) return CZ_OK;
    bool is_pieces = json_get(model, "max_input_chars_per_word") != NULL;
    *type = json_get(model, "merges") ? "BPE" : is_pieces ? "WordPiece" : "unknown";
    return CZ_OK;
}

/* ---- added tokens ---------------------------------------------------------------------------- */

/* normalized defaults to "not special", as in the reference. */
cz_status tokenizer_json_added(const struct json_node *node, struct added_token *token, int64_t *id,
                               const char **content)
{
    memset(token, 0, sizeof *token);
    TRY(json_opt_int(node, "id", -1, id));
    TRY(json_need_string(node, "content", content));
    TRY(json_opt_bool(node, "special", false, &token->special));
    TRY(json_opt_bool(node, "lstrip", false, &token->lstrip));
    TRY(json_opt_bool(node, "rstrip", false, &token->rstrip));
    TRY(json_opt_bool(node, "single_word", false, &token->single_word));
    return json_opt_bool(node, "normalized", !token->special, &token->normalized);
}

/* ---- special tokens around a text ------------------------------------------------------------ */

struct post_reader {
    tokenizer_lookup *find;
    const void *user;
    struct cz_tokenizer *tok;
};

static cz_status add_item(const struct json_node *node, struct tokenizer_frame *f, int32_t item,
                          int32_t type)
{
    char where[512];
    if (f->n == TOKENIZER_FRAME_MAX)
        return err_set(CZ_UNSUPPORTED, 0, "%s: more than %d tokens around a text",
                       json_where(node, where, sizeof where), TOKENIZER_FRAME_MAX);
    f->items[f->n] = item;
    f->types[f->n++] = type;
    return CZ_OK;
}

/* By content, never by the id that the file gives beside it: the two may disagree, and the
 * vocabulary decides what the model was trained with. */
static cz_status add_token(const struct post_reader *r, const struct json_node *node,
                           const char *content, struct tokenizer_frame *f, int32_t type)
{
    char where[512];
    int64_t id = r->find(r->user, content);
    if (id < 0)
        return err_set(CZ_CORRUPT, 0, "%s: token \"%s\" is not in the vocabulary",
                       json_where(node, where, sizeof where), content);
    return add_item(node, f, (int32_t)id, type);
}

/* Models have embeddings of two segments. */
static cz_status type_id(const struct json_node *node, int32_t *out)
{
    int64_t type = 0;
    char where[512];
    TRY(json_opt_int(node, "type_id", 0, &type));
    if (type != 0 && type != 1)
        return err_set(CZ_UNSUPPORTED, 0, "%s: segments are 0 and 1, not %lld",
                       json_where(node, where, sizeof where), (long long)type);
    *out = (int32_t)type;
    return CZ_OK;
}

/* A special token of a template may stand for several ids, which are listed beside it. */
static cz_status add_template_token(const struct post_reader *r, const struct json_node *post,
                                    const struct json_node *item, struct tokenizer_frame *f)
{
    const char *name;
    int32_t type = 0;
    TRY(json_need_string(item, "id", &name));
    TRY(type_id(item, &type));
    const struct json_node *special = json_get(json_get(post, "special_tokens"), name);
    const struct json_node *tokens = json_get(special, "tokens");
    if (!tokens || json_count(tokens) == 0) return add_token(r, item, name, f, type);
    for (size_t i = 0; i < json_count(tokens); i++) {
        const char *content;
        TRY(json_as_string(json_child(tokens, i), &content));
        TRY(add_token(r, json_child(tokens, i), content, f, type));
    }
    return CZ_OK;
}

static cz_status add_template_text(const struct json_node *item, struct tokenizer_frame *f)
{
    const char *name;
    int32_t type = 0;
    char where[512];
    TRY(json_need_string(item, "id", &name));
    TRY(type_id(item, &type));
    if (strcmp(name, "A") != 0 && strcmp(name, "B") != 0)
        return err_set(CZ_CORRUPT, 0, "%s: a text is A or B, not \"%s\"",
                       json_where(item, where, sizeof where), name);
    return add_item(item, f, name[0] == 'A' ? TOKENIZER_FIRST : TOKENIZER_SECOND, type);
}

/* A template must name each text once: a row without one, or with one twice, would train something
 * else. */
static cz_status count_texts(const struct json_node *list, const struct tokenizer_frame *f,
                             int n_texts)
{
    int n_first = 0, n_second = 0;
    char where[512];
    for (size_t i = 0; i < f->n; i++) {
        n_first += f->items[i] == TOKENIZER_FIRST;
        n_second += f->items[i] == TOKENIZER_SECOND;
    }
    if (n_first == 1 && n_second == n_texts - 1) return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0, "%s: a template %s once",
                   json_where(list, where, sizeof where),
                   n_texts == 1 ? "for one text names A" : "for two texts names A and B");
}

static cz_status read_template(const struct post_reader *r, const struct json_node *post,
                               const char *key, int n_texts, struct tokenizer_frame *f)
{
    const struct json_node *list;
    char where[512];
    memset(f, 0, sizeof *f);
    TRY(json_need(post, key, JSON_ARRAY, &list));
    for (size_t i = 0; i < json_count(list); i++) {
        const struct json_node *item = json_child(list, i), *token = json_get(item, "SpecialToken");
        const struct json_node *text = json_get(item, "Sequence");
        if (token) {
            TRY(add_template_token(r, post, token, f));
        } else if (text) {
            TRY(add_template_text(text, f));
        } else {
            return err_set(CZ_CORRUPT, 0, "%s: expected SpecialToken or Sequence",
                           json_where(item, where, sizeof where));
        }
    }
    return count_texts(list, f, n_texts);
}

/* "cls": ["<s>", 0] */
static cz_status processing_token(const struct post_reader *r, const struct json_node *post,
                                  const char *key, int32_t *id)
{
    const struct json_node *pair;
    struct tokenizer_frame one = {.n = 0};
    const char *content;
    char where[512];
    TRY(json_need(post, key, JSON_ARRAY, &pair));
    if (json_count(pair) != 2)
        return err_set(CZ_CORRUPT, 0, "%s: expected a token and its id",
                       json_where(pair, where, sizeof where));
    TRY(json_as_string(json_child(pair, 0), &content));
    TRY(add_token(r, pair, content, &one, 0));
    *id = one.items[0];
    return CZ_OK;
}

/* [CLS] A [SEP], [CLS] A [SEP] B [SEP]; RoBERTa has two separators between texts, and all is
 * segment 0. */
static cz_status read_processing(const struct post_reader *r, const struct json_node *post,
                                 bool is_roberta)
{
    int32_t cls = 0, sep = 0;
    TRY(processing_token(r, post, "cls", &cls));
    TRY(processing_token(r, post, "sep", &sep));
    r->tok->one = (struct tokenizer_frame){.items = {cls, TOKENIZER_FIRST, sep}, .n = 3};
    r->tok->two = (struct tokenizer_frame){.items = {cls, TOKENIZER_FIRST, sep}, .n = 3};
    struct tokenizer_frame *f = &r->tok->two;
    int32_t type = is_roberta ? 0 : 1;
    if (is_roberta) TRY(add_item(post, f, sep, 0));
    TRY(add_item(post, f, TOKENIZER_SECOND, type));
    return add_item(post, f, sep, type);
}

/* ByteLevel in this place only moves offsets, which are not computed here. */
static cz_status read_post(const struct post_reader *r, const struct json_node *post)
{
    const char *type;
    char where[512];
    TRY(json_need_string(post, "type", &type));
    if (strcmp(type, "ByteLevel") == 0) return CZ_OK; /* moves offsets alone */
    if (strcmp(type, "BertProcessing") == 0) return read_processing(r, post, false);
    if (strcmp(type, "RobertaProcessing") == 0) return read_processing(r, post, true);
    if (strcmp(type, "TemplateProcessing") == 0) {
        TRY(read_template(r, post, "single", 1, &r->tok->one));
        return read_template(r, post, "pair", 2, &r->tok->two);
    }
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s: a post-processor of type %s is not known; ByteLevel, TemplateProcessing, "
                   "BertProcessing, RobertaProcessing and Sequence are",
                   json_where(post, where, sizeof where), type);
}

/* At most one part may add tokens: others would add theirs around what it made. */
static cz_status read_posts(const struct post_reader *r, const struct json_node *post)
{
    const struct json_node *list;
    const char *type;
    char where[512];
    TRY(json_need_string(post, "type", &type));
    if (strcmp(type, "Sequence") != 0) return read_post(r, post);
    TRY(json_need(post, "processors", JSON_ARRAY, &list));
    for (size_t i = 0; i < json_count(list); i++) {
        const struct json_node *part = json_child(list, i);
        const bool has_frame = r->tok->one.n > 0;
        TRY(json_need_string(part, "type", &type));
        if (has_frame && strcmp(type, "ByteLevel") != 0)
            return err_set(CZ_UNSUPPORTED, 0, "%s: a second post-processor that adds tokens",
                           json_where(part, where, sizeof where));
        TRY(read_post(r, part));
    }
    return CZ_OK;
}

cz_status tokenizer_json_post(const struct json_node *root, tokenizer_lookup *find,
                              const void *user, struct cz_tokenizer *tok)
{
    const struct post_reader reader = {find, user, tok};
    const struct json_node *post = json_get(root, "post_processor");
    if (!post || json_type(post) == JSON_NULL) return CZ_OK;
    return read_posts(&reader, post);
}

/* ---- names of special tokens ----------------------------------------------------------------- */

/* Special tokens are written as a string, or as an object of an added token. */
const char *tokenizer_json_content(const struct json_node *node)
{
    const char *content = NULL;
    if (json_type(node) == JSON_OBJECT) node = json_get(node, "content");
    if (!node || json_type(node) != JSON_STRING) return NULL;
    return json_as_string(node, &content) == CZ_OK ? content : NULL;
}

/* The later file wins, as in transformers. A name that the vocabulary lacks is skipped: these files
 * may list tokens that the model does not have. */
cz_status tokenizer_read_specials(const char *dir, tokenizer_lookup *find, const void *user,
                                  struct cz_tokenizer *tok)
{
    static const char *const files[] = {"special_tokens_map.json", "tokenizer_config.json"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(files); i++) {
        struct json_doc *doc;
        TRY(json_load_object(dir, files[i], &doc));
        if (!doc) continue;
        for (size_t k = 0; k < CZ_SPECIAL_COUNT; k++) {
            const struct json_node *node = json_get(json_root(doc), special_names[k]);
            const char *content = node ? tokenizer_json_content(node) : NULL;
            int64_t id = content ? find(user, content) : -1;
            if (id >= 0) tok->special[k] = id;
        }
        json_free(doc);
    }
    return CZ_OK;
}
