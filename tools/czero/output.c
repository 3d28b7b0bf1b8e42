/* All options check their output files here, so that they refuse the same files. */
#include "tools/czero/output.h"

#include "base/log.h"
#include "base/size.h"
#include "formats/beneath.h"
#include "formats/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD_NBYTES = 4096 };

/* ---- inputs --------------------------------------------------------------------------------- */

void output_add_input(struct output_inputs *in, const char *path)
{
    if (path && in->n < OUTPUT_INPUTS_MAX) in->paths[in->n++] = path;
}

void output_add_inputs(struct output_inputs *in, const struct arg_list *paths)
{
    for (size_t i = 0; i < paths->n; i++) output_add_input(in, paths->items[i]);
}

static bool is_same(const char *path, const struct stat *out)
{
    struct stat info;
    return stat(path, &info) == 0 && info.st_dev == out->st_dev && info.st_ino == out->st_ino;
}

/* Inodes are compared, not names: links and "./" give one file several names. */
static bool is_input(const char *path, const struct stat *out)
{
    DIR *dir;
    bool found = is_same(path, out);
    if (found || !(dir = opendir(path))) return found;
    for (struct dirent *e; !found && (e = readdir(dir));) {
        char inner[PATH_MAX];
        if (snprintf(inner, sizeof inner, "%s/%s", path, e->d_name) < (int)sizeof inner)
            found = is_same(inner, out);
    }
    closedir(dir);
    return found;
}

/* ---- kinds ---------------------------------------------------------------------------------- */

static bool begins(const char *head, const char *with)
{
    return strncmp(head, with, strlen(with)) == 0;
}

/* A run that was killed at once leaves a part of the header. */
static bool is_header(const char *head, const char *header)
{
    const size_t n = strcspn(head, "\n");
    if (head[n] == '\0') return n > 0 && strncmp(header, head, n) == 0;
    return strlen(header) == n && strncmp(header, head, n) == 0;
}

static bool is_curve(const char *head)
{
    return is_header(head, "step,loss,lr_next,grad_norm,loss_scale");
}

/* Later versions append columns. */
static bool is_metrics(const char *head)
{
    static const char header[] = "step,epoch,split,loss,";
    return begins(head, header) || is_header(head, header);
}

static bool is_picture(const char *head)
{
    return begins(head, "<svg") || begins(head, "<?xml") || begins(head, "\x89PNG");
}

static bool is_numpy(const char *head)
{
    return begins(head, "\x93NUMPY");
}

static bool is_chats(const char *head)
{
    return begins(head, "{\"messages\":");
}

static bool is_vectors(const char *head)
{
    return begins(head, "{\"embedding\": [");
}

static bool is_config(const char *head)
{
    static const char *const keys[] = {"\"train_batch_size\"", "\"train_micro_batch",
                                       "\"zero_optimization\"", "\"gradient_accumulation"};
    if (head[strspn(head, " \t\r\n")] != '{') return false;
    for (size_t i = 0; i < CZ_ARRAY_LEN(keys); i++)
        if (strstr(head, keys[i])) return true;
    return false;
}

/* Whether a cell of the line is a number of so many decimals at least, six at most. */
static bool has_decimal(const char *line, size_t n, const char *separators, size_t decimals)
{
    for (size_t i = 0; i < n; i += strcspn(line + i, separators) + 1) {
        const char *s = line + i + (line[i] == '-');
        const size_t n_whole = strspn(s, "0123456789");
        const char *point = s + n_whole;
        const size_t n_decimals = *point == '.' ? strspn(point + 1, "0123456789") : 0;
        const char *end = point + 1 + n_decimals;
        if (n_whole > 0 && n_decimals >= decimals && n_decimals <= 6 &&
            (*end == '\0' || strchr(separators, *end) || *end == '\n'))
            return true;
    }
    return false;
}

/* Where the first of the keys begins in a line of JSON; NULL: none of them does. */
static const char *first_of(const char *line, size_t n, const char *const *keys, size_t n_keys)
{
    const char *first = NULL;
    for (size_t i = 0; i < n_keys; i++) {
        const char *at = memmem(line, n, keys[i], strlen(keys[i]));
        if (at && (!first || at < first)) first = at;
    }
    return first;
}

/* Data may have figures, too, but behind their text. A prediction has them in front of it, or,
 * where
 * --keep put the text first, has two of them. Without a figure it has a label and no text. */
static bool is_prediction(const char *line, size_t n)
{
    static const char *const texts[] = {"\"text",     "\"sentence", "\"content\"", "\"messages\"",
                                        "\"tokens\"", "\"words\"",  "\"prompt\"",  "\"train_"};
    static const char *const figures[] = {"\"probabilit", "\"value\"", "\"values\""};
    static const char *const labels[] = {"\"label\"", "\"labels\""};
    static const char *const entities[] = {"\"entities\": ["};
    const char *text = first_of(line, n, texts, CZ_ARRAY_LEN(texts));
    const char *figure = first_of(line, n, figures, CZ_ARRAY_LEN(figures));
    if (!figure) return !text && first_of(line, n, labels, CZ_ARRAY_LEN(labels));
    if (!text || figure < text || first_of(line, n, entities, 1)) return true;
    return first_of(figure + 1, n - (size_t)(figure + 1 - line), figures, CZ_ARRAY_LEN(figures));
}

