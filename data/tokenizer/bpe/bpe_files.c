/* Opening a byte-level BPE tokenizer of the older kind: vocab.json and merges.txt, with
 * tokenizer_config.json, added_tokens.json and special_tokens_map.json where they stand beside
 * them. How text is split follows from the class that tokenizer_config.json names. */
#include "data/tokenizer/bpe/bpe_open_impl.h"

#include "formats/beneath.h"
#include "formats/file_io.h"

#include <stdlib.h>
#include <string.h>

#define MERGES_NBYTES_MAX ((size_t)256 << 20)

/* What a class of transformers' does beyond its files. */
struct bpe_kind {
    const char *class_name; /* without "Fast" */
    const struct bpe_split *split;
    bool nfc;
    bool is_roberta;                        /* <s> text </s> */
    const char *specials[CZ_SPECIAL_COUNT]; /* where no file names one */
};

#define END "<|endoftext|>"
static const struct bpe_kind kinds[] = {
    {"GPT2Tokenizer",
     &bpe_split_gpt2,
     false,
     false,
     {[CZ_SPECIAL_BOS] = END, [CZ_SPECIAL_EOS] = END, [CZ_SPECIAL_UNK] = END}},
    {"Qwen2Tokenizer",
     &bpe_split_qwen2,
     true,
     false,
     {[CZ_SPECIAL_EOS] = END, [CZ_SPECIAL_UNK] = END, [CZ_SPECIAL_PAD] = END}},
    {"RobertaTokenizer",
     &bpe_split_gpt2,
     false,
     true,
     {[CZ_SPECIAL_BOS] = "<s>",
      [CZ_SPECIAL_EOS] = "</s>",
      [CZ_SPECIAL_UNK] = "<unk>",
      [CZ_SPECIAL_SEP] = "</s>",
      [CZ_SPECIAL_PAD] = "<pad>",
      [CZ_SPECIAL_CLS] = "<s>",
      [CZ_SPECIAL_MASK] = "<mask>"}},
};

/* The files while they are open. */
struct bpe_folder {
    const char *dir;
    const struct bpe_kind *kind;
    struct json_doc *vocab, *config, *map, *added;
    struct bpe_source src;
};

static const struct json_node *root_of(const struct json_doc *doc)
{
    return doc ? json_root(doc) : NULL;
}

/* ---- which kind ------------------------------------------------------------------------------ */

static bool is_class(const char *name, const struct bpe_kind *kind)
{
    size_t n = strlen(kind->class_name);
    return strncmp(name, kind->class_name, n) == 0 &&
           (name[n] == '\0' || strcmp(name + n, "Fast") == 0);
}

/* Files of this age do not say how text is split; the class's name does. */
static cz_status choose_kind(struct bpe_folder *f)
{
    const struct json_node *config = root_of(f->config);
    const char *name = NULL;
    char where[512];
    if (config) TRY(json_opt_string(config, "tokenizer_class", NULL, &name));
    if (!name) {
        /* No class is named: by the model's type in config.json, else as GPT-2. */
        struct json_doc *doc;
        const char *type = NULL;
        TRY(json_load_object(f->dir, "config.json", &doc));
        const struct json_node *node = doc ? json_get(json_root(doc), "model_type") : NULL;
        if (node && json_type(node) == JSON_STRING) TRY(json_as_string(node, &type));
        f->kind = &kinds[0];
        if (type && strncmp(type, "qwen", 4) == 0) f->kind = &kinds[1];
        if (type && strcmp(type, "roberta") == 0) f->kind = &kinds[2];
        json_free(doc);
        return CZ_OK;
    }
    for (size_t i = 0; i < CZ_ARRAY_LEN(kinds); i++)
        if (is_class(name, &kinds[i])) {
            f->kind = &kinds[i];
            return CZ_OK;
        }
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s: how %s splits text is not known without a tokenizer.json; GPT2Tokenizer, "
                   "Qwen2Tokenizer and RobertaTokenizer are known",
                   json_where(json_get(config, "tokenizer_class"), where, sizeof where), name);
}

