/* Thompson's construction and simulation (Thompson, "Regular expression search algorithm", 1968): a
 * text is read once, with the set of states that its beginning can lead to. Nothing is tried and
 * taken back, so there is no expression that takes exponential time. */
#include "base/text/regex.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define ENDLESS   UINT32_MAX
#define NO_CHAR   UINT32_MAX /* a byte that is not UTF-8; the ends of a text */
#define CHAR_LAST 0x10FFFFu

/* ---- the tree ------------------------------------------------------------------------------- */

enum node_kind {
    NODE_EMPTY,
    NODE_ANY,
    NODE_SET,    /* first, n: ranges of the set; negated */
    NODE_PLACE,  /* place */
    NODE_BOTH,   /* left, right: one after the other */
    NODE_EITHER, /* left, right */
    NODE_REPEAT  /* left; least, most */
};

enum place { PLACE_BEGIN, PLACE_END, PLACE_WORD, PLACE_NO_WORD };

struct node {
    enum node_kind kind;
    enum place place;
    bool negated;
    uint32_t left, right;
    uint32_t first, n;
    uint32_t least, most;
};

struct range {
    uint32_t first, last;
};

/* ---- the program ---------------------------------------------------------------------------- */

enum { STATE_SET = 0, STATE_ANY, STATE_PLACE, STATE_SPLIT, STATE_MATCH };

struct state {
    uint8_t kind, place;
    bool negated;
    uint16_t next, other; /* STATE_SPLIT: both */
    uint32_t first, n;
};

struct regex {
    struct state states[REGEX_STATES_MAX];
    size_t n_states, n_written;
    uint16_t begin;
    struct range *ranges;
};

/* ---- reading -------------------------------------------------------------------------------- */

struct reader {
    const char *text, *at;
    struct node *nodes;
    struct range *ranges;
    size_t n_nodes, nodes_cap, n_ranges, ranges_cap;
    int depth;
};

static cz_status fail(const struct reader *r, const char *problem)
{
    return err_set(CZ_INVALID, 0, "\"%.200s\" is not a regular expression: position %zu: %s",
                   r->text, (size_t)(r->at - r->text) + 1, problem);
}

static cz_status lacks(const struct reader *r, const char *what)
{
    return err_set(CZ_UNSUPPORTED, 0, "\"%.200s\", position %zu: %s is not supported", r->text,
                   (size_t)(r->at - r->text) + 1, what);
}

static cz_status grow(void *at, size_t n, size_t *cap, size_t size)
{
    void **array = at;
    if (n < *cap) return CZ_OK;
    const size_t more = *cap ? 2 * *cap : 16;
    void *grown = realloc(*array, more * size);
    if (!grown) return err_set(CZ_NOMEM, 0, "no memory for a regular expression");
    *array = grown;
    *cap = more;
    return CZ_OK;
}

static cz_status add_node(struct reader *r, struct node node, uint32_t *out)
{
    if (r->n_nodes == 4 * REGEX_STATES_MAX) return fail(r, "the expression is too long");
    TRY(grow(&r->nodes, r->n_nodes, &r->nodes_cap, sizeof *r->nodes));
    r->nodes[r->n_nodes] = node;
    *out = (uint32_t)r->n_nodes++;
    return CZ_OK;
}

static cz_status add_range(struct reader *r, uint32_t first, uint32_t last)
{
    TRY(grow(&r->ranges, r->n_ranges, &r->ranges_cap, sizeof *r->ranges));
    r->ranges[r->n_ranges++] = (struct range){first, last};
    return CZ_OK;
}

/* The character at r->at, which moves behind it. */
static cz_status take_char(struct reader *r, uint32_t *out)
{
    const int len = utf8_length(r->at, strnlen(r->at, 4));
    if (len <= 0) return fail(r, "not UTF-8");
    *out = utf8_decode(r->at, len);
    r->at += len;
    return CZ_OK;
}

/* ---- classes -------------------------------------------------------------------------------- */

