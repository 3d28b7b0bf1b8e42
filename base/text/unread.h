/* Members of a user's files that no reader uses: collected while a file is read, named once.
 *
 * A key of a row, a tensor, a field of a config that means something to another program and nothing
 * to czero must not disappear in silence. Each reader decides for every member: used, known to be
 * harmless, or unread.
 *
 *   struct unread unread = {.what = "members of rows"};
 *   unread_add(&unread, "weight", "line %zu", line);       for each one that is met
 *   TRY(unread_report(&unread, "chats.jsonl"));            once: a warning, or an error
 *
 * "chats.jsonl: members of rows that czero does not use: weight (12 times, first: line 3), note
 * (line 7)". Where the process is strict (cz_set_strict()), the same text is CZ_INVALID.
 *
 * No allocation: UNREAD_NAMES names are kept, further ones are counted. Threads: one struct, one
 * thread. */
#ifndef CZ_BASE_TEXT_UNREAD_H
#define CZ_BASE_TEXT_UNREAD_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

#define UNREAD_NAMES        16
#define UNREAD_NAME_NBYTES  96
#define UNREAD_PLACE_NBYTES 96

/* Zeroed but for `what`: the noun that the sentence begins with, borrowed. */
struct unread {
    const char *what;
    size_t n_names, n_more; /* n_more: occurrences of names beyond UNREAD_NAMES */
    struct unread_name {
        char name[UNREAD_NAME_NBYTES];   /* cut where longer */
        char place[UNREAD_PLACE_NBYTES]; /* of the first one; "": the whole file */
        uint64_t count;
    } names[UNREAD_NAMES];
};

/* Count one member. `name` is copied; `place_fmt` says where it is, as by printf, and is formatted
 * for the first one of a name only ("" where a place says nothing). */
void unread_add(struct unread *u, const char *name, const char *place_fmt, ...) CZ_PRINTF(3, 4);

/* Name what was collected, in the order of first occurrence, as one warning; nothing where nothing
 * was. `file`: the path or other title in front. Returns CZ_OK, or CZ_INVALID where the process is
 * strict. The struct is empty afterwards, so that a second report says only what is new. */
cz_status unread_report(struct unread *u, const char *file);

/* Whether cz_set_strict() asked for errors. */
bool unread_is_strict(void);

CZ_EXTERN_C_END
#endif
