/* fsck's findings as one JSON object. The check itself is cz_fsck(). */
#ifndef CZ_CHECKPOINT_FSCK_FSCK_H
#define CZ_CHECKPOINT_FSCK_FSCK_H

#include "base/status.h"

#include <czero/checkpoint.h>

CZ_EXTERN_C_BEGIN

/* Every finding is added as it comes, then the text is
 * taken, the caller's to free(). error: what kept something from being checked, or NULL. create:
 * NULL when memory ran out; destroy accepts NULL. Errors: CZ_NOMEM. */
struct fsck_json;
struct fsck_json *fsck_json_create(void);
void fsck_json_add(struct fsck_json *j, const struct cz_fsck_finding *finding);
cz_status fsck_json_take(struct fsck_json *j, const struct cz_fsck_report *report,
                         const char *error, char **text);
void fsck_json_destroy(struct fsck_json *j);

CZ_EXTERN_C_END
#endif
