/* A machine profile as a JSON file: one table of keys serves writing, reading and checking. */
#include "engine/machine/machine.h"
#include "engine/machine/machine_impl.h"
#include "formats/file_io.h"
#include "formats/json/json.h"
#include "formats/json/json_write.h"
#include "offload/swap.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FORMAT    "czero machine"
#define VERSION   1
#define COUNT_MAX ((int64_t)1 << 53) /* larger ones are not whole in every JSON reader */

#define RATE_MIN 1e-3 /* per second: times stay finite, and above 0 */
#define RATE_MAX 1e18

enum kind { TEXT, RATE, COUNT, SIZE };

struct member {
    const char *key;
    enum kind kind;
    size_t offset, nbytes; /* in struct machine_profile; TEXT: with the NUL */
    int64_t min, max;      /* COUNT, SIZE; those of the config where it has the key */
};

#define AT(field)                                                                                  \
    offsetof(struct machine_profile, field), sizeof((struct machine_profile *)0)->field

static const struct member members[] = {
    {"cpu", TEXT, AT(cpu), 0, 0},
    {"isa", TEXT, AT(isa), 0, 0},
    {"device", TEXT, AT(device), 0, 0},
    {"threads", COUNT, AT(n_threads), 1, 1 << 16},
    {"gemm_fp32_operations_per_second", RATE, AT(gemm_f32), 0, 0},
    {"gemm_bf16_operations_per_second", RATE, AT(gemm_bf16), 0, 0},
    {"gemm_fp16_operations_per_second", RATE, AT(gemm_f16), 0, 0},
    {"triad_bytes_per_second", RATE, AT(triad), 0, 0},
    {"adam_fp32_parameters_per_second", RATE, AT(adam_f32), 0, 0},
    {"adam_bf16_parameters_per_second", RATE, AT(adam_bf16), 0, 0},
    {"comm_bytes_per_second", RATE, AT(comm), 0, 0},
    {"host_to_device_bytes_per_second", RATE, AT(host_to_device), 0, 0},
    {"device_to_host_bytes_per_second", RATE, AT(device_to_host), 0, 0},
    {"device_gemm_fp32_operations_per_second", RATE, AT(device_gemm_f32), 0, 0},
    {"device_gemm_bf16_operations_per_second", RATE, AT(device_gemm_bf16), 0, 0},
    {"device_gemm_fp16_operations_per_second", RATE, AT(device_gemm_f16), 0, 0},
    {"device_copy_bytes_per_second", RATE, AT(device_copy), 0, 0},
    {"device_memory_bytes", SIZE, AT(device_nbytes), 0, COUNT_MAX},
    {"nvme_path", TEXT, AT(nvme_path), 0, 0},
    {"nvme_read_bytes_per_second", RATE, AT(nvme_read), 0, 0},
    {"nvme_write_bytes_per_second", RATE, AT(nvme_write), 0, 0},
    {"nvme_read_and_write_bytes_per_second", RATE, AT(nvme_both), 0, 0},
    {"nvme_block_bytes", SIZE, AT(nvme_block_nbytes), 0, (int64_t)SWAP_BLOCK_NBYTES_MAX},
    {"nvme_queue_depth", COUNT, AT(nvme_depth), 0, SWAP_QUEUE_DEPTH_MAX},
    {"nvme_how", TEXT, AT(nvme_how), 0, 0},
};

/* ---- writing --------------------------------------------------------------------------------- */

void machine_put(struct json_writer *w, const struct machine_profile *p)
{
    json_begin_object(w);
    json_put_string(w, "format", FORMAT);
    json_put_int(w, "version", VERSION);
    /* Each kind is stored at its own width. */
    for (size_t i = 0; i < CZ_ARRAY_LEN(members); i++) {
        const struct member *m = &members[i];
        const void *at = (const char *)p + m->offset;
        json_write_key(w, m->key);
        switch (m->kind) {
        case TEXT: json_write_string(w, at); break;
        case RATE: json_write_double(w, *(const double *)at); break;
        case COUNT: json_write_int(w, *(const int *)at); break;
        case SIZE: json_write_int(w, (int64_t) * (const size_t *)at); break;
        }
    }
    json_end_object(w);
}

/* Through a temporary file: a profile is read by runs that may start meanwhile. */
cz_status machine_write(const struct machine_profile *profile, const char *path)
{
    struct json_writer w;
    char *text;
    size_t nbytes;
    json_writer_init(&w, 2);
    machine_put(&w, profile);
    json_write_text(&w, "\n");
    TRY(json_writer_take(&w, &text, &nbytes));
    cz_status st = file_save(path, text, nbytes);
    free(text);
    return st;
}

