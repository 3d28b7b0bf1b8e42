/* Tokens to a tree: the grammar of Jinja 3.1's parser, with its priorities. Filters, tests and
 * statements that the engine lacks are refused here, with their line. */
#include "data/jinja/jinja_impl.h"

#include "base/text/nearest.h"

#include <stdio.h>
#include <stdlib.h>

enum { KEYWORDS_MAX = 255 }; /* each is compared with those before it */
enum { NAMES_MAX = 4096 };   /* of variables */

struct parser {
    struct jinja_template *t;
    const struct jinja_token *at;
    int depth;
    int n_loops;      /* around the statement, inside of its macro or block */
    struct jn *macro; /* around it */
    uint32_t n_macros;
    uint32_t macro_of[NAMES_MAX]; /* the last one with a parameter of this name, from 1 on */
};

#define PARSE_FAIL(p, ...)  jinja_fail((p)->t->name, (p)->at->line, CZ_INVALID, __VA_ARGS__)
#define PARSE_LACKS(p, ...) jinja_fail((p)->t->name, (p)->at->line, CZ_UNSUPPORTED, __VA_ARGS__)

static cz_status parse_expression(struct parser *p, bool with_cond, struct jn **out);
static cz_status parse_unary(struct parser *p, bool with_filter, struct jn **out);
static cz_status parse_statements(struct parser *p, const char *const *ends, struct jn_list *out);

/* ---- tokens ------------------------------------------------------------------------------------
 */

static bool is_op(const struct parser *p, const char *op)
{
    return p->at->type == JT_OP && strcmp(p->at->op, op) == 0;
}

static bool is_word(const struct parser *p, const char *word)
{
    return p->at->type == JT_NAME && jv_is(p->at->value, word);
}

static bool skip_op(struct parser *p, const char *op)
{
    if (!is_op(p, op)) return false;
    p->at++;
    return true;
}

static bool skip_word(struct parser *p, const char *word)
{
    if (!is_word(p, word)) return false;
    p->at++;
    return true;
}

static cz_status fail_here(struct parser *p, const char *expected)
{
    const struct jinja_token *t = p->at;
    if (t->type == JT_OP) return PARSE_FAIL(p, "expected %s, got '%s'", expected, t->op);
    if (t->type == JT_NAME || t->type == JT_STR)
        return PARSE_FAIL(p, "expected %s, got '%.*s'", expected,
                          (int)(t->value.n < 60 ? t->value.n : 60), t->value.s);
    bool ends = t->type == JT_BLOCK_END || t->type == JT_OUT_END;
    return PARSE_FAIL(p, "expected %s, got %s", expected,
                      ends                ? "the end of the tag"
                      : t->type == JT_END ? "the end of the template"
                                          : "something else");
}

static cz_status expect_op(struct parser *p, const char *op)
{
    if (skip_op(p, op)) return CZ_OK;
    char what[8] = {'\'', op[0], '\''};
    return fail_here(p, what);
}

static cz_status expect_word(struct parser *p, const char *word)
{
    return skip_word(p, word) ? CZ_OK : fail_here(p, word);
}

static cz_status expect_name(struct parser *p, struct jv *out)
{
    if (p->at->type != JT_NAME) return fail_here(p, "a name");
    *out = p->at++->value;
    return CZ_OK;
}

static cz_status expect_block_end(struct parser *p)
{
    if (p->at->type != JT_BLOCK_END) return fail_here(p, "the end of the tag");
    p->at++;
    return CZ_OK;
}

/* ---- nodes -------------------------------------------------------------------------------------
 */

static cz_status node_new(struct parser *p, enum jn_kind kind, int line, struct jn **out)
{
    struct jn *node = jinja_take(&p->t->pool, sizeof *node);
    if (!node) return jinja_no_memory(p->t, line);
    node->kind = (uint8_t)kind;
    node->line = line;
    *out = node;
    return CZ_OK;
}

static cz_status list_add(struct parser *p, struct jn_list *list, struct jn *node)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? 2 * list->cap : 4;
        struct jn **at = jinja_take(&p->t->pool, cap * sizeof(struct jn *));
        if (!at) return jinja_no_memory(p->t, p->at->line);
        if (list->n > 0) memcpy(at, list->at, list->n * sizeof(struct jn *));
        list->at = at;
        list->cap = cap;
    }
    list->at[list->n++] = node;
    return CZ_OK;
}

struct name_key {
    const struct jinja_template *t;
    const char *s;
    size_t n;
};

static bool is_name(const void *key, size_t item)
{
    const struct name_key *k = key;
    const struct jv *name = &k->t->names[item];
    return name->n == k->n && memcmp(name->s, k->s, k->n) == 0;
}

