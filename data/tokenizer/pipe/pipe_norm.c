/* Normalizer steps: what tokenizer.json can name, and SentencePiece's own. */
#include "base/utf8.h"
#include "data/tokenizer/chars_impl.h"
#include "data/tokenizer/pipe/pipe_impl.h"

#include <stdlib.h>
#include <string.h>

static cz_status pipe_text_too_long(void)
{
    return err_set(CZ_INVALID, 0, "the tokenizer's steps make a text more than %d times longer",
                   PIPE_GROWTH_MAX);
}

cz_status pipe_text_reserve(struct pipe_text *t, size_t n)
{
    if (n <= t->cap - t->n) return CZ_OK;
    if (t->limit > 0 && (t->n > t->limit || n > t->limit - t->n)) return pipe_text_too_long();
    if (n > SIZE_MAX / 4 - t->cap) return err_set(CZ_NOMEM, 0, "no memory for %zu bytes", n);
    const size_t cap = t->n + n + t->cap / 2 + 256;
    char *s = realloc(t->s, cap);
    if (!s) return err_set(CZ_NOMEM, 0, "no memory for %zu bytes of text", cap);
    t->s = s;
    t->cap = cap;
    return CZ_OK;
}

cz_status pipe_text_add_char(struct pipe_text *t, uint32_t c)
{
    char bytes[4];
    return pipe_text_add(t, bytes, utf8_encode(c, bytes));
}

/* ---- options --------------------------------------------------------------------------------- */

static cz_status read_content(const struct json_node *node, const char *key,
                              struct pipe_text *content)
{
    const char *text;
    TRY(json_need_string(node, key, &text));
    return pipe_text_add(content, text, strlen(text));
}

static cz_status read_prepend(const struct json_node *node, struct pipe_norm *out)
{
    return read_content(node, "prepend", &out->content);
}

static cz_status read_replace(const struct json_node *node, struct pipe_norm *out)
{
    TRY(read_content(node, "content", &out->content));
    return pipe_pattern_read(node, &out->pattern);
}

static cz_status read_strip(const struct json_node *node, struct pipe_norm *out)
{
    TRY(json_opt_bool(node, "strip_left", true, &out->left));
    return json_opt_bool(node, "strip_right", true, &out->right);
}

static cz_status read_bert(const struct json_node *node, struct pipe_norm *out)
{
    struct wp_rules rules;
    TRY(json_opt_bool(node, "clean_text", true, &rules.clean));
    TRY(json_opt_bool(node, "handle_chinese_chars", true, &rules.split_chinese));
    TRY(json_opt_bool(node, "lowercase", true, &rules.lowercase));
    TRY(json_opt_bool(node, "strip_accents", rules.lowercase, &rules.strip_accents));
    out->chars = wp_chars_of(&rules);
    return out->chars ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for BERT's characters");
}

static cz_status read_nfc(const struct json_node *node, struct pipe_norm *out)
{
    const char *type;
    TRY(json_need_string(node, "type", &type));
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD"};
    for (int i = 0; i < 4; i++)
        if (strcmp(names[i], type) == 0) out->form = i;
    return CZ_OK;
}

static int base64_digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* *out: *n bytes for free(), NULL on errors. CZ_CORRUPT, CZ_NOMEM. */
static cz_status base64_read(const char *text, char **out, size_t *n)
{
    size_t len = strlen(text);
    while (len > 0 && text[len - 1] == '=') len--;
    const size_t cap = len - len / 4 - (len % 4 > 0); /* three bytes in four digits */
    char *bytes = *out = malloc(cap + 1);
    uint32_t bits = 0;
    int n_bits = 0;
    *n = 0;
    if (!bytes) return err_set(CZ_NOMEM, 0, "no memory for its character map");
    for (size_t i = 0; i < len; i++) {
        const int digit = base64_digit(text[i]);
        bits = bits << 6 | (uint32_t)(digit & 63);
        n_bits += 6;
        if (digit < 0 || (n_bits >= 8 && *n == cap)) {
            free(bytes);
            *out = NULL;
            return err_set(CZ_CORRUPT, 0, "its character map is not base64");
        }
        if (n_bits >= 8) bytes[(*n)++] = (char)(bits >> (n_bits -= 8));
    }
    return CZ_OK;
}