/* Whether the line has a cell of this name. */
static bool has_cell(const char *line, size_t n, const char *name)
{
    const size_t n_name = strlen(name);
    for (size_t at = 0; at + n_name <= n; at += strcspn(line + at, ",\n") + 1) {
        const char after = line[at + n_name];
        if (memcmp(line + at, name, n_name) == 0 && (after == ',' || after == '\n')) return true;
    }
    return false;
}

/* CSV: columns of czero predict, and in some row a value of six decimals. */
static bool is_predictions_csv(const char *head)
{
    static const char *const names[] = {"probability", "value", "labels", "score"};
    const size_t n_first = strcspn(head, "\n");
    bool is_named = false;
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) is_named |= has_cell(head, n_first, names[i]);
    return is_named && has_decimal(head + n_first, strlen(head + n_first), ",\n", 6);
}

/* A table: tabs, and in its first two lines a value of six decimals. Of one text: the value comes
 * first. */
static bool is_predictions(const char *head)
{
    const size_t n_first = strcspn(head, "\n");
    const char *second = head + n_first + (head[n_first] == '\n');
    if (head[0] == '{') return is_prediction(head, n_first);
    if (begins(head, "no entities\n") || is_predictions_csv(head)) return true;
    if (!memchr(head, '\t', n_first)) return has_decimal(head, strcspn(head, " \n"), " ", 4);
    return has_decimal(head, n_first, "\t", 6) ||
           has_decimal(second, strcspn(second, "\n"), "\t", 6);
}

static const struct {
    const char *name;
    bool (*is_one)(const char *head);
} kinds[] = {
    [OUTPUT_CURVE] = {"a curve (step,loss,lr_next,grad_norm,loss_scale)", is_curve},
    [OUTPUT_METRICS] = {"metrics (step,epoch,split,loss,…)", is_metrics},
    [OUTPUT_PICTURE] = {"a picture", is_picture},
    [OUTPUT_CONFIG] = {"a DeepSpeed config", is_config},
    [OUTPUT_PREDICTIONS] = {"predictions", is_predictions},
    [OUTPUT_NUMPY] = {"an array of NumPy", is_numpy},
    [OUTPUT_CHATS] = {"conversations (lines of {\"messages\": …})", is_chats},
    [OUTPUT_VECTORS] = {"lines of embeddings", is_vectors},
};

/* ---- the checks ----------------------------------------------------------------------------- */

static cz_status read_head(const char *path, char head[HEAD_NBYTES + 1])
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, head, HEAD_NBYTES) : -1;
    const int error = errno;
    if (fd >= 0) close(fd);
    if (n < 0) return err_set(CZ_IO, error, "%s: cannot be read", path);
    head[n] = '\0';
    return CZ_OK;
}