bool jinja_name_find(const struct jinja_template *t, const char *name, size_t n, uint32_t *out)
{
    const struct name_key key = {t, name, n};
    const size_t item = hash_index_find(&t->name_index, hash_bytes(name, n), is_name, &key);
    *out = (uint32_t)item;
    return item != HASH_NONE;
}

/* The number of a variable's name, which may be new. */
static cz_status name_number(struct parser *p, struct jv name, uint32_t *out)
{
    struct jinja_template *t = p->t;
    if (jinja_name_find(t, name.s, name.n, out)) return CZ_OK;
    if (t->n_names == NAMES_MAX)
        return PARSE_FAIL(p, "the template has more than %d names", NAMES_MAX);
    if (t->n_names == t->names_cap) {
        size_t cap = t->names_cap ? 2 * t->names_cap : 64;
        struct jv *names = realloc(t->names, cap * sizeof *names);
        t->pool.lacks_memory = !names;
        if (!names) return jinja_no_memory(t, p->at->line);
        t->names = names;
        t->names_cap = cap;
    }
    *out = (uint32_t)t->n_names;
    t->names[t->n_names] = name;
    return hash_index_add(&t->name_index, hash_bytes(name.s, name.n), t->n_names++);
}

static cz_status enter(struct parser *p)
{
    if (++p->depth <= JINJA_DEPTH_MAX / 8) return CZ_OK;
    return PARSE_FAIL(p, "the template is nested deeper than %d levels", JINJA_DEPTH_MAX / 8);
}

/* ---- expressions -------------------------------------------------------------------------------
 */

/* *list or **dict, of which a call takes one each. */
static cz_status parse_star(struct parser *p, struct jn *node)
{
    struct jn **to = is_op(p, "**") ? &node->c : &node->b;
    if (*to || (to == &node->b && node->c))
        return PARSE_FAIL(p, "a call takes one * argument, and one ** argument after it");
    p->at++;
    return parse_expression(p, true, to);
}

/* a list of call arguments, from '(' to ')' */
static cz_status parse_args(struct parser *p, struct jn *node)
{
    struct jn_keyword *kw = NULL;
    size_t cap = 0;
    TRY(expect_op(p, "("));
    for (bool first = true; !is_op(p, ")"); first = false) {
        if (!first) {
            TRY(expect_op(p, ","));
            if (is_op(p, ")")) break;
        }
        if (is_op(p, "*") || is_op(p, "**")) {
            TRY(parse_star(p, node));
            continue;
        }
        struct jn *value = NULL;
        if (p->at->type == JT_NAME && p->at[1].type == JT_OP && strcmp(p->at[1].op, "=") == 0) {
            struct jv name = p->at->value;
            if (node->c) return PARSE_FAIL(p, "an argument follows a ** argument");
            p->at += 2;
            TRY(parse_expression(p, true, &value));
            if (node->n_kw == cap) {
                cap = cap ? 2 * cap : 4;
                kw = jinja_take(&p->t->pool, cap * sizeof *kw);
                if (!kw) return jinja_no_memory(p->t, p->at->line);
                if (node->n_kw > 0) memcpy(kw, node->kw, node->n_kw * sizeof *kw);
                node->kw = kw;
            }
            if (node->n_kw == KEYWORDS_MAX)
                return PARSE_LACKS(p, "a call has more than %d named arguments", KEYWORDS_MAX);
            for (size_t i = 0; i < node->n_kw; i++)
                if (node->kw[i].name.n == name.n && memcmp(node->kw[i].name.s, name.s, name.n) == 0)
                    return PARSE_FAIL(p, "an argument is given twice");
            node->kw[node->n_kw++] = (struct jn_keyword){name, value};
        } else {
            if (node->n_kw > 0 || node->b || node->c)
                return PARSE_FAIL(p, "an argument without a name follows one with a name");
            TRY(parse_expression(p, true, &value));
            TRY(list_add(p, &node->list, value));
        }
    }
    return expect_op(p, ")");
}

/* Whether an expression without brackets can end here. */
static bool is_tuple_end(const struct parser *p, const char *end_word)
{
    if (p->at->type == JT_OUT_END || p->at->type == JT_BLOCK_END || is_op(p, ")")) return true;
    return end_word && is_word(p, end_word);
}

static cz_status parse_target_part(struct parser *p, bool with_attr, struct jn **out);

enum tuple_form { TUPLE_PLAIN, TUPLE_NO_COND, TUPLE_IN_BRACKETS, TUPLE_TARGET, TUPLE_SET_TARGET };

