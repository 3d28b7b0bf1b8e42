/* A whole folder of DeepSpeed's whose pickles are anything. The input is a sequence of files: a
 * number that chooses the name, the pickle's length in two bytes, the pickle. Each becomes a .pt
 * whose storages are as large as the pickle says, and zero.
 * Promises: the folder opens or is refused with a sentence; every tensor that it then shows can be
 * read at both ends, whatever stage wrote it; fsck and inspect end. */
#include "checkpoint/fsck/fsck.h"
#include "checkpoint/read/checkpoint.h"
#include "formats/json/json.h"
#include "tests/fuzz/make_pt.h"
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
