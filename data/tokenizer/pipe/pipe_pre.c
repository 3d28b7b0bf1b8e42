/* Pre-tokenizer steps. A step may change a text as a whole; then it cuts it into segments, each a
 * match or what is between matches; a behavior says which of them become pieces, and how they are
 * joined; then it may change each piece. */
#include "data/tokenizer/chars_impl.h"
#include "data/tokenizer/pipe/pipe_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- options --------------------------------------------------------------------------------- */

static const char *const behaviors[] = {[PIPE_REMOVED] = "Removed",
                                        [PIPE_ISOLATED] = "Isolated",
                                        [PIPE_WITH_PREVIOUS] = "MergedWithPrevious",
                                        [PIPE_WITH_NEXT] = "MergedWithNext",
                                        [PIPE_RUNS] = "Contiguous"};

static cz_status read_behavior(const struct json_node *node, enum pipe_behavior fallback,
                               enum pipe_behavior *out)
{
    const char *name;
    char where[512];
    *out = fallback;
    TRY(json_opt_string(node, "behavior", behaviors[fallback], &name));
    for (size_t i = 0; i < CZ_ARRAY_LEN(behaviors); i++)
        if (strcmp(behaviors[i], name) == 0) {
            *out = (enum pipe_behavior)i;
            return CZ_OK;
        }
    return err_set(CZ_UNSUPPORTED, 0, "%s: behavior %s is not known",
                   json_where(node, where, sizeof where), name);
}

/* A member that is one character. */
static cz_status read_char(const struct json_node *node, const char *key, const char *fallback,
                           struct pipe_pre *out)
{
    const char *text;
    char where[512];
    size_t len = 0;
    TRY(json_opt_string(node, key, fallback, &text));
    out->n_mark = strlen(text);
    if (out->n_mark > 0) (void)chars_at(text, out->n_mark, &len);
    if (len != out->n_mark || len == 0)
        return err_set(CZ_CORRUPT, 0, "%s: \"%s\" is one character, not \"%s\"",
                       json_where(node, where, sizeof where), key, text);
    memcpy(out->mark, text, len);
    return CZ_OK;
}

cz_status pipe_scheme_read(const struct json_node *node, enum pipe_scheme *out)
{
    static const char *const names[] = {
        [PIPE_ALWAYS] = "always", [PIPE_FIRST] = "first", [PIPE_NEVER] = "never"};
    const char *name;
    char where[512];
    bool has_prefix;
    TRY(json_opt_bool(node, "add_prefix_space", true, &has_prefix));
    TRY(json_opt_string(node, "prepend_scheme", "always", &name));
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++)
        if (strcmp(names[i], name) == 0) {
            *out = has_prefix ? (enum pipe_scheme)i : PIPE_NEVER;
            return CZ_OK;
        }
    return err_set(CZ_UNSUPPORTED, 0, "%s: prepend_scheme %s is not known",
                   json_where(node, where, sizeof where), name);
}

static cz_status read_metaspace(const struct json_node *node, struct pipe_pre *out)
{
    out->behavior = PIPE_WITH_NEXT;
    TRY(read_char(node, "replacement", "\xE2\x96\x81", out));
    TRY(json_opt_bool(node, "split", true, &out->is_split));
    return pipe_scheme_read(node, &out->scheme);
}

static cz_status read_delimiter(const struct json_node *node, struct pipe_pre *out)
{
    return read_char(node, "delimiter", "", out);
}

static cz_status read_digits(const struct json_node *node, struct pipe_pre *out)
{
    bool individual;
    TRY(json_opt_bool(node, "individual_digits", false, &individual));
    out->behavior = individual ? PIPE_ISOLATED : PIPE_RUNS;
    return CZ_OK;
}

static cz_status read_punctuation(const struct json_node *node, struct pipe_pre *out)
{
    return read_behavior(node, PIPE_ISOLATED, &out->behavior);
}

static cz_status read_fixed(const struct json_node *node, struct pipe_pre *out)
{
    int64_t length;
    char where[512];
    TRY(json_opt_int(node, "length", 5, &length));
    if (length < 1)
        return err_set(CZ_CORRUPT, 0, "%s: a length of %lld", json_where(node, where, sizeof where),
                       (long long)length);
    out->length = (size_t)length;
    out->behavior = PIPE_ISOLATED;
    return CZ_OK;
}

