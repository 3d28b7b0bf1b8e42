/* WordPiece from vocab.txt, a token per line, and the names and flags in tokenizer_config.json. */
#include "data/tokenizer/tokenizer_json_impl.h"
#include "data/tokenizer/wordpiece/wordpiece_impl.h"

#include "base/log.h"
#include "base/text/encoding.h"
#include "base/utf8.h"
#include "formats/beneath.h"
#include "formats/file_io.h"

#include <stdlib.h>
#include <string.h>

#define VOCAB_NBYTES_MAX ((size_t)256 << 20)
#define BYTE_ORDER_MARK  "\xEF\xBB\xBF"

/* ---- vocab.txt ------------------------------------------------------------------------------- */

/* Without white space at its end: CR, and whatever an editor left there. */
static size_t trimmed(const char *line, size_t n)
{
    while (n > 0) {
        size_t start = n - 1;
        while (start > 0 && ((unsigned char)line[start] & 0xC0) == 0x80) start--;
        int len = utf8_length(line + start, n - start);
        if (len <= 0 || wp_split(utf8_decode(line + start, len)) != WP_SPACE) break;
        n = start;
    }
    return n;
}

static cz_status read_lines(struct wp_source *src, const char *text, size_t nbytes)
{
    size_t at = 0, bom_nbytes = strlen(BYTE_ORDER_MARK);
    if (nbytes >= bom_nbytes && memcmp(text, BYTE_ORDER_MARK, bom_nbytes) == 0) at = bom_nbytes;
    for (int64_t id = 0; at < nbytes; id++) {
        const char *line = text + at, *end = memchr(line, '\n', nbytes - at);
        size_t n = end ? (size_t)(end - line) : nbytes - at;
        TRY(encoding_check(src->path, (uint64_t)id + 1, line, n));
        TRY(wp_source_add_token(src, line, trimmed(line, n), id));
        at += n + 1;
    }
    return CZ_OK;
}

/* The tokens as they were read, a line each: what an export writes. A byte order mark, CRs and
 * white space at line ends are gone; the number of a line is still the id of its token. */
static cz_status keep_lines(struct cz_tokenizer *tok, const char *text, size_t nbytes)
{
    size_t at = 0, bom_nbytes = strlen(BYTE_ORDER_MARK);
    if (nbytes >= bom_nbytes && memcmp(text, BYTE_ORDER_MARK, bom_nbytes) == 0) at = bom_nbytes;
    char *end = tok->lines = malloc(nbytes + 1);
    if (!end) return err_set(CZ_NOMEM, 0, "no memory for the lines of vocab.txt");
    while (at < nbytes) {
        const char *line = text + at, *feed = memchr(line, '\n', nbytes - at);
        const size_t n = feed ? (size_t)(feed - line) : nbytes - at, kept = trimmed(line, n);
        memcpy(end, line, kept);
        end += kept;
        *end++ = '\n';
        at += n + 1;
    }
    tok->lines_nbytes = (size_t)(end - tok->lines);
    return CZ_OK;
}

/* ---- tokenizer_config.json ------------------------------------------------------------------- */

/* Classes of transformers that read vocab.txt as BERT does (also with "Fast" at the end). */
static const char *const bert_like[] = {
    "BertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "MobileBertTokenizer",
    "LayoutLMTokenizer",
    "LayoutLMv2Tokenizer",
    "LxmertTokenizer",
    "ConvBertTokenizer",
    "RealmTokenizer",
    "SqueezeBertTokenizer",
    "ErnieTokenizer",
    "RetriBertTokenizer",
    "TokenizersBackend",
    "PreTrainedTokenizer",
    "DPRQuestionEncoderTokenizer",
    "DPRReaderTokenizer",
    "DPRContextEncoderTokenizer",
};

static bool is_bert_like(const char *name)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(bert_like); i++) {
        size_t n = strlen(bert_like[i]);
        if (strncmp(name, bert_like[i], n) == 0 &&
            (name[n] == '\0' || strcmp(name + n, "Fast") == 0))
            return true;
    }
    return false;
}