static cz_status parse_tuple(struct parser *p, enum tuple_form form, const char *end_word,
                             struct jn **out)
{
    struct jn_list items = {0};
    bool is_tuple = false;
    int line = p->at->line;
    for (;;) {
        if (items.n > 0) TRY(expect_op(p, ","));
        if (is_tuple_end(p, end_word)) break;
        struct jn *item = NULL;
        if (form >= TUPLE_TARGET)
            TRY(parse_target_part(p, form == TUPLE_SET_TARGET, &item));
        else
            TRY(parse_expression(p, form != TUPLE_NO_COND, &item));
        TRY(list_add(p, &items, item));
        if (!is_op(p, ",")) break;
        is_tuple = true;
    }
    if (!is_tuple && items.n == 1) {
        *out = items.at[0];
        return CZ_OK;
    }
    if (!is_tuple && form != TUPLE_IN_BRACKETS) return fail_here(p, "an expression");
    TRY(node_new(p, JN_TUPLE, line, out));
    (*out)->list = items;
    return CZ_OK;
}

static cz_status parse_name(struct parser *p, struct jn **out)
{
    static const char *const lacking[] = {"lipsum", "cycler", "joiner", "self", "super", "caller"};
    struct jv name = p->at->value;
    int line = p->at->line;
    struct jv constant = {0};
    if (jv_is(name, "true") || jv_is(name, "True")) constant = jv_of_bool(true);
    if (jv_is(name, "false") || jv_is(name, "False")) constant = jv_of_bool(false);
    if (jv_is(name, "none") || jv_is(name, "None")) constant = JV_NONE_VALUE;
    if (constant.type != JV_MISSING) {
        TRY(node_new(p, JN_CONST, line, out));
        (*out)->value = constant;
    } else {
        for (size_t i = 0; i < sizeof lacking / sizeof *lacking; i++)
            if (jv_is(name, lacking[i]) && p->at[1].type == JT_OP && p->at[1].op[0] == '(')
                return PARSE_LACKS(p, "the function %s() is not supported", lacking[i]);
        if (p->macro && jv_is(name, "varargs")) p->macro->takes_varargs = true;
        if (p->macro && jv_is(name, "kwargs")) p->macro->takes_kwargs = true;
        TRY(node_new(p, JN_NAME, line, out));
        TRY(name_number(p, name, &(*out)->name));
    }
    p->at++;
    return CZ_OK;
}

/* "a" "b" is one string. */
static cz_status parse_strings(struct parser *p, struct jn **out)
{
    size_t n = 0, at = 0;
    TRY(node_new(p, JN_CONST, p->at->line, out));
    const struct jinja_token *t = p->at;
    for (; t->type == JT_STR; t++) n += t->value.n;
    char *text = jinja_take_text(&p->t->pool, n + 1);
    if (!text) return jinja_no_memory(p->t, p->at->line);
    for (; p->at < t; p->at++) {
        memcpy(text + at, p->at->value.s, p->at->value.n);
        at += p->at->value.n;
    }
    (*out)->value = jv_of_str(text, n);
    return CZ_OK;
}

static cz_status parse_dict(struct parser *p, struct jn **out)
{
    TRY(node_new(p, JN_DICT, p->at->line, out));
    TRY(expect_op(p, "{"));
    while (!is_op(p, "}")) {
        struct jn *part = NULL;
        if ((*out)->list.n > 0) TRY(expect_op(p, ","));
        if (is_op(p, "}")) break;
        TRY(parse_expression(p, true, &part));
        TRY(list_add(p, &(*out)->list, part));
        TRY(expect_op(p, ":"));
        TRY(parse_expression(p, true, &part));
        TRY(list_add(p, &(*out)->list, part));
    }
    return expect_op(p, "}");
}

static cz_status parse_primary(struct parser *p, struct jn **out)
{
    const struct jinja_token *t = p->at;
    switch (t->type) {
    case JT_NAME: return parse_name(p, out);
    case JT_STR: return parse_strings(p, out);
    case JT_INT:
    case JT_FLOAT:
        TRY(node_new(p, JN_CONST, t->line, out));
        (*out)->value = t->value;
        p->at++;
        return CZ_OK;
    default: break;
    }
    if (is_op(p, "(")) {
        p->at++;
        TRY(parse_tuple(p, TUPLE_IN_BRACKETS, NULL, out));
        return expect_op(p, ")");
    }
    if (is_op(p, "{")) return parse_dict(p, out);
    if (!is_op(p, "[")) return fail_here(p, "an expression");
    TRY(node_new(p, JN_LIST, t->line, out));
    p->at++;
    while (!is_op(p, "]")) {
        struct jn *item = NULL;
        if ((*out)->list.n > 0) TRY(expect_op(p, ","));
        if (is_op(p, "]")) break;
        TRY(parse_expression(p, true, &item));
        TRY(list_add(p, &(*out)->list, item));
    }
    return expect_op(p, "]");
}

