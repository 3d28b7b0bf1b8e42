/* Decoder steps, as a stream: what a step gives away is what it would have given for the whole list
 * of tokens, and it holds back only what later tokens can still change. A token comes in one or
 * more fragments of whole characters; Fuse makes one token of all. */
#include "base/utf8.h"
#include "data/tokenizer/chars_impl.h"
#include "data/tokenizer/pipe/pipe_impl.h"

#include <stdlib.h>
#include <string.h>

#define REPLACEMENT        "\xEF\xBF\xBD" /* U+FFFD */
#define REPLACEMENT_NBYTES 3

struct step_state {
    struct pipe_text held; /* of the token under way */
    struct pipe_text kept; /* of tokens before it */
    uint64_t n_tokens;     /* that have ended */
    size_t n_stripped;
    bool is_inside; /* Strip: the token's beginning is past */
};

struct decode_state {
    const struct pipe *p;
    struct step_state steps[PIPE_STEPS_MAX + 1]; /* the last: what joins tokens */
    struct pipe_text out, text;
    size_t budget; /* bytes and fragments that this call may still pass from step to step */
};

struct pipe_decoder_class {
    const char *name;
    cz_status (*read)(const struct json_node *node, struct pipe_decoder *out);
    /* A fragment of a token; `ends`: its last. */
    cz_status (*push)(struct decode_state *d, size_t i, const char *s, size_t n, bool ends);
    cz_status (*end)(struct decode_state *d,
                     size_t i); /* no token follows; NULL: nothing is held */
    bool is_last;               /* its result is bytes: no step may follow */
    bool is_whole;              /* takes tokens: not behind Fuse */
};

static cz_status push(struct decode_state *d, size_t i, const char *s, size_t n, bool ends)
{
    const struct pipe *p = d->p;
    if (n + 1 > d->budget)
        return err_set(CZ_INVALID, 0,
                       "the tokenizer's decoder makes a token more than %d times longer",
                       PIPE_GROWTH_MAX);
    d->budget -= n + 1;
    if (i < p->n_decoders) return p->decoders[i].cls->push(d, i, s, n, ends);
    struct step_state *st = &d->steps[i];
    if (!p->has_decoder && st->n_tokens > 0 && !st->is_inside) TRY(pipe_text_add(&d->out, " ", 1));
    st->is_inside = !ends;
    st->n_tokens += ends;
    return pipe_text_add(&d->out, s, n);
}

static cz_status end_from(struct decode_state *d, size_t i)
{
    for (; i < d->p->n_decoders; i++)
        if (d->p->decoders[i].cls->end) TRY(d->p->decoders[i].cls->end(d, i));
    return CZ_OK;
}

/* Gathers a token; true (*st CZ_OK) when it is whole. */
static bool is_gathered(struct decode_state *d, size_t i, const char *s, size_t n, bool ends,
                        cz_status *st)
{
    *st = pipe_text_add(&d->steps[i].held, s, n);
    return *st == CZ_OK && ends;
}

/* ---- Replace --------------------------------------------------------------------------------- */

/* In no tokenizer.json: tokenizer.model's. */
static cz_status refuse_pieces(const struct json_node *node, struct pipe_decoder *out)
{
    char where[512];
    (void)out;
    return err_set(CZ_UNSUPPORTED, 0, "%s: a decoder of type SentencePiece is not known",
                   json_where(node, where, sizeof where));
}

static cz_status read_replace(const struct json_node *node, struct pipe_decoder *out)
{
    const char *content;
    char where[512];
    TRY(pipe_pattern_read(node, &out->pattern));
    if (out->pattern.n > PIPE_DECODER_TOKEN_MAX)
        return err_set(CZ_UNSUPPORTED, 0, "%s: a decoder that replaces more than %d bytes",
                       json_where(node, where, sizeof where), PIPE_DECODER_TOKEN_MAX);
    if (out->pattern.match)
        return err_set(CZ_UNSUPPORTED, 0, "%s: a decoder that replaces an expression",
                       json_where(node, where, sizeof where));
    TRY(json_need_string(node, "content", &content));
    return pipe_text_add(&out->content, content, strlen(content));
}

/* Bytes at the end of s that could begin the pattern. */
static size_t begun(const struct pipe_pattern *p, const char *s, size_t n)
{
    size_t k = p->n - 1 < n ? p->n - 1 : n;
    while (k > 0 && memcmp(s + n - k, p->text, k) != 0) k--;
    return k;
}