static cz_status read_split(const struct json_node *node, struct pipe_pre *out)
{
    const char *regex;
    TRY(read_behavior(node, PIPE_ISOLATED, &out->behavior));
    TRY(json_opt_bool(node, "invert", false, &out->invert));
    TRY(json_opt_string(json_get(node, "pattern"), "Regex", NULL, &regex));
    if (regex) out->split = bpe_split_find(regex);
    return out->split ? CZ_OK : pipe_pattern_read(node, &out->pattern);
}

static cz_status read_byte_level(const struct json_node *node, struct pipe_pre *out)
{
    out->behavior = PIPE_ISOLATED;
    TRY(json_opt_bool(node, "add_prefix_space", true, &out->add_prefix_space));
    return json_opt_bool(node, "use_regex", true, &out->use_regex);
}

static cz_status read_scripts(const struct json_node *node, struct pipe_pre *out)
{
    char where[512];
    (void)out;
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s: a pre-tokenizer of type UnicodeScripts is not supported: czero has no "
                   "table of Unicode's scripts",
                   json_where(node, where, sizeof where));
}

/* ---- segments -------------------------------------------------------------------------------- */

typedef bool is_match_char(const struct pipe_pre *step, int32_t c);

/* One matching character, or all up to the next. */
static inline size_t by_char(const struct pipe_pre *step, const char *s, size_t n,
                             is_match_char *test, bool *is_match)
{
    size_t at = 0, len;
    *is_match = test(step, chars_at(s, n, &len));
    if (*is_match) return len;
    for (at = len; at < n && !test(step, chars_at(s + at, n - at, &len));) at += len;
    return at;
}

static bool is_white(const struct pipe_pre *step, int32_t c)
{
    (void)step;
    return chars_is_space(c);
}

static bool is_number(const struct pipe_pre *step, int32_t c)
{
    (void)step;
    return (c < 0x80 ? chars_ascii[c] : chars_wide_class(c)) == CHAR_NUMBER;
}

static bool is_punctuation(const struct pipe_pre *step, int32_t c)
{
    (void)step;
    return wp_is_punctuation((uint32_t)c);
}

static size_t next_white(const struct pipe_pre *step, const char *s, size_t n, bool *is_match)
{
    return by_char(step, s, n, is_white, is_match);
}

static size_t next_number(const struct pipe_pre *step, const char *s, size_t n, bool *is_match)
{
    return by_char(step, s, n, is_number, is_match);
}

static size_t next_punctuation(const struct pipe_pre *step, const char *s, size_t n, bool *is_match)
{
    return by_char(step, s, n, is_punctuation, is_match);
}

/* White space is the match, which goes; punctuation stands alone. */
static size_t next_bert(const struct pipe_pre *step, const char *s, size_t n, bool *is_match)
{
    size_t at = 0, len;
    int32_t c = chars_at(s, n, &len);
    *is_match = is_white(step, c);
    if (*is_match || is_punctuation(step, c)) return len;
    for (at = len; at < n; at += len) {
        c = chars_at(s + at, n - at, &len);
        if (is_white(step, c) || is_punctuation(step, c)) break;
    }
    return at;
}

/* \w+|[^\w\s]+ : runs of one kind; white space, the rest, goes. */
static int word_kind(int32_t c)
{
    if (chars_is_word(c)) return 1;
    return chars_is_space(c) ? 0 : 2;
}

static size_t next_word(const struct pipe_pre *step, const char *s, size_t n, bool *is_match)
{
    size_t at, len;
    (void)step;
    const int kind = word_kind(chars_at(s, n, &at));
    *is_match = kind == 0;
    while (at < n && word_kind(chars_at(s + at, n - at, &len)) == kind) at += len;
    return at;
}

/* The mark at s is a match; else all up to the next. */
static size_t next_mark(const struct pipe_pre *step, const char *s, size_t n, bool *is_match)
{
    *is_match = n >= step->n_mark && memcmp(s, step->mark, step->n_mark) == 0;
    if (*is_match) return step->n_mark;
    for (size_t at = 1; at + step->n_mark <= n; at++) {
        const char *found = memchr(s + at, step->mark[0], n - at);
        if (!found) break;
        at = (size_t)(found - s);
        if (n - at >= step->n_mark && memcmp(found, step->mark, step->n_mark) == 0) return at;
    }
    return n;
}

static size_t next_metaspace(const struct pipe_pre *step, const char *s, size_t n, bool *is_match)
{
    *is_match = false;
    return step->is_split ? next_mark(step, s, n, is_match) : n;
}

static size_t next_fixed(const struct pipe_pre *step, const char *s, size_t n, bool *is_match)
{
    size_t at = 0, len;
    *is_match = true;
    for (size_t i = 0; i < step->length && at < n; i++) {
        (void)chars_at(s + at, n - at, &len);
        at += len;
    }
    return at;
}