/* What is between the brackets of a[…]. */
static cz_status parse_subscript(struct parser *p, struct jn *of, struct jn **out)
{
    struct jn *bounds[3] = {NULL, NULL, NULL};
    int line = p->at->line;
    TRY(expect_op(p, "["));
    if (!is_op(p, ":")) TRY(parse_expression(p, true, &bounds[0]));
    if (!is_op(p, ":")) {
        if (is_op(p, ",")) return PARSE_LACKS(p, "subscripts with a comma are not supported");
        TRY(expect_op(p, "]"));
        TRY(node_new(p, JN_ITEM, line, out));
        (*out)->a = of;
        (*out)->b = bounds[0];
        return CZ_OK;
    }
    for (int i = 1; i < 3 && skip_op(p, ":"); i++)
        if (!is_op(p, ":") && !is_op(p, "]")) TRY(parse_expression(p, true, &bounds[i]));
    TRY(expect_op(p, "]"));
    TRY(node_new(p, JN_SLICE, line, out));
    (*out)->a = of;
    for (int i = 0; i < 3; i++) TRY(list_add(p, &(*out)->list, bounds[i]));
    return CZ_OK;
}

static cz_status parse_call(struct parser *p, struct jn *of, struct jn **out)
{
    TRY(node_new(p, JN_CALL, p->at->line, out));
    (*out)->a = of;
    return parse_args(p, *out);
}

static cz_status parse_postfix(struct parser *p, struct jn *node, struct jn **out)
{
    for (;;) {
        struct jn *outer = NULL;
        if (is_op(p, ".")) {
            p->at++;
            if (p->at->type == JT_INT) {
                TRY(node_new(p, JN_ITEM, p->at->line, &outer));
                TRY(node_new(p, JN_CONST, p->at->line, &outer->b));
                outer->b->value = p->at->value;
            } else {
                if (p->at->type != JT_NAME) return fail_here(p, "a name or a number");
                TRY(node_new(p, JN_ATTR, p->at->line, &outer));
                outer->value = jv_of_str(p->at->value.s, p->at->value.n);
                outer->is_plain = !jinja_is_method_of_dicts(outer->value);
            }
            outer->a = node;
            p->at++;
        } else if (is_op(p, "[")) {
            TRY(parse_subscript(p, node, &outer));
        } else if (is_op(p, "(")) {
            TRY(parse_call(p, node, &outer));
        } else {
            *out = node;
            return CZ_OK;
        }
        node = outer;
    }
}

/* One filter, whose name is next. */
static cz_status parse_filter(struct parser *p, struct jn *of, struct jn **out)
{
    struct jv name;
    TRY(node_new(p, JN_FILTER, p->at->line, out));
    (*out)->a = of;
    TRY(expect_name(p, &name));
    (*out)->filter = jinja_filter_find(name);
    if (!(*out)->filter) {
        p->at--;
        return PARSE_LACKS(p, "the filter %.*s is not supported", (int)(name.n < 60 ? name.n : 60),
                           name.s);
    }
    return is_op(p, "(") ? parse_args(p, *out) : CZ_OK;
}

static cz_status parse_test(struct parser *p, struct jn *of, struct jn **out)
{
    struct jv name;
    int line = p->at[-1].line;
    TRY(node_new(p, JN_TEST, line, out));
    (*out)->a = of;
    (*out)->is_negated = skip_word(p, "not");
    TRY(expect_name(p, &name));
    (*out)->test = jinja_test_find(name);
    if (!(*out)->test) {
        p->at--;
        return PARSE_LACKS(p, "the test %.*s is not supported", (int)(name.n < 60 ? name.n : 60),
                           name.s);
    }
    if (is_op(p, "(")) {
        TRY(parse_args(p, *out));
    } else {
        bool begins = (p->at->type == JT_NAME && !is_word(p, "else") && !is_word(p, "or") &&
                       !is_word(p, "and")) ||
                      p->at->type == JT_STR || p->at->type == JT_INT || p->at->type == JT_FLOAT ||
                      is_op(p, "[") || is_op(p, "{");
        if (begins) {
            struct jn *arg = NULL;
            if (is_word(p, "is")) return PARSE_FAIL(p, "tests cannot follow each other");
            TRY(parse_primary(p, &arg));
            TRY(parse_postfix(p, arg, &arg));
            TRY(list_add(p, &(*out)->list, arg));
        }
    }
    if ((*out)->list.n != (size_t)(*out)->test->n_args || (*out)->n_kw > 0 || (*out)->b ||
        (*out)->c)
        return jinja_fail(p->t->name, line, CZ_INVALID, "the test %s takes %d arguments",
                          (*out)->test->name, (*out)->test->n_args);
    return CZ_OK;
}

