/* The manifest as text: docs/checkpoint-format.md, "czero_manifest.json". Its last member is a
 * checksum of everything before it, with a fixed pattern around it, so that any flipped bit is
 * noticed before the text is parsed: fsck must not accuse a shard because the manifest itself is
 * damaged. */
#include "checkpoint/store/manifest_impl.h"

#include "checkpoint/read/names.h"
#include "formats/beneath.h"
#include "formats/crc32.h"
#include "formats/file_io.h"
#include "formats/json/json.h"
#include "formats/json/json_write.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How every manifest ends, whatever its version. */
#define TAIL_BEGIN  "\"manifest_crc32\": \""
#define TAIL_END    "\"\n}\n"
#define TAIL_NBYTES (sizeof TAIL_BEGIN - 1 + 8 + sizeof TAIL_END - 1)

/* ---- writing --------------------------------------------------------------------------------- */

static void write_crc(struct json_writer *w, const char *key, uint32_t crc)
{
    char digits[9];
    snprintf(digits, sizeof digits, "%08" PRIx32, crc);
    json_put_string(w, key, digits);
}

/* A tensor takes one line, since a manifest has thousands of them and people do look at it. */
static void write_file(struct json_writer *w, const struct manifest_file *file)
{
    json_begin_object(w);
    json_put_string(w, "name", file->name);
    json_put_int(w, "nbytes", (int64_t)file->nbytes);
    write_crc(w, "crc32", file->crc);
    json_write_key(w, "tensors");
    json_begin_array(w);
    for (size_t i = 0; i < file->n_tensors; i++) {
        const int indent = w->indent;
        json_begin_object(w);
        w->indent = 0;
        json_put_string(w, "name", file->tensors[i].name);
        json_put_string(w, "what", file->tensors[i].what);
        json_put_int(w, "off", (int64_t)file->tensors[i].off);
        json_put_int(w, "nbytes", (int64_t)file->tensors[i].nbytes);
        write_crc(w, "crc32", file->tensors[i].crc);
        json_end_object(w);
        w->indent = indent;
    }
    json_end_array(w);
    json_end_object(w);
}

cz_status manifest_to_json(const struct manifest *m, char **text, size_t *nbytes)
{
    *text = NULL;
    if (m->world_size < 1 || m->stage < 0 || m->stage > 3)
        return err_set(CZ_INVALID, 0, "a manifest cannot have world size %d and stage %d",
                       m->world_size, m->stage);
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_put_string(&w, "format", MANIFEST_FORMAT);
    json_put_int(&w, "version", MANIFEST_VERSION);
    json_put_int(&w, "world_size", m->world_size);
    json_put_int(&w, "stage", m->stage);
    json_write_key(&w, "files");
    json_begin_array(&w);
    for (size_t i = 0; i < m->n_files; i++) write_file(&w, &m->files[i]);
    json_end_array(&w);
    /* The sum covers every byte before its own member, the comma and line feed included. */
    json_write_text(&w, ",\n  ");
    uint32_t crc = w.failed ? 0 : crc32_update(0, w.buf, w.nbytes);
    json_write_format(&w, TAIL_BEGIN "%08" PRIx32 TAIL_END, crc);
    return json_writer_take(&w, text, nbytes);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Lower case only: the format has exactly one spelling, or a flipped bit could go unnoticed. */
static bool read_hex(const char digits[8], uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 8; i++) {
        const char c = digits[i];
        const bool is_decimal = c >= '0' && c <= '9';
        if (!is_decimal && !(c >= 'a' && c <= 'f')) return false;
        *out = *out << 4 | (uint32_t)(is_decimal ? c - '0' : c - 'a' + 10);
    }
    return true;
}

/* Before anything is looked at: is this the text that was written? This holds for every version of
 * the format, so it comes before the version is read. */
static cz_status check_sum(const char *text, size_t nbytes, const char *label)
{
    const size_t n_begin = sizeof TAIL_BEGIN - 1, n_end = sizeof TAIL_END - 1;
    uint32_t want = 0;
    const char *tail = nbytes < TAIL_NBYTES ? NULL : text + nbytes - TAIL_NBYTES;
    if (!tail || memcmp(tail, TAIL_BEGIN, n_begin) != 0 || !read_hex(tail + n_begin, &want) ||
        memcmp(tail + n_begin + 8, TAIL_END, n_end) != 0)
        return err_set(CZ_CORRUPT, 0,
                       "%s: does not end with a manifest's checksum: it is cut off or damaged",
                       label);
    const uint32_t crc = crc32_update(0, text, (size_t)(tail - text));
    if (crc == want) return CZ_OK;
    return err_set(CZ_CORRUPT, 0,
                   "%s: its checksum is %08" PRIx32 ", but it says %08" PRIx32
                   ": the manifest itself is damaged",
                   label, crc, want);
}

/* An object with exactly n_keys members. That they are the right ones shows when each is read by
 * name: a wrong one leaves one of those missing. */
static cz_status check_object(const struct json_node *node, size_t n_keys)
{
    char where[512];
    if (json_type(node) == JSON_OBJECT && json_count(node) == n_keys) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: expected an object of %zu members, got %s of %zu",
                   json_where(node, where, sizeof where), n_keys, json_type_name(json_type(node)),
                   json_count(node));
}

static cz_status read_range(const struct json_node *node, const char *key, int64_t min, int64_t max,
                            int64_t *out)
{
    char where[512];
    TRY(json_need_int(node, key, out));
    if (*out >= min && *out <= max) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: %" PRId64 " is outside %" PRId64 " to %" PRId64,
                   json_where(json_get(node, key), where, sizeof where), *out, min, max);
}

