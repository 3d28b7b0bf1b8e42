/* Inside the template engine: tokens, the tree, values and the state of a rendering.
 *
 *   lex.c → parse.c → (tree) → eval.c, with values.c, strings.c, filters.c, tests.c, methods.c
 *
 * Everything that a template or a rendering makes is in a pool, and goes with it. */
#ifndef CZ_DATA_JINJA_JINJA_IMPL_H
#define CZ_DATA_JINJA_JINJA_IMPL_H

#include "base/hash.h"
#include "data/jinja/jinja.h"

#include <inttypes.h>
#include <string.h>

/* ---- memory ---------------------------------------------------------------------------------- */

struct jinja_pool {
    struct jinja_block *blocks;
    char *at, *end;
    size_t nbytes, nbytes_max;
    /* the last allocation failed; if false, NULL means that nbytes_max is reached */
    bool lacks_memory;
};
/* Begin with a block of JINJA_BLOCK_NBYTES that stays the caller's; NULL: none. */
#define JINJA_BLOCK_NBYTES ((size_t)64 << 10)
void jinja_pool_begin(struct jinja_pool *p, void *block, size_t nbytes_max);
void *jinja_take(struct jinja_pool *p, size_t n); /* zeroed, aligned for any type; NULL: too much */
/* Make the n bytes at s, if they were taken last, m bytes longer in place. */
bool jinja_extend(struct jinja_pool *p, const char *s, size_t n, size_t m);
char *jinja_take_text(struct jinja_pool *p, size_t n); /* not aligned, not zeroed */
void jinja_pool_free(struct jinja_pool *p);

/* ---- values ---------------------------------------------------------------------------------- */

enum jv_type {
    JV_MISSING = 0, /* a variable without a value */
    JV_UNDEFINED,   /* s: what is undefined, for sentences */
    JV_NONE,
    JV_BOOL,
    JV_INT,
    JV_FLOAT,
    JV_STR,
    JV_LIST,
    JV_TUPLE,
    JV_ITER, /* a generator: can be read once */
    JV_VIEW, /* items(), keys(), values() of a dict */
    JV_DICT,
    JV_SPACE, /* namespace() */
    JV_MACRO,
    JV_METHOD,
    JV_FUNC,
    JV_LOOP
};

struct jv {
    uint8_t type;
    bool is_safe; /* JV_STR: marked as HTML, which + respects */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s;
        struct jv_list *list; /* JV_LIST, JV_TUPLE, JV_ITER, JV_VIEW */
        struct jv_dict *dict; /* JV_DICT, JV_SPACE */
        struct jv_macro *macro;
        struct jv_method *method;
        struct jv_loop *loop;
    };
    size_t n; /* JV_STR, JV_UNDEFINED: bytes */
};

struct jv_list {
    struct jv *at;
    size_t n, cap;
    size_t pos; /* JV_ITER: read so far */
};

struct jv_pair {
    struct jv key, value;
};
struct jv_dict {
    struct jv_pair *at;
    size_t n, cap;
};

struct jv_macro {
    const struct jn *node;
    struct jinja_scope *scope;
};
struct jv_method {
    struct jv self;
    const char *name;
};
struct jv_loop {
    const struct jv_list *items;
    size_t i;
    struct jv changed;
};

static inline struct jv jv_of_bool(bool b)
{
    return (struct jv){.type = JV_BOOL, .b = b};
}
static inline struct jv jv_of_int(int64_t i)
{
    return (struct jv){.type = JV_INT, .i = i};
}
static inline struct jv jv_of_float(double f)
{
    return (struct jv){.type = JV_FLOAT, .f = f};
}
static inline struct jv jv_of_str(const char *s, size_t n)
{
    return (struct jv){.type = JV_STR, .s = s, .n = n};
}
#define JV_NONE_VALUE ((struct jv){.type = JV_NONE})
#define JV_TEXT(text) jv_of_str(text, sizeof(text) - 1)

static inline bool jv_is(struct jv v, const char *text)
{
    return v.type == JV_STR && v.n == strlen(text) && memcmp(v.s, text, v.n) == 0;
}

/* ---- the tree -------------------------------------------------------------------------------- */

