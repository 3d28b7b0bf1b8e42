/* What the user named, and the order in which it is checked: a file, a tag, a folder of tags, a
 * folder of weights.
 *
 * A tag is checked in three layers. The manifest, where there is one, decides which files belong to
 * it; each file is checked alone (fsck_check.c); and if nothing was found, ckpt_open() checks that
 * the ranks' files form one checkpoint. A later layer runs only where the earlier ones leave
 * something to learn: a missing shard would otherwise be reported twice. Damage is a finding and
 * never an error, so that one bad file does not hide the others. */
#include "base/host/entry.h"
#include "base/options.h"
#include "checkpoint/fsck/fsck_impl.h"

#include "base/log.h"
#include "checkpoint/read/names.h"
#include "formats/beneath.h"
#include "formats/file_io.h"
#include "formats/safetensors/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- one tag --------------------------------------------------------------------------------- */

/* *has: a manifest was read. A damaged one is a finding, and the tag is checked without it. */
static cz_status load_manifest(const char *tag_dir, struct manifest *m, bool *has,
                               struct fsck_findings *findings)
{
    cz_status st = manifest_load(tag_dir, m);
    *has = st == CZ_OK;
    if (st == CZ_NOTFOUND) err_clear();
    if (st == CZ_OK || st == CZ_NOTFOUND) return CZ_OK;
    if (st != CZ_CORRUPT) return st;
    char *path = file_join(tag_dir, CKPT_MANIFEST);
    if (!path) return err_set(CZ_NOMEM, 0, "%s: out of memory", tag_dir);
    st = fsck_note_error(findings, path);
    free(path);
    return st;
}

/* Opens the tag as a checkpoint: do the ranks' files agree? The view stays open, because it maps
 * bytes of a file to parameters for the findings. NULL: *why says why it cannot be opened. */
static struct ckpt *open_view(const char *tag_dir, struct err *why)
{
    struct ckpt *view = NULL;
    struct ckpt_open_options o = {.dir = tag_dir, .universal = beneath_is_folder(tag_dir, "zero")};
    if (ckpt_open(&o, &view) != CZ_OK) err_capture(why);
    /* Stage 0 does not name the parameters of its groups (docs/deepspeed-behaviour.md, "Optimizer
     * files"). That the states cannot be assigned is no damage, so the weights alone decide. */
    o.weights_only = true;
    if (why->status == CZ_UNSUPPORTED && ckpt_open(&o, &view) == CZ_OK) why->status = CZ_OK;
    err_clear();
    return view;
}

/* Whether the file that the sentence begins with has a finding already. Every sentence of the
 * library begins with the path, so a prefix is enough. */
static bool is_told(const struct fsck_findings *f, const char *sentence)
{
    for (size_t i = 0; i < f->n; i++)
        if (strncmp(sentence, f->items[i].path, strlen(f->items[i].path)) == 0) return true;
    return false;
}

/* That the files do not fit together is worth a finding only if none of them is damaged: a damaged
 * one explains it. What this build does not read (tensor parallelism, …) is no damage, but was not
 * checked, so its status is returned. */
static cz_status report_view(const struct cz_fsck_options *options, const char *tag_dir,
                             const struct fsck_files *files, const struct fsck_findings *before,
                             const struct err *why, struct cz_fsck_report *report)
{
    bool told = is_told(before, why->text);
    for (size_t i = 0; i < files->n && !told; i++)
        told = is_told(&files->items[i].findings, why->text);
    if (told) return CZ_OK;
    err_restore(why);
    if (why->status != CZ_CORRUPT && why->status != CZ_NOTFOUND) return why->status;
    struct fsck_findings found = {0};
    cz_status st = fsck_note_error(&found, tag_dir);
    if (st == CZ_OK) fsck_report_findings(options, &found, report);
    fsck_findings_free(&found);
    return st;
}

/* ---- states of a universal tag --------------------------------------------------------------- */