static cz_status read_size(const struct json_node *node, const char *key, int64_t min,
                           uint64_t *out)
{
    int64_t value = 0;
    *out = 0;
    TRY(read_range(node, key, min, INT64_MAX, &value));
    *out = (uint64_t)value;
    return CZ_OK;
}

static cz_status read_crc(const struct json_node *node, uint32_t *out)
{
    char where[512];
    const char *digits;
    TRY(json_need_string(node, "crc32", &digits));
    if (strlen(digits) == 8 && read_hex(digits, out)) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: \"%.40s\" is not a checksum of eight digits",
                   json_where(json_get(node, "crc32"), where, sizeof where), digits);
}

/* The builder's CZ_INVALID means that the caller made a mistake. Here the values come from a file,
 * so the file is damaged. */
static cz_status as_damage(cz_status st, const struct json_node *node)
{
    char where[512];
    if (st != CZ_INVALID) return st;
    char sentence[1024];
    snprintf(sentence, sizeof sentence, "%s", cz_last_error());
    return err_set(CZ_CORRUPT, 0, "%s: %s", json_where(node, where, sizeof where), sentence);
}

/* Besides what manifest_add_tensor() checks, runs must come in the order of their offsets: a run
 * that was inserted elsewhere than at the end was out of order. */
static cz_status read_tensor(const struct json_node *node, struct manifest_file *file)
{
    const char *name, *what;
    uint64_t off, nbytes;
    uint32_t crc;
    TRY(check_object(node, 5));
    TRY(json_need_string(node, "name", &name));
    TRY(json_need_string(node, "what", &what));
    TRY(read_size(node, "off", 0, &off));
    TRY(read_size(node, "nbytes", 1, &nbytes));
    TRY(read_crc(node, &crc));
    TRY(as_damage(manifest_add_tensor(file, name, what, off, nbytes, crc), node));
    if (file->tensors[file->n_tensors - 1].off == off) return CZ_OK;
    char where[512];
    return err_set(CZ_CORRUPT, 0, "%s: follows a tensor with a larger offset",
                   json_where(node, where, sizeof where));
}

static cz_status read_file(const struct json_node *node, struct manifest *out)
{
    const char *name;
    uint64_t nbytes;
    uint32_t crc;
    const struct json_node *tensors;
    struct manifest_file *file;
    TRY(check_object(node, 4));
    TRY(json_need_string(node, "name", &name));
    TRY(read_size(node, "nbytes", 0, &nbytes));
    TRY(read_crc(node, &crc));
    TRY(json_need(node, "tensors", JSON_ARRAY, &tensors));
    TRY(as_damage(manifest_add_file(out, name, nbytes, crc, &file), node));
    for (size_t i = 0; i < json_count(tensors); i++) TRY(read_tensor(json_child(tensors, i), file));
    return CZ_OK;
}

/* A newer version may differ in everything but the member `version` and the end of the file, so the
 * version is checked before the number of members. */
static cz_status check_version(const struct json_node *root, const char *label)
{
    const char *format;
    int64_t version;
    TRY(json_need_string(root, "format", &format));
    if (strcmp(format, MANIFEST_FORMAT) != 0)
        return err_set(CZ_CORRUPT, 0, "%s: its format is \"%.40s\", not \"%s\"", label, format,
                       MANIFEST_FORMAT);
    TRY(read_range(root, "version", 1, INT64_MAX, &version));
    if (version == MANIFEST_VERSION) return CZ_OK;
    return err_set(CZ_VERSION, 0,
                   "%s: is of version %" PRId64 ", this czero reads up to %d: use a newer one",
                   label, version, MANIFEST_VERSION);
}

static cz_status read_manifest(const struct json_node *root, const char *label,
                               struct manifest *out)
{
    int64_t world_size, stage;
    const struct json_node *files;
    TRY(check_version(root, label));
    TRY(check_object(root, 6));
    TRY(read_range(root, "world_size", 1, INT_MAX, &world_size));
    TRY(read_range(root, "stage", 0, 3, &stage));
    out->world_size = (int)world_size;
    out->stage = (int)stage;
    TRY(json_need(root, "files", JSON_ARRAY, &files));
    for (size_t i = 0; i < json_count(files); i++) TRY(read_file(json_child(files, i), out));
    return CZ_OK;
}

/* On an error *out is empty, never half a manifest. */
cz_status manifest_from_json(const char *text, size_t nbytes, const char *label,
                             struct manifest *out)
{
    manifest_init(out);
    TRY(check_sum(text, nbytes, label));
    struct json_doc *doc = NULL;
    TRY(json_parse(text, nbytes, label, JSON_STRICT, &doc));
    cz_status st = read_manifest(json_root(doc), label, out);
    json_free(doc);
    if (st != CZ_OK) manifest_free(out);
    return st;
}

/* A manifest beyond the limit is damage, not a user's mistake, since czero never writes one. */
cz_status manifest_load(const char *tag_dir, struct manifest *out)
{
    manifest_init(out);
    char *path = file_join(tag_dir, CKPT_MANIFEST), *text = NULL;
    size_t nbytes = 0;
    if (!path) return err_set(CZ_NOMEM, 0, "%s: out of memory", tag_dir);
    cz_status st = beneath_load(tag_dir, CKPT_MANIFEST, MANIFEST_NBYTES_MAX, &text, &nbytes);
    if (st == CZ_INVALID)
        st = err_set(CZ_CORRUPT, 0, "%s: longer than a manifest may be (%zu bytes)", path,
                     MANIFEST_NBYTES_MAX);
    if (st == CZ_OK) st = manifest_from_json(text, nbytes, path, out);
    free(text);
    free(path);
    return st;
}
