/* --metrics and --tensorboard: loss and accuracy of training and evaluations, for plots. One row
 * per call, flushed. A resumed run continues both files, without the rows that the interrupted run
 * wrote after the checkpoint. */
#include "tools/czero/train/metrics.h"

#include "base/printable.h"
#include "engine/report/monitor.h"
#include "formats/output.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIGURES    "step,epoch,split,loss,accuracy,macro_f1,weighted_f1,lr,"
#define HEADER     FIGURES "train_loss,train_accuracy,seconds\n"
#define OLD_HEADER FIGURES "seconds\n" /* until 0.2.0 */

struct metrics {
    FILE *csv; /* NULL: not wanted */
    char *csv_path;
    double seconds_before; /* of the runs that this one continues … */
    int64_t last_eval;     /* … and the step of their last evaluation; −1: none */
    bool lacks_means;      /* the CSV that the run continues has OLD_HEADER */
    struct monitor *tensorboard;
};

static cz_status cannot(const struct metrics *m, const char *what)
{
    return err_set(CZ_IO, errno, "--metrics: cannot %s %s", what, m->csv_path);
}

/* ---- the CSV -------------------------------------------------------------------------------- */

static cz_status write_header(struct metrics *m)
{
    fwrite(HEADER, 1, strlen(HEADER), m->csv);
    return fflush(m->csv) == 0 && !ferror(m->csv) ? CZ_OK : cannot(m, "write");
}

/* A row without a line end was cut off by a kill. */
static bool is_complete(const char *line)
{
    return strchr(line, '\n') != NULL;
}

/* Leave the header and the complete rows up to after_step; the file stands behind them. */
static cz_status drop_later_rows(struct metrics *m, int64_t after_step)
{
    char line[512];
    long kept = ftell(m->csv); /* behind the header */
    while (fgets(line, sizeof line, m->csv) && is_complete(line) &&
           strtoll(line, NULL, 10) <= after_step) {
        const char *last_cell = strrchr(line, ',');
        kept = ftell(m->csv);
        if (strstr(line, ",eval,")) m->last_eval = strtoll(line, NULL, 10);
        if (last_cell) m->seconds_before = strtod(last_cell + 1, NULL);
    }
    if (ferror(m->csv) || ftruncate(fileno(m->csv), kept) != 0 ||
        fseek(m->csv, kept, SEEK_SET) != 0)
        return cannot(m, "continue with");
    return CZ_OK;
}

/* An existing file: an earlier run's, which is overwritten unless this one continues it, or
 * something else, which --metrics was not meant for. */
static cz_status take_over(struct metrics *m, int64_t after_step)
{
    char line[512] = "";
    if (!fgets(line, sizeof line, m->csv) && ferror(m->csv)) return cannot(m, "read");
    const bool is_old = strcmp(line, OLD_HEADER) == 0,
               is_ours = is_old || strcmp(line, HEADER) == 0;
    /* A run that was killed at once leaves the beginning of a header, or nothing; any other file is
     * not one of ours and is not overwritten. */
    if (!is_ours && (is_complete(line) || strncmp(line, HEADER, strlen(line)) != 0))
        return err_set(CZ_CORRUPT, 0,
                       "--metrics: %s exists and does not begin with step,epoch,split,loss,…: "
                       "czero does not overwrite it",
                       m->csv_path);
    m->lacks_means = is_old && after_step > 0;
    if (is_ours && after_step > 0) return drop_later_rows(m, after_step);
    if (ftruncate(fileno(m->csv), 0) != 0 || fseek(m->csv, 0, SEEK_SET) != 0)
        return cannot(m, "write");
    return write_header(m);
}

static cz_status open_csv(struct metrics *m, const char *path, int64_t after_step)
{
    struct stat info;
    if (!(m->csv_path = strdup(path))) return err_set(CZ_NOMEM, 0, "no memory for --metrics");
    /* A new file begins with its header. */
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) {
        m->csv = out_fopen(m->csv_path, "we");
        return m->csv ? write_header(m) : cannot(m, "write");
    }
    m->csv = out_fopen(path, "r+e");
    return m->csv ? take_over(m, after_step) : cannot(m, "write");
}