/* A parameter of the group that has the state: holders[group * n_states + state], 0 if none has
 * it, else 1 + its index. */
static size_t *find_holders(const struct ckpt *view)
{
    const struct ckpt_info *info = ckpt_get_info(view);
    size_t *holders = calloc(info->n_groups * info->n_states + 1, sizeof *holders);
    for (size_t i = ckpt_count(view); holders && i-- > 0;)
        for (size_t s = 0; s < info->n_states; s++)
            if (ckpt_has_state(view, i, s))
                holders[ckpt_at(view, i)->group * info->n_states + s] = i + 1;
    return holders;
}

/* Adam keeps both of these for every parameter: the other one of the two, or NULL. */
static const char *twin_of(const char *state)
{
    if (strcmp(state, "exp_avg") == 0) return "exp_avg_sq";
    return strcmp(state, "exp_avg_sq") == 0 ? "exp_avg" : NULL;
}

/* Why the state should be there: a parameter that has it. It is one of the same group, because
 * optimizers such as Muon keep other states in other groups; but where a parameter has one of
 * Adam's two states, it is one of any group. 0: it need not be there, else 1 + its index. */
static size_t holder_for(const struct ckpt *view, const size_t *holders, size_t idx, size_t state)
{
    const struct ckpt_info *info = ckpt_get_info(view);
    const size_t n = info->n_states, here = holders[ckpt_at(view, idx)->group * n + state];
    const char *twin = twin_of(info->states[state]);
    bool has_twin = false;
    for (size_t s = 0; twin && s < n; s++)
        has_twin |= strcmp(info->states[s], twin) == 0 && ckpt_has_state(view, idx, s);
    for (size_t g = 0; !here && has_twin && g < info->n_groups; g++)
        if (holders[g * n + state]) return holders[g * n + state];
    return here;
}

static cz_status note_state(struct fsck_findings *found, const struct ckpt *view, size_t idx,
                            size_t state, size_t holder)
{
    const struct ckpt_info *info = ckpt_get_info(view);
    const char *name = ckpt_at(view, idx)->name, *what = info->states[state];
    const size_t n = strlen(info->tag_dir) + strlen(name) + strlen(what) + sizeof "/zero//.pt";
    const size_t n_tensor = strlen(name) + strlen(what) + sizeof ", ";
    char *path = malloc(n), *tensor = malloc(n_tensor);
    cz_status st = CZ_OK;
    if (path && tensor) {
        snprintf(path, n, "%s/zero/%s/%s.pt", info->tag_dir, name, what);
        snprintf(tensor, n_tensor, "%s, %s", name, what);
        st = fsck_note(found, path, tensor, 0, 0,
                       "missing: the optimizer's state %s of %s (%s has its own)", what, name,
                       ckpt_at(view, holder)->name);
    } else {
        st = err_set(CZ_NOMEM, 0, "%s: out of memory", info->tag_dir);
    }
    free(path);
    free(tensor);
    return st;
}

/* Nothing lists the states of a universal checkpoint: each parameter's folder has a file for each
 * of its states, and one that is lost leaves no trace there. So parameters are compared. */
static cz_status check_states(const struct cz_fsck_options *options, const struct ckpt *view,
                              struct cz_fsck_report *report)
{
    const struct ckpt_info *info = ckpt_get_info(view);
    struct fsck_findings found = {0};
    if (!info->is_universal || info->n_states == 0) return CZ_OK;
    size_t *holders = find_holders(view);
    cz_status st = holders ? CZ_OK : err_set(CZ_NOMEM, 0, "%s: out of memory", info->tag_dir);
    for (size_t i = 0; i < ckpt_count(view) && st == CZ_OK; i++)
        for (size_t s = 0; s < info->n_states && st == CZ_OK; s++) {
            if (ckpt_at(view, i)->kind != CKPT_TRAINED || ckpt_has_state(view, i, s)) continue;
            const size_t holder = holder_for(view, holders, i, s);
            if (holder > 0) st = note_state(&found, view, i, s, holder - 1);
        }
    if (st == CZ_OK) fsck_report_findings(options, &found, report);
    fsck_findings_free(&found);
    free(holders);
    return st;
}

