/* Findings: collected per file, so that threads need no lock for them, and handed over in the order
 * of the files. A file that is damaged throughout would yield one finding per tensor;
 * FSCK_FINDINGS_MAX are kept and the rest is counted, which bounds memory. */
#include "checkpoint/fsck/fsck_impl.h"

#include "base/printable.h"
#include "formats/beneath.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SENTENCE_NBYTES 4096
#define NAME_NBYTES_MAX 1000

/* Takes copies of all texts: the sentence is a caller's buffer, and path and tensor may go with the
 * manifest. */
static cz_status add(struct fsck_findings *f, const char *path, const char *tensor, uint64_t off,
                     uint64_t nbytes, const char *sentence, cz_status status)
{
    if (f->n == FSCK_FINDINGS_MAX) {
        f->n_more++;
        f->more_is_damage |= status != CZ_IO;
        return CZ_OK;
    }
    if (f->n == f->cap) {
        size_t cap = f->cap ? f->cap * 2 : 8;
        struct cz_fsck_finding *items = realloc(f->items, cap * sizeof *items);
        if (!items) return err_set(CZ_NOMEM, 0, "%s: no memory for what was found", path);
        f->items = items;
        f->cap = cap;
    }
    struct cz_fsck_finding *item = &f->items[f->n];
    *item = (struct cz_fsck_finding){strdup(path), strdup(tensor),   off,
                                     nbytes,       strdup(sentence), status};
    f->n++;
    if (item->path && item->tensor && item->sentence) return CZ_OK;
    return err_set(CZ_NOMEM, 0, "%s: no memory for what was found", path);
}

/* The sentence is "PATH: …". Names in it are escaped, and of long ones the middle is left out, so
 * that the text after them fits. */
cz_status fsck_note(struct fsck_findings *f, const char *path, const char *tensor, uint64_t off,
                    uint64_t nbytes, const char *fmt, ...)
{
    char sentence[SENTENCE_NBYTES];
    const size_t n = printable_format(sentence, sizeof sentence, NAME_NBYTES_MAX, "%s: ", path);
    va_list args;
    va_start(args, fmt);
    printable_vformat(sentence + n, sizeof sentence - n, NAME_NBYTES_MAX, fmt, args);
    va_end(args);
    return add(f, path, tensor, off, nbytes, sentence, CZ_CORRUPT);
}

/* A folder or a pipe in the place of a file is damage, although it cannot be read. */
cz_status fsck_note_error(struct fsck_findings *f, const char *path)
{
    char sentence[SENTENCE_NBYTES];
    struct stat info;
    const bool is_io = cz_last_status() == CZ_IO;
    snprintf(sentence, sizeof sentence, "%s", cz_last_error());
    const bool is_other = beneath_stat(NULL, path, &info) == CZ_OK && !S_ISREG(info.st_mode);
    const cz_status status = is_io && !is_other ? CZ_IO : CZ_CORRUPT;
    err_clear();
    return add(f, path, "", 0, 0, sentence, status);
}

void fsck_findings_free(struct fsck_findings *f)
{
    for (size_t i = 0; i < f->n; i++) {
        free((char *)f->items[i].path);
        free((char *)f->items[i].tensor);
        free((char *)f->items[i].sentence);
    }
    free(f->items);
    memset(f, 0, sizeof *f);
}

/* Findings about the whole file have no range and therefore match no bytes. */
bool fsck_found_in(const struct fsck_findings *f, uint64_t off, uint64_t nbytes)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct cz_fsck_finding *item = &f->items[i];
        if (item->nbytes > 0 && item->off < off + nbytes && off < item->off + item->nbytes)
            return true;
    }
    return false;
}

void fsck_report_findings(const struct cz_fsck_options *options, const struct fsck_findings *f,
                          struct cz_fsck_report *report)
{
    for (size_t i = 0; i < f->n && options->finding; i++)
        options->finding(&f->items[i], options->user);
    report->n_findings += f->n + f->n_more;
    if (f->n_more == 0 || !options->finding) return;
    char sentence[SENTENCE_NBYTES];
    const char *path = f->items[0].path;
    printable_format(sentence, sizeof sentence, NAME_NBYTES_MAX, "%s: and %zu more", path,
                     f->n_more);
    const struct cz_fsck_finding more = {path, "",       0,
                                         0,    sentence, f->more_is_damage ? CZ_CORRUPT : CZ_IO};
    options->finding(&more, options->user);
}