/* An empty cell means "not measured", which readers tell from 0 and NaN. */
static void put_number(FILE *csv, double value)
{
    if (isnan(value))
        putc(',', csv);
    else
        fprintf(csv, ",%.9g", value);
}

/* ---- TensorBoard ---------------------------------------------------------------------------- */

/* TensorBoard's event files cannot be truncated; a restart event makes it ignore later steps of the
 * earlier run. */
static cz_status open_tensorboard(struct metrics *m, const char *dir, int64_t after_step)
{
    const struct config_monitor section = {.enabled = true, .output_path = dir, .job_name = ""};
    if (monitor_create(NULL, &section, &m->tensorboard) != CZ_OK)
        return err_prefix("--tensorboard");
    if (after_step > 0 && monitor_restart(m->tensorboard, after_step + 1) != CZ_OK)
        return err_prefix("--tensorboard");
    return CZ_OK;
}

/* NaN stands for "not measured" and would break TensorBoard's plots. */
static void add_event(struct monitor_event *events, size_t *n, const char *name, double value,
                      int64_t step)
{
    if (!isnan(value)) events[(*n)++] = (struct monitor_event){name, value, false, step};
}

/* ---- both ------------------------------------------------------------------------------------ */

cz_status metrics_open(const char *csv, const char *tensorboard, int64_t after_step,
                       struct metrics **out)
{
    *out = NULL;
    if (!csv && !tensorboard) return CZ_OK;
    struct metrics *m = calloc(1, sizeof *m);
    if (!m) return err_set(CZ_NOMEM, 0, "no memory for --metrics");
    m->last_eval = -1;
    cz_status st = csv ? open_csv(m, csv, after_step) : CZ_OK;
    if (st == CZ_OK && tensorboard) st = open_tensorboard(m, tensorboard, after_step);
    if (st == CZ_OK)
        *out = m;
    else
        metrics_close(m);
    return st;
}

/* The row goes to both outputs, so that they never differ. */
cz_status metrics_write(struct metrics *m, const struct metrics_row *row)
{
    if (!m) return CZ_OK;
    /* a run that was over and is resumed reports its last evaluation again */
    if (row->is_eval && row->step <= m->last_eval) return CZ_OK;
    /* One row per call, flushed, so that a plot can follow a running training. */
    if (m->csv) {
        fprintf(m->csv, "%lld", (long long)row->step);
        put_number(m->csv, row->epoch);
        printable_print(m->csv, ",%s", row->is_eval ? "eval" : "train");
        put_number(m->csv, row->loss);
        put_number(m->csv, row->accuracy);
        put_number(m->csv, row->macro_f1);
        put_number(m->csv, row->weighted_f1);
        put_number(m->csv, row->lr);
        if (!m->lacks_means) {
            put_number(m->csv, row->train_loss);
            put_number(m->csv, row->train_accuracy);
        }
        fprintf(m->csv, ",%.3f\n", m->seconds_before + row->seconds);
        if (fflush(m->csv) != 0 || ferror(m->csv)) TRY(cannot(m, "write"));
    }
    /* TensorBoard groups by the part in front of the slash. */
    if (m->tensorboard) {
        struct monitor_event events[7];
        size_t n = 0;
        bool eval = row->is_eval;
        add_event(events, &n, eval ? "eval/loss" : "train/loss", row->loss, row->step);
        add_event(events, &n, eval ? "eval/accuracy" : "train/accuracy", row->accuracy, row->step);
        add_event(events, &n, eval ? "eval/macro_f1" : "train/macro_f1", row->macro_f1, row->step);
        add_event(events, &n, eval ? "eval/weighted_f1" : "train/weighted_f1", row->weighted_f1,
                  row->step);
        add_event(events, &n, eval ? "eval/lr" : "train/lr", row->lr, row->step);
        add_event(events, &n, "eval/train_loss", row->train_loss, row->step);
        add_event(events, &n, "eval/train_accuracy", row->train_accuracy, row->step);
        if (monitor_write(m->tensorboard, events, n) != CZ_OK) return err_prefix("--tensorboard");
    }
    return CZ_OK;
}

void metrics_close(struct metrics *m)
{
    if (!m) return;
    if (m->csv) fclose(m->csv);
    free(m->csv_path);
    monitor_destroy(m->tensorboard);
    free(m);
}