/* ---- added tokens ---------------------------------------------------------------------------- */

/* {"151643": {"content": "<|endoftext|>", …}} */
static cz_status add_decoder_tokens(struct bpe_folder *f)
{
    const struct json_node *list = json_get(root_of(f->config), "added_tokens_decoder");
    char where[512];
    for (size_t i = 0; list && i < json_count(list); i++) {
        struct bpe_added added = {.node = json_child(list, i)};
        const char *key = json_key(added.node);
        char *end = NULL;
        int64_t id;
        TRY(tokenizer_json_added(added.node, &added.token, &id, &added.content));
        long long value = key ? strtoll(key, &end, 10) : -1;
        if (value < 0 || value > BPE_ID_MAX || !end || *end || end == key)
            return err_set(CZ_CORRUPT, 0, "%s: \"%s\" is not an id (0 … %d)",
                           json_where(added.node, where, sizeof where), key ? key : "", BPE_ID_MAX);
        added.token.id = (int32_t)value;
        TRY(bpe_source_add(&f->src, &added));
    }
    return CZ_OK;
}

/* added_tokens.json: {"<|im_start|>": 151644}; those that are known from above stay as they are. */
static cz_status add_listed_tokens(struct bpe_folder *f)
{
    const struct json_node *list = root_of(f->added);
    char where[512];
    for (size_t i = 0; list && i < json_count(list); i++) {
        struct bpe_added added = {.node = json_child(list, i)};
        int64_t id;
        added.content = json_key(added.node);
        TRY(json_as_int(added.node, &id));
        if (id < 0 || id > BPE_ID_MAX)
            return err_set(CZ_CORRUPT, 0, "%s: id %lld is outside 0 … %d",
                           json_where(added.node, where, sizeof where), (long long)id, BPE_ID_MAX);
        added.token = (struct added_token){.id = (int32_t)id, .special = true};
        if (!added_tokens_find(&f->src.index, added.content, strlen(added.content)))
            TRY(bpe_source_add(&f->src, &added));
    }
    return CZ_OK;
}

/* A special token is cut out of texts. One that no file gives an id gets the next, as in
 * transformers; none is left where ids end. */
static cz_status add_special(struct bpe_folder *f, const struct json_node *named,
                             const char *content)
{
    const struct json_node *node = json_get(json_root(f->vocab), content);
    int64_t id;
    if (!*content || added_tokens_find(&f->src.index, content, strlen(content))) return CZ_OK;
    if (node)
        TRY(json_as_int(node, &id));
    else
        TRY(bpe_largest_id(&f->src, &id));
    if (!node) id++;
    if (id < 0 || id > BPE_ID_MAX) return CZ_OK; /* the vocabulary's reader says so */
    struct bpe_added added = {.node = node, .content = content, .token = {.special = true}};
    if (named && json_type(named) == JSON_OBJECT) {
        int64_t none;
        TRY(tokenizer_json_added(named, &added.token, &none, &added.content));
        added.token.special = true;
    }
    added.token.normalized = false;
    added.token.id = (int32_t)id;
    return bpe_source_add(&f->src, &added);
}

/* What the files call a special token: the class's own name where they have no such key, nothing
 * where they say null. *named: the files' node, or NULL. */
static const char *special_of(const struct bpe_folder *f, enum cz_special which,
                              const struct json_node **named)
{
    const char *key = tokenizer_special_name(which);
    *named = json_get(root_of(f->config), key);
    if (!*named) *named = json_get(root_of(f->map), key);
    return *named ? tokenizer_json_content(*named) : f->kind->specials[which];
}

