/* A whole folder of DeepSpeed's whose pickles are anything. The input is a sequence of files: a
 * number that chooses the name, the pickle's length in two bytes, the pickle. Each becomes a .pt
 * whose storages are as large as the pickle says, and zero.
 * Promises: the folder opens or is refused with a sentence; every tensor that it then shows can be
 * read at both ends, whatever stage wrote it; fsck and inspect end. */
#include "checkpoint/fsck/fsck.h"
#include "checkpoint/read/checkpoint.h"
#include "formats/json/json.h"
#include "tests/fuzz/fuzz.h"
#include <czero/checkpoint.h>

#include <sys/stat.h>

static const char *const names[] = {
    "mp_rank_00_model_states.pt",
    "zero_pp_rank_0_mp_rank_00_model_states.pt",
    "zero_pp_rank_1_mp_rank_00_model_states.pt",
    "zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "zero_pp_rank_1_mp_rank_00_optim_states.pt",
    "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
    "zero/optimizer_state.pt", /* universal folders */
    "zero/w/fp32.pt",
    "zero/w/exp_avg.pt",
    "zero/w/exp_avg_sq.pt",
    "zero/w/step.pt",
};

/* ---- a zip without sums ------------------------------------------------------------------------
 */

#define N_RECORDS_MAX       256
#define STORAGES_NBYTES_MAX ((uint64_t)16 << 20)

struct record {
    const char *name; /* without the folder */
    uint32_t nbytes, off;
};

struct zip {
    int fd;
    uint32_t off;
    struct record records[N_RECORDS_MAX];
    size_t n;
};

static void put(struct zip *z, const void *bytes, size_t nbytes)
{
    FUZZ_CHECK(pwrite(z->fd, bytes, nbytes, z->off) == (ssize_t)nbytes);
    z->off += (uint32_t)nbytes;
}

static void set_number(unsigned char *at, size_t width, uint32_t value)
{
    for (size_t i = 0; i < width; i++) at[i] = (unsigned char)(value >> 8 * i);
}

/* A local header, or the entry of the directory; both are followed by the name. */
static void put_header(struct zip *z, const struct record *r, bool is_entry)
{
    unsigned char header[46] = {'P', 'K', 3, 4};
    char name[300];
    int n_name = snprintf(name, sizeof name, "a/%.250s", r->name);
    size_t sizes_at = is_entry ? 20 : 18;
    if (is_entry) memcpy(header, "PK\1\2", 4);
    set_number(header + sizes_at, 4, r->nbytes);
    set_number(header + sizes_at + 4, 4, r->nbytes);
    set_number(header + sizes_at + 8, 2, (uint32_t)n_name);
    if (is_entry) set_number(header + 42, 4, r->off);
    put(z, header, is_entry ? 46 : 30);
    put(z, name, (size_t)n_name);
}

/* A record; bytes NULL: zeros, which take no memory. */
static void put_record(struct zip *z, const char *name, const void *bytes, size_t nbytes)
{
    struct record *r = &z->records[z->n++];
    *r = (struct record){.name = name, .nbytes = (uint32_t)nbytes, .off = z->off};
    put_header(z, r, false);
    if (bytes)
        put(z, bytes, nbytes);
    else
        z->off += (uint32_t)nbytes;
}

static void put_directory(struct zip *z)
{
    unsigned char end[22] = {'P', 'K', 5, 6};
    uint32_t begin = z->off;
    for (size_t i = 0; i < z->n; i++) put_header(z, &z->records[i], true);
    set_number(end + 8, 2, (uint32_t)z->n);
    set_number(end + 10, 2, (uint32_t)z->n);
    set_number(end + 12, 4, z->off - begin);
    set_number(end + 16, 4, begin);
    put(z, end, sizeof end);
}

/* ---- a .pt of any pickle -----------------------------------------------------------------------
 */

struct storages {
    const struct pickle_tensor *tensors[N_RECORDS_MAX]; /* one of each storage */
    char names[N_RECORDS_MAX][64];
    size_t n;
    uint64_t nbytes;
    int n_left; /* nodes to look at */
};