cz_status output_check_inputs(const char *option, const char *path,
                              const struct output_inputs *inputs)
{
    struct stat info;
    if (!path || stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return CZ_OK;
    for (size_t i = 0; i < inputs->n; i++)
        if (is_input(inputs->paths[i], &info))
            return err_set(CZ_INVALID, 0,
                           "%s %s: is an input of this command (%s), which would be lost; name "
                           "another file",
                           option, path, inputs->paths[i]);
    return CZ_OK;
}

cz_status output_check_file(const char *option, const char *path, enum output_kind kind,
                            const struct output_inputs *inputs)
{
    char head[HEAD_NBYTES + 1];
    struct stat info;
    if (!path || stat(path, &info) != 0) return CZ_OK; /* opening it says what is wrong */
    if (S_ISDIR(info.st_mode))
        return err_set(CZ_INVALID, 0, "%s %s: is a folder; name a file", option, path);
    if (inputs) TRY(output_check_inputs(option, path, inputs));
    if (!S_ISREG(info.st_mode) || info.st_size == 0) return CZ_OK;
    TRY(read_head(path, head));
    if (kinds[kind].is_one(head)) return CZ_OK;
    return err_set(CZ_CORRUPT, 0,
                   "%s: %s exists and is not %s: czero does not overwrite it; name another file, "
                   "or remove it",
                   option, path, kinds[kind].name);
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Complete lines after the first. */
static cz_status count_rows(const char *path, uint64_t *n)
{
    char block[HEAD_NBYTES];
    struct stat info;
    ssize_t got = 0;
    uint64_t n_lines = 0;
    *n = 0;
    if (!path || stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return CZ_OK;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && (got = read(fd, block, sizeof block)) > 0)
        for (ssize_t i = 0; i < got; i++) n_lines += block[i] == '\n';
    const int error = errno;
    if (fd >= 0) close(fd);
    if (fd < 0 || got < 0) return err_set(CZ_IO, error, "%s: cannot be read", path);
    *n = n_lines > 1 ? n_lines - 1 : 0;
    return CZ_OK;
}

cz_status output_check_rows(const char *option, const char *path)
{
    uint64_t n;
    TRY(count_rows(path, &n));
    if (n == 0) return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "%s %s: holds %" PRIu64
                   " row%s of another run, which would be lost; continue that "
                   "run with --resume, name another file, or replace them with --force",
                   option, path, n, plural(n));
}

cz_status output_check_events(const char *option, const char *path)
{
    static const char events[] = "events.out.tfevents.";
    DIR *dir = path ? opendir(path) : NULL;
    bool found = false;
    if (!dir) return CZ_OK;
    for (struct dirent *e; !found && (e = readdir(dir));)
        found = strncmp(e->d_name, events, sizeof events - 1) == 0;
    closedir(dir);
    if (!found) return CZ_OK;
    return err_set(
        CZ_INVALID, 0,
        "%s %s: holds events of another run, which TensorBoard would mix with this one's; "
        "continue that run with --resume, name another folder, or mix them with --force",
        option, path);
}

cz_status output_set_rows_aside(const char *option, const char *path)
{
    char to[PATH_MAX];
    uint64_t n;
    struct stat info;
    TRY(count_rows(path, &n));
    if (n == 0) return CZ_OK;
    for (int i = 1;; i++) {
        if (snprintf(to, sizeof to, "%s.earlier-%d", path, i) >= (int)sizeof to)
            return err_set(CZ_INVALID, 0, "%s: the path is too long", option);
        if (lstat(to, &info) != 0) break;
    }
    TRY(out_rename(path, to));
    LOGV(LOG_INFO, SUB_ENGINE, "%s %s: the rows of an earlier run are in %s now", option, path, to);
    return CZ_OK;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* A rename would replace a link or a device instead of what is written through it. */
static bool is_special(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && !S_ISREG(info.st_mode);
}

cz_status output_open(struct output_file *f, const char *path)
{
    *f = (struct output_file){.path = path};
    if (!path) {
        f->stream = stdout;
    } else if (is_special(path)) {
        f->stream = out_fopen(path, "we");
    } else {
        TRY(file_durable_create(&f->file, path, 0));
        const int fd = dup(f->file.fd);
        f->stream = fd < 0 ? NULL : fdopen(fd, "w");
        if (!f->stream && fd >= 0) close(fd);
    }
    return f->stream ? CZ_OK : err_set(CZ_IO, errno, "%s: cannot be written", path);
}

cz_status output_close(struct output_file *f, cz_status st)
{
    if (f->stream && f->stream != stdout) {
        const bool failed = ferror(f->stream) != 0;
        if ((fclose(f->stream) != 0 || failed) && st == CZ_OK)
            st = err_set(CZ_IO, errno, "%s: cannot be written", f->path);
    }
    f->stream = NULL;
    if (st == CZ_OK && f->file.path) st = file_durable_commit(&f->file);
    file_durable_abort(&f->file);
    return st;
}

/* ---- folders -------------------------------------------------------------------------------- */

cz_status output_check_folder(const char *option, const char *path)
{
    static const char *const suffixes[] = {".bin",  ".safetensors", ".pt",   ".pth",
                                           ".ckpt", ".json",        ".csv",  ".tsv",
                                           ".txt",  ".gguf",        ".onnx", ".npy"};
    struct stat info;
    const bool is_there = path && stat(path, &info) == 0;
    const size_t n = path ? strlen(path) : 0;
    if (is_there && S_ISDIR(info.st_mode)) return CZ_OK;
    if (is_there)
        return err_set(CZ_INVALID, 0, "%s %s: is a file; a folder is needed", option, path);
    for (size_t i = 0; i < CZ_ARRAY_LEN(suffixes); i++) {
        const size_t n_suffix = strlen(suffixes[i]);
        if (n > n_suffix && strcasecmp(path + n - n_suffix, suffixes[i]) == 0)
            return err_set(CZ_INVALID, 0,
                           "%s %s: is the name of a file, but a folder is written: name the folder "
                           "(%.*s/), or create one of this name",
                           option, path, (int)(n - n_suffix), path);
    }
    return CZ_OK;
}

bool output_is_same(const char *a, const char *b)
{
    struct stat x, y;
    return a && b && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

bool output_holds_model(const char *dir)
{
    static const char *const names[] = {
        "adapter_model.safetensors",    "adapter_model.bin", "model.safetensors",
        "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++)
        if (beneath_is_there(dir, names[i])) return true;
    return false;
}

cz_status output_check_model(const struct output_model *out)
{
    if (out->force || !output_holds_model(out->dir)) return CZ_OK;
    const char *what = output_is_same(out->dir, out->model)     ? "is the folder of --model"
                       : output_is_same(out->dir, out->adapter) ? "is the folder of the adapter"
                                                                : "holds a model already";
    return err_set(CZ_INVALID, 0,
                   "%s %s: %s, which would be replaced; name another folder, or replace it with "
                   "--force",
                   out->option, out->dir, what);
}