enum jn_kind {
    /* expressions */
    JN_CONST,
    JN_NAME,
    JN_LIST, /* list */
    JN_TUPLE,
    JN_DICT,  /* list: key, value, key, value … */
    JN_ATTR,  /* a.value */
    JN_ITEM,  /* a[b] */
    JN_SLICE, /* a[list[0]:list[1]:list[2]], each may be NULL */
    JN_CALL,  /* a(list, kw) */
    JN_FILTER,
    JN_TEST,
    JN_NOT,
    JN_AND,
    JN_OR,
    JN_NEG,
    JN_POS,
    JN_BINARY,  /* a op b */
    JN_CONCAT,  /* list */
    JN_COMPARE, /* a, then the operands in list, each with its op */
    JN_COND,    /* b if a else c; c may be NULL */
    /* statements */
    JN_TEXT,
    JN_OUT,
    JN_IF,  /* a, body, next: the elif or NULL, orelse */
    JN_FOR, /* target a, in b, if c, body, orelse */
    JN_SET, /* target a, value b */
    JN_SET_BLOCK,
    JN_MACRO, /* list: defaults of the last parameters; names: parameters */
    JN_GENERATION,
    JN_WITH, /* list: target, value, target, value …, body */
    JN_FILTER_BLOCK,
    JN_BREAK,
    JN_CONTINUE
};

enum jn_op {
    JO_ADD,
    JO_SUB,
    JO_MUL,
    JO_DIV,
    JO_FLOORDIV,
    JO_MOD,
    JO_POW,
    JO_EQ,
    JO_NE,
    JO_LT,
    JO_LE,
    JO_GT,
    JO_GE,
    JO_IN,
    JO_NOT_IN
};

struct jn_list {
    struct jn **at;
    size_t n, cap;
};
struct jn_keyword {
    struct jv name;
    struct jn *value;
};

struct jn {
    uint8_t kind, op;
    bool is_negated;                  /* JN_TEST */
    bool is_plain;                    /* JN_ATTR: of a dict no method, so a member */
    bool takes_varargs, takes_kwargs; /* JN_MACRO */
    int line;
    uint32_t name;        /* JN_NAME, JN_MACRO */
    struct jn *a, *b, *c; /* JN_CALL, JN_FILTER, JN_TEST: b is *b, c is **c among the arguments */
    struct jn_list list, body, orelse;
    struct jn_keyword *kw;
    size_t n_kw;
    uint32_t *names;
    size_t n_names;
    struct jn *next;
    struct jv value; /* JN_CONST, JN_TEXT, JN_ATTR: the name */
    const struct jinja_filter *filter;
    const struct jinja_test *test;
};

struct jinja_template {
    char *name;
    struct jinja_pool pool;
    struct jn_list body;
    struct jv *names; /* of variables, by number */
    size_t n_names, names_cap;
    struct hash_index name_index; /* of names */
    uint32_t loop_name;           /* of `loop`; UINT32_MAX: it is not read */
    bool marks_generation;
    struct jv *words; /* names and texts of all tags, sorted, each once */
    size_t n_words;
};

/* ---- tokens ---------------------------------------------------------------------------------- */

enum jt_type {
    JT_END,
    JT_TEXT, /* outside of tags */
    JT_OUT_BEGIN,
    JT_OUT_END,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_NAME,
    JT_STR,
    JT_INT,
    JT_FLOAT,
    JT_OP
};
struct jinja_token {
    uint8_t type;
    char op[3]; /* JT_OP: its characters */
    int line;
    struct jv value; /* JT_TEXT, JT_NAME, JT_STR, JT_INT, JT_FLOAT */
};
struct jinja_tokens {
    struct jinja_token *at; /* malloc'ed; the last is JT_END */
    size_t n, cap;
};

/* err_set with "NAME:LINE: " in front. */
cz_status jinja_fail(const char *name, int line, cz_status status, const char *fmt, ...)
    CZ_PRINTF(4, 5);
/* After a NULL of its pool: CZ_NOMEM where the system gave none, CZ_INVALID where the template is
 * too large. */
cz_status jinja_no_memory(const struct jinja_template *t, int line);
/* The number of a variable's name; false: the template has no such name. */
bool jinja_name_find(const struct jinja_template *t, const char *name, size_t n, uint32_t *out);

/* The tokens of a template; their texts are in its pool. To be released by free(out->at), also on
 * error. */
cz_status jinja_lex(struct jinja_template *t, const char *text, size_t n, struct jinja_tokens *out);

cz_status jinja_parse_tokens(struct jinja_template *t, const struct jinja_tokens *tokens);

