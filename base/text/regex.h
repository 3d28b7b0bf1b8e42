/* Regular expressions that may come from a stranger's file: a match takes time proportional to the
 * text, whatever the expression is, and the work of all matches of a caller has one bound.
 *
 *   regex_compile(text, &work, &re) → regex_match(re, …, &work, …) … → regex_free(re)
 *
 * The dialect is what Python's re and POSIX's extended expressions share, with Python's classes:
 *
 *   a . \. [a-z_] [^.] [[:digit:]]     a character, any, itself, one of a set
 *   \d \D \w \W \s \S                  of ASCII, also inside of sets
 *   ^ $ \A \Z \b \B                    places
 *   (…) (?:…) (?P<name>…) a|b          groups; what they match is not kept
 *   * + ? {m} {m,} {m,n}               each also with a ? after it, which changes no match
 *
 * Refused by name (CZ_UNSUPPORTED): look-ahead and look-behind, references to groups, flags.
 * Characters are UTF-8; a byte that is none matches . and nothing else. */
#ifndef CZ_BASE_TEXT_REGEX_H
#define CZ_BASE_TEXT_REGEX_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

#define REGEX_STATES_MAX 4096                /* after {m,n} has been written out */
#define REGEX_DEPTH_MAX  64                  /* of groups */
#define REGEX_WORK_MAX   ((uint64_t)1 << 28) /* about a second */

struct regex;

/* *out is the caller's, NULL on error. *work: what all expressions of a file and their matches may
 * still cost, in states looked at; begins as REGEX_WORK_MAX. Errors: CZ_INVALID ("position N: …":
 * not an expression, or more than REGEX_STATES_MAX states; *work is used up), CZ_UNSUPPORTED (see
 * above), CZ_NOMEM. */
cz_status regex_compile(const char *pattern, uint64_t *work, struct regex **out);

/* Whether the expression matches the n bytes of text: all of them (`whole`), or a part. *work: as
 * above. Errors: CZ_INVALID (*work is used up). Any number of threads. */
cz_status regex_match(const struct regex *re, const char *text, size_t n, bool whole,
                      uint64_t *work, bool *out);

void regex_free(struct regex *re); /* accepts NULL */

CZ_EXTERN_C_END
#endif
