/* The chat template of a model's folder: which one it is, its special tokens, and rendering
 * conversations as transformers' apply_chat_template() does.
 *
 * Life cycle: chat_template_open(); chat_template_render(), by any number of threads at once, each
 * into a text of its own; chat_template_close(). */
#ifndef CZ_DATA_CHAT_CHAT_TEMPLATE_H
#define CZ_DATA_CHAT_CHAT_TEMPLATE_H

#include "data/jinja/jinja.h"

struct chat_template;

/* The template of a tokenizer's folder (chat_template.jinja, additional_chat_templates/NAME.jinja,
 * tokenizer_config.json: a text or a list of named ones). given: the name of one of them, or a
 * file of the user's; NULL: "default" or the only one, and "tool_use", where there is one, for
 * conversations with tools. dir NULL: no folder, only a file will do.
 * *out is released by chat_template_close(); NULL on error. Errors: CZ_NOTFOUND (there is none: the
 * sentence says where one may be), CZ_INVALID, CZ_UNSUPPORTED (jinja_parse()), CZ_CORRUPT, CZ_IO,
 * CZ_NOMEM. */
cz_status chat_template_open(const char *dir, const char *given, struct chat_template **out);
void chat_template_close(struct chat_template *t); /* accepts NULL */

/* Whether a folder has a template. */
bool chat_template_is_in(const char *dir);

/* Write a tokenizer (NULL: none) and the templates that a model was trained with into a folder of
 * formats/output.h: those of the tokenizer's folder as they are, others as chat_template.jinja (and
 * additional_chat_templates/tool_use.jinja) in their place. t NULL: the run had no template.
 * Errors: as cz_tokenizer_export(). */
struct out_folder;
struct cz_tokenizer;
cz_status chat_template_export(const struct chat_template *t, const struct cz_tokenizer *tokenizer,
                               const struct out_folder *to);

/* Whether the template marks what the assistant writes by {% generation %}. */
bool chat_template_marks_answers(const struct chat_template *t, bool has_tools);

/* Whether the template mentions a word (jinja_mentions()), such as a member of messages, or reads a
 * variable. */
bool chat_template_mentions(const struct chat_template *t, bool has_tools, const char *word);
bool chat_template_reads(const struct chat_template *t, bool has_tools, const char *variable);

/* Whether messages of this role are the model's answers, or tell it how to answer. */
bool chat_template_is_answer_role(const char *role);
bool chat_template_is_system_role(const char *role);

/* Whether messages of this role carry what a tool returned. */
bool chat_template_is_tool_role(const char *role);

/* A hash of the templates, equal in all processes, and of the special tokens; whether a template
 * writes the time (strftime_now). */
uint64_t chat_template_hash(const struct chat_template *t);
bool chat_template_tells_time(const struct chat_template *t);

/* A special token of the folder, such as "eos_token", or NULL. Owned by the template. */
const char *chat_template_token(const struct chat_template *t, const char *name);

/* Variables that a row may give (chat_view.extra), and whether a name is one that rendering sets.
 */
#define CHAT_EXTRA_MAX 128
bool chat_template_sets(const char *variable);

/* A conversation; NULL where a row has no such member. All lent. */
struct chat_view {
    const struct json_node *messages, *tools, *documents;
    /* An object of at most CHAT_EXTRA_MAX: more variables, which win over special tokens. */
    const struct json_node *extra;
};

/* Render the first n_messages, with the beginning of an answer behind them (add_generation_prompt)
 * or without. `now`: as jinja_render(). Errors: jinja_render()'s. */
cz_status chat_template_render(const struct chat_template *t, const struct chat_view *chat,
                               size_t n_messages, bool adds_prompt, int64_t now,
                               struct jinja_text *out);

#endif