/* ---- all of one tag -------------------------------------------------------------------------- */

/* One tag: list, check each file, then the view. Without a manifest the view is opened first,
 * because nothing else knows which parameter a record holds; with one the manifest names the
 * tensors, and the view only adds a check of the whole. */
static cz_status check_tag(const struct cz_fsck_options *options, const char *tag_dir,
                           struct cz_fsck_report *report)
{
    struct manifest m;
    struct fsck_files files = {NULL, 0, 0};
    struct fsck_findings findings = {0};
    struct err why = {.status = CZ_OK};
    struct ckpt *view = NULL;
    bool has;
    manifest_init(&m);
    cz_status st;
    const size_t n_before = report->n_findings;
    TRY_GOTO(load_manifest(tag_dir, &m, &has, &findings), done);
    report->has_manifest |= has;
    TRY_GOTO(fsck_list_tag(tag_dir, has ? &m : NULL, &files, &findings), done);
    fsck_report_findings(options, &findings, report);
    if (!has) view = open_view(tag_dir, &why);
    for (size_t i = 0; i < files.n; i++) files.items[i].view = view;
    TRY_GOTO(fsck_check_files(options, &files, report), done);
    if (has && report->n_findings == n_before) view = open_view(tag_dir, &why);
    if (why.status != CZ_OK)
        TRY_GOTO(report_view(options, tag_dir, &files, &findings, &why, report), done);
    else if (view)
        TRY_GOTO(check_states(options, view, report), done);
done:
    ckpt_close(view);
    fsck_files_free(&files);
    fsck_findings_free(&findings);
    manifest_free(&m);
    return st;
}

/* ---- latest ---------------------------------------------------------------------------------- */

/* `latest` is there, but leads nowhere: the current error says how. */
static cz_status note_latest(const struct cz_fsck_options *options, struct cz_fsck_report *report)
{
    struct fsck_findings findings = {0};
    char *path = file_join(options->dir, CKPT_LATEST);
    cz_status st = path ? fsck_note_error(&findings, path)
                        : err_set(CZ_NOMEM, 0, "%s: out of memory", options->dir);
    if (st == CZ_OK) fsck_report_findings(options, &findings, report);
    fsck_findings_free(&findings);
    free(path);
    return st;
}

/* A file `latest` or `latest_universal`, whatever its content: one that is unreadable is a finding,
 * so it has to be noticed without being parsed. */
static bool has_latest(const char *dir)
{
    bool yes = false;
    static const char *const names[] = {CKPT_LATEST, CKPT_LATEST_UNIVERSAL};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names) && !yes; i++)
        yes = beneath_is_there(dir, names[i]) && !beneath_is_folder(dir, names[i]);
    return yes;
}

/* The tag that `latest` names must exist. Its content was checked with all tags before. */
static cz_status check_latest(const struct cz_fsck_options *options, struct cz_fsck_report *report)
{
    char *tag_dir = NULL, *tag = NULL;
    cz_status st = ckpt_locate(options->dir, NULL, &tag_dir, &tag);
    free(tag_dir);
    free(tag);
    return st == CZ_CORRUPT || st == CZ_NOTFOUND ? note_latest(options, report) : st;
}

/* ---- all tags -------------------------------------------------------------------------------- */

/* Whether a folder in DIR is a tag's: holds shards, a universal checkpoint, or our manifest. */
static bool is_tag(const char *path)
{
    static const char *const marks[] = {"_model_states.pt", "_optim_states.pt", CKPT_MANIFEST};
    bool yes = false;
    for (size_t i = 0; i < CZ_ARRAY_LEN(marks) && !yes; i++) {
        struct ckpt_list list;
        yes = ckpt_list_files(path, marks[i], &list) == CZ_OK && list.n > 0;
        ckpt_list_free(&list);
    }
    yes = yes || beneath_is_folder(path, "zero");
    err_clear();
    return yes;
}

