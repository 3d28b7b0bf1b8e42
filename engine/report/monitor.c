/* csv_monitor and tensorboard: DeepSpeed's files, byte for byte where scripts read them. A monitor
 * that fails does not stop a training by itself: every event is tried, and the first error is
 * reported at the end. */
#include "engine/report/monitor.h"

#include "formats/file_io.h"
#include "formats/json/json_write.h"
#include "formats/output.h"
#include "formats/tfevents.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_NBYTES_MAX 200

struct monitor {
    struct out_folder csv;   /* not open: no csv_monitor */
    struct tfevents *events; /* NULL: no tensorboard */
};

/* ---- csv_monitor ---------------------------------------------------------------------------- */

struct text {
    char buf[1024];
    size_t n;
};

/* No bounds check: names are limited to NAME_NBYTES_MAX, and a row holds three of its parts at
 * most. */
static void text_put(struct text *t, const char *src)
{
    size_t nbytes = strlen(src);
    memcpy(t->buf + t->n, src, nbytes);
    t->n += nbytes;
}

/* Quoted only where a comma, a quote or a line end asks for it, as Python's csv does. */
static void text_put_field(struct text *t, const char *src)
{
    bool quote = strpbrk(src, ",\"\r\n") != NULL;
    if (quote) t->buf[t->n++] = '"';
    for (; *src; src++) {
        if (*src == '"') t->buf[t->n++] = '"';
        t->buf[t->n++] = *src;
    }
    if (quote) t->buf[t->n++] = '"';
}

/* As Python prints it: DeepSpeed's csv has integers without a point. */
static void text_put_value(struct text *t, const struct monitor_event *e)
{
    char digits[JSON_FLOAT_NBYTES];
    if (isnan(e->value))
        text_put(t, "nan");
    else if (isinf(e->value))
        text_put(t, e->value < 0 ? "-inf" : "inf");
    else if (e->is_int && fabs(e->value) < 0x1p63) {
        snprintf(digits, sizeof digits, "%" PRId64, (int64_t)e->value);
        text_put(t, digits);
    } else
        text_put(t, json_float_text(e->value, digits));
}

/* The header once, in a new file, named after the last part of the event. */
static void make_rows(struct text *t, const struct monitor_event *e, bool with_header)
{
    char step[24];
    t->n = 0;
    if (with_header) {
        const char *slash = strrchr(e->name, '/');
        text_put(t, "step,");
        text_put_field(t, slash ? slash + 1 : e->name);
        text_put(t, "\r\n");
    }
    snprintf(step, sizeof step, "%" PRId64 ",", e->x);
    text_put(t, step);
    text_put_value(t, e);
    text_put(t, "\r\n");
}

/* DeepSpeed's file names: "/" and blanks become "_". */
static void csv_name(char out[NAME_NBYTES_MAX + 8], const char *name)
{
    for (; *name; name++) *out++ = *name == '/' || *name == ' ' ? '_' : *name;
    strcpy(out, ".csv");
}

static cz_status append_rows(const char *path, int fd, const struct monitor_event *e)
{
    struct stat info;
    struct text rows;
    if (fstat(fd, &info) != 0) return err_set(CZ_IO, errno, "%s: cannot be examined", path);
    make_rows(&rows, e, info.st_size == 0);
    cz_status st = file_pwrite(fd, path, rows.buf, rows.n, (uint64_t)info.st_size);
    /* Take half a row back; if that fails too, the write is still what there is to report. */
    if (st != CZ_OK && ftruncate(fd, info.st_size) != 0) return st;
    return st;
}

/* Opened and closed per event, as DeepSpeed does: another process may read or rotate the file
 * meanwhile. */
static cz_status write_csv(struct monitor *m, const struct monitor_event *e)
{
    char name[NAME_NBYTES_MAX + 8];
    int fd;
    csv_name(name, e->name);
    TRY(out_open(&m->csv, name, O_WRONLY, &fd));
    cz_status st = append_rows(name, fd, e);
    if (close(fd) != 0 && st == CZ_OK && errno != EINTR)
        st = err_set(CZ_IO, errno, "%s/%s: cannot be closed", m->csv.path, name);
    return st;
}

/* ---- both ----------------------------------------------------------------------------------- */

static bool is_on(const struct config_monitor *section)
{
    return section && section->enabled;
}

/* The user named output_path; job_name is a folder in it, or "". */
static cz_status open_folder(const struct config_monitor *section, struct out_folder *f)
{
    struct out_folder output;
    char *path = NULL;
    cz_status st = file_absolute(section->output_path, &path);
    if (st == CZ_OK) st = out_folder_open(path, &output);
    free(path);
    TRY(st);
    const char *job = section->job_name + strspn(section->job_name, "/");
    st = *job ? out_folder_below(&output, job, true, f) : CZ_OK;
    if (*job)
        out_folder_close(&output);
    else
        *f = output;
    return st;
}

/* Neither enabled gives a monitor that does nothing: callers need no case for it. */
cz_status monitor_create(const struct config_monitor *csv, const struct config_monitor *tensorboard,
                         struct monitor **out)
{
    struct out_folder events = {.path = NULL};
    cz_status st = CZ_OK;
    *out = NULL;
    struct monitor *m = calloc(1, sizeof *m);
    if (!m) return err_set(CZ_NOMEM, 0, "no memory for the monitors");
    if (is_on(csv)) st = open_folder(csv, &m->csv);
    if (st == CZ_OK && is_on(tensorboard)) {
        st = open_folder(tensorboard, &events);
        if (st == CZ_OK) st = tfevents_open(&events, &m->events);
        out_folder_close(&events);
    }
    if (st == CZ_OK)
        *out = m;
    else
        monitor_destroy(m);
    return st;
}

