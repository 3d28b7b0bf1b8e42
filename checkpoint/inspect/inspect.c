/* What a path leads to (a file, a tag's folder, a folder of weights), and the finished text. The
 * whole text is made in memory and written at the end, so that an error leaves no half an answer in
 * a pipe. */
#include "base/host/entry.h"
#include "base/options.h"
#include "base/utf8.h"
#include "checkpoint/inspect/inspect_impl.h"

#include "base/log.h"
#include "formats/beneath.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool ends_in(const char *path, const char *suffix)
{
    const size_t n = strlen(path), n_suffix = strlen(suffix);
    return n >= n_suffix && strcmp(path + n - n_suffix, suffix) == 0;
}

/* Whether a file's first bytes are UTF-8 without control characters. Of a file that has been read
 * already: not of a pipe, whose other end would be waited for. */
static bool begins_as_text(const char *path)
{
    char head[512];
    FILE *file = fopen(path, "re");
    if (!file) return false;
    const size_t n = fread(head, 1, sizeof head, file);
    fclose(file);
    size_t at = 0;
    while (at < n) {
        const int len = utf8_length(head + at, n - at);
        const bool is_control = (unsigned char)head[at] < 0x20 && !strchr("\t\n\f\r", head[at]);
        if (len == -1) break; /* a character that the 512 bytes end inside */
        if (len == 0 || is_control || head[at] == '\0') return false;
        at += (size_t)len;
    }
    return n > 0;
}

/* By the name's end: a .pt and a .bin are zips, which the reader checks. */
static cz_status inspect_file(struct inspect *in)
{
    const char *path = in->options->path;
    if (in->options->tag)
        return err_set(CZ_INVALID, 0, "%s: is a file, so there is no tag to choose", path);
    if (ends_in(path, ".safetensors")) {
        struct safetensors *opened;
        TRY(safetensors_open(path, &opened));
        cz_status st = inspect_safetensors(in, opened);
        safetensors_close(opened);
        return st;
    }
    const bool is_named_pt = ends_in(path, ".pt") || ends_in(path, ".bin");
    if (ends_in(path, ".json") || ends_in(path, "/" CKPT_LATEST))
        return err_set(CZ_UNSUPPORTED, 0, "%s: is text: any editor shows it", path);
    cz_status st = inspect_pt_file(in, NULL, path);
    if (st == CZ_CORRUPT && !is_named_pt && begins_as_text(path))
        return err_set(CZ_UNSUPPORTED, 0, "%s: is text: any editor shows it", path);
    return st;
}

/* Every *.bin or *.pt of a folder of weights: several objects in an array, or trees one below the
 * other. */
static cz_status inspect_torch_files(struct inspect *in, const struct ckpt_list *list)
{
    cz_status st = CZ_OK;
    if (in->options->json) json_begin_array(&in->w);
    for (size_t i = 0; i < list->n && st == CZ_OK; i++) {
        if (i > 0 && !in->options->json) json_write_text(&in->w, "\n");
        st = inspect_pt_file(in, in->options->path, list->names[i]);
    }
    if (in->options->json) json_end_array(&in->w);
    return st;
}

/* A folder without checkpoints. why: the error of the search for those, returned when there are no
 * weights either, because a checkpoint is what users mostly look for. */
static cz_status inspect_weights(struct inspect *in, const struct err *why)
{
    static const char *const suffixes[] = {".bin", ".pt"};
    struct safetensors *opened = NULL;
    const char *dir = in->options->path;
    cz_status st = safetensors_dir_open(dir, &opened);
    if (st == CZ_OK) st = inspect_safetensors(in, opened);
    safetensors_close(opened);
    if (st != CZ_NOTFOUND) return st;
    for (size_t i = 0; i < CZ_ARRAY_LEN(suffixes); i++) {
        struct ckpt_list list;
        TRY(ckpt_list_files(dir, suffixes[i], &list));
        const bool any = list.n > 0;
        st = any ? inspect_torch_files(in, &list) : CZ_OK;
        ckpt_list_free(&list);
        if (any) return st;
    }
    return err_restore(why);
}

/* Where the optimizer's states cannot be assigned to parameters, the rest is still worth showing,
 * with a warning. */
static cz_status open_tag(const char *tag_dir, bool universal, struct ckpt **ck)
{
    struct ckpt_open_options open = {.dir = tag_dir, .universal = universal};
    struct err why;
    cz_status st = ckpt_open(&open, ck);
    if (st != CZ_UNSUPPORTED) return st;
    err_capture(&why);
    open.weights_only = true;
    if (ckpt_open(&open, ck) != CZ_OK) return err_restore(&why);
    LOGV(LOG_WARN, SUB_CKPT, "%s", why.text);
    return CZ_OK;
}

static cz_status inspect_folder(struct inspect *in)
{
    struct ckpt *ck = NULL;
    char *tag_dir = NULL, *tag = NULL;
    struct err why;
    const struct cz_inspect_options *o = in->options;
    cz_status st = ckpt_locate(o->path, o->tag, &tag_dir, &tag);
    if (st == CZ_NOTFOUND && !o->tag) {
        err_capture(&why);
        return inspect_weights(in, &why);
    }
    TRY(st);
    st = open_tag(tag_dir, beneath_is_folder(tag_dir, "zero"), &ck);
    if (st == CZ_OK) st = inspect_checkpoint(in, ck);
    ckpt_close(ck);
    free(tag_dir);
    free(tag);
    return st;
}

cz_status cz_inspect(const struct cz_inspect_options *options, FILE *out)
{
    API_ENTRY;
    NEED(options, "options");
    NEED(out, "out");
    struct stat info;
    struct cz_inspect_options ours;
    struct inspect in = {.options = &ours};
    char *text = NULL;
    size_t nbytes;
    TRY(OPTIONS_TAKE(cz_inspect_options, &ours, options));
    options = &ours;
    if (stat(options->path, &info) != 0)
        return err_set(errno == ENOENT || errno == ENOTDIR ? CZ_NOTFOUND : CZ_IO, errno,
                       "%s: cannot be examined", options->path);
    json_writer_init(&in.w, options->json ? 2 : 0);
    cz_status st = S_ISDIR(info.st_mode) ? inspect_folder(&in) : inspect_file(&in);
    if (st == CZ_OK) st = json_writer_take(&in.w, &text, &nbytes);
    if (st == CZ_OK && fwrite(text, 1, nbytes, out) != nbytes)
        st = err_set(CZ_IO, errno, "what is inside %s cannot be written", options->path);
    if (st == CZ_OK && options->json) fprintf(out, "\n");
    free(text);
    json_writer_free(&in.w);
    return st;
}