/* Every tag of a folder. A folder without any mark of a checkpoint is skipped, and so are hidden
 * names: those are leftovers of saves that were cut off (docs/checkpoint-format.md), which the next
 * save removes. */
static cz_status check_all(const struct cz_fsck_options *options, struct cz_fsck_report *report)
{
    struct ckpt_list list;
    size_t n = 0;
    TRY(ckpt_list_files(options->dir, "", &list));
    cz_status st = CZ_OK;
    for (size_t i = 0; i < list.n && st == CZ_OK; i++) {
        struct stat info;
        if (list.names[i][0] == '.') continue;
        char *path = file_join(options->dir, list.names[i]);
        if (!path) {
            st = err_set(CZ_NOMEM, 0, "%s: out of memory", options->dir);
        } else if (beneath_stat(options->dir, list.names[i], &info) == CZ_CORRUPT) {
            /* A tag on another disk, or no tag at all: only following the link would tell. */
            LOGV(LOG_WARN, SUB_CKPT, "not checked: %s", cz_last_error());
            err_clear();
        } else if (beneath_is_folder(options->dir, list.names[i]) && is_tag(path)) {
            st = check_tag(options, path, report);
            n++;
        }
        free(path);
    }
    ckpt_list_free(&list);
    if (st == CZ_OK && n == 0)
        st = err_set(CZ_NOTFOUND, 0, "%s: no checkpoint is in this folder", options->dir);
    if (st == CZ_OK && has_latest(options->dir)) st = check_latest(options, report);
    return st;
}

/* ---- one file -------------------------------------------------------------------------------- */

/* The folder that holds path; free() it. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* One file. The manifest beside it still applies, so the file is compared with its sums where it is
 * listed; the manifest itself is checked by loading it. */
static cz_status check_file(const struct cz_fsck_options *options, struct cz_fsck_report *report)
{
    struct manifest m;
    struct fsck_files files = {NULL, 0, 0};
    struct fsck_findings findings = {0};
    const char *path = options->dir, *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char *folder = folder_of(path);
    bool has = false;
    manifest_init(&m);
    cz_status st = folder ? CZ_OK : err_set(CZ_NOMEM, 0, "%s: out of memory", path);
    if (st == CZ_OK) st = load_manifest(folder, &m, &has, &findings);
    const struct manifest_file *listed = has ? manifest_find(&m, name) : NULL;
    const bool is_manifest = strcmp(name, CKPT_MANIFEST) == 0;
    report->has_manifest = listed || (is_manifest && has);
    report->n_files = is_manifest;
    fsck_report_findings(options, &findings, report);
    if (st == CZ_OK && !is_manifest) {
        const size_t n = strlen(name), n_suffix = strlen(".safetensors");
        const bool is_safetensors =
            n >= n_suffix && strcmp(name + n - n_suffix, ".safetensors") == 0;
        st = fsck_add_file(&files, NULL, path,
                           listed           ? FSCK_LISTED
                           : is_safetensors ? FSCK_SAFETENSORS
                                            : FSCK_ZIP,
                           listed);
        if (st == CZ_OK) st = fsck_check_files(options, &files, report);
    }
    fsck_files_free(&files);
    fsck_findings_free(&findings);
    manifest_free(&m);
    free(folder);
    return st;
}

/* ---- a folder -------------------------------------------------------------------------------- */

/* Shards that are sound one by one may still not be those that the index names: another shard may
 * hold a tensor, or two of them. As with a tag, this is looked at only if nothing was found. */
