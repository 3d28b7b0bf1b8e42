/* czero_state.json: what a resumed run takes from our own file (docs/checkpoint-format.md). Its
 * members are the engine's; here they are shown, not judged. */
#include "checkpoint/inspect/inspect_impl.h"
#include "formats/beneath.h"
#include "formats/file_io.h"
#include "formats/json/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>


static int64_t integer(const struct json_node *node, const char *key)
{
    int64_t value;
    const struct json_node *member = json_get(node, key);
    return member && json_as_int(member, &value) == CZ_OK ? value : 0;
}

static const char *string(const struct json_node *node, const char *key)
{
    const char *value;
    const struct json_node *member = json_get(node, key);
    return member && json_as_string(member, &value) == CZ_OK ? value : "?";
}

/* JSON text without the line feed at its end. */
static void trim(char *text, size_t nbytes)
{
    while (nbytes > 0 && (text[nbytes - 1] == '\n' || text[nbytes - 1] == ' ')) nbytes--;
    text[nbytes] = '\0';
}

/* "run  seed 42; data: 96 of 5123 rows taken in epoch 0, shuffled with seed 42" */
static void put_run(struct inspect *in, const struct json_node *root)
{
    const struct json_node *data = json_get(root, "data");
    bool shuffle = false;
    inspect_indent(in, 2);
    inspect_column(in, "run", 14);
    json_write_text(&in->w, "seed ");
    inspect_puts(in, string(root, "seed"));
    if (data) {
        json_write_format(&in->w, "; data: %" PRId64 " of %" PRId64 " rows taken in epoch %" PRId64,
                          integer(data, "sample"), integer(data, "n_rows"), integer(data, "epoch"));
        if (json_opt_bool(data, "shuffle", false, &shuffle) == CZ_OK && shuffle) {
            json_write_text(&in->w, ", shuffled with seed ");
            inspect_puts(in, string(data, "seed"));
        }
    }
    json_write_text(&in->w, "\n");
}

/* "1-bit  OneBitAdam, 24 calls, variance frozen, errors of every rank" */
static void put_onebit(struct inspect *in, const struct json_node *root)
{
    const struct json_node *ob = json_get(root, "onebit");
    bool frozen = false, has_files = false;
    if (!ob || json_opt_bool(ob, "frozen", false, &frozen) != CZ_OK ||
        json_opt_bool(ob, "rank_files", false, &has_files) != CZ_OK)
        return;
    inspect_indent(in, 2);
    inspect_column(in, "1-bit", 14);
    inspect_puts(in, string(ob, "optimizer"));
    json_write_format(&in->w, ", %" PRId64 " calls, %s; %s\n", integer(ob, "step"),
                      frozen ? "variance frozen" : "variance not frozen yet",
                      has_files ? "errors of every rank" : "no errors");
    const int64_t variance = integer(ob, "var_interval"),
                  local = integer(ob, "local_step_interval");
    if (variance <= 1 && local <= 1) return;
    inspect_indent(in, 2);
    inspect_column(in, "", 14);
    json_write_format(&in->w,
                      "variance every %" PRId64 " steps, later an exchange every %" PRId64 "\n",
                      variance, local);
}

static cz_status show(struct inspect *in, const char *tag_dir, const char *path)
{
    char *text;
    size_t nbytes;
    struct json_doc *doc;
    TRY(beneath_load(tag_dir, CKPT_STATE, CKPT_STATE_NBYTES_MAX, &text, &nbytes));
    cz_status st = json_parse(text, nbytes, path, JSON_STRICT, &doc);
    if (st == CZ_OK && in->options->json) {
        trim(text, nbytes);
        json_write_key(&in->w, "run");
        json_write_raw(&in->w, text);
    } else if (st == CZ_OK) {
        put_run(in, json_root(doc));
        put_onebit(in, json_root(doc));
    }
    if (st == CZ_OK) json_free(doc);
    free(text);
    return st;
}

cz_status inspect_run(struct inspect *in, const char *tag_dir)
{
    char *path = file_join(tag_dir, CKPT_STATE);
    if (!path) return err_set(CZ_NOMEM, 0, "no memory for a path");
    cz_status st = beneath_is_there(tag_dir, CKPT_STATE) ? show(in, tag_dir, path) : CZ_OK;
    free(path);
    return st;
}