static cz_status parse_filters(struct parser *p, struct jn *node, struct jn **out)
{
    for (;;) {
        if (skip_op(p, "|"))
            TRY(parse_filter(p, node, &node));
        else if (skip_word(p, "is"))
            TRY(parse_test(p, node, &node));
        else if (is_op(p, "("))
            TRY(parse_call(p, node, &node));
        else
            break;
    }
    *out = node;
    return CZ_OK;
}

static cz_status parse_unary(struct parser *p, bool with_filter, struct jn **out)
{
    struct jn *node = NULL;
    TRY(enter(p));
    if (is_op(p, "-") || is_op(p, "+")) {
        TRY(node_new(p, is_op(p, "-") ? JN_NEG : JN_POS, p->at->line, &node));
        p->at++;
        TRY(parse_unary(p, false, &node->a));
    } else {
        TRY(parse_primary(p, &node));
    }
    TRY(parse_postfix(p, node, &node));
    if (with_filter) TRY(parse_filters(p, node, &node));
    p->depth--;
    *out = node;
    return CZ_OK;
}

struct operator
{
    const char *text;
    enum jn_op op;
};

static cz_status parse_concat(struct parser *p, struct jn **out);

/* Operators of one priority: 0 (+ -), 1 (* / // %), 2 (**). */
static cz_status parse_binary(struct parser *p, int priority, struct jn **out)
{
    static const struct operator table[3][5] = {
        {{"+", JO_ADD}, {"-", JO_SUB}},
        {{"*", JO_MUL}, {"/", JO_DIV}, {"//", JO_FLOORDIV}, {"%", JO_MOD}},
        {{"**", JO_POW}},
    };
    struct jn *left = NULL, *node = NULL;
    if (priority == 0)
        TRY(parse_concat(p, &left));
    else if (priority == 1)
        TRY(parse_binary(p, 2, &left));
    else
        TRY(parse_unary(p, true, &left));
    for (;;) {
        const struct operator* o = table[priority];
        while (o->text && !is_op(p, o->text)) o++;
        if (!o->text) break;
        TRY(node_new(p, JN_BINARY, p->at->line, &node));
        p->at++;
        node->op = (uint8_t)o->op;
        node->a = left;
        if (priority == 0)
            TRY(parse_concat(p, &node->b));
        else if (priority == 1)
            TRY(parse_binary(p, 2, &node->b));
        else
            TRY(parse_unary(p, true, &node->b));
        left = node;
    }
    *out = left;
    return CZ_OK;
}

static cz_status parse_concat(struct parser *p, struct jn **out)
{
    struct jn *node = NULL, *part = NULL;
    TRY(parse_binary(p, 1, &part));
    *out = part;
    if (!is_op(p, "~")) return CZ_OK;
    TRY(node_new(p, JN_CONCAT, p->at->line, &node));
    TRY(list_add(p, &node->list, part));
    while (skip_op(p, "~")) {
        TRY(parse_binary(p, 1, &part));
        TRY(list_add(p, &node->list, part));
    }
    *out = node;
    return CZ_OK;
}

static cz_status parse_compare(struct parser *p, struct jn **out)
{
    static const struct operator table[] = {{"==", JO_EQ}, {"!=", JO_NE}, {"<", JO_LT},
                                            {"<=", JO_LE}, {">", JO_GT},  {">=", JO_GE}};
    struct jn *node = NULL, *first = NULL;
    TRY(parse_binary(p, 0, &first));
    for (;;) {
        int op = -1;
        for (size_t i = 0; i < sizeof table / sizeof *table; i++)
            if (is_op(p, table[i].text)) op = (int)table[i].op;
        if (is_word(p, "in")) op = JO_IN;
        if (is_word(p, "not") && p->at[1].type == JT_NAME && jv_is(p->at[1].value, "in")) {
            op = JO_NOT_IN;
            p->at++;
        }
        if (op < 0) break;
        if (!node) {
            TRY(node_new(p, JN_COMPARE, p->at->line, &node));
            node->a = first;
        }
        struct jn *operand = NULL, *holder = NULL;
        p->at++;
        TRY(parse_binary(p, 0, &operand));
        TRY(node_new(p, JN_COMPARE, operand->line, &holder));
        holder->op = (uint8_t)op;
        holder->a = operand;
        TRY(list_add(p, &node->list, holder));
    }
    *out = node ? node : first;
    return CZ_OK;
}