/* In transformers' order, which gives new ones their ids. */
static cz_status add_specials(struct bpe_folder *f)
{
    static const enum cz_special order[CZ_SPECIAL_COUNT] = {
        CZ_SPECIAL_BOS, CZ_SPECIAL_EOS, CZ_SPECIAL_UNK, CZ_SPECIAL_SEP,
        CZ_SPECIAL_PAD, CZ_SPECIAL_CLS, CZ_SPECIAL_MASK};
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
    const struct json_node *named;
    for (size_t i = 0; i < CZ_SPECIAL_COUNT; i++) {
        const char *content = special_of(f, order[i], &named);
        if (content) TRY(add_special(f, named, content));
    }
    for (size_t i = 0; i < CZ_ARRAY_LEN(lists); i++) {
        const struct json_node *list = json_get(root_of(f->config), lists[i]);
        if (!list) list = json_get(root_of(f->map), lists[i]);
        for (size_t k = 0; list && k < json_count(list); k++) {
            const char *content = tokenizer_json_content(json_child(list, k));
            if (content) TRY(add_special(f, json_child(list, k), content));
        }
    }
    return CZ_OK;
}

/* ---- merges.txt ------------------------------------------------------------------------------ */

static size_t count_lines(const char *text, size_t n)
{
    size_t lines = 1;
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    return lines;
}

#define VERSION_LINE "#version: 0.2\n"

static bool is_version(const char *line, size_t n)
{
    return n >= 8 && memcmp(line, "#version", 8) == 0;
}

/* The rank of a merge is its line; a "#version" line does not count. What was read is kept for
 * exports. */