/* Before minutes of measuring: an unwritable path must not cost them. */
cz_status machine_write_check(const char *path)
{
    struct file_durable f;
    struct stat info;
    if (!*path) return err_set(CZ_INVALID, 0, "the file of the profile has no name");
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return err_set(CZ_IO, 0, "%s: is a folder, not a file", path);
    TRY(file_durable_create(&f, path, 0));
    file_durable_abort(&f);
    return CZ_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Bounded by its field, and printable: the profile is shown on terminals. */
static cz_status read_text(const struct json_node *node, const struct member *m, char *out)
{
    const char *text;
    char where[512];
    TRY(json_as_string(node, &text));
    if (strlen(text) >= m->nbytes)
        return err_set(CZ_CORRUPT, 0, "%s: longer than %zu bytes",
                       json_where(node, where, sizeof where), m->nbytes - 1);
    for (const char *c = text; *c; c++) /* it is printed: no escape sequences */
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            return err_set(CZ_CORRUPT, 0, "%s: contains a control character",
                           json_where(node, where, sizeof where));
    memcpy(out, text, strlen(text) + 1);
    return CZ_OK;
}

/* 0 means "not measured"; other rates are divided by. */
static cz_status read_rate(const struct json_node *node, double *out)
{
    char where[512];
    TRY(json_as_double(node, out));
    if (*out == 0 || (*out >= RATE_MIN && *out <= RATE_MAX)) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: %g is outside %g..%g (0 means that it was not measured)",
                   json_where(node, where, sizeof where), *out, RATE_MIN, RATE_MAX);
}

/* Bounds keep later products below overflow. */
static cz_status read_int(const struct json_node *node, int64_t min, int64_t max, int64_t *out)
{
    char where[512];
    TRY(json_as_int(node, out));
    if (*out >= min && *out <= max) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: %lld is outside %lld..%lld",
                   json_where(node, where, sizeof where), (long long)*out, (long long)min,
                   (long long)max);
}

static cz_status read_member(const struct json_node *node, const struct member *m, void *out)
{
    int64_t value;
    switch (m->kind) {
    case TEXT: return read_text(node, m, out);
    case RATE: return read_rate(node, out);
    case COUNT:
        TRY(read_int(node, m->min, m->max, &value));
        *(int *)out = (int)value;
        return CZ_OK;
    case SIZE:
        TRY(read_int(node, m->min, m->max, &value));
        *(size_t *)out = (size_t)value;
        return CZ_OK;
    }
    return CZ_OK;
}

/* Another format is named, so that a swapped file is recognized. */
static cz_status read_version(const struct json_node *root)
{
    const char *format;
    const struct json_node *node;
    int64_t version;
    char where[512];
    TRY(json_need_string(root, "format", &format));
    if (strcmp(format, FORMAT) != 0)
        return err_set(CZ_CORRUPT, 0, "%s: the format is \"%s\", not \"" FORMAT "\"",
                       json_where(root, where, sizeof where), format);
    TRY(json_need_int(root, "version", &version));
    node = json_get(root, "version");
    if (version == VERSION) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: %lld; this build reads %d: measure again with czero bench",
                   json_where(node, where, sizeof where), (long long)version, VERSION);
}

static bool is_known(const char *key)
{
    if (key[0] == '_' || strcmp(key, "format") == 0 || strcmp(key, "version") == 0) return true;
    for (size_t i = 0; i < CZ_ARRAY_LEN(members); i++)
        if (strcmp(key, members[i].key) == 0) return true;
    return false;
}

/* An unknown key is a mistake in an edited file; "_…" is a comment. */
static cz_status refuse_unknown(const struct json_node *root)
{
    char where[512];
    for (size_t i = 0; i < json_count(root); i++) {
        const struct json_node *node = json_child(root, i);
        if (!is_known(json_key(node)))
            return err_set(CZ_CORRUPT, 0, "%s: unknown key in a machine profile",
                           json_where(node, where, sizeof where));
    }
    return CZ_OK;
}

static cz_status read_profile(const struct json_node *root, struct machine_profile *out)
{
    char where[512];
    if (json_type(root) != JSON_OBJECT)
        return err_set(CZ_CORRUPT, 0, "%s: a machine profile is an object, not %s",
                       json_where(root, where, sizeof where), json_type_name(json_type(root)));
    TRY(read_version(root));
    TRY(refuse_unknown(root));
    for (size_t i = 0; i < CZ_ARRAY_LEN(members); i++) {
        const struct json_node *node = json_get(root, members[i].key);
        if (!node)
            return err_set(CZ_CORRUPT, 0, "%s: \"%s\" is missing",
                           json_where(root, where, sizeof where), members[i].key);
        TRY(read_member(node, &members[i], (char *)out + members[i].offset));
    }
    return CZ_OK;
}

/* A profile is a user's file: unknown keys and impossible values are errors with their place. */
cz_status machine_read(const char *path, struct machine_profile *out)
{
    struct json_doc *doc;
    memset(out, 0, sizeof *out);
    if (!file_exists(path))
        return err_set(CZ_NOTFOUND, 0, "%s: there is no such file; czero bench --profile makes one",
                       path);
    TRY(json_load(path, JSON_STRICT, &doc));
    cz_status st = read_profile(json_root(doc), out);
    json_free(doc);
    if (st != CZ_OK) memset(out, 0, sizeof *out);
    return st;
}
