/* A check as one JSON object, for programs. Findings come while the check runs and the counts only
 * at its end, so findings are written to a text of their own, which becomes a member of the object
 * at the end. */
#include "checkpoint/fsck/fsck.h"

#include "formats/json/json_write.h"

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

void fsck_json_add(struct fsck_json *j, const struct cz_fsck_finding *finding)
{
    struct json_writer *w = &j->findings;
    json_begin_object(w);
    json_put_string(w, "file", finding->path);
    json_put_string(w, "tensor", finding->tensor);
    json_put_int(w, "offset", (int64_t)finding->off);
    json_put_int(w, "nbytes", (int64_t)finding->nbytes);
    json_put_string(w, "message", finding->sentence);
    json_end_object(w);
}

cz_status fsck_json_take(struct fsck_json *j, const struct cz_fsck_report *report,
                         const char *error, char **text)
{
    struct json_writer w;
    char *findings;
    *text = NULL;
    json_end_array(&j->findings);
    TRY(json_writer_take(&j->findings, &findings, NULL));
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_put_string(&w, "checked", report->tag_dir);
    json_put_bool(&w, "clean", report->n_findings == 0 && !error);
    json_put_string(&w, "error", error);
    json_put_bool(&w, "manifest", report->has_manifest);
    json_put_int(&w, "files", (int64_t)report->n_files);
    json_put_int(&w, "tensors", (int64_t)report->n_tensors);
    json_put_int(&w, "nbytes", (int64_t)report->nbytes);
    json_put_int(&w, "without_checksum", (int64_t)report->n_unchecked);
    json_put_int(&w, "n_findings", (int64_t)report->n_findings);
    json_write_key(&w, "findings");
    json_write_raw(&w, findings);
    json_end_object(&w);
    free(findings);
    return json_writer_take(&w, text, NULL);
}