static size_t next_split(const struct pipe_pre *step, const char *s, size_t n, bool *is_match)
{
    size_t start = n, end;
    *is_match = !step->invert;
    if (step->split) return step->split->next(s, n);
    if (pipe_pattern_find(&step->pattern, s, n, 0, &start, &end) && start == 0) return end;
    *is_match = step->invert;
    return start;
}

static size_t next_byte_level(const struct pipe_pre *step, const char *s, size_t n, bool *is_match)
{
    *is_match = true;
    return step->use_regex ? bpe_split_gpt2.next(s, n) : n;
}

/* ---- changes --------------------------------------------------------------------------------- */

static bool begins_with(const struct pipe_piece *piece, const char *mark, size_t n)
{
    return piece->n >= n && memcmp(piece->s, mark, n) == 0;
}

static cz_status change_metaspace(const struct pipe_pre *step, struct pipe_piece *piece,
                                  struct pipe_text *dst)
{
    const bool has_mark = begins_with(piece, step->mark, step->n_mark) || piece->s[0] == ' ';
    if (!has_mark && !piece->is_rest &&
        (step->scheme == PIPE_ALWAYS || (step->scheme == PIPE_FIRST && piece->is_first)))
        TRY(pipe_text_add(dst, step->mark, step->n_mark));
    const char *s = piece->s, *end = s + piece->n;
    while (s < end) {
        const char *space = memchr(s, ' ', (size_t)(end - s));
        TRY(pipe_text_add(dst, s, (size_t)((space ? space : end) - s)));
        if (!space) break;
        TRY(pipe_text_add(dst, step->mark, step->n_mark));
        s = space + 1;
    }
    return CZ_OK;
}

static cz_status change_byte_level(const struct pipe_pre *step, struct pipe_piece *piece,
                                   struct pipe_text *dst)
{
    if (!step->add_prefix_space || piece->s[0] == ' ' || piece->is_rest) return CZ_OK;
    TRY(pipe_text_add(dst, " ", 1));
    return pipe_text_add(dst, piece->s, piece->n);
}