/* ---- rendering ------------------------------------------------------------------------------- */

struct jinja_binding {
    uint32_t name;
    struct jv value;
};
struct jinja_scope {
    struct jinja_scope *parent; /* NULL: the template's own scope, run->globals */
    struct jinja_binding *at;
    size_t n, cap;
};

enum jinja_flow { JINJA_GOES_ON = 0, JINJA_BREAKS, JINJA_CONTINUES };

struct jinja_run {
    const struct jinja_template *t;
    struct jinja_pool pool;
    struct jv *globals; /* by name */
    struct jinja_scope root, *scope;
    struct text_buf *out;    /* where statements write now */
    size_t text_nbytes;      /* in all buffers that are written now */
    struct jinja_text *text; /* the caller's */
    int64_t now;
    uint64_t steps;
    int depth, line;
    enum jinja_flow flow;
};

struct jinja_args {
    struct jv *at; /* those by position */
    size_t n;
    struct jv_pair *kw;
    size_t n_kw;
};

/* ---- state ---- */
cz_status run_fail(struct jinja_run *r, const char *fmt, ...) CZ_PRINTF(2, 3);
cz_status run_lacks(struct jinja_run *r, const char *fmt, ...) CZ_PRINTF(2, 3);
cz_status run_no_memory(struct jinja_run *r); /* after a NULL of the pool */

/* Work is counted before it is done: a step is about 60 ns of it. run_steps: calls, values;
 * run_bytes: n bytes that are copied, compared or searched as memory; run_chars: n bytes that are
 * decoded character by character. CZ_INVALID beyond JINJA_STEPS_MAX steps. */
cz_status run_steps(struct jinja_run *r, uint64_t n);
static inline cz_status run_bytes(struct jinja_run *r, size_t n)
{
    return run_steps(r, n / 64);
}
static inline cz_status run_chars(struct jinja_run *r, size_t n)
{
    return run_steps(r, n / 8);
}

/* Append to a buffer of this rendering: the one way to make text. A step, and n bytes. CZ_INVALID
 * where all buffers together would hold more than JINJA_NBYTES_MAX bytes. */
cz_status run_put(struct jinja_run *r, struct text_buf *out, const char *s, size_t n);
/* Free such a buffer. */
void run_drop(struct jinja_run *r, struct text_buf *b);
/* A level deeper: filters and values that contain each other. CZ_INVALID beyond JINJA_DEPTH_MAX;
 * the caller takes r->depth down again. */
cz_status run_deeper(struct jinja_run *r);

/* ---- values.c ---- */
const char *jv_type_name(struct jv v);
bool jv_truth(struct jv v);
/* a == b. Errors: too deep, too many steps. */
cz_status jv_equal(struct jinja_run *r, struct jv a, struct jv b, bool *out);
bool jv_is_key(struct jv v);    /* what Python can hash */
bool jv_is_number(struct jv v); /* with True and False, as in Python */
double jv_number(struct jv v);
struct jv jv_undefined(const char *what, size_t n);
cz_status jv_list_new(struct jinja_run *r, enum jv_type type, size_t cap, struct jv *out);
cz_status jv_list_add(struct jinja_run *r, struct jv list, struct jv v);
cz_status jv_dict_new(struct jinja_run *r, enum jv_type type, size_t cap, struct jv *out);
cz_status jv_dict_put(struct jinja_run *r, struct jv dict, struct jv key, struct jv value);
/* NULL: there is none. The key is one that can be hashed. */
cz_status jv_dict_get(struct jinja_run *r, const struct jv_dict *d, struct jv key,
                      const struct jv **out);
cz_status jv_from_json(struct jinja_run *r, const struct json_node *node, size_t n_items,
                       struct jv *out);
cz_status jv_of_bytes(struct jinja_run *r, const char *s, size_t n, struct jv *out); /* a copy */
/* Order, for <, sort and dictsort: *out is below, 0 or above 0. Errors: types without an order. */
cz_status jv_order(struct jinja_run *r, struct jv a, struct jv b, int *out);
/* What iterating gives, as a list (of a string: its characters; of a dict: its keys). */
cz_status jv_iterate(struct jinja_run *r, struct jv v, struct jv_list **out);
cz_status jv_contains(struct jinja_run *r, struct jv item, struct jv in, bool *out);
cz_status jv_length(struct jinja_run *r, struct jv v, int64_t *out);
/* Append str(v), or repr(v). */
cz_status jv_print(struct jinja_run *r, struct jv v, bool is_repr, struct text_buf *out);
cz_status jv_to_str(struct jinja_run *r, struct jv v, struct jv *out);
struct jv_json_form {
    bool escapes_wide, sorts_keys, is_indented;
    struct jv indent, item_separator, key_separator;
};
cz_status jv_to_json(struct jinja_run *r, struct jv v, const struct jv_json_form *form, int level,
                     struct text_buf *out);