static cz_status push_replaced(struct decode_state *d, size_t i, const char *s, size_t n, bool ends)
{
    const struct pipe_decoder *step = &d->p->decoders[i];
    struct pipe_text *held = &d->steps[i].held;
    size_t done = 0, start, end;
    if (held->n > 0) {
        TRY(pipe_text_add(held, s, n));
        s = held->s;
        n = held->n;
    }
    while (pipe_pattern_find(&step->pattern, s, n, done, &start, &end)) {
        TRY(push(d, i + 1, s + done, start - done, false));
        TRY(push(d, i + 1, step->content.s, step->content.n, false));
        done = end;
    }
    const size_t keep = ends ? 0 : begun(&step->pattern, s + done, n - done);
    TRY(push(d, i + 1, s + done, n - done - keep, ends));
    if (held->n == 0) return pipe_text_add(held, s + n - keep, keep);
    memmove(held->s, s + n - keep, keep);
    held->n = keep;
    return CZ_OK;
}

/* ---- Fuse ------------------------------------------------------------------------------------ */

static cz_status push_fused(struct decode_state *d, size_t i, const char *s, size_t n, bool ends)
{
    (void)ends;
    return push(d, i + 1, s, n, false);
}

static cz_status end_fused(struct decode_state *d, size_t i)
{
    return push(d, i + 1, "", 0, true);
}