static cz_status read_merge_lines(struct bpe *b, const struct bpe_source *src, const char *path,
                                  const char *text, size_t n)
{
    struct bpe_place place = {.path = path};
    uint32_t rank = 0;
    char *kept = b->base.lines = malloc(n + sizeof VERSION_LINE);
    if (!kept) return err_set(CZ_NOMEM, 0, "%s: no memory for its lines", path);
    /* transformers passes over the first line, whatever it is. */
    if (is_version(text, n)) kept = stpcpy(kept, VERSION_LINE);
    TRY(bpe_merges_init(&b->model.merges, count_lines(text, n)));
    while (n > 0) {
        const char *end = memchr(text, '\n', n);
        size_t line = end ? (size_t)(end - text) : n, taken = end ? line + 1 : line, n_left;
        if (line > 0 && text[line - 1] == '\r') line--;
        place.line++;
        if (line > 0 && !is_version(text, line)) {
            TRY(bpe_split_merge(text, line, &n_left, &place));
            TRY(bpe_add_merge(b, src, rank++, text, n_left, text + n_left + 1, line - n_left - 1,
                              &place));
            memcpy(kept, text, line);
            kept += line;
            *kept++ = '\n';
        }
        text += taken;
        n -= taken;
    }
    b->base.lines_nbytes = (size_t)(kept - b->base.lines);
    return CZ_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Tokens around a text: RoBERTa's; else a first and a last one, if the config says so. */
static cz_status set_frames(struct bpe *b, const struct bpe_folder *f)
{
    struct cz_tokenizer *tok = &b->base;
    bool add_bos, add_eos;
    const int64_t bos = tok->special[CZ_SPECIAL_BOS], eos = tok->special[CZ_SPECIAL_EOS];
    if (f->kind->is_roberta) {
        int64_t cls = bpe_find_token(&f->src, "<s>"), sep = bpe_find_token(&f->src, "</s>");
        if (tok->special[CZ_SPECIAL_CLS] >= 0) cls = tok->special[CZ_SPECIAL_CLS];
        if (tok->special[CZ_SPECIAL_SEP] >= 0) sep = tok->special[CZ_SPECIAL_SEP];
        if (cls < 0 || sep < 0)
            return err_set(CZ_CORRUPT, 0, "%s/vocab.json: RoBERTa's <s> and </s> are not in it",
                           f->dir);
        int32_t c = (int32_t)cls, s = (int32_t)sep;
        tok->one = (struct tokenizer_frame){.items = {c, TOKENIZER_FIRST, s}, .n = 3};
        tok->two = (struct tokenizer_frame){
            .items = {c, TOKENIZER_FIRST, s, s, TOKENIZER_SECOND, s}, .n = 6};
        return CZ_OK;
    }
    if (!f->config) return CZ_OK;
    TRY(json_opt_bool(root_of(f->config), "add_bos_token", false, &add_bos));
    TRY(json_opt_bool(root_of(f->config), "add_eos_token", false, &add_eos));
    add_bos = add_bos && bos >= 0;
    add_eos = add_eos && eos >= 0;
    if (!add_bos && !add_eos) return CZ_OK;
    struct tokenizer_frame *two = &tok->two;
    two->n = 0;
    for (int32_t i = 0; i < 2; i++) {
        const int32_t items[] = {(int32_t)bos, i ? TOKENIZER_SECOND : TOKENIZER_FIRST,
                                 (int32_t)eos};
        const bool has[] = {add_bos, true, add_eos};
        for (size_t k = 0; k < CZ_ARRAY_LEN(items); k++) {
            if (!has[k]) continue;
            two->items[two->n] = items[k];
            two->types[two->n++] = i;
        }
        if (i == 0) tok->one = *two;
    }
    return CZ_OK;
}

static cz_status read_folder(struct bpe *b, struct bpe_folder *f)
{
    bool add_prefix_space = false;
    TRY(json_load_object(f->dir, "vocab.json", &f->vocab));
    if (!f->vocab) return err_set(CZ_NOTFOUND, 0, "%s: vocab.json is missing", f->dir);
    TRY(json_load_object(f->dir, "tokenizer_config.json", &f->config));
    TRY(json_load_object(f->dir, "special_tokens_map.json", &f->map));
    TRY(json_load_object(f->dir, "added_tokens.json", &f->added));
    TRY(choose_kind(f));
    f->src.vocab = json_root(f->vocab);
    TRY(add_decoder_tokens(f));
    TRY(add_listed_tokens(f));
    TRY(add_specials(f));
    if (f->config)
        TRY(json_opt_bool(root_of(f->config), "add_prefix_space", false, &add_prefix_space));
    b->nfc = f->kind->nfc;
    TRY(bpe_add_step(b, f->kind->split, add_prefix_space && !f->kind->nfc));
    if (f->kind->nfc && add_prefix_space) TRY(bpe_add_step(b, &bpe_split_whole, true));
    TRY(bpe_read_vocab(b, &f->src, false));
    char *path = file_join(f->dir, "merges.txt"), *text = NULL;
    size_t nbytes;
    if (!path) return err_set(CZ_NOMEM, 0, "no memory for a path");
    cz_status st = beneath_load(f->dir, "merges.txt", MERGES_NBYTES_MAX, &text, &nbytes);
    if (st == CZ_OK && memchr(text, '\0', nbytes))
        st = err_set(CZ_CORRUPT, 0, "%s: contains a NUL byte: not a text", path);
    if (st == CZ_OK) st = read_merge_lines(b, &f->src, path, text, nbytes);
    free(text);
    free(path);
    TRY(st);
    TRY(bpe_finish(b, &f->src, f->dir));
    for (int k = 0; k < CZ_SPECIAL_COUNT; k++) {
        const struct json_node *named;
        const char *content = special_of(f, (enum cz_special)k, &named);
        if (content && !named) b->base.special[k] = bpe_find_token(&f->src, content);
    }
    return set_frames(b, f);
}

cz_status bpe_open_vocab(const char *dir, struct cz_tokenizer **out)
{
    struct bpe_folder folder = {.dir = dir};
    struct bpe *b;
    *out = NULL;
    TRY(bpe_create(&b));
    cz_status st = read_folder(b, &folder);
    struct bpe_folder *f = &folder;
    bpe_source_free(&f->src);
    json_free(f->vocab);
    json_free(f->config);
    json_free(f->map);
    json_free(f->added);
    if (st != CZ_OK) {
        cz_tokenizer_close(&b->base);
        return st;
    }
    *out = &b->base;
    return CZ_OK;
}
