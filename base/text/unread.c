/* One sentence for all that a file says and czero does not use, as a warning or an error: a reader
 * that reported by itself would report each row, or forget to. */
#include "base/text/unread.h"

#include "base/log.h"
#include "base/printable.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static atomic_bool is_strict;

void cz_set_strict(bool strict)
{
    atomic_store(&is_strict, strict);
}

bool unread_is_strict(void)
{
    return atomic_load(&is_strict);
}

void unread_add(struct unread *u, const char *name, const char *place_fmt, ...)
{
    char escaped[UNREAD_NAME_NBYTES]; /* as it is kept, lest a long name be new each time */
    printable_format(escaped, sizeof escaped, 0, "%s", name);
    for (size_t i = 0; i < u->n_names; i++)
        if (strcmp(u->names[i].name, escaped) == 0) {
            u->names[i].count++;
            return;
        }
    if (u->n_names == UNREAD_NAMES) {
        u->n_more++;
        return;
    }
    struct unread_name *n = &u->names[u->n_names++];
    memcpy(n->name, escaped, sizeof escaped);
    n->count = 1;
    va_list ap;
    va_start(ap, place_fmt);
    printable_vformat(n->place, sizeof n->place, 0, place_fmt, ap);
    va_end(ap);
}

cz_status unread_report(struct unread *u, const char *file)
{
    if (u->n_names == 0) return CZ_OK;
    char list[1600] = "";
    size_t len = 0, n_more = u->n_more;
    for (size_t i = 0; i < u->n_names; i++) {
        const struct unread_name *n = &u->names[i];
        char times[40] = "", one[UNREAD_NAME_NBYTES + UNREAD_PLACE_NBYTES + 64];
        if (n->count > 1)
            snprintf(times, sizeof times, "%" PRIu64 " times%s", n->count,
                     n->place[0] ? ", first: " : "");
        const bool has_note = times[0] || n->place[0];
        const int one_len = snprintf(one, sizeof one, "%s%s%s%s%s%s", len ? ", " : "", n->name,
                                     has_note ? " (" : "", times, n->place, has_note ? ")" : "");
        if (len + (size_t)one_len >= sizeof list) {
            n_more += n->count;
            continue;
        }
        memcpy(list + len, one, (size_t)one_len + 1);
        len += (size_t)one_len;
    }
    char more[40] = "";
    if (n_more) snprintf(more, sizeof more, ", and %zu of other names", n_more);
    const char *what = u->what;
    *u = (struct unread){.what = what};
    if (unread_is_strict())
        return err_set(CZ_INVALID, 0, "%s: %s that czero does not use: %s%s", file, what, list,
                       more);
    log_line(LOG_WARN, "%s: %s that czero does not use: %s%s", file, what, list, more);
    return CZ_OK;
}
