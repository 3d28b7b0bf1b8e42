/* One place for the keys that two programs print. */
#include "consolidated.h"

#include "formats/json/json_write.h"
#include "tool.h"

cz_status put_consolidated(const struct cz_consolidate_result *result, const char *out_dir,
                           double seconds, bool verified)
{
    struct json_writer w;
    char *text;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_put_string(&w, "output", out_dir);
    json_put_size(&w, "files", result->n_files);
    json_put_size(&w, "tensors", result->n_tensors);
    json_put_size(&w, "tied_names", result->n_aliases);
    json_put_int(&w, "parameters", (int64_t)result->numel);
    json_put_int(&w, "bytes", (int64_t)result->nbytes);
    json_put_figure(&w, "seconds", seconds);
    json_put_bool(&w, "verified", verified);
    json_end_object(&w);
    TRY(json_writer_take(&w, &text, NULL));
    tool_put_report(text, true);
    return CZ_OK;
}