bool monitor_is_enabled(const struct monitor *m)
{
    return m && (m->csv.path || m->events);
}

static cz_status write_event(struct monitor *m, const struct monitor_event *e)
{
    size_t n_name = strlen(e->name);
    if (n_name == 0 || n_name > NAME_NBYTES_MAX)
        return err_set(CZ_INVALID, 0, "a monitor event's name has %zu bytes (1 to %d work)", n_name,
                       NAME_NBYTES_MAX);
    cz_status csv = m->csv.path ? write_csv(m, e) : CZ_OK;
    if (csv != CZ_OK) { /* tensorboard gets the event all the same */
        struct err first;
        err_capture(&first);
        if (m->events) (void)tfevents_scalar(m->events, e->name, e->value, e->x);
        return err_restore(&first);
    }
    return m->events ? tfevents_scalar(m->events, e->name, e->value, e->x) : CZ_OK;
}

/* Flushed at every boundary: TensorBoard shows a step when it is done. */
cz_status monitor_write(struct monitor *m, const struct monitor_event *events, size_t n_events)
{
    struct err first = {.status = CZ_OK};
    for (size_t i = 0; i < n_events; i++)
        if (write_event(m, &events[i]) != CZ_OK && first.status == CZ_OK) err_capture(&first);
    if (m->events && tfevents_flush(m->events) != CZ_OK && first.status == CZ_OK)
        err_capture(&first);
    return first.status == CZ_OK ? CZ_OK : err_restore(&first);
}

/* A file of csv_monitor: "step,lr" in Train_Samples_lr.csv. */
static bool is_events_file(const char *name, const char *header)
{
    char stem[NAME_NBYTES_MAX + 8];
    const size_t n = strlen(name), n_key = strcspn(header, "\r\n");
    if (n < 5 || n >= sizeof stem || strcmp(name + n - 4, ".csv") != 0) return false;
    if (strncmp(header, "step,", 5) != 0 || memchr(header + 5, ',', n_key - 5)) return false;
    if (n_key - 5 > n - 4 || n_key == 5) return false;
    for (size_t i = 0; i < n_key - 5; i++) {
        const char c = header[5 + i], want = c == ' ' || c == '/' ? '_' : c;
        if (name[n - 4 - (n_key - 5) + i] != want) return false;
    }
    return true;
}

/* Rows from x on are the aborted run's, and so is half a row at the end. */
static cz_status drop_rows(const struct out_folder *in, const char *name, int64_t x)
{
    char line[512];
    int fd;
    const cz_status st = out_open(in, name, O_RDWR, &fd);
    if (st == CZ_INVALID) err_clear(); /* a link or a folder: not the monitor's */
    if (st != CZ_OK) return st == CZ_INVALID ? CZ_OK : st;
    FILE *f = fdopen(fd, "r+");
    if (!f) close(fd);
    if (!f) return err_set(CZ_NOMEM, 0, "%s/%s: no memory to continue it", in->path, name);
    bool ours = fgets(line, sizeof line, f) && strchr(line, '\n') && is_events_file(name, line);
    long kept = ours ? ftell(f) : 0;
    while (ours && fgets(line, sizeof line, f) && strchr(line, '\n') && strtoll(line, NULL, 10) < x)
        kept = ftell(f);
    const bool failed = ferror(f) || (ours && ftruncate(fileno(f), kept) != 0);
    const int error = errno;
    if (fclose(f) != 0 && !failed)
        return err_set(CZ_IO, errno, "%s/%s: cannot be continued", in->path, name);
    return failed ? err_set(CZ_IO, error, "%s/%s: cannot be continued", in->path, name) : CZ_OK;
}

static cz_status drop_csv_rows(const struct monitor *m, int64_t x)
{
    cz_status st = CZ_OK;
    DIR *files = out_folder_list(&m->csv);
    if (!files) return err_set(CZ_IO, errno, "%s: cannot be listed", m->csv.path);
    for (struct dirent *e; st == CZ_OK && (errno = 0, e = readdir(files));) {
        const size_t n = strlen(e->d_name);
        if (n > 4 && strcmp(e->d_name + n - 4, ".csv") == 0) st = drop_rows(&m->csv, e->d_name, x);
    }
    if (st == CZ_OK && errno != 0) st = err_set(CZ_IO, errno, "%s: cannot be listed", m->csv.path);
    closedir(files);
    return st;
}

/* After a resume nothing of the aborted run beyond this step stays, so each step is there once. */
cz_status monitor_restart(struct monitor *m, int64_t x)
{
    if (m->csv.path) TRY(drop_csv_rows(m, x));
    if (!m->events) return CZ_OK;
    TRY(tfevents_restart(m->events, x));
    return tfevents_flush(m->events);
}

void monitor_destroy(struct monitor *m)
{
    if (!m) return;
    (void)tfevents_close(m->events); /* monitor_write() has flushed and reported */
    out_folder_close(&m->csv);
    free(m);
}
