/* Rows to tokens and what is trained of them.
 *
 * What the assistant writes is what a template marks by {% generation %}. Where it marks nothing,
 * an answer is the text between two renderings: of the messages before it with the beginning of an
 * answer (add_generation_prompt), and of the messages up to it. Both must be beginnings of the
 * whole text, to the byte. Templates that write earlier turns in another way (reasoning that is
 * removed from them) are followed from answer to answer: the messages after one answer and before
 * the next have the same text, and the answer's own words stand in both renderings. What cannot be
 * found is an error, because a wrong mask trains silently.
 *
 * A token is trained if it holds a byte of such a span. Where tokens end in the text is found by
 * what they stand for, one after the other, which must be the text again. */
#include "data/chat/chat_encode.h"

#include "data/chat/chat_probe.h"
#include "data/jinja/jinja_impl.h"
#include "data/tokenizer/tokenizer_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The end-of-text token: what the folder names, or what the vocabulary has. */
static cz_status find_end_token(struct chat_encoder *e)
{
    const char *named = e->chat ? chat_template_token(e->chat, "eos_token") : NULL, *text;
    int64_t id = cz_tokenizer_end_id(e->tokenizer);
    struct cz_tokenizer_decoder *decoder;
    size_t n;
    if (named && strlen(named) < sizeof e->end) strcpy(e->end, named);
    if (named || id < 0) return CZ_OK;
    TRY(cz_tokenizer_decoder_create(e->tokenizer, &decoder));
    cz_status st = cz_tokenizer_decode(decoder, id, &text, &n);
    if (st == CZ_OK && n < sizeof e->end) memcpy(e->end, text, n);
    cz_tokenizer_decoder_destroy(decoder);
    return st;
}

/* Follows the beginnings of p (m > 0 bytes) through s, in time n + m. *last: the last place where
 * all of p stands, SIZE_MAX: none. *overlap: the longest beginning of p that s ends with. */
static cz_status follow(const char *s, size_t n, const char *p, size_t m, size_t *last,
                        size_t *overlap)
{
    uint32_t *shorter = malloc(m * sizeof *shorter); /* [k]: the next shorter one inside of k + 1 */
    size_t k = 0;
    *last = SIZE_MAX;
    if (!shorter) return err_set(CZ_NOMEM, 0, "no memory to find an answer of %zu bytes", m);
    shorter[0] = 0;
    for (size_t i = 1; i < m; i++) {
        while (k > 0 && p[i] != p[k]) k = shorter[k - 1];
        k += p[i] == p[k];
        shorter[i] = (uint32_t)k;
    }
    k = 0;
    for (size_t i = 0; i < n; i++) {
        if (k == m) k = shorter[k - 1];
        while (k > 0 && s[i] != p[k]) k = shorter[k - 1];
        k += s[i] == p[k];
        if (k == m) *last = i + 1 - m;
    }
    *overlap = k;
    free(shorter);
    return CZ_OK;
}

/* The last place in s where `what` of m > 0 bytes stands; NULL: none. Mostly little follows it, so
 * the last places are tried first. */
static cz_status find_last(const char *s, size_t n, const char *what, size_t m, const char **found)
{
    enum { TRIES = 64 };
    size_t last, overlap;
    *found = NULL;
    for (size_t i = 0; i < TRIES && n >= m + i; i++)
        if (memcmp(s + n - m - i, what, m) == 0) {
            *found = s + n - m - i;
            return CZ_OK;
        }
    if (n < m + TRIES) return CZ_OK;
    TRY(follow(s, n, what, m, &last, &overlap));
    if (last != SIZE_MAX) *found = s + last;
    return CZ_OK;
}

/* ---- the end of a turn ---------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

#define PROBE "qzAnswerzq" /* a text that no template has or changes */

/* Whether a token is cut out of texts whole, so that it can end an answer. */
static bool is_apart(const struct cz_tokenizer *tok, int64_t id)
{
    for (int i = 0; i < CZ_SPECIAL_COUNT; i++)
        if (i != CZ_SPECIAL_UNK && tok->special[i] == id) return true;
    if (id == tok->special[CZ_SPECIAL_UNK]) return false; /* stands for any character */
    return tok->cls->is_added && tok->cls->is_added(tok, id);
}

/* The first such token of a text, of its first n_looked; −1: none. */
static cz_status find_apart(const struct cz_tokenizer *tok, const char *text, size_t n,
                            size_t n_looked, int64_t *id)
{
    int32_t *ids;
    size_t n_ids;
    *id = -1;
    TRY(cz_tokenizer_encode(tok, text, n, &ids, &n_ids));
    for (size_t i = 0; i < n_ids && i < n_looked && *id < 0; i++)
        if (is_apart(tok, ids[i])) *id = ids[i];
    free(ids);
    return CZ_OK;
}

static void keep_turn_end(struct chat_encoder *e, const char *text, size_t n)
{
    if (n >= sizeof e->turn_end) n = 0;
    memcpy(e->turn_end, text, n);
    e->turn_end[n] = '\0';
}

/* Renders a conversation and returns the text after the answer PROBE, without leading white space.
 */
static cz_status render_probe(const struct chat_encoder *e, const char *json, struct jinja_text *to,
                              const char **rest, size_t *n_rest)
{
    const struct chat_reading reading = {.chat = e->chat};
    struct chat_row row;
    cz_status st = chat_row_read(json, strlen(json), "", &reading, &row);
    if (st == CZ_OK)
        st = chat_template_render(e->chat, &row.chat, row.n_messages, false, e->now, to);
    chat_row_free(&row);
    *n_rest = 0;
    if (st != CZ_OK || to->text.n == 0) return st;
    const char *end = to->text.s + to->text.n, *at;
    TRY(find_last(to->text.s, to->text.n, PROBE, sizeof PROBE - 1, &at));
    if (!at) return CZ_OK;
    for (at += sizeof PROBE - 1; at < end && is_space(*at);) at++;
    *rest = at;
    *n_rest = (size_t)(end - at);
    return CZ_OK;
}

/* Finds the token that ends an answer. If the template writes none, the token that begins the next
 * message serves as one. */