static const struct range digits[] = {{'0', '9'}};
static const struct range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const struct range spaces[] = {{'\t', '\r'}, {' ', ' '}};
static const struct range uppers[] = {{'A', 'Z'}};
static const struct range lowers[] = {{'a', 'z'}};
static const struct range letters[] = {{'A', 'Z'}, {'a', 'z'}};
static const struct range alnums[] = {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}};
static const struct range hexes[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
static const struct range puncts[] = {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}};
static const struct range blanks[] = {{'\t', '\t'}, {' ', ' '}};

static const struct class {
    const char *name; /* of POSIX */
    char letter;      /* after a backslash; its upper case is all others */
    const struct range *ranges;
    size_t n;
} classes[] = {
    {"digit", 'd', digits, CZ_ARRAY_LEN(digits)}, {"", 'w', words, CZ_ARRAY_LEN(words)},
    {"space", 's', spaces, CZ_ARRAY_LEN(spaces)}, {"upper", 0, uppers, CZ_ARRAY_LEN(uppers)},
    {"lower", 0, lowers, CZ_ARRAY_LEN(lowers)},   {"alpha", 0, letters, CZ_ARRAY_LEN(letters)},
    {"alnum", 0, alnums, CZ_ARRAY_LEN(alnums)},   {"xdigit", 0, hexes, CZ_ARRAY_LEN(hexes)},
    {"punct", 0, puncts, CZ_ARRAY_LEN(puncts)},   {"blank", 0, blanks, CZ_ARRAY_LEN(blanks)},
};

static cz_status add_class(struct reader *r, const struct class *c, bool negated)
{
    uint32_t from = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (!negated) {
            TRY(add_range(r, c->ranges[i].first, c->ranges[i].last));
            continue;
        }
        TRY(add_range(r, from, c->ranges[i].first - 1)); /* no class has 0 */
        from = c->ranges[i].last + 1;
    }
    return negated ? add_range(r, from, CHAR_LAST) : CZ_OK;
}

static const struct class *class_of_letter(char c, bool *negated)
{
    *negated = c >= 'A' && c <= 'Z';
    for (size_t i = 0; i < CZ_ARRAY_LEN(classes); i++)
        if (classes[i].letter && classes[i].letter == (*negated ? c + 32 : c)) return &classes[i];
    return NULL;
}

/* After a backslash: a class (*class set), or a character. */
static cz_status take_escape(struct reader *r, const struct class **class, bool *negated,
                             uint32_t *c)
{
    static const char control[] = "n\nt\tr\rf\fv\va\a";
    const char letter = *r->at;
    if (!letter) return fail(r, "a backslash ends the expression");
    *class = class_of_letter(letter, negated);
    *c = (unsigned char)letter;
    for (const char *p = control; *p; p += 2)
        if (*p == letter) *c = (unsigned char)p[1];
    if (*class || *c != (unsigned char)letter) {
        r->at++;
        return CZ_OK;
    }
    if (letter >= '0' && letter <= '9') return lacks(r, "a reference to a group");
    if ((letter | 32) >= 'a' && (letter | 32) <= 'z') return lacks(r, "this escape");
    return take_char(r, c);
}

/* "[:digit:]" inside of a set; false: it does not stand there. */
static cz_status take_named_class(struct reader *r, bool *found)
{
    *found = false;
    if (r->at[0] != '[' || r->at[1] != ':') return CZ_OK;
    /* The longest name has 6 letters: a look at the whole rest for each "[:" would be quadratic. */
    const char *name = r->at + 2, *end = memmem(name, strnlen(name, 16), ":]", 2);
    if (!end) return CZ_OK;
    const size_t n = (size_t)(end - name);
    for (size_t i = 0; i < CZ_ARRAY_LEN(classes); i++) {
        if (n == 0 || strlen(classes[i].name) != n || memcmp(classes[i].name, name, n) != 0)
            continue;
        *found = true;
        r->at = end + 2;
        return add_class(r, &classes[i], false);
    }
    return lacks(r, "this class");
}