/* ---- ByteFallback ---------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte of "<0xE4>", −1: another token. */
static int byte_of(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    const int high = s[3] == '+' ? 0 : hex_digit(s[3]), low = hex_digit(s[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

/* A run of bytes is a text, or each byte is U+FFFD. */
static cz_status flush_bytes(struct decode_state *d, size_t i)
{
    struct pipe_text *kept = &d->steps[i].kept;
    const size_t n = kept->n;
    if (n == 0) return CZ_OK;
    kept->n = 0;
    if (utf8_is_valid(kept->s, n)) return push(d, i + 1, kept->s, n, true);
    for (size_t k = 0; k < n; k++) TRY(push(d, i + 1, REPLACEMENT, REPLACEMENT_NBYTES, true));
    return CZ_OK;
}

static cz_status push_bytes(struct decode_state *d, size_t i, const char *s, size_t n, bool ends)
{
    struct step_state *state = &d->steps[i];
    cz_status st;
    if (!is_gathered(d, i, s, n, ends, &st)) return st;
    const int byte = byte_of(state->held.s, state->held.n);
    const char c = (char)byte;
    if (byte >= 0) {
        state->held.n = 0;
        return pipe_text_add(&state->kept, &c, 1);
    }
    TRY(flush_bytes(d, i));
    st = push(d, i + 1, state->held.s, state->held.n, true);
    state->held.n = 0;
    return st;
}

/* ---- Strip ----------------------------------------------------------------------------------- */

static cz_status read_strip(const struct json_node *node, struct pipe_decoder *out)
{
    const char *content;
    char where[512];
    int64_t start, stop;
    size_t len = 0;
    TRY(json_need_string(node, "content", &content));
    TRY(json_opt_int(node, "start", 0, &start));
    TRY(json_opt_int(node, "stop", 0, &stop));
    if (*content) (void)chars_at(content, strlen(content), &len);
    if (len == 0 || content[len] || start < 0 || stop < 0 || stop > 1024)
        return err_set(CZ_UNSUPPORTED, 0, "%s: strips one character, at most 1024 times",
                       json_where(node, where, sizeof where));
    out->start = (size_t)start;
    out->stop = (size_t)stop;
    return pipe_text_add(&out->content, content, len);
}

/* Held: up to `stop` of the character at the end. */
static cz_status push_stripped(struct decode_state *d, size_t i, const char *s, size_t n, bool ends)
{
    const struct pipe_decoder *step = &d->p->decoders[i];
    struct step_state *state = &d->steps[i];
    const size_t len = step->content.n;
    while (!state->is_inside && n > 0) {
        state->is_inside =
            state->n_stripped == step->start || n < len || memcmp(s, step->content.s, len) != 0;
        if (state->is_inside) break;
        state->n_stripped++;
        s += len;
        n -= len;
    }
    TRY(pipe_text_add(&state->held, s, n));
    size_t keep = 0;
    const char *end = state->held.n > 0 ? state->held.s + state->held.n : NULL;
    while (keep < step->stop && (keep + 1) * len <= state->held.n &&
           memcmp(end - (keep + 1) * len, step->content.s, len) == 0)
        keep++;
    const size_t away = state->held.n - keep * len;
    TRY(push(d, i + 1, state->held.s, away, ends));
    if (ends) {
        state->held.n = state->n_stripped = 0;
        state->is_inside = false;
    } else if (away > 0) {
        memmove(state->held.s, state->held.s + away, keep * len);
        state->held.n = keep * len;
    }
    return CZ_OK;
}

/* ---- Metaspace ------------------------------------------------------------------------------- */

static cz_status read_metaspace(const struct json_node *node, struct pipe_decoder *out)
{
    const char *mark;
    TRY(json_opt_string(node, "replacement", "\xE2\x96\x81", &mark));
    TRY(pipe_scheme_read(node, &out->scheme));
    out->pattern.n = strlen(mark);
    out->pattern.text = strdup(mark);
    if (!out->pattern.text) return err_set(CZ_NOMEM, 0, "no memory for a decoder");
    return CZ_OK;
}

static cz_status push_metaspace(struct decode_state *d, size_t i, const char *s, size_t n,
                                bool ends)
{
    const struct pipe_decoder *step = &d->p->decoders[i];
    struct step_state *state = &d->steps[i];
    const bool drops = state->n_tokens == 0 && step->scheme != PIPE_NEVER;
    size_t done = 0, start, stop;
    while (step->pattern.n > 0 && pipe_pattern_find(&step->pattern, s, n, done, &start, &stop)) {
        TRY(push(d, i + 1, s + done, start - done, false));
        if (!drops) TRY(push(d, i + 1, " ", 1, false));
        done = stop;
    }
    state->n_tokens += ends;
    return push(d, i + 1, s + done, n - done, ends);
}

/* ---- WordPiece, CTC -------------------------------------------------------------------------- */

static cz_status replace_all(struct pipe_text *t, const char *from, const char *to)
{
    struct pipe_text out = {0};
    struct pipe_pattern pattern = {.text = (char *)(uintptr_t)from, .n = strlen(from)};
    size_t done = 0, start, end;
    cz_status st = CZ_OK;
    if (t->n < pattern.n || pattern.n == 0) return CZ_OK;
    while (st == CZ_OK && pipe_pattern_find(&pattern, t->s, t->n, done, &start, &end)) {
        st = pipe_text_add(&out, t->s + done, start - done);
        if (st == CZ_OK) st = pipe_text_add(&out, to, strlen(to));
        done = end;
    }
    if (st == CZ_OK && done > 0) {
        st = pipe_text_add(&out, t->s + done, t->n - done);
        t->n = 0;
        if (st == CZ_OK) st = pipe_text_add(t, out.s, out.n);
    }
    free(out.s);
    return st;
}

static cz_status clean(struct pipe_text *t)
{
    static const char *const rules[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                           {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                           {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                           {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(rules); i++) TRY(replace_all(t, rules[i][0], rules[i][1]));
    return CZ_OK;
}

static cz_status read_wordpiece(const struct json_node *node, struct pipe_decoder *out)
{
    const char *prefix;
    TRY(json_opt_string(node, "prefix", "##", &prefix));
    TRY(json_opt_bool(node, "cleanup", true, &out->cleanup));
    return pipe_text_add(&out->content, prefix, strlen(prefix));
}

static cz_status push_wordpiece(struct decode_state *d, size_t i, const char *s, size_t n,
                                bool ends)
{
    const struct pipe_decoder *step = &d->p->decoders[i];
    struct step_state *state = &d->steps[i];
    struct pipe_text *held = &state->held;
    const size_t n_prefix = step->content.n;
    cz_status st;
    if (!is_gathered(d, i, s, n, ends, &st)) return st;
    if (state->n_tokens++ > 0) {
        const bool continues = held->n >= n_prefix &&
                               (n_prefix == 0 || memcmp(held->s, step->content.s, n_prefix) == 0);
        TRY(pipe_text_reserve(held, 1));
        if (continues) {
            held->n -= n_prefix;
            memmove(held->s, held->s + n_prefix, held->n);
        } else {
            memmove(held->s + 1, held->s, held->n++);
            held->s[0] = ' ';
        }
    }
    if (step->cleanup) TRY(clean(held));
    st = push(d, i + 1, held->s, held->n, true);
    held->n = 0;
    return st;
}

static cz_status read_ctc(const struct json_node *node, struct pipe_decoder *out)
{
    const char *pad, *delimiter;
    TRY(json_opt_string(node, "pad_token", "<pad>", &pad));
    TRY(json_opt_string(node, "word_delimiter_token", "|", &delimiter));
    TRY(json_opt_bool(node, "cleanup", true, &out->cleanup));
    TRY(pipe_text_add(&out->content, delimiter, strlen(delimiter) + 1));
    out->pattern.n = strlen(pad);
    out->pattern.text = strdup(pad);
    return out->pattern.text ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for a decoder");
}

/* Equal neighbours count once. */
static cz_status push_ctc(struct decode_state *d, size_t i, const char *s, size_t n, bool ends)
{
    const struct pipe_decoder *step = &d->p->decoders[i];
    struct step_state *state = &d->steps[i];
    struct pipe_text *held = &state->held, *kept = &state->kept;
    cz_status st;
    if (!is_gathered(d, i, s, n, ends, &st)) return st;
    const bool is_repeat = state->n_tokens++ > 0 && held->n == kept->n &&
                           (held->n == 0 || memcmp(held->s, kept->s, held->n) == 0);
    if (!is_repeat) {
        kept->n = 0;
        TRY(pipe_text_add(kept, held->s, held->n));
        TRY(replace_all(held, step->pattern.text, ""));
        if (step->cleanup) TRY(clean(held));
        if (step->cleanup) TRY(replace_all(held, step->content.s, " "));
        if (held->n > 0) TRY(push(d, i + 1, held->s, held->n, true));
    }
    held->n = 0;
    return CZ_OK;
}

/* ---- BPEDecoder ------------------------------------------------------------------------------ */

static cz_status read_suffix(const struct json_node *node, struct pipe_decoder *out)
{
    const char *suffix;
    char where[512];
    TRY(json_opt_string(node, "suffix", "</w>", &suffix));
    if (!*suffix)
        return err_set(CZ_UNSUPPORTED, 0, "%s: an empty suffix",
                       json_where(node, where, sizeof where));
    return pipe_text_add(&out->content, suffix, strlen(suffix) + 1);
}

/* The last token's suffix is nothing, others' a space: one token waits for the next. */
static cz_status release(struct decode_state *d, size_t i, const char *to)
{
    struct step_state *state = &d->steps[i];
    if (state->n_tokens == 0) return CZ_OK;
    TRY(replace_all(&state->kept, d->p->decoders[i].content.s, to));
    const size_t n = state->kept.n;
    state->kept.n = 0;
    return push(d, i + 1, state->kept.s, n, true);
}

static cz_status push_suffixed(struct decode_state *d, size_t i, const char *s, size_t n, bool ends)
{
    struct step_state *state = &d->steps[i];
    cz_status st;
    if (!is_gathered(d, i, s, n, ends, &st)) return st;
    TRY(release(d, i, " "));
    state->n_tokens++;
    st = pipe_text_add(&state->kept, state->held.s, state->held.n);
    state->held.n = 0;
    return st;
}

static cz_status end_suffixed(struct decode_state *d, size_t i)
{
    return release(d, i, "");
}

/* ---- ByteLevel ------------------------------------------------------------------------------- */

/* A token of the alphabet's characters is their bytes; another is its own. */
static cz_status push_byte_level(struct decode_state *d, size_t i, const char *s, size_t n,
                                 bool ends)
{
    struct pipe_text *held = &d->steps[i].held, *kept = &d->steps[i].kept;
    cz_status st;
    size_t len;
    bool is_written = true;
    if (!is_gathered(d, i, s, n, ends, &st)) return st;
    kept->n = 0;
    for (size_t at = 0; at < held->n && is_written; at += len) {
        const int byte = bpe_alphabet_byte(chars_at(held->s + at, held->n - at, &len));
        const char c = (char)byte;
        is_written = byte >= 0;
        TRY(pipe_text_add(kept, &c, 1));
    }
    st = is_written ? push(d, i + 1, kept->s, kept->n, true)
                    : push(d, i + 1, held->s, held->n, true);
    held->n = 0;
    return st;
}

/* ---- SentencePiece --------------------------------------------------------------------------- */

#define MARK   "\xE2\x96\x81"
#define N_MARK 3

/* Bytes that are characters go out; others are U+FFFD each. */
static cz_status push_run(struct decode_state *d, size_t i, bool at_end)
{
    struct step_state *state = &d->steps[i];
    struct pipe_text *run = &state->kept;
    size_t at = 0;
    while (at < run->n) {
        const int len = utf8_length(run->s + at, run->n - at);
        if (len == -1 && !at_end) break;
        TRY(len > 0 ? push(d, i + 1, run->s + at, (size_t)len, true)
                    : push(d, i + 1, REPLACEMENT, REPLACEMENT_NBYTES, true));
        at += len > 0 ? (size_t)len : 1;
        state->is_inside = true;
    }
    memmove(run->s, run->s + at, run->n - at);
    run->n -= at;
    return CZ_OK;
}

static cz_status end_run(struct decode_state *d, size_t i)
{
    return d->steps[i].kept.n > 0 ? push_run(d, i, true) : CZ_OK;
}

/* The mark at the text's beginning is the one that the normalizer put there. is_inside: some text
 * has gone out, or that mark was seen. */
static cz_status push_piece(struct decode_state *d, size_t i, const char *s, size_t n, bool ends)
{
    const struct pipe_decoder *step = &d->p->decoders[i];
    struct step_state *state = &d->steps[i];
    const int byte = byte_of(s, n);
    const char c = (char)byte;
    (void)ends; /* the first step gets whole tokens */
    if (byte >= 0) {
        TRY(pipe_text_add(&state->kept, &c, 1));
        return push_run(d, i, false);
    }
    TRY(end_run(d, i));
    if (!state->is_inside && (step->prefix || step->squeeze) && n >= N_MARK &&
        memcmp(s, MARK, N_MARK) == 0) {
        s += N_MARK;
        n -= N_MARK;
        state->is_inside = !step->squeeze;
    }
    state->is_inside |= n > 0;
    for (size_t done = 0; done < n;) {
        const char *mark = memmem(s + done, n - done, MARK, N_MARK);
        const size_t end = mark ? (size_t)(mark - s) : n;
        TRY(push(d, i + 1, s + done, end - done, false));
        if (mark) TRY(push(d, i + 1, " ", 1, false));
        done = mark ? end + N_MARK : n;
    }
    return push(d, i + 1, "", 0, true);
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct pipe_decoder_class classes[] = {
    {"BPEDecoder", read_suffix, push_suffixed, end_suffixed, false, true},
    {"ByteFallback", NULL, push_bytes, flush_bytes, false, true},
    {"ByteLevel", NULL, push_byte_level, NULL, true, true},
    {"CTC", read_ctc, push_ctc, NULL, false, true},
    {"Fuse", NULL, push_fused, end_fused, false, false},
    {"Metaspace", read_metaspace, push_metaspace, NULL, false, false},
    {"Replace", read_replace, push_replaced, NULL, false, false},
    {"SentencePiece", refuse_pieces, push_piece, end_run, false, true},
    {"Strip", read_strip, push_stripped, NULL, false, false},
    {"WordPiece", read_wordpiece, push_wordpiece, NULL, false, true},
    {NULL, NULL, NULL, NULL, false, false},
};

void pipe_decoder_free(struct pipe_decoder *step)
{
    free(step->pattern.text);
    free(step->content.s);
}

cz_status pipe_decoder_add(struct pipe *p, const char *name, struct pipe_decoder **out)
{
    *out = NULL;
    p->has_decoder = true;
    for (const struct pipe_decoder_class *c = classes; c->name; c++) {
        if (strcmp(c->name, name) != 0) continue;
        bool is_fused = false, is_bytes = false;
        for (size_t i = 0; i < p->n_decoders; i++) {
            is_fused |= strcmp(p->decoders[i].cls->name, "Fuse") == 0;
            is_bytes |= p->decoders[i].cls->is_last;
        }
        if (p->n_decoders == PIPE_STEPS_MAX || is_bytes || (is_fused && c->is_whole))
            return err_set(CZ_UNSUPPORTED, 0, "the decoder %s in this place", name);
        *out = &p->decoders[p->n_decoders++];
        (*out)->cls = c;
        return CZ_OK;
    }
    return err_set(CZ_UNSUPPORTED, 0, "a decoder of type %s is not known", name);
}

cz_status pipe_decoders_read(struct pipe *p, const struct json_node *node, int depth)
{
    const char *type;
    const struct json_node *list;
    struct pipe_decoder *step;
    char where[512];
    if (!node || json_type(node) == JSON_NULL) return CZ_OK;
    TRY(json_need_string(node, "type", &type));
    if (strcmp(type, "Sequence") == 0 && depth < 8) {
        p->has_decoder = true;
        TRY(json_need(node, "decoders", JSON_ARRAY, &list));
        for (size_t i = 0; i < json_count(list); i++)
            TRY(pipe_decoders_read(p, json_child(list, i), depth + 1));
        return CZ_OK;
    }
    cz_status st = pipe_decoder_add(p, type, &step);
    if (st != CZ_OK) return err_prefix("%s", json_where(node, where, sizeof where));
    return step->cls->read ? step->cls->read(node, step) : CZ_OK;
}

/* ---- the class's calls ----------------------------------------------------------------------- */

cz_status pipe_decode_create(const struct cz_tokenizer *tok, void **state)
{
    struct decode_state *d = calloc(1, sizeof *d);
    *state = d;
    if (!d) return err_set(CZ_NOMEM, 0, "no memory for a decoder");
    d->p = (const struct pipe *)tok;
    return CZ_OK;
}

void pipe_decode_destroy(void *state)
{
    struct decode_state *d = state;
    if (!d) return;
    for (size_t i = 0; i < CZ_ARRAY_LEN(d->steps); i++) {
        free(d->steps[i].held.s);
        free(d->steps[i].kept.s);
    }
    free(d->out.s);
    free(d->text.s);
    free(d);
}

static void start_again(struct decode_state *d)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(d->steps); i++) {
        struct step_state *st = &d->steps[i];
        st->held.n = st->kept.n = st->n_stripped = 0;
        st->n_tokens = 0;
        st->is_inside = false;
    }
    d->out.n = 0;
}

/* Whole characters go out; the beginning of one stays in `out`, unless at_end. */
static cz_status take_characters(struct decode_state *d, bool at_end)
{
    const char *s = d->out.s;
    size_t n = d->out.n;
    d->text.n = 0;
    TRY(pipe_text_reserve(&d->text, n + 1));
    while (n > 0) {
        const int len = utf8_length(s, n);
        if (len == -1 && !at_end) break;
        const size_t taken = len > 0 ? (size_t)len : utf8_broken_length(s, n);
        TRY(len > 0 ? pipe_text_add(&d->text, s, taken)
                    : pipe_text_add(&d->text, REPLACEMENT, REPLACEMENT_NBYTES));
        s += taken;
        n -= taken;
    }
    if (n > 0) memmove(d->out.s, s, n);
    d->out.n = n;
    TRY(pipe_text_add(&d->text, "", 1));
    d->text.n--;
    return CZ_OK;
}

/* From a token's length, and what steps hold of tokens before it. */
static size_t budget_of(const struct decode_state *d, size_t n)
{
    for (size_t i = 0; i <= d->p->n_decoders; i++) n += d->steps[i].held.n + d->steps[i].kept.n;
    return n < SIZE_MAX / PIPE_GROWTH_MAX - PIPE_GROWTH_FREE
               ? PIPE_GROWTH_MAX * n + PIPE_GROWTH_FREE
               : SIZE_MAX;
}

cz_status pipe_decode(const struct cz_tokenizer *tok, void *state, int64_t id, const char **text,
                      size_t *nbytes)
{
    struct decode_state *d = state;
    const struct bpe_vocab *texts = &((const struct pipe *)tok)->texts;
    cz_status st = CZ_OK;
    *text = "";
    *nbytes = 0;
    d->budget = budget_of(d, id < 0 ? 0 : texts->lens[id]);
    if (id < 0)
        st = end_from(d, 0);
    else if (texts->lens[id] > 0)
        st = push(d, 0, texts->bytes + texts->offs[id], texts->lens[id], true);
    if (st == CZ_OK) st = take_characters(d, id < 0);
    if (id < 0) start_again(d);
    TRY(st);
    *text = d->text.s;
    *nbytes = d->text.n;
    return CZ_OK;
}
