/* A check as one JSON object. */
#include "checkpoint/fsck.h"

#include "formats/json_write.h"

#include <stdlib.h>

struct fsck_json {
    struct json_writer findings; /* an array that is not closed yet */
};

struct fsck_json *fsck_json_create(void)
{
    struct fsck_json *j = malloc(sizeof *j);
    if (!j) return NULL;
    json_writer_init(&j->findings, 0);
    json_begin_array(&j->findings);
    return j;
}

void fsck_json_destroy(struct fsck_json *j)
{
    if (j) json_writer_free(&j->findings);
    free(j);
}

static void write_text(struct json_writer *w, const char *key, const char *value)
{
    json_write_key(w, key);
    if (value)
        json_write_string(w, value);
    else
        json_write_null(w);
}

static void write_count(struct json_writer *w, const char *key, uint64_t value)
{
    json_write_key(w, key);
    json_write_int(w, (int64_t)value);
}

static void write_bool(struct json_writer *w, const char *key, bool value)
{
    json_write_key(w, key);
    json_write_bool(w, value);
}

void fsck_json_add(struct fsck_json *j, const struct fsck_finding *finding)
{
    struct json_writer *w = &j->findings;
    json_begin_object(w);
    write_text(w, "file", finding->path);
    write_text(w, "tensor", finding->tensor);
    write_count(w, "offset", finding->off);
    write_count(w, "nbytes", finding->nbytes);
    write_text(w, "message", finding->sentence);
    json_end_object(w);
}

cz_status fsck_json_take(struct fsck_json *j, const struct fsck_report *report, const char *error,
                         char **text)
{
    struct json_writer w;
    char *findings;
    *text = NULL;
    json_end_array(&j->findings);
    TRY(json_writer_take(&j->findings, &findings, NULL));
    json_writer_init(&w, 2);
    json_begin_object(&w);
    write_text(&w, "checked", report->tag_dir);
    write_bool(&w, "clean", report->n_findings == 0 && !error);
    write_text(&w, "error", error);
    write_bool(&w, "manifest", report->has_manifest);
    write_count(&w, "files", report->n_files);
    write_count(&w, "tensors", report->n_tensors);
    write_count(&w, "nbytes", report->nbytes);
    write_count(&w, "without_checksum", report->n_unchecked);
    write_count(&w, "n_findings", report->n_findings);
    json_write_key(&w, "findings");
    json_write_raw(&w, findings);
    json_end_object(&w);
    free(findings);
    return json_writer_take(&w, text, NULL);
}