/* One end of a range in a set. */
static cz_status take_member(struct reader *r, const struct class **class, bool *negated,
                             uint32_t *c)
{
    *class = NULL;
    if (!*r->at) return fail(r, "a set has no ]");
    if (*r->at != '\\') return take_char(r, c);
    r->at++;
    if (*r->at == 'b') { /* a backspace here, in Python */
        r->at++;
        *c = '\b';
        return CZ_OK;
    }
    return take_escape(r, class, negated, c);
}

/* After "[". A ] that comes first is a member. */
static cz_status read_set(struct reader *r, struct node *node)
{
    const struct class *class;
    uint32_t first, last;
    bool negated, found;
    *node = (struct node){.kind = NODE_SET, .first = (uint32_t)r->n_ranges};
    node->negated = *r->at == '^';
    r->at += node->negated;
    for (bool begins = true; *r->at != ']' || begins; begins = false) {
        TRY(take_named_class(r, &found));
        if (found) continue;
        TRY(take_member(r, &class, &negated, &first));
        if (class) {
            TRY(add_class(r, class, negated));
            continue;
        }
        last = first;
        if (r->at[0] == '-' && r->at[1] && r->at[1] != ']') {
            r->at++;
            TRY(take_member(r, &class, &negated, &last));
            if (class || last < first) return fail(r, "a range of a set ends before it begins");
        }
        TRY(add_range(r, first, last));
    }
    r->at++;
    node->n = (uint32_t)r->n_ranges - node->first;
    return CZ_OK;
}

/* ---- the grammar ---------------------------------------------------------------------------- */

static cz_status read_either(struct reader *r, uint32_t *out);

/* After "(?": what the group is. */
static cz_status skip_group_head(struct reader *r)
{
    if (*r->at == ':') {
        r->at++;
        return CZ_OK;
    }
    if (r->at[0] == 'P' && r->at[1] == '<') {
        const char *end = strchr(r->at, '>');
        if (!end) return fail(r, "a group's name does not end");
        r->at = end + 1;
        return CZ_OK;
    }
    if (*r->at == '=' || *r->at == '!' || *r->at == '<') return lacks(r, "looking ahead or behind");
    return lacks(r, "this kind of group");
}

static cz_status read_group(struct reader *r, uint32_t *out)
{
    if (++r->depth > REGEX_DEPTH_MAX) return fail(r, "groups are nested too deeply");
    if (*r->at == '?') {
        r->at++;
        TRY(skip_group_head(r));
    }
    TRY(read_either(r, out));
    if (*r->at != ')') return fail(r, "a group has no )");
    r->at++;
    r->depth--;
    return CZ_OK;
}

static cz_status add_place(struct reader *r, enum place place, uint32_t *out)
{
    return add_node(r, (struct node){.kind = NODE_PLACE, .place = place}, out);
}

static cz_status add_char(struct reader *r, uint32_t c, uint32_t *out)
{
    const uint32_t first = (uint32_t)r->n_ranges;
    TRY(add_range(r, c, c));
    return add_node(r, (struct node){.kind = NODE_SET, .first = first, .n = 1}, out);
}

static cz_status read_escape(struct reader *r, uint32_t *out)
{
    const struct class *class;
    bool negated;
    uint32_t c;
    switch (*r->at) {
    case 'A': r->at++; return add_place(r, PLACE_BEGIN, out);
    case 'Z': r->at++; return add_place(r, PLACE_END, out);
    case 'b': r->at++; return add_place(r, PLACE_WORD, out);
    case 'B': r->at++; return add_place(r, PLACE_NO_WORD, out);
    default: break;
    }
    TRY(take_escape(r, &class, &negated, &c));
    if (!class) return add_char(r, c, out);
    struct node node = {.kind = NODE_SET, .first = (uint32_t)r->n_ranges};
    TRY(add_class(r, class, negated));
    node.n = (uint32_t)r->n_ranges - node.first;
    return add_node(r, node, out);
}

/* Digits at *at; false: none, or far too many. */
static bool take_count(const char **at, uint32_t *out)
{
    const char *s = *at;
    *out = 0;
    for (; *s >= '0' && *s <= '9'; s++)
        if ((*out = *out * 10 + (uint32_t)(*s - '0')) > REGEX_STATES_MAX)
            *out = REGEX_STATES_MAX + 1;
    const bool found = s > *at;
    *at = s;
    return found;
}

