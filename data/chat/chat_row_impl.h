/* Inside the reader of rows: chat_row.c has the forms, chat_message.c messages and their contents,
 * chat_flags.c what is trained, chat_members.c what members mean. */
#ifndef CZ_DATA_CHAT_CHAT_ROW_IMPL_H
#define CZ_DATA_CHAT_CHAT_ROW_IMPL_H

#include "data/chat/chat_row.h"
#include "formats/json/json_copy.h"

#include <string.h>

struct row_reader {
    const struct json_node *root;
    const char *where;
    const struct chat_reading *reading;
    struct json_doc *tools; /* parsed from a text */
    bool has_tools;
    const char *list; /* the name of the list that is read, and what its items are called */
    const char *noun;
    size_t first; /* messages before the list's first */
    struct json_writer w;
    struct chat_row *row;
    size_t turns_cap;
    bool lacks_memory; /* what a template takes could not be found */
};

#define ROW_FAIL(r, ...) (err_set(CZ_INVALID, 0, __VA_ARGS__), err_prefix("%s", (r)->where))

/* A member that is there and not null. */
static inline const struct json_node *row_member(const struct json_node *object, const char *name)
{
    const struct json_node *node = json_get(object, name);
    return node && json_type(node) != JSON_NULL ? node : NULL;
}

static inline bool row_is_type(const struct json_node *node, enum json_type type)
{
    return node && json_type(node) == type;
}

static inline const char *row_text_of(const struct json_node *node)
{
    const char *text = NULL;
    if (row_is_type(node, JSON_STRING)) json_as_string(node, &text);
    return text;
}

static inline bool row_is_among(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; name && i < n; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

#define ROW_IS_AMONG(name, names) row_is_among(name, names, CZ_ARRAY_LEN(names))

/* ---- members --------------------------------------------------------------------------------- */

/* null, "", [], {}: says nothing, whatever its name. */
bool row_is_empty(const struct json_node *node);

/* Names that describe a row or a message and do not change what is trained. */
bool row_is_harmless(const char *name);

/* Note a member as unread; `of` stands in front of its name ("messages[]."). */
cz_status row_note_unread(struct row_reader *r, const char *of, const char *name);

/* Refuse rows of other kinds of training, older forms, and what the model cannot see. */
cz_status row_check_kind(struct row_reader *r);

/* ---- flags ----------------------------------------------------------------------------------- */

/* Whether a name is a flag that says what is trained. */
bool row_is_flag(const char *name);

/* Obey a flag of the message that row_add_turn() counts next. */
cz_status row_obey_flag(struct row_reader *r, const struct json_node *flag, bool is_answer);

/* Count a message. */
cz_status row_add_turn(struct row_reader *r, bool is_answer);

/* Obey the flags of the row itself: of all of it, or a list with an entry for each message, or for
 * each answer. The first n_made messages were made of other members and have no entry. */
cz_status row_obey_own_flags(struct row_reader *r, size_t n_made);

/* ---- messages -------------------------------------------------------------------------------- */

/* Check every item of a list and note its flags and unread members. *is_plain becomes false where
 * it has to be written anew. */
cz_status row_check_messages(struct row_reader *r, const struct json_node *list, bool *is_plain);

/* Write them anew, after they were checked. */
cz_status row_put_messages(struct row_reader *r, const struct json_node *list);

/* Write {"role": role, "content": text}. */
void row_write_text(struct row_reader *r, const char *role, const char *text);

/* The role that templates know of an item of a list; NULL: none. Lent. */
const char *row_role_of(const struct row_reader *r, const struct json_node *item);

#endif