static cz_status check_class(const struct json_node *config)
{
    const char *name;
    char where[512];
    TRY(json_opt_string(config, "tokenizer_class", NULL, &name));
    if (!name || is_bert_like(name)) return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s: %s does not read vocab.txt as BERT does; with a tokenizer.json (saved by "
                   "transformers' fast class) it may be read",
                   json_where(json_get(config, "tokenizer_class"), where, sizeof where), name);
}

static cz_status read_rules(const struct json_node *config, struct wp_rules *rules)
{
    bool basic;
    rules->clean = true;
    TRY(json_opt_bool(config, "do_lower_case", true, &rules->lowercase));
    TRY(json_opt_bool(config, "strip_accents", rules->lowercase, &rules->strip_accents));
    TRY(json_opt_bool(config, "tokenize_chinese_chars", true, &rules->split_chinese));
    TRY(json_opt_bool(config, "do_basic_tokenize", true, &basic));
    if (!basic)
        LOGV(LOG_WARN, SUB_DATA,
             "do_basic_tokenize false in tokenizer_config.json does nothing: texts are split at "
             "white space and punctuation all the same, as transformers' fast tokenizer does");
    return CZ_OK;
}

/* ---- added tokens ---------------------------------------------------------------------------- */

/* special_tokens_map.json, tokenizer_config.json, added_tokens.json; any may be missing (NULL). */
struct config {
    struct json_doc *docs[3];
    const struct json_node *map, *config, *added;
};

static cz_status config_load(struct config *c, const char *dir)
{
    static const char *const files[] = {"special_tokens_map.json", "tokenizer_config.json",
                                        "added_tokens.json"};
    const struct json_node **roots[] = {&c->map, &c->config, &c->added};
    for (size_t i = 0; i < CZ_ARRAY_LEN(files); i++) {
        TRY(json_load_object(dir, files[i], &c->docs[i]));
        if (c->docs[i]) *roots[i] = json_root(c->docs[i]);
    }
    return CZ_OK;
}

/* What the files call a special token, else what BERT does; NULL: nothing. */
static const char *name_of(const struct config *c, enum cz_special which)
{
    const struct json_node *nodes[] = {json_get(c->config, tokenizer_special_name(which)),
                                       json_get(c->map, tokenizer_special_name(which))};
    for (size_t i = 0; i < CZ_ARRAY_LEN(nodes); i++) {
        const char *content = nodes[i] ? tokenizer_json_content(nodes[i]) : NULL;
        if (content) return content;
    }
    return wordpiece_usual_name(which);
}

static cz_status add_special(struct wp_source *src, const char *content, bool optional)
{
    struct wp_added a = {content, {.id = -1, .special = true}, optional};
    return content ? wp_source_add_added(src, &a) : CZ_OK;
}

/* A list of contents, or an object of them. */
static cz_status add_extra(struct wp_source *src, const struct json_node *list)
{
    for (size_t i = 0; i < json_count(list); i++)
        TRY(add_special(src, tokenizer_json_content(json_child(list, i)), false));
    return CZ_OK;
}

