/* The table of algorithms for products: a line with the file's version, cuBLASLt's and the GPU; a
 * line with the names of the columns; a line for each product. All numbers are decimal. */
#include "ops/matmul/matmul_cuda_impl.h"

#include <cublasLt.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEASURE "measure:"
#define ENV     "CZERO_CUDA_ALGORITHMS"

struct row {
    int64_t facts[MATMUL_N_FACTS];
    int which;
};

struct matmul_choices {
    char *path;
    bool measures;
    char head[256]; /* the first line, as it is for this GPU */
    struct row *rows;
    size_t n_rows, cap_rows;
};

static const char columns[] =
    "m n k lda ldb ldc dtype c_dtype trans_a trans_b accumulate tf32 epilogue align_a align_b "
    "align_c align_vector align_aux algorithm microseconds first";

static cz_status keep(struct matmul_choices *c, const struct row *row)
{
    if (c->n_rows == c->cap_rows) {
        const size_t cap = 2 * c->cap_rows + 64;
        struct row *grown = (struct row *)realloc(c->rows, cap * sizeof *grown);
        if (!grown) return err_set(CZ_NOMEM, 0, "%s: out of memory", c->path);
        c->rows = grown, c->cap_rows = cap;
    }
    c->rows[c->n_rows++] = *row;
    return CZ_OK;
}

/* A line of numbers: the facts, which algorithm, and two times that only people read. */
static bool read_row(const char *line, struct row *row)
{
    char *end;
    for (int i = 0; i <= MATMUL_N_FACTS; i++) {
        errno = 0;
        const long long value = strtoll(line, &end, 10);
        if (end == line || errno != 0 || (*end != ' ' && *end != '\n')) return false;
        if (i < MATMUL_N_FACTS)
            row->facts[i] = value;
        else if (value < 0 || value >= MATMUL_N_ALGORITHMS)
            return false;
        else
            row->which = (int)value;
        line = end;
    }
    return true;
}

static cz_status read_lines(struct matmul_choices *c, FILE *f)
{
    char line[1024];
    struct row row;
    if (!fgets(line, sizeof line, f) || strcmp(line, c->head) != 0)
        return err_set(CZ_INVALID, 0,
                       "%s=%s: was measured for something else than this, %.*s; measure again with "
                       "%s=" MEASURE "FILE",
                       ENV, c->path, (int)strcspn(c->head, "\n"), c->head, ENV);
    for (size_t n = 2; fgets(line, sizeof line, f); n++) {
        if (n == 2) continue; /* the columns' names */
        if (!read_row(line, &row))
            return err_set(CZ_INVALID, 0, "%s=%s: line %zu is not one of a table of algorithms",
                           ENV, c->path, n);
        TRY(keep(c, &row));
    }
    return ferror(f) ? err_set(CZ_IO, errno, "%s=%s: cannot be read", ENV, c->path) : CZ_OK;
}

/* A table that is measured begins anew. */
static cz_status start(struct matmul_choices *c)
{
    FILE *f = fopen(c->path, c->measures ? "we" : "re");
    if (!f)
        return err_set(CZ_INVALID, errno, "%s=%s: cannot be %s", ENV, c->path,
                       c->measures ? "written" : "opened");
    cz_status st = CZ_OK;
    if (!c->measures)
        st = read_lines(c, f);
    else if (fprintf(f, "%s%s\n", c->head, columns) < 0)
        st = err_set(CZ_IO, errno, "%s=%s: cannot be written", ENV, c->path);
    fclose(f);
    return st;
}

cz_status matmul_choices_open(const struct ops *ops, struct matmul_choices **out)
{
    const char *asked = getenv(ENV);
    *out = NULL;
    if (!asked || !*asked) return CZ_OK;
    struct matmul_choices *c = (struct matmul_choices *)calloc(1, sizeof *c);
    *out = c;
    if (!c) return err_set(CZ_NOMEM, 0, "matmul: out of memory");
    c->measures = strncmp(asked, MEASURE, strlen(MEASURE)) == 0;
    c->path = strdup(asked + (c->measures ? strlen(MEASURE) : 0));
    if (!c->path) return err_set(CZ_NOMEM, 0, "matmul: out of memory");
    snprintf(c->head, sizeof c->head,
             "czero's algorithms of products, version 1, cuBLASLt %zu, %s\n", cublasLtGetVersion(),
             ops->cuda->info.name);
    return start(c);
}

void matmul_choices_close(struct matmul_choices *c)
{
    if (!c) return;
    free(c->path);
    free(c->rows);
    free(c);
}

bool matmul_choices_measure(const struct matmul_choices *c)
{
    return c && c->measures;
}

int matmul_choices_find(const struct matmul_choices *c, const int64_t facts[MATMUL_N_FACTS])
{
    for (size_t i = 0; c && i < c->n_rows; i++)
        if (memcmp(c->rows[i].facts, facts, sizeof c->rows[i].facts) == 0) return c->rows[i].which;
    return 0;
}

cz_status matmul_choices_add(struct matmul_choices *c, const int64_t facts[MATMUL_N_FACTS],
                             int which, double seconds, double first)
{
    struct row row;
    memcpy(row.facts, facts, sizeof row.facts);
    row.which = which;
    TRY(keep(c, &row));
    FILE *f = fopen(c->path, "ae");
    if (!f) return err_set(CZ_IO, errno, "%s=%s: cannot be written", ENV, c->path);
    for (int i = 0; i < MATMUL_N_FACTS; i++) fprintf(f, "%lld ", (long long)facts[i]);
    fprintf(f, "%d %.1f %.1f\n", which, seconds * 1e6, first * 1e6);
    return fclose(f) == 0 ? CZ_OK : err_set(CZ_IO, errno, "%s=%s: cannot be written", ENV, c->path);
}