static void find_storages(struct storages *s, const struct pickle_node *node)
{
    if (!node || --s->n_left < 0) return;
    for (size_t i = 0; node->kind == PICKLE_TENSOR && i <= s->n; i++) {
        if (i == s->n && s->n < N_RECORDS_MAX - 2) {
            snprintf(s->names[i], sizeof s->names[i], "data/%s", node->tensor->key);
            s->tensors[s->n++] = node->tensor;
            s->nbytes += node->tensor->storage_nbytes;
            break;
        }
        if (i < s->n && strcmp(s->tensors[i]->key, node->tensor->key) == 0) break;
    }
    for (size_t i = 0; node->items && i < node->n && s->n_left > 0; i++)
        find_storages(s, node->items[i]);
    for (size_t i = 0; i < node->n_pairs && s->n_left > 0; i++)
        find_storages(s, node->pairs[i].value);
    find_storages(s, node->more->args);
    find_storages(s, node->more->state);
}

/* False: no pickle, or too large a one. */
static bool make_pt(const char *name, const unsigned char *bytes, size_t nbytes)
{
    static struct storages s;
    static struct zip z;
    struct pickle *p;
    if (pickle_parse(bytes, nbytes, name, &p) != CZ_OK) return false;
    s.n = 0;
    s.nbytes = 0;
    s.n_left = 5000;
    find_storages(&s, pickle_root(p));
    bool fits = s.nbytes <= STORAGES_NBYTES_MAX;
    for (size_t i = 0; i < s.n; i++) fits &= s.tensors[i]->storage_nbytes <= STORAGES_NBYTES_MAX;
    if (fits) {
        z.fd = openat(fuzz_folder(), name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        z.off = 0;
        z.n = 0;
        FUZZ_CHECK(z.fd >= 0);
        put_record(&z, "data.pkl", bytes, nbytes);
        put_record(&z, "version", "3\n", 2);
        for (size_t i = 0; i < s.n; i++)
            put_record(&z, s.names[i], NULL, (size_t)s.tensors[i]->storage_nbytes);
        put_directory(&z);
        close(z.fd);
    }
    pickle_free(p);
    return fits;
}

static void empty_folder(void)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) unlinkat(fuzz_folder(), names[i], 0);
    unlinkat(fuzz_folder(), "zero/w", AT_REMOVEDIR);
    unlinkat(fuzz_folder(), "zero", AT_REMOVEDIR);
}

/* The input's files into the folder; false when one cannot be made. */
static bool make_folder(const unsigned char *data, size_t nbytes)
{
    empty_folder();
    size_t n_files = 0;
    while (nbytes > 3 && n_files < CZ_ARRAY_LEN(names)) {
        size_t length = data[1] | (size_t)data[2] << 8;
        if (length > nbytes - 3) length = nbytes - 3;
        const char *name = names[data[0] % CZ_ARRAY_LEN(names)];
        if (strchr(name, '/')) {
            mkdirat(fuzz_folder(), "zero", 0700);
            mkdirat(fuzz_folder(), "zero/w", 0700);
        }
        if (!make_pt(name, data + 3, length)) return false;
        data += 3 + length;
        nbytes -= 3 + length;
        n_files++;
    }
    return n_files > 0;
}

/* ---- looking at it -----------------------------------------------------------------------------
 */

static void check_elements(const struct ckpt *ck, size_t idx, int what)
{
    const struct ckpt_tensor *t = ckpt_at(ck, idx);
    struct ckpt_run run;
    float ends[4];
    size_t n = t->numel < 4 ? (size_t)t->numel : 4;
    cz_status st = ckpt_read(ck, idx, what, 0, n, ends);
    if (st != CZ_OK && st != CZ_NOTFOUND) fuzz_refused(st);
    if (ckpt_dtype(ck, idx, what)) FUZZ_CHECK(st != CZ_NOTFOUND);
    if (st == CZ_OK) FUZZ_CHECK(ckpt_read(ck, idx, what, t->numel - n, n, ends) == CZ_OK);
    FUZZ_CHECK(ckpt_read(ck, idx, what, t->numel, 1, ends) != CZ_OK);
    if (t->numel == 0) return;
    if (ckpt_run(ck, idx, what, t->numel - 1, &run) != CZ_OK) return;
    FUZZ_CHECK(run.numel == 1 && run.file_idx < ckpt_get_info(ck)->n_files);
    FUZZ_CHECK(run.file_off + run.dtype->size <= ckpt_file_nbytes(ck, run.file_idx));
}