/* In the order in which transformers adds them, which decides ids behind the vocabulary. */
static cz_status add_all(struct wp_source *src, const struct config *c)
{
    const struct json_node *decoder = json_get(c->config, "added_tokens_decoder");
    const struct json_node *files[] = {c->config, c->map};
    if (decoder) {
        /* "added_tokens_decoder": {"101": {"content": "[CLS]", …}, …} */
        for (size_t i = 0; i < json_count(decoder); i++) {
            const struct json_node *node = json_child(decoder, i);
            struct wp_added a = {0};
            int64_t id;
            TRY(tokenizer_json_added(node, &a.token, &id, &a.content));
            id = json_key(node) ? strtol(json_key(node), NULL, 10) : -1;
            a.token.id = id < 0 || id > WP_ID_MAX ? -1 : (int32_t)id;
            TRY(wp_source_add_added(src, &a));
        }
    } else {
        /* added_tokens.json: {"<tok>": 30522, …} */
        for (size_t i = 0; i < json_count(c->added); i++) {
            struct wp_added a = {.content = json_key(json_child(c->added, i)),
                                 .token.normalized = true};
            int64_t id;
            TRY(json_as_int(json_child(c->added, i), &id));
            a.token.id = id < 0 || id > WP_ID_MAX ? -1 : (int32_t)id;
            TRY(wp_source_add_added(src, &a));
        }
    }
    for (int i = 0; i < CZ_SPECIAL_COUNT; i++)
        TRY(add_special(src, name_of(c, (enum cz_special)i), true));
    for (size_t i = 0; i < CZ_ARRAY_LEN(files); i++) {
        TRY(add_extra(src, json_get(files[i], "additional_special_tokens")));
        TRY(add_extra(src, json_get(files[i], "extra_special_tokens")));
    }
    return CZ_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static cz_status set_specials(struct wordpiece *wp, const struct config *c, const char *path)
{
    struct cz_tokenizer *tok = &wp->tok;
    for (int i = 0; i < CZ_SPECIAL_COUNT; i++) {
        const char *name = name_of(c, (enum cz_special)i);
        if (name) tok->special[i] = wordpiece_find(wp, name);
        bool is_needed = i == CZ_SPECIAL_CLS || i == CZ_SPECIAL_SEP;
        if (is_needed && tok->special[i] < 0)
            return err_set(CZ_CORRUPT, 0, "%s: the special token \"%s\" is missing", path, name);
    }
    int32_t cls = (int32_t)tok->special[CZ_SPECIAL_CLS],
            sep = (int32_t)tok->special[CZ_SPECIAL_SEP];
    tok->one = (struct tokenizer_frame){.items = {cls, TOKENIZER_FIRST, sep}, .n = 3};
    tok->two = (struct tokenizer_frame){.items = {cls, TOKENIZER_FIRST, sep, TOKENIZER_SECOND, sep},
                                        .types = {0, 0, 0, 1, 1},
                                        .n = 5};
    return CZ_OK;
}

static cz_status open_text(const char *path, const char *text, size_t nbytes,
                           const struct config *c, struct wordpiece **out)
{
    struct wp_source src = {.path = path,
                            .unk = name_of(c, CZ_SPECIAL_UNK),
                            .prefix = "##",
                            .n_chars_max = WP_N_CHARS_DEFAULT};
    cz_status st;
    TRY_GOTO(read_lines(&src, text, nbytes), done);
    TRY_GOTO(check_class(c->config), done);
    TRY_GOTO(read_rules(c->config, &src.rules), done);
    TRY_GOTO(add_all(&src, c), done);
    TRY_GOTO(wordpiece_build(&src, out), done);
    TRY_GOTO(set_specials(*out, c, path), done);
done:
    wp_source_free(&src);
    return st;
}

cz_status wordpiece_open_vocab(const char *dir, struct cz_tokenizer **out)
{
    struct config config = {0};
    struct wordpiece *wp = NULL;
    char *path = file_join(dir, "vocab.txt"), *text = NULL;
    size_t nbytes;
    cz_status st;
    *out = NULL;
    if (!path) return err_set(CZ_NOMEM, 0, "no memory for a path");
    TRY_GOTO(beneath_load(dir, "vocab.txt", VOCAB_NBYTES_MAX, &text, &nbytes), done);
    TRY_GOTO(config_load(&config, dir), done);
    TRY_GOTO(open_text(path, text, nbytes, &config, &wp), done);
    TRY_GOTO(keep_lines(&wp->tok, text, nbytes), done);
    *out = &wp->tok;
done:
    if (st != CZ_OK && wp) cz_tokenizer_close(&wp->tok);
    for (size_t i = 0; i < CZ_ARRAY_LEN(config.docs); i++) json_free(config.docs[i]);
    free(text);
    free(path);
    return st;
}