static cz_status parse_not(struct parser *p, struct jn **out)
{
    if (!is_word(p, "not")) return parse_compare(p, out);
    TRY(enter(p));
    TRY(node_new(p, JN_NOT, p->at->line, out));
    p->at++;
    TRY(parse_not(p, &(*out)->a));
    p->depth--;
    return CZ_OK;
}

static cz_status parse_and_or(struct parser *p, bool is_or, struct jn **out)
{
    struct jn *left = NULL, *node = NULL;
    TRY(is_or ? parse_and_or(p, false, &left) : parse_not(p, &left));
    while (is_word(p, is_or ? "or" : "and")) {
        TRY(node_new(p, is_or ? JN_OR : JN_AND, p->at->line, &node));
        p->at++;
        node->a = left;
        TRY(is_or ? parse_and_or(p, false, &node->b) : parse_not(p, &node->b));
        left = node;
    }
    *out = left;
    return CZ_OK;
}

static cz_status parse_expression(struct parser *p, bool with_cond, struct jn **out)
{
    struct jn *first = NULL;
    TRY(enter(p));
    TRY(parse_and_or(p, true, &first));
    while (with_cond && is_word(p, "if")) {
        struct jn *node = NULL;
        TRY(node_new(p, JN_COND, p->at->line, &node));
        p->at++;
        node->b = first;
        TRY(parse_and_or(p, true, &node->a));
        if (skip_word(p, "else")) TRY(parse_expression(p, true, &node->c));
        first = node;
    }
    p->depth--;
    *out = first;
    return CZ_OK;
}

/* ---- statements --------------------------------------------------------------------------------
 */

static cz_status parse_target_part(struct parser *p, bool with_attr, struct jn **out)
{
    if (is_op(p, "(")) {
        p->at++;
        TRY(parse_tuple(p, with_attr ? TUPLE_SET_TARGET : TUPLE_TARGET, NULL, out));
        return expect_op(p, ")");
    }
    if (p->at->type != JT_NAME) return fail_here(p, "a name");
    TRY(parse_name(p, out));
    if ((*out)->kind != JN_NAME) return PARSE_FAIL(p, "a constant cannot be set");
    if (with_attr && skip_op(p, ".")) {
        struct jn *attr = NULL;
        TRY(node_new(p, JN_ATTR, p->at->line, &attr));
        attr->a = *out;
        TRY(expect_name(p, &attr->value));
        *out = attr;
    }
    return CZ_OK;
}

/* The statements up to one of the words, which is skipped. *end: its place. */
static cz_status parse_body(struct parser *p, const char *const *ends, struct jn_list *out,
                            int *end)
{
    TRY(expect_block_end(p));
    TRY(parse_statements(p, ends, out));
    for (*end = 0; ends[*end]; ++*end)
        if (skip_word(p, ends[*end])) return CZ_OK;
    return fail_here(p, ends[0]);
}

static cz_status parse_if(struct parser *p, struct jn *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    for (;;) {
        int end;
        TRY(parse_tuple(p, TUPLE_NO_COND, NULL, &node->a));
        TRY(parse_body(p, ends, &node->body, &end));
        if (end == 2) return CZ_OK;
        if (end == 1) return parse_body(p, last, &node->orelse, &end);
        TRY(node_new(p, JN_IF, p->at->line, &node->next));
        node = node->next;
    }
}

static cz_status parse_for(struct parser *p, struct jn *node)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    int end;
    TRY(parse_tuple(p, TUPLE_TARGET, "in", &node->a));
    TRY(expect_word(p, "in"));
    TRY(parse_tuple(p, TUPLE_NO_COND, "recursive", &node->b));
    if (skip_word(p, "if")) TRY(parse_expression(p, true, &node->c));
    if (is_word(p, "recursive")) return PARSE_LACKS(p, "recursive loops are not supported");
    p->n_loops++;
    TRY(parse_body(p, ends, &node->body, &end));
    p->n_loops--;
    if (end == 0) return CZ_OK;
    return parse_body(p, (const char *const[]){"endfor", NULL}, &node->orelse, &end);
}

/* Statements that are a function of their own: no break leads out of them. */
static cz_status parse_inner(struct parser *p, const char *end_word, struct jn *node)
{
    int n_loops = p->n_loops, end;
    p->n_loops = 0;
    TRY(parse_body(p, (const char *const[]){end_word, NULL}, &node->body, &end));
    p->n_loops = n_loops;
    return CZ_OK;
}

