/* Jinja templates, as far as chat templates of models use them: a template is parsed once and then
 * rendered with values from JSON, to the text that transformers' apply_chat_template() gives for
 * the same conversation, to the byte.
 *
 * Life cycle: jinja_parse(); any number of jinja_render(); jinja_free(). A template is immutable:
 * threads may render it at the same time, each into a jinja_text of its own.
 *
 * The environment is that of transformers (utils/chat_template_utils.py): Jinja 3.1 with
 * trim_blocks, lstrip_blocks and loop controls, the sandbox's rules (nothing changes a value, no
 * name that begins with an underscore), namespace(), raise_exception(), strftime_now(), range() of
 * at most 100,000 steps, tojson as json.dumps(), and {% generation %}. What the engine lacks
 * (include, import, extends, call blocks, recursive loops, rare filters and methods) is refused
 * with the line where it stands: most when the template is parsed, methods when they are called.
 *
 * Templates come from strangers. Rendering ends after JINJA_STEPS_MAX steps, with JINJA_DEPTH_MAX
 * levels of expressions, blocks and macro calls, and with JINJA_NBYTES_MAX bytes of values. */
#ifndef CZ_DATA_JINJA_JINJA_H
#define CZ_DATA_JINJA_JINJA_H

#include "base/status.h"
#include "data/source/text_source.h"
#include "formats/json/json.h"

#define JINJA_TEMPLATE_NBYTES_MAX ((size_t)4 << 20)
#define JINJA_NBYTES_MAX          ((size_t)64 << 20)
#define JINJA_STEPS_MAX           ((uint64_t)1 << 24)
#define JINJA_DEPTH_MAX           1200

struct jinja_template;

/* Parse n bytes of text, which are copied. `name` stands for the template in sentences
 * ("NAME:LINE: …"). Errors: CZ_INVALID (what Jinja refuses too), CZ_UNSUPPORTED (what this engine
 * lacks), CZ_NOMEM. *out is NULL then. */
cz_status jinja_parse(const char *text, size_t n, const char *name, struct jinja_template **out);

void jinja_free(struct jinja_template *t); /* accepts NULL */

/* Whether it has a {% generation %} block. */
bool jinja_marks_generation(const struct jinja_template *t);

/* Whether a variable is read anywhere in it. */
bool jinja_reads(const struct jinja_template *t, const char *name);

/* Whether a word stands anywhere in its tags: a name, an attribute, or the whole of a text. What no
 * template mentions, it cannot read by name. */
bool jinja_mentions(const struct jinja_template *t, const char *word);

/* A variable: a JSON value, else a text, else a truth value. All lent for the call. */
struct jinja_var {
    const char *name;
    const struct json_node *node; /* with is_cut: the first n_items of an array */
    const char *text;             /* where node is NULL */
    bool truth;                   /* where both are NULL */
    bool is_none;                 /* where both are NULL: none instead */
    bool is_cut;
    size_t n_items;
};

struct jinja_span {
    size_t begin, end; /* bytes of the text; a span that a macro made may end beyond it */
};

/* What a rendering gives. Zero it first; rendering again reuses its memory. */
struct jinja_text {
    struct text_buf text;
    struct jinja_span *spans; /* of {% generation %}, in the order in which they ended */
    size_t n_spans, spans_cap;
    uint64_t steps; /* that the rendering took, also one that failed */
    void *block;    /* for the values of a rendering */
};
void jinja_text_free(struct jinja_text *t); /* accepts a zeroed one */

/* Render. `now`: seconds since 1970, which strftime_now() shows in local time. Variables that are
 * not given are undefined. Spans are counted as transformers counts them: from the length of the
 * text outside of macros and set blocks.
 * Errors: CZ_INVALID "NAME:LINE: …" (raise_exception()'s sentence, wrong types, limits),
 * CZ_UNSUPPORTED, CZ_NOMEM. */
cz_status jinja_render(const struct jinja_template *t, const struct jinja_var *vars, size_t n_vars,
                       int64_t now, struct jinja_text *out);

#endif