static cz_status probe_turn_end(struct chat_encoder *e, struct jinja_text *text)
{
    static const char last[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
                               "{\"role\": \"assistant\", \"content\": \"" PROBE "\"}]}";
    static const char inner[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
                                "{\"role\": \"assistant\", \"content\": \"" PROBE "\"}, "
                                "{\"role\": \"user\", \"content\": \"Hi\"}]}";
    const char *rest;
    size_t n, piece = 0;
    TRY(render_probe(e, last, text, &rest, &n));
    if (n > 0) {
        TRY(find_apart(e->tokenizer, rest, n, n, &e->turn_id));
        while (piece < n && !is_space(rest[piece])) piece++;
        if (e->turn_id < 0) {
            keep_turn_end(e, rest, piece);
            return CZ_OK;
        }
        char *token = malloc(e->tokenizer->piece_nbytes_max + 1);
        if (!token) return err_set(CZ_NOMEM, 0, "no memory for the text of a token");
        keep_turn_end(e, token, e->tokenizer->cls->piece(e->tokenizer, e->turn_id, true, token));
        free(token);
        return CZ_OK;
    }
    TRY(render_probe(e, inner, text, &rest, &n));
    return n > 0 ? find_apart(e->tokenizer, rest, n, 2, &e->turn_id) : CZ_OK;
}

/* A template may refuse such a conversation: then nothing is known. */
static cz_status find_turn_end(struct chat_encoder *e)
{
    struct jinja_text text = {0};
    if (!e->chat) return CZ_OK;
    cz_status st = probe_turn_end(e, &text);
    jinja_text_free(&text);
    if (st == CZ_OK || st == CZ_NOMEM) return st;
    err_clear();
    return CZ_OK;
}

cz_status chat_encoder_open(struct chat_encoder *e, const struct cz_tokenizer *tokenizer,
                            const char *given, const char *loss)
{
    return chat_encoder_open_in(e, tokenizer, NULL, given, loss);
}

cz_status chat_encoder_open_in(struct chat_encoder *e, const struct cz_tokenizer *tokenizer,
                               const char *dir, const char *given, const char *loss)
{
    static const char *const names[] = {[CHAT_LOSS_ASSISTANT] = "assistant",
                                        [CHAT_LOSS_COMPLETION] = "completion",
                                        [CHAT_LOSS_ALL] = "all"};
    *e = (struct chat_encoder){.tokenizer = tokenizer, .now = (int64_t)time(NULL), .turn_id = -1};
    for (int i = 1; loss && i < (int)CZ_ARRAY_LEN(names); i++)
        if (strcmp(loss, names[i]) == 0) e->loss = (enum chat_loss)i;
    cz_status st = chat_template_open(dir && !given ? dir : tokenizer->dir, given, &e->chat);
    if (st == CZ_NOTFOUND && !given) {
        err_clear();
        st = CZ_OK;
    }
    TRY(st);
    TRY(find_end_token(e));
    return find_turn_end(e);
}

void chat_encoder_close(struct chat_encoder *e)
{
    chat_template_close(e->chat);
    memset(e, 0, sizeof *e);
}

#define ROW_FAIL(where, ...) (err_set(CZ_INVALID, 0, __VA_ARGS__), err_prefix("%s", where))

struct work {
    const struct chat_encoder *e;
    const struct chat_row *row;
    const char *where;
    struct jinja_text text, part;
    struct jinja_text before; /* the messages before an answer, where the text has others */
    struct jinja_text last;   /* the messages up to the answer found last, */
    size_t last_end;          /* which ends here in the text */
    bool has_last;
    struct chat_tokens *out;
    size_t first; /* special tokens before the text's own */
    bool has_ends;
    struct id_list ends; /* (n) of each token in the text */
    uint64_t steps_left; /* of the search for answers */
    bool is_marked;      /* the template marked the answers */
    bool skips_start;
    size_t n_asked; /* messages of which `part` is the prompt; SIZE_MAX: of none */
};

void chat_tokens_free(struct chat_tokens *t)
{
    free(t->ids);
    free(t->trained);
    text_buf_free(&t->start);
    memset(t, 0, sizeof *t);
}

/* Counts work of the search before it is done. */
static cz_status spend(struct work *w, uint64_t steps)
{
    const bool is_enough = steps <= w->steps_left;
    w->steps_left = is_enough ? w->steps_left - steps : 0;
    if (is_enough) return CZ_OK;
    w->out->fault = CHAT_UNFOUND;
    return err_set(CZ_INVALID, 0,
                   "the search for its answers takes more than %u times the work of writing it, or "
                   "%" PRIu64 " steps: divide the row",
                   CHAT_SEARCH_TIMES, CHAT_SEARCH_STEPS_MAX);
}

static cz_status spend_in_row(struct work *w, uint64_t steps)
{
    const cz_status st = spend(w, steps);
    return st == CZ_OK ? st : err_prefix("%s", w->where);
}

/* The first messages, as part of the search. */
static cz_status render(struct work *w, size_t n_messages, bool adds_prompt, struct jinja_text *to)
{
    TRY(spend(w, w->steps_left > 0 ? 0 : 1));
    const cz_status st =
        chat_template_render(w->e->chat, &w->row->chat, n_messages, adds_prompt, w->e->now, to);
    const uint64_t steps = to->steps + to->text.n / 64;
    w->steps_left = steps < w->steps_left ? w->steps_left - steps : 0;
    return st;
}

static bool begins(const struct text_buf *text, const struct text_buf *part)
{
    return part->n <= text->n && (part->n == 0 || memcmp(text->s, part->s, part->n) == 0);
}

/* ---- where tokens are
 * ---------------------------------------------------------------------------- */

/* By the bytes that tokens stand for, where these one after the other are the text. A token that
 * ends inside of a character reaches to its end. */
static cz_status find_ends_by_pieces(struct work *w, bool *fits)
{
    const struct cz_tokenizer *tok = w->e->tokenizer;
    const struct text_buf *text = &w->text.text;
    size_t at = 0;
    *fits = tok->cls->piece && !tok->cls->decode;
    if (!*fits) return CZ_OK;
    char *piece = malloc(tok->piece_nbytes_max + 1);
    if (!piece) return err_set(CZ_NOMEM, 0, "no memory for the text of a token");
    for (size_t i = w->first; i < w->out->n && *fits; i++) {
        const size_t n = tok->cls->piece(tok, w->out->ids[i], at == 0, piece);
        *fits = n > 0 && n <= text->n - at && memcmp(text->s + at, piece, n) == 0;
        at += n;
        size_t end = at;
        while (end < text->n && ((unsigned char)text->s[end] & 0xC0) == 0x80) end++;
        w->ends.ids[i] = (int32_t)end;
    }
    free(piece);
    *fits = *fits && at == text->n;
    return CZ_OK;
}

/* Whether a token alone is the character at `s`, one of ASCII: a decoder keeps the token of a byte
 * back until it has seen whether the next token is of a byte, too. */
static cz_status is_alone(struct cz_tokenizer_decoder *decoder, int32_t id, const char *s, size_t n,
                          bool *is_it)
{
    const char *piece, *rest;
    size_t n_piece, n_rest;
    TRY(cz_tokenizer_decode(decoder, id, &piece, &n_piece));
    const bool is_kept = n_piece == 0;
    cz_tokenizer_decoder_end(decoder, &rest, &n_rest);
    *is_it = is_kept && n > 0 && n_rest == 1 && (unsigned char)rest[0] < 0x80 && rest[0] == s[0];
    return CZ_OK;
}

static cz_status decode_ends(struct work *w, struct cz_tokenizer_decoder *decoder,
                             struct cz_tokenizer_decoder *alone, bool *fits)
{
    const struct text_buf *text = &w->text.text;
    const char *piece;
    size_t at = 0, n, waiting = w->first, n_kept = 0; /* bytes of tokens that are kept back */
    for (size_t i = w->first; i < w->out->n && *fits; i++) {
        TRY(cz_tokenizer_decode(decoder, w->out->ids[i], &piece, &n));
        *fits = n <= text->n - at && (n == 0 || memcmp(text->s + at, piece, n) == 0);
        if (n == 0 && *fits && waiting == i) {
            const size_t here = at + n_kept;
            bool is_it = false;
            TRY(is_alone(alone, w->out->ids[i], text->s + here, text->n - here, &is_it));
            if (is_it) w->ends.ids[waiting++] = (int32_t)(at + ++n_kept);
        }
        at += n;
        if (n == 0) continue;
        n_kept = 0;
        while (waiting <= i) w->ends.ids[waiting++] = (int32_t)at;
    }
    *fits = *fits && at == text->n && waiting == w->out->n;
    return CZ_OK;
}

/* By decoding. *fits: the tokens give the text again. A token that ends inside of a character
 * reaches to the end of that character. */
static cz_status find_ends_by_decoding(struct work *w, bool *fits)
{
    struct cz_tokenizer_decoder *decoder, *alone;
    *fits = true;
    TRY(cz_tokenizer_decoder_create(w->e->tokenizer, &decoder));
    cz_status st = cz_tokenizer_decoder_create(w->e->tokenizer, &alone);
    if (st == CZ_OK) {
        st = decode_ends(w, decoder, alone, fits);
        cz_tokenizer_decoder_destroy(alone);
    }
    cz_tokenizer_decoder_destroy(decoder);
    return st;
}

/* How many tokens are all before byte `at`: those that the text up to there has, too. */
static cz_status count_before(struct work *w, size_t at, size_t *count, bool *is_whole)
{
    int32_t *ids;
    size_t n, i = 0;
    TRY(spend_in_row(w, at));
    TRY(cz_tokenizer_encode(w->e->tokenizer, w->text.text.s, at, &ids, &n));
    while (i < n && w->first + i < w->out->n && ids[i] == w->out->ids[w->first + i]) i++;
    free(ids);
    *count = w->first + i;
    *is_whole = i == n;
    return CZ_OK;
}

/* The first token of an answer that begins at byte `begin`. White space in front of it may have
 * tokens in the text and none where the text is cut after it: where the template marks answers,
 * they are not the answer's. Elsewhere an answer begins after the tokens of its prompt. */
static cz_status find_first(struct work *w, size_t begin, size_t *from)
{
    const char *s = w->text.text.s;
    const size_t n = w->text.text.n;
    size_t cut = begin, next = begin, without, with;
    bool is_whole, is_whole_cut;
    TRY(count_before(w, begin, from, &is_whole));
    while (cut > 0 && is_space(s[cut - 1])) cut--;
    if (!w->is_marked || !is_whole || cut == begin || begin == n) return CZ_OK;
    TRY(count_before(w, cut, &without, &is_whole_cut));
    if (!is_whole_cut || without != *from) return CZ_OK;
    do next++;
    while (next < n && ((unsigned char)s[next] & 0xC0) == 0x80);
    TRY(count_before(w, next, &with, &is_whole));
    if (is_whole && with > *from) with--; /* its last token has the answer's first character */
    if (with > *from + (begin - cut)) with = *from + (begin - cut);
    if (with > *from) *from = with;
    return CZ_OK;
}

/* Train the tokens of [begin, end). */
static cz_status train_span(struct work *w, size_t begin, size_t end)
{
    struct chat_tokens *t = w->out;
    const int32_t *ends = w->ends.ids;
    size_t from = w->first, to;
    bool is_whole;
    if (begin >= end) return CZ_OK;
    if (w->has_ends) {
        size_t low = w->first, high = t->n; /* the first token that ends behind `begin` */
        while (low < high) {
            size_t mid = (low + high) / 2;
            if ((size_t)ends[mid] <= begin)
                low = mid + 1;
            else
                high = mid;
        }
        for (from = to = low; to < t->n && (to == low || (size_t)ends[to - 1] < end); to++)
            continue;
        while (to < t->n && ends[to] == ends[to - 1]) to++; /* parts of one character */
    } else {
        TRY(find_first(w, begin, &from));
        TRY(count_before(w, end, &to, &is_whole));
        if (!is_whole && to < t->n) to++;
    }
    for (size_t i = from; i < to; i++) t->trained[i] = 1;
    return CZ_OK;
}

static bool stands_at(const struct text_buf *text, size_t at, const char *what)
{
    const size_t n = strlen(what);
    return n > 0 && text->n - at >= n && memcmp(text->s + at, what, n) == 0;
}

/* An answer whose end follows it without being trained never learns to stop: the end-of-text token,
 * or the token that the template ends answers with. */
static bool lacks_end(const struct work *w, size_t end)
{
    const struct text_buf *text = &w->text.text;
    while (end < text->n && is_space(text->s[end])) end++;
    return end < text->n && (stands_at(text, end, w->e->end) ||
                             (w->e->turn_id >= 0 && stands_at(text, end, w->e->turn_end)));
}

/* ---- answers without marks
 * ------------------------------------------------------------------------ */

static cz_status add_span(struct work *w, size_t begin, size_t end)
{
    struct jinja_text *t = &w->text;
    if (t->n_spans == t->spans_cap) {
        size_t cap = t->spans_cap ? 2 * t->spans_cap : 16;
        struct jinja_span *spans = realloc(t->spans, cap * sizeof *spans);
        if (!spans) return err_set(CZ_NOMEM, 0, "no memory for the answers of a row");
        t->spans = spans;
        t->spans_cap = cap;
    }
    t->spans[t->n_spans++] = (struct jinja_span){begin, end};
    return CZ_OK;
}

/* The bytes of white space and marks of reasoning that a text begins with. */
static size_t n_blank(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n) {
        if (n - i >= 7 && memcmp(text + i, "<think>", 7) == 0)
            i += 7;
        else if (n - i >= 8 && memcmp(text + i, "</think>", 8) == 0)
            i += 8;
        else if (is_space(text[i]))
            i++;
        else
            break;
    }
    return i;
}

static bool is_blank(const char *text)
{
    return !text || n_blank(text, strlen(text)) == strlen(text);
}

/* The text of a message: its content, or the first of a list of parts that says something. */
static const char *text_of(const struct json_node *message)
{
    const struct json_node *content = json_get(message, "content");
    const char *text = NULL;
    if (content && json_type(content) == JSON_STRING) json_as_string(content, &text);
    for (size_t k = 0; content && json_type(content) == JSON_ARRAY && k < json_count(content);
         k++) {
        const struct json_node *part = json_get(json_child(content, k), "text");
        if (part && json_type(part) == JSON_STRING) json_as_string(part, &text);
        if (!is_blank(text)) break;
    }
    return text;
}

/* Returns an answer's text after its reasoning, without surrounding white space. */
static const char *said_of(const struct json_node *message, size_t *n)
{
    static const char ends[] = "</think>";
    const char *text = text_of(message);
    *n = 0;
    if (!text) return NULL;
    for (const char *next; (next = strstr(text, ends)); text = next + sizeof ends - 1) continue;
    struct jv said = str_strip(jv_of_str(text, strlen(text)), STR_LEFT | STR_RIGHT);
    *n = said.n;
    return said.s;
}

/* The name of the tool that a message calls first; NULL: it calls none. */
static const char *called_by(const struct json_node *message)
{
    const struct json_node *calls = json_get(message, "tool_calls"), *call = NULL, *function = NULL;
    const char *name = NULL;
    if (calls && json_type(calls) == JSON_ARRAY && json_count(calls) > 0)
        call = json_child(calls, 0);
    if (call && json_type(call) == JSON_OBJECT) function = json_get(call, "function");
    if (function && json_type(function) == JSON_OBJECT) call = function;
    if (!call || json_type(call) != JSON_OBJECT || !(call = json_get(call, "name"))) return NULL;
    return json_type(call) == JSON_STRING && json_as_string(call, &name) == CZ_OK ? name : NULL;
}

/* The same for an answer that calls a tool and says nothing: the longest end of the messages up to
 * it that begins at `begin` in the text, too, and has the tool's name. */
static cz_status find_call_end(const struct work *w, size_t i, size_t from, size_t begin,
                               size_t *end, bool *found)
{
    const struct text_buf *alone = &w->part.text, *text = &w->text.text;
    const char *name = called_by(json_child(w->row->chat.messages, i));
    const size_t n = alone->n - from, left = text->n - begin;
    size_t last, overlap;
    *found = false;
    if (!name || !*name || left == 0) return CZ_OK;
    TRY(follow(alone->s + from, n, text->s + begin, n < left ? n : left, &last, &overlap));
    *end = begin + overlap;
    *found = memmem(text->s + begin, overlap, name, strlen(name)) != NULL;
    return CZ_OK;
}

static bool has_at(const struct text_buf *text, size_t at, const char *s, size_t n)
{
    return n <= text->n - at && (n == 0 || memcmp(text->s + at, s, n) == 0);
}

/* The end of an answer that begins at `begin`, although the messages up to it (w->part) are not a
 * beginning of the text: what it says and what the template writes after that, found in both. In
 * w->part the answer stands after `from`. */
static cz_status find_end(const struct work *w, size_t i, size_t from, size_t begin, size_t *end,
                          bool *found)
{
    const struct text_buf *alone = &w->part.text, *text = &w->text.text;
    size_t n_said;
    const char *said = said_of(json_child(w->row->chat.messages, i), &n_said), *place;
    *found = false;
    if (from >= alone->n) return CZ_OK;
    if (n_said == 0) return find_call_end(w, i, from, begin, end, found);
    /* The last place: the content may stand in the reasoning, too. */
    TRY(find_last(alone->s + from, alone->n - from, said, n_said, &place));
    if (!place) return CZ_OK;
    size_t n = (size_t)(alone->s + alone->n - place);
    if (!has_at(text, begin, place, n)) begin += n_blank(text->s + begin, text->n - begin);
    *end = begin + n;
    *found = has_at(text, begin, place, n);
    return CZ_OK;
}

/* Where the messages before an answer (w->before) end in the text, which may write the turns up to
 * the last answer in another way. */
static bool find_end_before(const struct work *w, size_t *at)
{
    const struct text_buf *text = &w->text.text, *before = &w->before.text, *last = &w->last.text;
    *at = before->n;
    if (begins(text, before)) return true;
    if (!w->has_last || !begins(before, last)) return false;
    *at = w->last_end + before->n - last->n;
    return has_at(text, w->last_end, before->s + last->n, before->n - last->n);
}

/* The length of what the beginning of an answer and that of earlier answers have in common, where
 * it ends with a tag or a space; otherwise of the latter. */
static size_t n_common(const char *opening, size_t n, const char *head, size_t n_head)
{
    size_t i = 0;
    while (i < n && i < n_head && opening[i] == head[i]) i++;
    return i > 0 && (head[i - 1] == '>' || is_space(head[i - 1])) ? i : n_head;
}

/* Where answer number i begins: after the beginning of an answer, as add_generation_prompt writes
 * it, or after the part of it that answers within a conversation have, too: some templates add an
 * opened <think> to the former. *from: a place before it in the rendering up to the answer. */
static cz_status find_begin(struct work *w, size_t i, size_t *begin, size_t *from, bool *found)
{
    const struct text_buf *text = &w->text.text, *prompt = &w->part.text, *before = &w->before.text;
    const char *head;
    size_t at;
    TRY(render(w, i, true, &w->part));
    w->n_asked = i;
    *begin = *from = prompt->n;
    *found = begins(text, prompt);
    if (*found) return CZ_OK;
    TRY(render(w, i, false, &w->before));
    *from = before->n;
    if (!begins(prompt, before) || !find_end_before(w, &at)) return CZ_OK;
    const char *opening = prompt->s + before->n;
    size_t n = prompt->n - before->n;
    *found = has_at(text, at, opening, n);
    if (!*found) {
        TRY(chat_probe_head(w->e->chat, w->row->chat.tools != NULL, &head));
        const size_t n_head = strlen(head);
        *found = n_head > 0 && has_at(text, at, head, n_head);
        n = n_common(opening, n, head, n_head);
    }
    *begin = at + n;
    return CZ_OK;
}

/* Some templates append the end-of-text token to every rendering that has no generation prompt. */
static void drop_end_token(struct work *w)
{
    struct text_buf *alone = &w->part.text;
    const size_t n = strlen(w->e->end);
    if (n > 0 && alone->n >= n && memcmp(alone->s + alone->n - n, w->e->end, n) == 0 &&
        !begins(&w->text.text, alone))
        alone->n -= n;
}

/* The span of the answer in message i. */
static cz_status find_answer(struct work *w, size_t i, size_t *begin, size_t *end)
{
    const struct text_buf *text = &w->text.text;
    bool found = false;
    size_t from = 0;
    cz_status st = find_begin(w, i, begin, &from, &found);
    *end = text->n;
    if (st == CZ_OK && found && i + 1 < w->row->n_messages) {
        st = render(w, i + 1, false, &w->part);
        w->n_asked = SIZE_MAX;
        if (st == CZ_OK) drop_end_token(w);
        if (st == CZ_OK && begins(text, &w->part.text) && w->part.text.n >= *begin)
            *end = w->part.text.n;
        else if (st == CZ_OK)
            st = find_end(w, i, from, *begin, end, &found);
        const struct jinja_text last = w->last;
        w->last = w->part;
        w->part = last;
        w->last_end = *end;
        w->has_last = st == CZ_OK && found;
    }
    if (st == CZ_OK && found) return CZ_OK;
    if (st != CZ_OK && st != CZ_INVALID) return st;
    w->out->fault = CHAT_UNFOUND;
    if (st == CZ_OK)
        err_set(CZ_INVALID, 0, "the text of the messages before it is written differently");
    return err_prefix(
        "%s: the answer in message %zu cannot be found in the text, so a template with "
        "{%% generation %%} is needed (--chat-template)",
        w->where, i + 1);
}

static bool is_answer(const struct work *w, size_t i)
{
    return chat_row_is_answer(w->row, i);
}

static bool is_excluded(const struct work *w, size_t i)
{
    return w->row->turns[i] & CHAT_EXCLUDED;
}

/* Spans of all answers, or of the last message. Excluded answers are searched, too, because the
 * search for a later answer starts from the one before it. */
static cz_status find_answers(struct work *w, bool last_only)
{
    const size_t n = w->row->n_messages;
    size_t begin, end;
    w->text.n_spans = 0;
    for (size_t i = last_only ? n - 1 : 0; i < n; i++) {
        if (!is_answer(w, i)) continue;
        cz_status st = find_answer(w, i, &begin, &end);
        if (st == CZ_INVALID && is_excluded(w, i)) {
            err_clear();
            continue;
        }
        TRY(st);
        if (!is_excluded(w, i)) TRY(add_span(w, begin, end));
    }
    return CZ_OK;
}

/* ---- excluded messages
 * ------------------------------------------------------------------------ */

/* Take [begin, end) out of all spans. */
static cz_status take_out(struct work *w, size_t begin, size_t end)
{
    struct jinja_text *t = &w->text;
    const size_t n = t->n_spans;
    TRY(spend_in_row(w, n));
    for (size_t k = 0; k < n; k++) {
        const struct jinja_span s = t->spans[k];
        if (s.end <= begin || s.begin >= end) continue;
        t->spans[k].end = s.begin < begin ? begin : s.begin;
        if (s.end > end && s.begin >= begin) t->spans[k] = (struct jinja_span){end, s.end};
        if (s.end > end && s.begin < begin) TRY(add_span(w, end, s.end));
    }
    return CZ_OK;
}

/* Take out the template's marks of excluded answers, where each answer has one mark with its words.
 */
static bool take_out_marks(struct work *w)
{
    struct jinja_text *t = &w->text;
    size_t k = 0, n_said, n_kept = 0;
    for (int pass = 0; pass < 2; pass++, k = 0) {
        for (size_t i = 0; i < w->row->n_messages; i++) {
            if (!is_answer(w, i)) continue;
            if (k == t->n_spans) return false;
            const struct jinja_span s = t->spans[k++];
            const char *said = said_of(json_child(w->row->chat.messages, i), &n_said);
            if (pass > 0) {
                if (!is_excluded(w, i)) t->spans[n_kept++] = s;
            } else if (s.end > t->text.n || n_said == 0 || s.end - s.begin < n_said ||
                       !memmem(t->text.s + s.begin, s.end - s.begin, said, n_said)) {
                return false;
            }
        }
        if (pass == 0 && k != t->n_spans) return false;
    }
    t->n_spans = n_kept;
    return true;
}

/* Where the first i messages end in the text. */
static cz_status find_message_end(struct work *w, size_t i, size_t *at, bool *found)
{
    *found = true;
    *at = i == 0 ? 0 : w->text.text.n;
    if (i == 0 || i == w->row->n_messages) return CZ_OK;
    cz_status st = render(w, i, false, &w->part);
    *found = st == CZ_OK && begins(&w->text.text, &w->part.text);
    *at = w->part.text.n;
    if (st != CZ_INVALID) return st;
    if (w->steps_left == 0) return err_prefix("%s", w->where);
    err_clear();
    return CZ_OK;
}

/* Take excluded messages out of the spans, whatever made these. */
static cz_status take_out_excluded(struct work *w, bool has_marks)
{
    const size_t n = w->row->n_messages;
    if (w->row->n_excluded == 0 || (has_marks && take_out_marks(w))) return CZ_OK;
    for (size_t i = 0, next; i < n; i = next) {
        size_t begin, end;
        bool has_begin, has_end;
        next = i + 1;
        if (!is_excluded(w, i)) continue;
        while (next < n && is_excluded(w, next)) next++;
        TRY(find_message_end(w, i, &begin, &has_begin));
        TRY(find_message_end(w, next, &end, &has_end));
        if (has_begin && has_end && begin <= end) {
            TRY(take_out(w, begin, end));
            continue;
        }
        for (size_t k = i; k < next; k++) {
            if (!is_answer(w, k)) {
                w->out->fault = CHAT_UNFOUND;
                return ROW_FAIL(w->where,
                                "message %zu is not to be trained, but cannot be found in the text",
                                k + 1);
            }
            TRY(find_answer(w, k, &begin, &end));
            TRY(take_out(w, begin, end));
        }
    }
    return CZ_OK;
}

/* ---- how an answer begins
 * ------------------------------------------------------------------------ */

/* The text of an answer that has no reasoning and no call, which templates could put first. */
static const char *plainly_said(const struct json_node *message, size_t *n)
{
    const struct json_node *reasoning = json_get(message, "reasoning_content");
    const char *text = text_of(message);
    *n = 0;
    if (!text || strstr(text, "think>") || json_count(json_get(message, "tool_calls")) > 0 ||
        (reasoning && json_type(reasoning) == JSON_STRING))
        return NULL;
    return said_of(message, n);
}

static cz_status note_start(struct work *w, const char *before, size_t n_before, const char *prompt,
                            size_t n_prompt)
{
    struct text_buf *to = &w->out->start;
    TRY(text_buf_put(to, before, n_before));
    TRY(text_buf_put_char(to, '\0'));
    TRY(text_buf_put(to, prompt, n_prompt));
    return text_buf_put_char(to, '\0');
}

/* Find the text in front of the last answer, which begins at `at`: the same as in front of earlier
 * answers, or all text up to its first word. */
static cz_status find_header(struct work *w, size_t at, const char **header, size_t *n)
{
    const struct text_buf *text = &w->text.text;
    size_t n_said;
    TRY(chat_probe_head(w->e->chat, w->row->chat.tools != NULL, header));
    *n = strlen(*header);
    if (*n > 0 && has_at(text, at, *header, *n)) return CZ_OK;
    const char *said =
        plainly_said(json_child(w->row->chat.messages, w->row->n_messages - 1), &n_said);
    const char *place = n_said > 0 ? memmem(text->s + at, text->n - at, said, n_said) : NULL;
    *header = text->s + at;
    *n = place ? (size_t)(place - *header) : 0;
    return CZ_OK;
}

/* w->part is the prompt for the last answer. */
static cz_status compare_start(struct work *w)
{
    const size_t i = w->row->n_messages - 1;
    const struct text_buf *text = &w->text.text, *prompt = &w->part.text, *before = &w->before.text;
    const bool begins_so = begins(text, prompt);
    const char *header;
    size_t n_said, n, at = prompt->n;
    const char *said = plainly_said(json_child(w->row->chat.messages, i), &n_said);
    w->out->has_start = true;
    if (begins_so &&
        (n_said == 0 || has_at(text, at + n_blank(text->s + at, text->n - at), said, n_said)))
        return CZ_OK;
    TRY(render(w, i, false, &w->before));
    if (begins_so) { /* what else stands before the answer, it writes itself: but for a header */
        if (prompt->n > before->n) return CZ_OK;
        TRY(find_header(w, at, &header, &n));
        return n == n_blank(header, n) ? CZ_OK : note_start(w, header, n, "", 0);
    }
    w->out->has_start = begins(prompt, before) && find_end_before(w, &at);
    const char *opening = prompt->s + before->n;
    if (!w->out->has_start || has_at(text, at, opening, prompt->n - before->n)) return CZ_OK;
    TRY(find_header(w, at, &header, &n));
    return note_start(w, header, n, opening, prompt->n - before->n);
}

/* Whether the generation prompt is what stands before the answer at the end of the row. A template
 * that refuses to write one says nothing of that. */
static cz_status judge_start(struct work *w)
{
    const size_t n = w->row->n_messages;
    cz_status st = CZ_OK;
    if (n == 0 || !is_answer(w, n - 1) || is_excluded(w, n - 1)) return CZ_OK;
    if (w->n_asked != n - 1 && w->skips_start) return CZ_OK;
    if (w->n_asked != n - 1) st = render(w, n - 1, true, &w->part);
    if (st == CZ_OK) st = compare_start(w);
    if (st != CZ_INVALID) return st;
    w->out->has_start = false;
    w->out->start.n = 0;
    err_clear();
    return CZ_OK;
}

/* ---- answers that say nothing
 * ------------------------------------------------------------------------ */

static bool is_silent(const struct json_node *message)
{
    const struct json_node *reasoning = json_get(message, "reasoning_content");
    const char *text = NULL;
    if (reasoning && json_type(reasoning) == JSON_STRING) json_as_string(reasoning, &text);
    return is_blank(text) && is_blank(text_of(message)) &&
           json_count(json_get(message, "tool_calls")) == 0;
}

/* Notes whether what the loss counts says nothing, and whether flags exclude it all. */
static void note_counted(struct work *w, enum chat_loss loss)
{
    const struct chat_row *row = w->row;
    size_t first = 0, n_counted = 0, n_excluded = 0;
    if (loss == CHAT_LOSS_COMPLETION) first = row->has_prompt ? row->n_prompt : row->n_messages - 1;
    for (size_t i = first; i < row->n_messages; i++) {
        if (!is_answer(w, i) && loss != CHAT_LOSS_ALL) continue;
        n_counted++;
        n_excluded += is_excluded(w, i);
        if (is_answer(w, i) && !is_excluded(w, i) && is_silent(json_child(row->chat.messages, i)))
            w->out->has_empty = true;
    }
    w->out->is_excluded = n_counted > 0 && n_excluded == n_counted;
}

/* ---- rows
 * ---------------------------------------------------------------------------------------- */

/* The text's ids, into `ids`; with the special tokens that the tokenizer puts around a text. */
static cz_status add_ids(struct work *w, bool with_frame, struct id_list *ids)
{
    const struct cz_tokenizer *tok = w->e->tokenizer;
    const struct text_buf *text = &w->text.text;
    size_t before = 0, after = 0;
    while (with_frame && before < tok->one.n && tok->one.items[before] != TOKENIZER_FIRST) before++;
    if (with_frame && before < tok->one.n) after = tok->one.n - before - 1;
    if (before == tok->one.n) before = 0;
    TRY(id_list_reserve(ids, text->n / 3 + 16)); /* of most texts */
    for (size_t i = 0; i < before; i++) TRY(id_list_add(ids, tok->one.items[i]));
    for (size_t i = 0; i < before; i++) TRY(id_list_add(&w->ends, 0));
    if (w->text.n_spans > 0 && tok->cls->encode_ends)
        TRY(tok->cls->encode_ends(tok, text->s, text->n, ids, &w->ends, &w->has_ends));
    else
        TRY(tok->cls->encode(tok, text->s, text->n, ids));
    w->first = before;
    w->out->n = ids->n; /* what follows is no part of the text */
    for (size_t i = 0; i < after; i++) TRY(id_list_add(ids, tok->one.items[before + 1 + i]));
    return CZ_OK;
}

static cz_status encode_text(struct work *w, bool with_frame)
{
    struct chat_tokens *out = w->out;
    struct id_list ids = {0};
    if (w->text.text.n == 0) TRY(text_buf_reserve(&w->text.text, 1));
    cz_status st = add_ids(w, with_frame, &ids);
    out->ids = ids.ids;
    out->trained = st == CZ_OK ? calloc(ids.n + 1, 1) : NULL;
    if (st == CZ_OK && !out->trained)
        st = err_set(CZ_NOMEM, 0, "no memory for a row of %zu tokens", ids.n);
    return st;
}

static cz_status train_spans(struct work *w)
{
    if (w->text.n_spans > 0 && !w->has_ends) {
        w->ends.n = 0;
        TRY(id_list_reserve(&w->ends, w->out->n));
        TRY(find_ends_by_pieces(w, &w->has_ends));
        if (!w->has_ends) TRY(find_ends_by_decoding(w, &w->has_ends));
    }
    for (size_t i = 0; i < w->text.n_spans; i++) {
        struct jinja_span s = w->text.spans[i];
        if (s.end > w->text.text.n) s.end = w->text.text.n;
        if (s.begin >= s.end) continue;
        TRY(train_span(w, s.begin, s.end));
        if (lacks_end(w, s.end)) w->out->lacks_end = true;
    }
    return CZ_OK;
}

/* After the text is written. */
static void allow_search(struct work *w)
{
    const uint64_t steps = w->text.steps + w->text.text.n;
    w->steps_left = CHAT_SEARCH_STEPS_MAX;
    if (steps < CHAT_SEARCH_STEPS_MAX / CHAT_SEARCH_TIMES)
        w->steps_left = CHAT_SEARCH_TIMES * steps;
}

/* A template that takes texts alone writes nothing for a content of parts
 * ([{"type": "text", "text": "…"}]): such a row would silently train on an empty answer. Looked for
 * is the beginning of each part, up to a character that templates may escape. */
static cz_status check_parts(struct work *w, size_t n_messages)
{
    const struct text_buf *text = &w->text.text;
    size_t at = 0; /* of the part before */
    for (size_t i = 0; i < n_messages; i++) {
        const struct json_node *message = json_child(w->row->chat.messages, i);
        const struct json_node *content = json_get(message, "content");
        const bool is_list = content && json_type(content) == JSON_ARRAY;
        for (size_t k = 0; is_list && k < json_count(content); k++) {
            const struct json_node *part = json_child(content, k), *value = NULL;
            const char *said = NULL;
            if (json_type(part) == JSON_OBJECT) value = json_get(part, "text");
            if (!value || json_type(value) != JSON_STRING) continue;
            TRY(json_as_string(value, &said));
            said += strspn(said, " \t\r\n");
            const struct jv bare =
                str_strip(jv_of_str(said, strcspn(said, "\"\\<>&'\t\r\n")), STR_LEFT | STR_RIGHT);
            if (bare.n == 0) continue;
            const char *place = memmem(text->s + at, text->n - at, bare.s, bare.n);
            if (!place) { /* not in the order of the messages */
                TRY(spend_in_row(w, text->n / 64));
                place = memmem(text->s, text->n, bare.s, bare.n);
            }
            if (place) at = (size_t)(place - text->s);
            if (!place)
                return ROW_FAIL(w->where,
                                "the template does not write the content of message %zu, a list of "
                                "parts: give it as one text",
                                i + 1);
        }
    }
    return CZ_OK;
}

cz_status chat_need_template(const struct chat_encoder *e)
{
    struct chat_template *none;
    if (e->chat) return CZ_OK;
    TRY(chat_template_open(e->tokenizer->dir, NULL, &none));
    chat_template_close(none);
    return err_set(CZ_BUSY, 0, "the chat template appeared while it was read");
}

static cz_status encode_chat(struct work *w)
{
    const struct chat_encoder *e = w->e;
    const struct chat_row *row = w->row;
    TRY(chat_need_template(e));
    enum chat_loss loss = e->loss;
    if (loss == CHAT_LOSS_FORM) loss = row->has_prompt ? CHAT_LOSS_COMPLETION : CHAT_LOSS_ASSISTANT;
    cz_status st =
        chat_template_render(e->chat, &row->chat, row->n_messages, false, e->now, &w->text);
    if (st != CZ_OK) return err_prefix("%s", w->where);
    allow_search(w);
    TRY(check_parts(w, row->n_messages));
    bool marks = chat_template_marks_answers(e->chat, row->chat.tools != NULL);
    w->is_marked = loss == CHAT_LOSS_ASSISTANT && marks;
    if (row->is_excluded) {
        w->text.n_spans = 0;
        return encode_text(w, false);
    }
    note_counted(w, loss);
    if (loss == CHAT_LOSS_COMPLETION && row->has_prompt) {
        st = chat_template_render(e->chat, &row->chat, row->n_prompt, true, e->now, &w->part);
        if (st != CZ_OK) return err_prefix("%s", w->where);
        if (!begins(&w->text.text, &w->part.text)) {
            w->out->fault = CHAT_UNFOUND;
            return ROW_FAIL(w->where,
                            "the template writes the prompt alone differently from the prompt with "
                            "its completion, so the completion cannot be found");
        }
        w->n_asked = row->n_prompt;
        w->text.n_spans = 0;
        TRY(add_span(w, w->part.text.n, w->text.text.n));
    } else if (loss == CHAT_LOSS_ASSISTANT && !marks) {
        TRY(find_answers(w, false));
    } else if (loss == CHAT_LOSS_COMPLETION) {
        TRY(find_answers(w, true));
    } else if (loss == CHAT_LOSS_ALL && row->n_excluded > 0) {
        w->text.n_spans = 0;
        TRY(add_span(w, 0, w->text.text.n));
    }
    TRY(judge_start(w));
    if (loss == CHAT_LOSS_ALL || (loss == CHAT_LOSS_COMPLETION && row->has_prompt) || w->is_marked)
        TRY(take_out_excluded(w, loss == CHAT_LOSS_ASSISTANT));
    TRY(encode_text(w, false));
    if (loss != CHAT_LOSS_ALL || row->n_excluded > 0) return train_spans(w);
    memset(w->out->trained, 1, w->out->n);
    return CZ_OK;
}

/* Plain texts end with the end-of-text token. */
static cz_status encode_plain(struct work *w)
{
    const struct chat_row *row = w->row;
    struct text_buf *text = &w->text.text;
    const char *end = w->e->end;
    if (w->e->loss == CHAT_LOSS_ASSISTANT)
        return ROW_FAIL(w->where, "plain text has no assistant; --loss-on completion or all");
    if (w->e->loss == CHAT_LOSS_COMPLETION && !row->has_prompt)
        return ROW_FAIL(w->where, "a plain text has no completion; --loss-on all");
    if (row->has_prompt) TRY(text_buf_put(text, row->prompt, strlen(row->prompt)));
    size_t begin = text->n;
    TRY(text_buf_put(text, row->text, strlen(row->text)));
    size_t n_end = strlen(end);
    if (n_end > 0 && (text->n < n_end || memcmp(text->s + text->n - n_end, end, n_end) != 0))
        TRY(text_buf_put(text, end, n_end));
    allow_search(w);
    TRY(encode_text(w, true));
    if (row->is_excluded) return CZ_OK;
    w->out->has_empty = is_blank(row->text);
    if (row->has_prompt && w->e->loss != CHAT_LOSS_ALL) {
        TRY(add_span(w, begin, text->n));
        return train_spans(w);
    }
    memset(w->out->trained, 1, w->out->n);
    return CZ_OK;
}

cz_status chat_encode_in(struct chat_scratch *scratch, const struct chat_encoder *e,
                         const struct chat_row *row, const char *where, struct chat_tokens *out)
{
    struct work w = {.e = e,
                     .row = row,
                     .where = where,
                     .text = scratch->text,
                     .part = scratch->part,
                     .before = scratch->before,
                     .last = scratch->last,
                     .out = out,
                     .ends = {scratch->ends, 0, scratch->ends_cap},
                     .skips_start = scratch->skips_start,
                     .n_asked = SIZE_MAX};
    w.text.text.n = w.part.text.n = 0;
    w.text.steps = 0;
    w.text.n_spans = w.part.n_spans = 0;
    memset(out, 0, sizeof *out);
    cz_status st = row->form == CHAT_MESSAGES ? encode_chat(&w) : encode_plain(&w);
    for (size_t i = 1; st == CZ_OK && i < out->n; i++) out->n_trained += out->trained[i];
    *scratch = (struct chat_scratch){w.text,     w.part,     w.before,     w.last,
                                     w.ends.ids, w.ends.cap, w.skips_start};
    return st;
}

size_t chat_n_asked(const struct chat_row *row)
{
    size_t n = row->has_prompt ? row->n_prompt : row->n_messages;
    while (!row->has_prompt && n > 0 && chat_row_is_answer(row, n - 1)) n--;
    return n;
}

cz_status chat_encode_prompt(const struct chat_encoder *e, const struct chat_row *row,
                             const char *where, struct text_buf *text, int32_t **ids, size_t *n)
{
    struct work w = {.e = e, .row = row, .where = where, .text.text = *text};
    const size_t n_asked = chat_n_asked(row);
    *ids = NULL;
    *n = 0;
    if (row->form != CHAT_MESSAGES)
        return ROW_FAIL(where, "plain text: --prompt and --prompts take it");
    if (n_asked == 0) return ROW_FAIL(where, "no message asks for an answer");
    TRY(chat_need_template(e));
    cz_status st = chat_template_render(e->chat, &row->chat, n_asked, true, e->now, &w.text);
    if (st != CZ_OK) err_prefix("%s", where);
    if (st == CZ_OK) allow_search(&w);
    if (st == CZ_OK) st = check_parts(&w, n_asked);
    if (st == CZ_OK) st = text_buf_reserve(&w.text.text, 1);
    if (st == CZ_OK) st = cz_tokenizer_encode(e->tokenizer, w.text.text.s, w.text.text.n, ids, n);
    *text = w.text.text;
    w.text.text = (struct text_buf){0};
    jinja_text_free(&w.text);
    return st;
}

void chat_scratch_free(struct chat_scratch *scratch)
{
    jinja_text_free(&scratch->text);
    jinja_text_free(&scratch->part);
    jinja_text_free(&scratch->before);
    jinja_text_free(&scratch->last);
    free(scratch->ends);
    memset(scratch, 0, sizeof *scratch);
}

cz_status chat_encode(const struct chat_encoder *e, const struct chat_row *row, const char *where,
                      struct chat_tokens *out)
{
    struct chat_scratch scratch = {0};
    cz_status st = chat_encode_in(&scratch, e, row, where, out);
    chat_scratch_free(&scratch);
    return st;
}