/* A sign of repetition; a { that begins none is a character, as in Python. */
static bool take_repeat(struct reader *r, uint32_t *least, uint32_t *most)
{
    const char *s = r->at;
    *least = *s == '+';
    *most = *s == '?' ? 1 : ENDLESS;
    if (*s == '*' || *s == '+' || *s == '?') {
        r->at++;
        return true;
    }
    if (*s++ != '{') return false;
    const bool has_least = take_count(&s, least);
    *most = *least;
    if (*s == ',') {
        s++;
        if (!take_count(&s, most)) *most = ENDLESS;
    } else if (!has_least) {
        return false;
    }
    if (*s != '}') return false;
    r->at = s + 1;
    return true;
}

static cz_status read_atom(struct reader *r, uint32_t *out)
{
    struct node node;
    uint32_t c, least, most;
    const char here = *r->at;
    const char *begin = r->at;
    if (take_repeat(r, &least, &most)) {
        r->at = begin;
        return fail(r, "nothing stands before this sign");
    }
    if (here != '(' && here != '[' && here != '.' && here != '^' && here != '$' && here != '\\') {
        TRY(take_char(r, &c));
        return add_char(r, c, out);
    }
    r->at++;
    switch (here) {
    case '(': return read_group(r, out);
    case '[': TRY(read_set(r, &node)); return add_node(r, node, out);
    case '.': return add_node(r, (struct node){.kind = NODE_ANY}, out);
    case '^': return add_place(r, PLACE_BEGIN, out);
    case '$': return add_place(r, PLACE_END, out);
    default: return read_escape(r, out);
    }
}

static cz_status read_repeated(struct reader *r, uint32_t *out)
{
    struct node node = {.kind = NODE_REPEAT};
    TRY(read_atom(r, out));
    if (!take_repeat(r, &node.least, &node.most)) return CZ_OK;
    if (node.most < node.least) return fail(r, "a repetition's most is below its least");
    if (*r->at == '?') r->at++;
    node.left = *out;
    return add_node(r, node, out);
}

static cz_status read_sequence(struct reader *r, uint32_t *out)
{
    TRY(add_node(r, (struct node){.kind = NODE_EMPTY}, out));
    for (bool begins = true; *r->at && *r->at != '|' && *r->at != ')'; begins = false) {
        uint32_t next;
        TRY(read_repeated(r, &next));
        if (begins)
            *out = next;
        else
            TRY(add_node(r, (struct node){.kind = NODE_BOTH, .left = *out, .right = next}, out));
    }
    return CZ_OK;
}

static cz_status read_either(struct reader *r, uint32_t *out)
{
    TRY(read_sequence(r, out));
    while (*r->at == '|') {
        uint32_t other;
        r->at++;
        TRY(read_sequence(r, &other));
        TRY(add_node(r, (struct node){.kind = NODE_EITHER, .left = *out, .right = other}, out));
    }
    return CZ_OK;
}

/* ---- writing the program -------------------------------------------------------------------- */

/* From the end to the beginning: each piece is written when what follows it has its number. */
static cz_status too_large(const struct reader *r)
{
    return err_set(CZ_INVALID, 0, "\"%.200s\": the expression has more than %d states", r->text,
                   REGEX_STATES_MAX);
}

static cz_status emit(struct regex *re, const struct reader *r, struct state state, uint16_t *out)
{
    if (re->n_states == REGEX_STATES_MAX) return too_large(r);
    re->states[re->n_states] = state;
    *out = (uint16_t)re->n_states++;
    return CZ_OK;
}

static cz_status write_node(struct regex *re, const struct reader *r, uint32_t idx, uint16_t next,
                            uint16_t *out);