/* Take over what a buffer holds as a string of the pool. */
cz_status jv_take_buf(struct jinja_run *r, struct text_buf *b, struct jv *out);
cz_status jv_binary(struct jinja_run *r, enum jn_op op, struct jv a, struct jv b, struct jv *out);
cz_status jv_attr(struct jinja_run *r, struct jv v, struct jv name, bool item_first,
                  struct jv *out);
cz_status jv_item(struct jinja_run *r, struct jv v, struct jv key, struct jv *out);
cz_status jv_slice(struct jinja_run *r, struct jv v, const struct jv bounds[3], struct jv *out);

/* ---- strings.c: strings as Python sees them ---- */
size_t str_length(const char *s, size_t n);                 /* in characters */
size_t str_offset(const char *s, size_t n, size_t n_chars); /* of a character, in bytes */
bool str_is_space(int32_t c);
enum str_case { STR_UPPER, STR_LOWER, STR_TITLE, STR_CAPITAL };
cz_status str_set_case(struct jinja_run *r, enum str_case how, struct jv v, struct jv *out);
enum { STR_LEFT = 1, STR_RIGHT = 2 };
/* Without white space at its ends. */
struct jv str_strip(struct jv v, int sides);
/* The same of the characters of `set`, NULL: of white space, with the work counted. */
cz_status str_strip_set(struct jinja_run *r, struct jv v, int sides, const struct jv *set,
                        struct jv *out);
const char *str_find(const char *s, size_t n, const char *what, size_t m);
cz_status str_replace(struct jinja_run *r, struct jv v, struct jv old, struct jv with, int64_t max,
                      struct jv *out);
cz_status str_escape_html(struct jinja_run *r, struct jv v, struct jv *out);
cz_status str_repr(struct jinja_run *r, const char *s, size_t n, struct text_buf *out);
cz_status str_json(struct jinja_run *r, const char *s, size_t n, bool escapes_wide,
                   struct text_buf *out);
bool str_to_int(const char *s, size_t n, int base, int64_t *out);
bool str_to_float(const char *s, size_t n, double *out);

/* ---- functions ---- */
typedef cz_status jinja_filter_fn(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                                  struct jv *out);
typedef cz_status jinja_test_fn(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                                bool *out);
struct jinja_filter {
    const char *name;
    jinja_filter_fn *run; /* called by jinja_filter_run() alone, which counts the depth */
};
struct jinja_test {
    const char *name;
    jinja_test_fn *run;
    int n_args;
};
const struct jinja_filter *jinja_filter_find(struct jv name); /* NULL: none */
cz_status jinja_filter_run(struct jinja_run *r, const struct jinja_filter *filter, struct jv v,
                           const struct jinja_args *args, struct jv *out);
const struct jinja_test *jinja_test_find(struct jv name);
/* The number of a function that templates may call without defining it, or -1. */
int jinja_func_find(struct jv name);
cz_status jinja_func_call(struct jinja_run *r, int func, const struct jinja_args *args,
                          struct jv *out);
/* Whether Python's type of v has an attribute of this name. */
const char *jinja_method_find(struct jv v, struct jv name);
bool jinja_is_method_of_dicts(struct jv name);
cz_status jinja_method_call(struct jinja_run *r, const struct jv_method *m,
                            const struct jinja_args *args, struct jv *out);
cz_status jinja_call(struct jinja_run *r, struct jv callee, const struct jinja_args *args,
                     struct jv *out);

/* The argument of this place or name, or NULL. */
const struct jv *jinja_arg(const struct jinja_args *args, size_t place, const char *name);
/* An error unless all arguments have a place below n or one of the names (ended by NULL). */
cz_status jinja_args_check(struct jinja_run *r, const char *what, const struct jinja_args *args,
                           size_t n_min, size_t n_max, const char *const *names);

#endif