static cz_status read_precompiled(const struct json_node *node, struct pipe_norm *out)
{
    const char *text;
    char where[512], *blob;
    size_t n;
    TRY(json_need_string(node, "precompiled_charsmap", &text));
    cz_status st = base64_read(text, &blob, &n);
    if (st == CZ_OK) st = charsmap_init(&out->map, blob, n);
    free(blob);
    if (st != CZ_OK) (void)err_prefix("%s", json_where(node, where, sizeof where));
    return st;
}

/* ---- work ------------------------------------------------------------------------------------ */

static cz_status run_prepend(const struct pipe_norm *step, struct pipe_piece *piece,
                             struct pipe_text *dst)
{
    if (piece->n > 0 && !piece->is_rest) TRY(pipe_text_add(dst, step->content.s, step->content.n));
    return pipe_text_add(dst, piece->s, piece->n);
}

/* One byte by a few, which is what SentencePiece's files ask for. */
static cz_status replace_byte(const struct pipe_norm *step, const struct pipe_piece *piece,
                              struct pipe_text *dst)
{
    const char byte = step->pattern.text[0];
    const char *s = piece->s, *end = s + piece->n;
    TRY(pipe_text_reserve(dst, piece->n + piece->n / 2 + 16));
    for (; s < end; s++) {
        if (*s == byte) {
            TRY(pipe_text_add(dst, step->content.s, step->content.n));
        } else {
            if (dst->n == dst->cap) TRY(pipe_text_reserve(dst, (size_t)(end - s)));
            dst->s[dst->n++] = *s;
        }
    }
    return CZ_OK;
}

static cz_status run_replace(const struct pipe_norm *step, struct pipe_piece *piece,
                             struct pipe_text *dst)
{
    size_t done = 0, start, end;
    if (!step->pattern.match && step->pattern.n == 1 && step->content.n > 0)
        return replace_byte(step, piece, dst);
    while (pipe_pattern_find(&step->pattern, piece->s, piece->n, done, &start, &end)) {
        if (start == 0 && step->content.n == 0) piece->is_first = false;
        TRY(pipe_text_add(dst, piece->s + done, start - done));
        TRY(pipe_text_add(dst, step->content.s, step->content.n));
        done = end;
    }
    return pipe_text_add(dst, piece->s + done, piece->n - done);
}

static cz_status run_strip(const struct pipe_norm *step, struct pipe_piece *piece,
                           struct pipe_text *dst)
{
    const char *s = piece->s;
    size_t from = 0, to = piece->n, len;
    while (step->left && !piece->is_rest && from < to &&
           chars_is_space(chars_at(s + from, to - from, &len)))
        from += len;
    while (step->right && to > from && chars_is_space(chars_before(s, to, &len))) to -= len;
    if (from > 0) piece->is_first = false;
    return pipe_text_add(dst, s + from, to - from);
}

static cz_status run_bert(const struct pipe_norm *step, struct pipe_piece *piece,
                          struct pipe_text *dst)
{
    TRY(pipe_text_reserve(dst, wp_normalized_nbytes_max(piece->n)));
    dst->n += wp_normalize(step->chars, piece->s, piece->n, dst->s + dst->n);
    return CZ_OK;
}