static cz_status write_repeat(struct regex *re, const struct reader *r, const struct node *node,
                              uint16_t next, uint16_t *out)
{
    const uint16_t end = next;
    if (node->most == ENDLESS) {
        uint16_t loop = 0, body = 0;
        TRY(emit(re, r, (struct state){.kind = STATE_SPLIT, .other = next}, &loop));
        TRY(write_node(re, r, node->left, loop, &body));
        re->states[loop].next = body;
        next = loop;
    } else {
        for (uint32_t i = node->least; i < node->most; i++) {
            uint16_t body = 0, split = 0;
            TRY(write_node(re, r, node->left, next, &body));
            TRY(emit(re, r, (struct state){.kind = STATE_SPLIT, .next = body, .other = end},
                     &split));
            next = split;
        }
    }
    for (uint32_t i = 0; i < node->least; i++) TRY(write_node(re, r, node->left, next, &next));
    *out = next;
    return CZ_OK;
}

/* The alternatives of a list, which leans to the left. */
static cz_status write_either(struct regex *re, const struct reader *r, const struct node *node,
                              uint16_t next, uint16_t *out)
{
    uint32_t rest = node->left;
    TRY(write_node(re, r, node->right, next, out));
    for (bool is_last = false; !is_last;) {
        uint16_t one = 0;
        is_last = r->nodes[rest].kind != NODE_EITHER;
        TRY(write_node(re, r, is_last ? rest : r->nodes[rest].right, next, &one));
        TRY(emit(re, r, (struct state){.kind = STATE_SPLIT, .next = one, .other = *out}, out));
        rest = r->nodes[rest].left;
    }
    return CZ_OK;
}

/* Written pieces are counted: a repetition of nothing makes no states. */
static cz_status write_node(struct regex *re, const struct reader *r, uint32_t idx, uint16_t next,
                            uint16_t *out)
{
    const struct node *node = &r->nodes[idx];
    for (; node->kind == NODE_BOTH; node = &r->nodes[node->left]) /* a list leans to the left */
        TRY(write_node(re, r, node->right, next, &next));
    *out = next;
    if (++re->n_written > 16 * REGEX_STATES_MAX) return too_large(r);
    switch (node->kind) {
    case NODE_EMPTY: return CZ_OK;
    case NODE_ANY: return emit(re, r, (struct state){.kind = STATE_ANY, .next = next}, out);
    case NODE_SET:
        return emit(re, r,
                    (struct state){.kind = STATE_SET,
                                   .next = next,
                                   .first = node->first,
                                   .n = node->n,
                                   .negated = node->negated},
                    out);
    case NODE_PLACE:
        return emit(
            re, r, (struct state){.kind = STATE_PLACE, .next = next, .place = (uint8_t)node->place},
            out);
    case NODE_EITHER: return write_either(re, r, node, next, out);
    default: return write_repeat(re, r, node, next, out);
    }
}

/* Of all expressions and matches together. */
static cz_status spend(uint64_t *work, uint64_t n)
{
    if (*work < n) return err_set(CZ_INVALID, 0, "regular expressions take too long to match");
    *work -= n;
    return CZ_OK;
}

#define COMPILE_WORK 256 /* of an expression, whatever its length; 16 of a node */

cz_status regex_compile(const char *pattern, uint64_t *work, struct regex **out)
{
    struct reader r = {.text = pattern, .at = pattern};
    struct regex *re = malloc(sizeof *re);
    uint32_t root = 0;
    uint16_t begin = 0;
    *out = NULL;
    cz_status st =
        re ? read_either(&r, &root) : err_set(CZ_NOMEM, 0, "no memory for a regular expression");
    if (st == CZ_OK && *r.at == ')') st = fail(&r, "a ) without its (");
    if (st == CZ_OK) {
        re->n_states = re->n_written = 0;
        st = emit(re, &r, (struct state){.kind = STATE_MATCH}, &begin);
    }
    if (st == CZ_OK) st = write_node(re, &r, root, begin, &begin);
    if (st == CZ_OK) st = spend(work, COMPILE_WORK + 16 * (r.n_nodes + re->n_written));
    if (st == CZ_OK) re->begin = begin;
    free(r.nodes);
    if (st != CZ_OK) {
        free(r.ranges);
        free(re);
        return st;
    }
    re->ranges = r.ranges;
    *out = re;
    return CZ_OK;
}