static cz_status check_shards(const struct cz_fsck_options *options, struct cz_fsck_report *report)
{
    struct safetensors *shards;
    struct fsck_findings findings = {0};
    if (!beneath_is_there(options->dir, "model.safetensors.index.json")) return CZ_OK;
    cz_status st = safetensors_dir_open(options->dir, &shards);
    if (st == CZ_OK) safetensors_close(shards);
    if (st != CZ_CORRUPT && st != CZ_NOTFOUND) return st;
    st = fsck_note_error(&findings, options->dir);
    if (st == CZ_OK) fsck_report_findings(options, &findings, report);
    fsck_findings_free(&findings);
    return st;
}

static cz_status check_weights(const struct cz_fsck_options *options, struct cz_fsck_report *report)
{
    struct fsck_files files = {NULL, 0, 0};
    struct fsck_findings findings = {0};
    cz_status st = fsck_list_weights(options->dir, &files, &findings);
    if (st == CZ_OK) {
        fsck_report_findings(options, &findings, report);
        st = fsck_check_files(options, &files, report);
    }
    if (st == CZ_OK && report->n_findings == 0) st = check_shards(options, report);
    fsck_files_free(&files);
    fsck_findings_free(&findings);
    return st;
}

/* A folder is a tag's, a folder of tags, or one of plain weights, and is tried in this order: what
 * `latest` or the option names decides first, because a folder of tags may also hold exported
 * weights. */
static cz_status check_folder(const struct cz_fsck_options *options, struct cz_fsck_report *report)
{
    char *tag_dir = NULL, *tag = NULL;
    if (options->all_tags) return check_all(options, report);
    cz_status st = ckpt_locate(options->dir, options->tag, &tag_dir, &tag);
    if (st == CZ_OK) {
        st = check_tag(options, tag_dir, report);
        free(report->tag_dir);
        report->tag_dir = tag_dir;
        free(tag);
        return st;
    }
    /* An error such as "permission denied" ends the check. A tag that is absent or unreadable does
     * not if the user named no tag: the folder itself may be a tag's. */
    const bool is_damage = st == CZ_CORRUPT || st == CZ_NOTFOUND;
    if (options->tag || !is_damage) return st;
    if (has_latest(options->dir)) return note_latest(options, report);
    return is_tag(options->dir) ? check_tag(options, options->dir, report)
                                : check_weights(options, report);
}

/* tag_dir is set before anything can fail, so that a report of a failed check still names its
 * subject. */
static cz_status fsck(const struct cz_fsck_options *options, struct cz_fsck_report *report)
{
    struct stat info;
    if (stat(options->dir, &info) != 0)
        return err_set(errno == ENOENT || errno == ENOTDIR ? CZ_NOTFOUND : CZ_IO, errno,
                       "%s: cannot be examined", options->dir);
    report->tag_dir = strdup(options->dir);
    if (!report->tag_dir) return err_set(CZ_NOMEM, 0, "%s: out of memory", options->dir);
    if (S_ISDIR(info.st_mode)) return check_folder(options, report);
    if (!options->tag && !options->all_tags) return check_file(options, report);
    return err_set(CZ_INVALID, 0, "%s: is a file, so there is no tag to choose", options->dir);
}

cz_status cz_fsck(const struct cz_fsck_options *options, struct cz_fsck_report *report)
{
    API_ENTRY;
    NEED(options, "options");
    NEED(report, "report");
    struct cz_fsck_options ours;
    struct cz_fsck_report found = {0};
    TRY(OPTIONS_TAKE(cz_fsck_options, &ours, options));
    TRY(OPTIONS_GIVE(cz_fsck_report, report, &found));
    cz_status st = fsck(&ours, &found);
    OPTIONS_GIVE(cz_fsck_report, report, &found); /* also of what could not be checked whole */
    return st;
}

void cz_fsck_report_free(struct cz_fsck_report *report)
{
    if (!report) return;
    free(report->tag_dir);
    report->tag_dir = NULL;
}