static void check_numbers(const struct ckpt *ck, const struct pickle_node *dict)
{
    double number;
    for (size_t i = 0; dict && i < dict->n_pairs && i < 50; i++)
        ckpt_number(ck, dict->pairs[i].value, &number);
}

static void check_tensors(const struct ckpt *ck)
{
    const struct ckpt_info *info = ckpt_get_info(ck);
    size_t n = ckpt_count(ck), *order = calloc(n + 1, sizeof *order);
    FUZZ_CHECK(order && info->n_states <= CKPT_STATES_MAX);
    ckpt_script_order(ck, order);
    for (size_t i = 0; i < n; i++) {
        const struct ckpt_tensor *t = ckpt_at(ck, i);
        FUZZ_CHECK(order[i] < n && ckpt_find(ck, t->name) == i && t->ndim <= CKPT_NDIM_MAX);
        for (size_t a = 0; a < t->n_aliases; a++) FUZZ_CHECK(ckpt_find(ck, t->aliases[a]) == i);
        if (t->kind == CKPT_TRAINED) FUZZ_CHECK(t->group < info->n_groups);
        for (int what = 0; what < CKPT_STATE_0 + (int)info->n_states && i < 20; what++)
            check_elements(ck, i, what);
    }
    free(order);
    FUZZ_CHECK(ckpt_find(ck, "no such tensor") == n);
    for (size_t g = 0; g < info->n_groups; g++) {
        FUZZ_CHECK(ckpt_group_step(ck, g) >= -1);
        ckpt_param_group(ck, g);
    }
    check_numbers(ck, ckpt_model_states(ck));
    check_numbers(ck, ckpt_optim_states(ck));
}

static void count_finding(const struct cz_fsck_finding *finding, void *user)
{
    FUZZ_CHECK(finding->sentence && finding->sentence[0] && finding->path && finding->tensor);
    ++*(size_t *)user;
}

static void check_fsck(void)
{
    size_t n_findings = 0;
    struct cz_fsck_report report = {.size = sizeof report};
    const struct cz_fsck_options options = {.size = sizeof options,
                                            .dir = fuzz_folder_path(),
                                            .finding = count_finding,
                                            .user = &n_findings};
    if (cz_fsck(&options, &report) == CZ_OK) FUZZ_CHECK(report.n_findings == n_findings);
    cz_fsck_report_free(&report);
}

/* What inspect prints as JSON is JSON. Our own reader takes no NULs and no great depth. */
static void check_json(const char *text, size_t nbytes)
{
    struct json_doc *doc;
    if (json_parse(text, nbytes, "inspect", JSON_STRICT, &doc) != CZ_OK)
        FUZZ_CHECK(strstr(cz_last_error(), "levels of nesting") ||
                   strstr(cz_last_error(), "\\u0000 is not supported"));
    json_free(doc);
}

static void check_inspect(const char *path)
{
    for (int json = 0; json < 2; json++) {
        char *text = NULL;
        size_t nbytes = 0;
        FILE *out = open_memstream(&text, &nbytes);
        FUZZ_CHECK(out);
        const struct cz_inspect_options options = {
            .size = sizeof options, .path = path, .json = json, .all = json};
        cz_status st = cz_inspect(&options, out);
        fclose(out);
        if (st != CZ_OK && st != CZ_NOTFOUND) fuzz_refused(st);
        if (st == CZ_OK) FUZZ_CHECK(nbytes > 0);
        if (st == CZ_OK && json) check_json(text, nbytes);
        free(text);
    }
}

/* The folder, and one of its files by itself. */
static void check_inspects(void)
{
    char path[128];
    check_inspect(fuzz_folder_path());
    snprintf(path, sizeof path, "%s/%s", fuzz_folder_path(), names[0]);
    check_inspect(path);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    if (!make_folder(data, nbytes)) return 0;
    for (int weights_only = 0; weights_only < 2; weights_only++) {
        struct ckpt *ck;
        const struct ckpt_open_options options = {.dir = fuzz_folder_path(),
                                                  .weights_only = weights_only};
        cz_status st = ckpt_open(&options, &ck);
        FUZZ_CHECK((st == CZ_OK) == (ck != NULL));
        if (st == CZ_OK) check_tensors(ck);
        if (st != CZ_OK && st != CZ_NOTFOUND) fuzz_refused(st);
        ckpt_close(ck);
    }
    check_fsck();
    check_inspects();
    return 0;
}