void regex_free(struct regex *re)
{
    if (!re) return;
    free(re->ranges);
    free(re);
}

/* ---- matching ------------------------------------------------------------------------------- */

struct matcher {
    const struct regex *re;
    uint16_t list[REGEX_STATES_MAX]; /* states that the text so far leads to */
    uint16_t stack[2 * REGEX_STATES_MAX];
    bool has[REGEX_STATES_MAX];
    size_t n;
    bool is_match;
};

static bool is_word(uint32_t c)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(words); i++)
        if (c >= words[i].first && c <= words[i].last) return true;
    return false;
}

/* At a place of the text: begins and ends of it, and the characters on both sides. */
struct here {
    bool begins, ends;
    uint32_t before, after;
};

static bool place_holds(enum place place, const struct here *h)
{
    switch (place) {
    case PLACE_BEGIN: return h->begins;
    case PLACE_END: return h->ends;
    case PLACE_WORD: return is_word(h->before) != is_word(h->after);
    default: return is_word(h->before) == is_word(h->after);
    }
}

/* A state, and all that it leads to without a character. */
static void add_state(struct matcher *m, uint16_t begin, const struct here *h)
{
    size_t n_stack = 0;
    m->stack[n_stack++] = begin;
    while (n_stack > 0) {
        const uint16_t i = m->stack[--n_stack];
        const struct state *s = &m->re->states[i];
        if (m->has[i]) continue;
        m->has[i] = true;
        m->list[m->n++] = i;
        if (s->kind == STATE_MATCH) m->is_match = true;
        if (s->kind == STATE_SPLIT) m->stack[n_stack++] = s->other;
        if (s->kind == STATE_SPLIT ||
            (s->kind == STATE_PLACE && place_holds((enum place)s->place, h)))
            m->stack[n_stack++] = s->next;
    }
}

static bool accepts(const struct regex *re, const struct state *s, uint32_t c)
{
    if (s->kind == STATE_ANY) return c != '\n';
    if (s->kind != STATE_SET || c == NO_CHAR) return false;
    for (uint32_t i = 0; i < s->n; i++) {
        const struct range *range = &re->ranges[s->first + i];
        if (c >= range->first && c <= range->last) return !s->negated;
    }
    return s->negated;
}

/* The character at s, and its bytes. */
static uint32_t char_at(const char *s, size_t n, size_t *len)
{
    const int found = n > 0 ? utf8_length(s, n) : 0;
    *len = found > 0 ? (size_t)found : 1;
    return found > 0 ? utf8_decode(s, found) : NO_CHAR;
}

cz_status regex_match(const struct regex *re, const char *text, size_t n, bool whole,
                      uint64_t *work, bool *out)
{
    struct matcher m;
    uint16_t from[REGEX_STATES_MAX];
    size_t at = 0, len;
    struct here h = {.begins = true, .before = NO_CHAR};
    m.re = re;
    m.n = 0;
    m.is_match = false;
    memset(m.has, 0, re->n_states * sizeof *m.has);
    *out = false;
    TRY(spend(work, 1 + re->n_states / 64));
    for (;;) {
        h.ends = at == n;
        h.after = char_at(text + at, n - at, &len);
        if (at == 0 || !whole) add_state(&m, re->begin, &h);
        if (m.is_match && (!whole || h.ends)) *out = true;
        if (*out || h.ends || (m.n == 0 && whole)) return CZ_OK;
        const size_t n_from = m.n;
        memcpy(from, m.list, n_from * sizeof *from);
        for (size_t i = 0; i < n_from; i++) m.has[from[i]] = false;
        m.n = 0;
        m.is_match = false;
        const struct here next = {.before = h.after,
                                  .ends = at + len == n,
                                  .after = char_at(text + at + len, n - at - len, &(size_t){0})};
        for (size_t i = 0; i < n_from; i++) {
            const struct state *s = &re->states[from[i]];
            TRY(spend(work, 1 + s->n));
            if (accepts(re, s, h.after)) add_state(&m, s->next, &next);
        }
        at += len;
        h.begins = false;
        h.before = next.before;
    }
}