/* Control characters go, odd white space becomes a space (the list is SentencePiece's). */
static int nmt_class(int32_t c)
{
    static const struct wp_range gone[] = {{0x1, 0x8},   {0xB, 0xB},   {0xE, 0x1F},
                                           {0x7F, 0x7F}, {0x8F, 0x8F}, {0x9F, 0x9F}};
    static const struct wp_range spaces[] = {{0x9, 0xA},       {0xC, 0xD},       {0x1680, 0x1680},
                                             {0x200B, 0x200F}, {0x2028, 0x2029}, {0x2581, 0x2581},
                                             {0xFEFF, 0xFEFF}, {0xFFFD, 0xFFFD}};
    const uint32_t u = (uint32_t)c;
    for (size_t i = 0; i < CZ_ARRAY_LEN(gone); i++)
        if (u >= gone[i].first && u <= gone[i].last) return -1;
    for (size_t i = 0; i < CZ_ARRAY_LEN(spaces); i++)
        if (u >= spaces[i].first && u <= spaces[i].last) return 1;
    return 0;
}

static cz_status run_nmt(const struct pipe_norm *step, struct pipe_piece *piece,
                         struct pipe_text *dst)
{
    (void)step;
    for (size_t at = 0, len; at < piece->n; at += len) {
        const int class = nmt_class(chars_at(piece->s + at, piece->n - at, &len));
        if (class == 0) TRY(pipe_text_add(dst, piece->s + at, len));
        if (class > 0) TRY(pipe_text_add(dst, " ", 1));
        if (class < 0 && at == 0) piece->is_first = false;
    }
    return CZ_OK;
}