static cz_status parse_set(struct parser *p, struct jn *node)
{
    TRY(parse_tuple(p, TUPLE_SET_TARGET, NULL, &node->a));
    if (skip_op(p, "=")) return parse_tuple(p, TUPLE_PLAIN, NULL, &node->b);
    node->kind = JN_SET_BLOCK;
    while (skip_op(p, "|")) TRY(parse_filter(p, node->b, &node->b));
    int end;
    return parse_body(p, (const char *const[]){"endset", NULL}, &node->body, &end);
}

static cz_status parse_macro(struct parser *p, struct jn *node)
{
    struct jv name;
    size_t cap = 0;
    struct jn *outer = p->macro;
    p->n_macros++;
    TRY(expect_name(p, &name));
    TRY(name_number(p, name, &node->name));
    TRY(expect_op(p, "("));
    while (!is_op(p, ")")) {
        if (node->n_names > 0) TRY(expect_op(p, ","));
        if (node->n_names == cap) {
            cap = cap ? 2 * cap : 8;
            uint32_t *names = jinja_take(&p->t->pool, cap * sizeof *names);
            if (!names) return jinja_no_memory(p->t, p->at->line);
            if (node->n_names > 0) memcpy(names, node->names, node->n_names * sizeof *names);
            node->names = names;
        }
        TRY(expect_name(p, &name));
        uint32_t *number = &node->names[node->n_names++];
        TRY(name_number(p, name, number));
        if (p->macro_of[*number] == p->n_macros)
            return PARSE_FAIL(p, "the macro has the parameter %.*s twice", (int)name.n, name.s);
        p->macro_of[*number] = p->n_macros;
        if (skip_op(p, "=")) {
            struct jn *value = NULL;
            TRY(parse_expression(p, true, &value));
            TRY(list_add(p, &node->list, value));
        } else if (node->list.n > 0) {
            return PARSE_FAIL(p, "a parameter without a default follows one with a default");
        }
    }
    TRY(expect_op(p, ")"));
    p->macro = node;
    TRY(parse_inner(p, "endmacro", node));
    p->macro = outer;
    return CZ_OK;
}

static cz_status parse_with(struct parser *p, struct jn *node)
{
    int end;
    while (p->at->type != JT_BLOCK_END) {
        struct jn *part = NULL;
        if (node->list.n > 0) TRY(expect_op(p, ","));
        TRY(parse_target_part(p, false, &part));
        TRY(list_add(p, &node->list, part));
        TRY(expect_op(p, "="));
        TRY(parse_expression(p, true, &part));
        TRY(list_add(p, &node->list, part));
    }
    return parse_body(p, (const char *const[]){"endwith", NULL}, &node->body, &end);
}

static cz_status parse_filter_block(struct parser *p, struct jn *node)
{
    do TRY(parse_filter(p, node->b, &node->b));
    while (skip_op(p, "|"));
    int end;
    return parse_body(p, (const char *const[]){"endfilter", NULL}, &node->body, &end);
}

static cz_status parse_loop_jump(struct parser *p, struct jn *node)
{
    if (p->n_loops > 0) return CZ_OK;
    return jinja_fail(p->t->name, node->line, CZ_INVALID, "%s is outside of a loop",
                      node->kind == JN_BREAK ? "break" : "continue");
}

static cz_status parse_generation(struct parser *p, struct jn *node)
{
    p->t->marks_generation = true;
    return parse_inner(p, "endgeneration", node);
}

/* A statement, behind its "{%"; ends: what would end those around it. */
static cz_status parse_statement(struct parser *p, const char *const *ends, struct jn **out)
{
    static const struct {
        const char *word;
        enum jn_kind kind;
        cz_status (*parse)(struct parser *p, struct jn *node);
    } table[] = {
        {"if", JN_IF, parse_if},
        {"for", JN_FOR, parse_for},
        {"set", JN_SET, parse_set},
        {"macro", JN_MACRO, parse_macro},
        {"generation", JN_GENERATION, parse_generation},
        {"with", JN_WITH, parse_with},
        {"filter", JN_FILTER_BLOCK, parse_filter_block},
        {"break", JN_BREAK, parse_loop_jump},
        {"continue", JN_CONTINUE, parse_loop_jump},
    };
    if (p->at->type != JT_NAME) return fail_here(p, "a statement");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!is_word(p, table[i].word)) continue;
        TRY(node_new(p, table[i].kind, p->at->line, out));
        p->at++;
        TRY(table[i].parse(p, *out));
        return expect_block_end(p);
    }
    char name[61];
    const struct jv word = p->at->value;
    snprintf(name, sizeof name, "%.*s", (int)(word.n < 60 ? word.n : 60), word.s);
    struct nearest search = nearest_begin(name);
    for (; ends && *ends; ends++) nearest_consider(&search, *ends);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        nearest_consider(&search, table[i].word);
    return PARSE_LACKS(p, "the statement %s is not supported here%s%s%s", name,
                       search.best ? "; did you mean " : "", search.best ? search.best : "",
                       search.best ? "?" : "");
}

