/* --json of zero_to_fp32 and czero export: what they wrote, in the same words. */
#ifndef CZ_TOOLS_CONSOLIDATED_H
#define CZ_TOOLS_CONSOLIDATED_H

#include <czero/checkpoint.h>

/* One object on stdout. Errors: CZ_NOMEM. */
cz_status put_consolidated(const struct cz_consolidate_result *result, const char *out_dir,
                           double seconds, bool verified);

#endif