static cz_status run_byte_level(const struct pipe_norm *step, struct pipe_piece *piece,
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

/* ---- SentencePiece --------------------------------------------------------------------------- */

#define MARK   "\xE2\x96\x81" /* U+2581, for a space */
#define N_MARK 3

/* The text that s begins with: a symbol that stays, what the map says, or a character. */
static size_t pieces_prefix(const struct pipe_norm *step, const char *s, size_t n,
                            const char **text, size_t *n_text)
{
    size_t len = 0;
    if (step->kept && added_tokens_at(step->kept, s, n, &len)) {
        *text = s;
        *n_text = len;
        return len;
    }
    const char *mapped = charsmap_find(&step->map, s, n, true, &len);
    if (mapped) {
        *text = mapped;
        *n_text = strlen(mapped);
        return len;
    }
    (void)chars_at(s, n, &len);
    *text = s;
    *n_text = len;
    return len;
}

static cz_status add_escaped(const struct pipe_norm *step, const char *s, size_t n,
                             struct pipe_text *dst)
{
    for (size_t i = 0; i < n; i++)
        TRY(step->escape && s[i] == ' ' ? pipe_text_add(dst, MARK, N_MARK)
                                        : pipe_text_add(dst, s + i, 1));
    return CZ_OK;
}

/* SentencePiece's normalizer: the map, spaces at both ends and repeated ones dropped, one put in
 * front (or behind), all written as U+2581. */
static cz_status run_pieces(const struct pipe_norm *step, struct pipe_piece *piece,
                            struct pipe_text *dst)
{
    const char *s = piece->s, *text, *space = step->escape ? MARK : " ";
    const size_t n_space = strlen(space), begin = dst->n;
    size_t n = piece->n, n_text, len;
    while (step->squeeze && !piece->is_rest && n > 0) {
        len = pieces_prefix(step, s, n, &text, &n_text);
        if (n_text != 1 || text[0] != ' ') break;
        s += len;
        n -= len;
    }
    if (n == 0) return CZ_OK;
    if (step->prefix && !step->as_suffix && !piece->is_rest)
        TRY(pipe_text_add(dst, space, n_space));
    for (bool was_space = step->squeeze && !piece->is_rest; n > 0; s += len, n -= len) {
        len = pieces_prefix(step, s, n, &text, &n_text);
        while (was_space && n_text > 0 && text[0] == ' ') {
            text++;
            n_text--;
        }
        if (n_text == 0) continue;
        TRY(add_escaped(step, text, n_text, dst));
        was_space = step->squeeze && text[n_text - 1] == ' ';
    }
    while (step->squeeze && dst->n - begin >= n_space &&
           memcmp(dst->s + dst->n - n_space, space, n_space) == 0)
        dst->n -= n_space;
    return step->prefix && step->as_suffix ? pipe_text_add(dst, space, n_space) : CZ_OK;
}

const struct pipe_norm_class pipe_norm_pieces = {"SentencePiece", NULL, run_pieces};

/* ---- the table ------------------------------------------------------------------------------- */

const struct pipe_norm_class pipe_norm_classes[] = {
    {"BertNormalizer", read_bert, run_bert},
    {"ByteLevel", NULL, run_byte_level},
    {"Lowercase", NULL, pipe_norm_lowercase},
    {"NFC", read_nfc, pipe_norm_form},
    {"NFD", read_nfc, pipe_norm_form},
    {"NFKC", read_nfc, pipe_norm_form},
    {"NFKD", read_nfc, pipe_norm_form},
    {"Nmt", NULL, run_nmt},
    {"Precompiled", read_precompiled, pipe_norm_precompiled},
    {"Prepend", read_prepend, run_prepend},
    {"Replace", read_replace, run_replace},
    {"Strip", read_strip, run_strip},
    {"StripAccents", NULL, pipe_norm_strip_accents},
    {NULL, NULL, NULL},
};

void pipe_norm_free(struct pipe_norm *step)
{
    free(step->pattern.text);
    free(step->content.s);
    charsmap_free(&step->map);
}

static cz_status norm_add(struct pipe *p, const struct json_node *node, const char *type)
{
    char where[512];
    for (const struct pipe_norm_class *c = pipe_norm_classes; c->name; c++) {
        if (strcmp(c->name, type) != 0) continue;
        if (p->n_norms == PIPE_STEPS_MAX)
            return err_set(CZ_UNSUPPORTED, 0, "%s: more than %d normalizer steps",
                           json_where(node, where, sizeof where), PIPE_STEPS_MAX);
        struct pipe_norm *step = &p->norms[p->n_norms++];
        step->cls = c;
        return c->read ? c->read(node, step) : CZ_OK;
    }
    return err_set(CZ_UNSUPPORTED, 0, "%s: a normalizer of type %s is not known",
                   json_where(node, where, sizeof where), type);
}

cz_status pipe_norms_read(struct pipe *p, const struct json_node *node, int depth)
{
    const char *type;
    const struct json_node *list;
    if (!node || json_type(node) == JSON_NULL) return CZ_OK;
    TRY(json_need_string(node, "type", &type));
    if (strcmp(type, "Sequence") != 0 || depth >= 8) return norm_add(p, node, type);
    TRY(json_need(node, "normalizers", JSON_ARRAY, &list));
    for (size_t i = 0; i < json_count(list); i++)
        TRY(pipe_norms_read(p, json_child(list, i), depth + 1));
    return CZ_OK;
}

/* The two buffers take turns. Whether a text is too long does not depend on what they held before.
 */
cz_status pipe_normalize(const struct pipe *p, struct pipe_work *w, struct pipe_piece *piece)
{
    const bool is_bounded = piece->n < SIZE_MAX / PIPE_GROWTH_MAX - PIPE_GROWTH_FREE;
    const size_t due = is_bounded ? PIPE_GROWTH_MAX * piece->n : SIZE_MAX - PIPE_GROWTH_FREE;
    const size_t limit = due + w->growth_free;
    size_t most = 0;
    for (size_t i = 0; i < p->n_norms; i++) {
        struct pipe_text *dst = &w->norms[i & 1];
        dst->n = 0;
        dst->limit = limit;
        TRY(p->norms[i].cls->run(&p->norms[i], piece, dst));
        if (dst->n > limit) return pipe_text_too_long();
        piece->s = dst->s ? dst->s : "";
        piece->n = dst->n;
        piece->n_more = 0;
        if (dst->n > most) most = dst->n;
    }
    if (most > due) w->growth_free -= most - due;
    return CZ_OK;
}
