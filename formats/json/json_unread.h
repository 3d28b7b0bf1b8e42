/* Members of a JSON file that no reader asked for: noted while a document is read, so that a reader
 * needs no list of what it reads, and named through base/text/unread.h.
 *
 *   struct json_watch *watch;
 *   TRY(json_watch_begin(doc, &watch));
 *   st = read(json_root(doc));                              json_get() and all that look by key
 *   json_watch_collect(watch, …, &unread);  json_watch_end(watch);
 *
 * A member counts as asked for once a caller looked it up by its key, whatever its value; those of
 * an object inside count only where a caller looked into that object by key. Members that are
 * null, false or empty mean nothing and are passed over. Threads: a watch notes what its own thread
 * asks; watches of one thread end in the reverse order of their beginning. */
#ifndef CZ_FORMATS_JSON_JSON_UNREAD_H
#define CZ_FORMATS_JSON_JSON_UNREAD_H

#include "base/text/unread.h"
#include "formats/json/json.h"

CZ_EXTERN_C_BEGIN

struct json_watch;

/* The document must outlive the watch. Errors: CZ_NOMEM, *out is NULL then. */
cz_status json_watch_begin(const struct json_doc *doc, struct json_watch **out);
void json_watch_end(struct json_watch *watch); /* accepts NULL */

/* A member that means nothing to this program. Beside each row of a table stands why. */
struct json_harmless {
    const char *path;  /* "use_cache", "rope_scaling.type"; "*_token_id": every such ending */
    const char *value; /* only with this one, in JSON: "1", also for 1.0; NULL: always */
    const char *kind;  /* only in files of this kind (a model_type); NULL: in all */
};

/* Add what was not asked for, and is not in the table, to `unread`, with its line. */
void json_watch_collect(const struct json_watch *watch, const struct json_harmless *known, size_t n,
                        const char *kind, struct unread *unread);

CZ_EXTERN_C_END
#endif
