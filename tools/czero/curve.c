#include "curve.h"

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

/* Leave the header and the complete rows up to after_step. */
static cz_status drop_later_rows(FILE *f, const char *path, int64_t after_step)
{
    char line[512];
    long kept = (long)strlen(HEADER);
    if (!fgets(line, sizeof line, f) || strcmp(line, HEADER) != 0)
        return err_set(CZ_CORRUPT, 0,
                       "--curve: %s does not begin with step,loss,lr_next,grad_norm,loss_scale",
                       path);
    while (fgets(line, sizeof line, f) && strchr(line, '\n') &&
           strtoll(line, NULL, 10) <= after_step)
        kept = ftell(f);
    if (ferror(f) || ftruncate(fileno(f), kept) != 0 || fseek(f, kept, SEEK_SET) != 0)
        return err_set(CZ_IO, errno, "--curve: cannot go on with %s", path);
    return CZ_OK;
}

static cz_status start(struct curve *c, int64_t after_step)
{
    if (after_step > 0 && (c->file = fopen(c->path, "r+e")))
        return drop_later_rows(c->file, c->path, after_step);
    c->file = fopen(c->path, "we");
    if (!c->file) return err_set(CZ_IO, errno, "--curve: cannot write %s", c->path);
    fputs(HEADER, c->file);
    return CZ_OK;
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

cz_status curve_write(struct curve *c, const struct progress_step *s)
{
    if (!c) return CZ_OK;
    fprintf(c->file, "%lld,%.9g,%.17g,%.9g,%.17g\n", (long long)s->step, s->loss, s->lr_next,
            s->grad_norm, s->loss_scale);
    if (fflush(c->file) != 0 || ferror(c->file))
        return err_set(CZ_IO, errno, "--curve: cannot write %s", c->path);
    return CZ_OK;
}
