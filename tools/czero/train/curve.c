/* --curve: the loss curve as a CSV of one row per step, flushed, in digits that read back to the
 * same doubles. A resumed run continues the file: rows after the checkpoint's step are dropped, so
 * the file equals that of an uninterrupted run. */
#include "tools/czero/train/curve.h"

#include "base/log.h"
#include "formats/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER "step,loss,lr_next,grad_norm,loss_scale\n"

struct curve {
    FILE *file;
    char *path;
};

static cz_status cannot(const struct curve *c, const char *what)
{
    return err_set(CZ_IO, errno, "--curve: cannot %s %s", what, c->path);
}

/* A run that is killed before its first row leaves a file that begins as others do. */
static cz_status write_header(struct curve *c)
{
    if (fputs(HEADER, c->file) == EOF || fflush(c->file) != 0) return cannot(c, "write");
    return CZ_OK;
}

/* Reads up to the last complete row of the past and truncates behind it; a row that a killed run
 * left half written goes too. */
static cz_status drop_later_rows(struct curve *c, int64_t after_step)
{
    char line[512];
    long kept = (long)strlen(HEADER);
    int64_t last = 0;
    if (!fgets(line, sizeof line, c->file))
        return ferror(c->file) ? cannot(c, "read") : write_header(c);
    if (strcmp(line, HEADER) != 0)
        return err_set(CZ_CORRUPT, 0,
                       "--curve: %s does not begin with step,loss,lr_next,grad_norm,loss_scale",
                       c->path);
    while (fgets(line, sizeof line, c->file) && strchr(line, '\n') &&
           strtoll(line, NULL, 10) <= after_step) {
        kept = ftell(c->file);
        last = strtoll(line, NULL, 10);
    }
    if (ferror(c->file) || ftruncate(fileno(c->file), kept) != 0 ||
        fseek(c->file, kept, SEEK_SET) != 0)
        return cannot(c, "continue with");
    if (last < after_step)
        LOGV(LOG_WARN, SUB_ENGINE,
             "--curve: %s ends at step %lld, but the run continues after step %lld: rows are "
             "missing",
             c->path, (long long)last, (long long)after_step);
    return CZ_OK;
}

static cz_status start(struct curve *c, int64_t after_step)
{
    if (after_step > 0 && (c->file = out_fopen(c->path, "r+e"))) return drop_later_rows(c, after_step);
    c->file = out_fopen(c->path, "we");
    return c->file ? write_header(c) : cannot(c, "write");
}

cz_status curve_open(const char *path, int64_t after_step, struct curve **out)
{
    struct curve *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c || !(c->path = strdup(path))) {
        free(c);
        return err_set(CZ_NOMEM, 0, "no memory for --curve");
    }
    cz_status st = start(c, after_step);
    if (st == CZ_OK)
        *out = c;
    else
        curve_close(c);
    return st;
}

void curve_close(struct curve *c)
{
    if (!c) return;
    if (c->file) fclose(c->file);
    free(c->path);
    free(c);
}

/* Flushed at each row: a killed run loses no finished step. */
cz_status curve_write(struct curve *c, const struct progress_step *s)
{
    if (!c) return CZ_OK;
    fprintf(c->file, "%lld,%.9g,%.17g,%.9g,%.17g\n", (long long)s->step, s->loss, s->lr_next,
            s->grad_norm, s->loss_scale);
    if (fflush(c->file) != 0 || ferror(c->file)) return cannot(c, "write");
    return CZ_OK;
}