static cz_status finish_byte_level(const struct pipe_pre *step, struct pipe_piece *piece,
                                   struct pipe_text *dst)
{
    (void)step;
    for (size_t i = 0; i < piece->n; i++) {
        char c[3];
        bpe_alphabet_char((unsigned char)piece->s[i], c);
        TRY(pipe_text_add(dst, c, strlen(c)));
    }
    return CZ_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

const struct pipe_pre_class pipe_pre_classes[] = {
    {"BertPreTokenizer", NULL, NULL, next_bert, NULL},
    {"ByteLevel", read_byte_level, change_byte_level, next_byte_level, finish_byte_level},
    {"CharDelimiterSplit", read_delimiter, NULL, next_mark, NULL},
    {"Digits", read_digits, NULL, next_number, NULL},
    {"FixedLength", read_fixed, NULL, next_fixed, NULL},
    {"Metaspace", read_metaspace, change_metaspace, next_metaspace, NULL},
    {"Punctuation", read_punctuation, NULL, next_punctuation, NULL},
    {"Split", read_split, NULL, next_split, NULL},
    {"UnicodeScripts", read_scripts, NULL, NULL, NULL},
    {"Whitespace", NULL, NULL, next_word, NULL},
    {"WhitespaceSplit", NULL, NULL, next_white, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

void pipe_pre_free(struct pipe_pre *step)
{
    free(step->pattern.text);
}

/* Bytes written as characters are twice as long: one step may do that, not sixteen. */
static bool is_second_byte_level(const struct pipe *p, const struct pipe_pre_class *cls)
{
    for (size_t i = 0; i < p->n_pres; i++)
        if (p->pres[i].cls == cls && cls->finish) return true;
    return false;
}

/* The library's "first" piece begins in the first character of the text as it was. Where that one
 * may have become several, and these several pieces, all of them are first: not known here. */
static cz_status check_first(const struct pipe *p, const struct json_node *node)
{
    const struct pipe_pre *last = &p->pres[p->n_pres - 1];
    bool is_exact = p->n_norms == 0 || p->n_pres == 1;
    char where[512];
    if (last->cls->change != change_metaspace || last->scheme != PIPE_FIRST) return CZ_OK;
    for (size_t i = 0; i + 1 < p->n_pres; i++) is_exact &= p->pres[i].cls->change == NULL;
    if (is_exact) return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s: Metaspace with the prepend_scheme first, behind another step and one that "
                   "changes texts",
                   json_where(node, where, sizeof where));
}

static cz_status pre_add(struct pipe *p, const struct json_node *node, const char *type)
{
    char where[512];
    for (const struct pipe_pre_class *c = pipe_pre_classes; c->name; c++) {
        if (strcmp(c->name, type) != 0) continue;
        if (p->n_pres == PIPE_STEPS_MAX)
            return err_set(CZ_UNSUPPORTED, 0, "%s: more than %d pre-tokenizer steps",
                           json_where(node, where, sizeof where), PIPE_STEPS_MAX);
        if (is_second_byte_level(p, c))
            return err_set(CZ_UNSUPPORTED, 0, "%s: a second %s",
                           json_where(node, where, sizeof where), type);
        struct pipe_pre *step = &p->pres[p->n_pres++];
        step->cls = c;
        if (c->read) TRY(c->read(node, step));
        return check_first(p, node);
    }
    return err_set(CZ_UNSUPPORTED, 0, "%s: a pre-tokenizer of type %s is not known",
                   json_where(node, where, sizeof where), type);
}

cz_status pipe_pres_read(struct pipe *p, const struct json_node *node, int depth)
{
    const char *type;
    const struct json_node *list;
    if (!node || json_type(node) == JSON_NULL) return CZ_OK;
    TRY(json_need_string(node, "type", &type));
    if (strcmp(type, "Sequence") != 0 || depth >= 8) return pre_add(p, node, type);
    TRY(json_need(node, "pretokenizers", JSON_ARRAY, &list));
    for (size_t i = 0; i < json_count(list); i++)
        TRY(pipe_pres_read(p, json_child(list, i), depth + 1));
    return CZ_OK;
}

/* ---- work ------------------------------------------------------------------------------------ */

/* One step's work on one piece. */
struct cutting {
    const struct pipe *p;
    struct pipe_work *w;
    size_t step;
    const struct pipe_piece *whole; /* of which the pieces are parts */
    struct id_list *out;
};

static cz_status take(const struct cutting *c, size_t from, size_t to)
{
    if (from == to) return CZ_OK;
    const struct pipe_pre *step = &c->p->pres[c->step];
    struct pipe_piece piece = {c->whole->s + from, to - from, c->whole->is_first && from == 0,
                               c->whole->is_rest && from == 0, c->whole->n - to + c->whole->n_more};
    if (step->cls->finish && !c->p->takes_bytes) {
        struct pipe_text *dst = &c->w->pres[2 * c->step + 1];
        dst->n = 0;
        TRY(step->cls->finish(step, &piece, dst));
        piece.s = dst->s;
        piece.n = dst->n;
        piece.n_more = 0;
    }
    if (c->step + 1 == c->p->n_pres)
        return c->p->model->word(c->p, c->w, piece.s, piece.n, piece.n_more, c->out);
    return pipe_pre_tokenize(c->p, c->w, c->step + 1, &piece, c->out);
}

/* Whether a segment joins the one before it into one piece. */
static bool joins(enum pipe_behavior behavior, bool is_match, bool was_match)
{
    switch (behavior) {
    case PIPE_WITH_PREVIOUS: return is_match && !was_match;
    case PIPE_WITH_NEXT: return !is_match && was_match;
    case PIPE_RUNS: return is_match == was_match;
    default: return false;
    }
}

cz_status pipe_pre_tokenize(const struct pipe *p, struct pipe_work *w, size_t step,
                            const struct pipe_piece *piece, struct id_list *out)
{
    if (step == p->n_pres) return p->model->word(p, w, piece->s, piece->n, piece->n_more, out);
    const struct pipe_pre *pre = &p->pres[step];
    struct pipe_piece whole = *piece;
    if (pre->cls->change) {
        struct pipe_text *dst = &w->pres[2 * step];
        dst->n = 0;
        TRY(pre->cls->change(pre, &whole, dst));
        if (dst->n > 0) {
            whole.s = dst->s;
            whole.n = dst->n;
            whole.n_more = 0;
        }
    }
    const struct cutting c = {p, w, step, &whole, out};
    size_t begin = 0;
    bool was_match = false;
    for (size_t at = 0, len; at < whole.n; at += len) {
        bool is_match;
        len = pre->cls->next(pre, whole.s + at, whole.n - at, &is_match);
        if (at > 0 && !joins(pre->behavior, is_match, was_match)) {
            if (pre->behavior != PIPE_REMOVED || !was_match) TRY(take(&c, begin, at));
            begin = at;
        }
        was_match = is_match;
    }
    return pre->behavior == PIPE_REMOVED && was_match ? CZ_OK : take(&c, begin, whole.n);
}