static cz_status parse_statements(struct parser *p, const char *const *ends, struct jn_list *out)
{
    TRY(enter(p));
    for (;;) {
        struct jn *node = NULL;
        const struct jinja_token *t = p->at;
        if (t->type == JT_END) {
            if (ends) return PARSE_FAIL(p, "the template ends before %s", ends[0]);
            break;
        }
        if (t->type == JT_TEXT) {
            TRY(node_new(p, JN_TEXT, t->line, &node));
            node->value = t->value;
            p->at++;
        } else if (t->type == JT_OUT_BEGIN) {
            TRY(node_new(p, JN_OUT, t->line, &node));
            p->at++;
            TRY(parse_tuple(p, TUPLE_PLAIN, NULL, &node->a));
            if (p->at->type != JT_OUT_END) return fail_here(p, "}}");
            p->at++;
        } else {
            p->at++;
            bool is_end = false;
            for (const char *const *e = ends; e && *e; e++) is_end |= is_word(p, *e);
            if (is_end) break;
            TRY(parse_statement(p, ends, &node));
        }
        TRY(list_add(p, out, node));
    }
    p->depth--;
    return CZ_OK;
}

cz_status jinja_parse_tokens(struct jinja_template *t, const struct jinja_tokens *tokens)
{
    struct parser p = {.t = t, .at = tokens->at};
    return parse_statements(&p, NULL, &t->body);
}

static int compare_words(const void *a, const void *b)
{
    const struct jv *x = a, *y = b;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->n > 0 ? memcmp(x->s, y->s, x->n) : 0;
}

static cz_status note_words(struct jinja_template *t, const struct jinja_tokens *tokens)
{
    size_t n = 0;
    t->words = malloc((tokens->n + 1) * sizeof *t->words);
    t->pool.lacks_memory = !t->words;
    if (!t->words) return jinja_no_memory(t, 1);
    for (size_t i = 0; i < tokens->n; i++)
        if (tokens->at[i].type == JT_NAME || tokens->at[i].type == JT_STR)
            t->words[n++] = tokens->at[i].value;
    qsort(t->words, n, sizeof *t->words, compare_words);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || compare_words(&t->words[i], &t->words[i - 1]) != 0)
            t->words[t->n_words++] = t->words[i];
    return CZ_OK;
}

cz_status jinja_parse(const char *text, size_t n, const char *name, struct jinja_template **out)
{
    struct jinja_tokens tokens = {0};
    struct jinja_template *t = calloc(1, sizeof *t);
    *out = NULL;
    if (t) t->name = strdup(name);
    if (!t || !t->name) {
        free(t);
        return err_set(CZ_NOMEM, 0, "%s: no memory is left for the template", name);
    }
    t->pool.nbytes_max = JINJA_NBYTES_MAX;
    cz_status st = jinja_lex(t, text, n, &tokens);
    if (st == CZ_OK) st = jinja_parse_tokens(t, &tokens);
    if (st == CZ_OK) st = note_words(t, &tokens);
    free(tokens.at);
    if (!jinja_name_find(t, "loop", 4, &t->loop_name)) t->loop_name = UINT32_MAX;
    if (st != CZ_OK) {
        jinja_free(t);
        return st;
    }
    *out = t;
    return CZ_OK;
}

void jinja_free(struct jinja_template *t)
{
    if (!t) return;
    jinja_pool_free(&t->pool);
    hash_index_free(&t->name_index);
    free(t->names);
    free(t->words);
    free(t->name);
    free(t);
}

bool jinja_marks_generation(const struct jinja_template *t)
{
    return t->marks_generation;
}

bool jinja_reads(const struct jinja_template *t, const char *name)
{
    uint32_t number;
    return jinja_name_find(t, name, strlen(name), &number);
}

bool jinja_mentions(const struct jinja_template *t, const char *word)
{
    const struct jv wanted = jv_of_str(word, strlen(word));
    return bsearch(&wanted, t->words, t->n_words, sizeof *t->words, compare_words) != NULL;
}
