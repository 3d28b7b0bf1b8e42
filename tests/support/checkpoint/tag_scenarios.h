/* What is saved over what: the acts that test_store_faults and test_store_power cut off. */
#ifndef CZ_TESTS_TAG_SCENARIOS_H
#define CZ_TESTS_TAG_SCENARIOS_H

#include "tests/support/check_main.h"
#include "tests/support/checkpoint/tags.h"

/* What is there before, what is done to it, and which versions `latest` may name after a crash. */
struct scenario {
    const char *name;
    void (*before)(const char *dir);
    cz_status (*act)(const char *dir);
    int old_version, new_version; /* old -1: there was none */
    bool no_exchange;
};

static inline void nothing(const char *dir)
{
    (void)dir;
}

static inline void one_tag(const char *dir)
{
    ck_ok(tags_save(dir, "t1", 1, true));
}

static inline void two_tags(const char *dir)
{
    ck_ok(tags_save(dir, "t1", 1, true));
    ck_ok(tags_save(dir, "t2", 2, true));
}

/* One that cannot be linked file by file. */
static inline void a_tag_with_a_folder(const char *dir)
{
    one_tag(dir);
    ck_assert_int_eq(mkdir(tags_path(dir, "t1/offloaded_tensors"), 0777), 0);
}

static inline void leftovers(const char *dir)
{
    two_tags(dir);
    tags_staged(dir, "t3", tags_ended());
    ck_ok(tags_save(dir, "t0", 0, false));
    ck_assert_int_eq(rename(tags_path(dir, "t0"), tags_path(dir, ".t0.deleting")), 0);
    ck_ok(file_save(tags_latest_temp(dir, tags_ended()), "x", 1));
}

static inline cz_status save_first(const char *dir)
{
    return tags_save(dir, "t1", 1, true);
}

static inline cz_status save_again(const char *dir)
{
    return tags_save(dir, "t1", 3, true);
}

static inline cz_status save_again_but_latest(const char *dir)
{
    return tags_save(dir, "t1", 3, false);
}

/* A crash right after a rename that is on no disk yet, then a save. */
static inline cz_status hide_and_save(const char *dir)
{
    char t1[1024], hidden[1024];
    snprintf(t1, sizeof t1, "%s/t1", dir);
    snprintf(hidden, sizeof hidden, "%s/.t1.deleting", dir);
    if (rename(t1, hidden) != 0) return err_set(CZ_IO, errno, "%s: cannot be renamed", t1);
    return tags_save(dir, "t3", 3, true);
}

static inline cz_status save_third_and_prune(const char *dir)
{
    TRY(tags_save(dir, "t3", 3, true));
    return store_prune(dir, 1, NULL);
}

static const struct scenario scenarios[] = {
    {"the first", nothing, save_first, -1, 1, false},
    {"another tag, and pruning", two_tags, save_third_and_prune, 2, 3, false},
    {"after crashes", leftovers, save_third_and_prune, 2, 3, false},
    {"after a crash while pruning", two_tags, hide_and_save, 2, 3, false},
    {"over latest's tag", one_tag, save_again, 1, 3, false},
    {"over latest's tag, latest stays", one_tag, save_again_but_latest, 1, 3, false},
    {"over another tag", two_tags, save_again, 2, 3, false},
    {"over latest's tag, no exchange", one_tag, save_again, 1, 3, true},
    {"over latest's tag, no exchange, latest stays", one_tag, save_again_but_latest, 1, 3, true},
    {"over another tag, no exchange", two_tags, save_again, 2, 3, true},
    {"over latest's tag, neither exchange nor links", a_tag_with_a_folder, save_again, 1, 1, true},
};

/* A folder in memory where there is one: syncs cost nothing there. */
static inline const char *fast_tmp(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/dev/shm/czero-test-XXXXXX");
    if (mkdtemp(path)) return path;
    return test_tmp_make();
}

/* Every visible folder is a whole tag; the folder that one of them holds is taken out first. */
static inline bool all_whole(const char *dir)
{
    struct ckpt_list list;
    if (ckpt_list_files(dir, "", &list) == CZ_NOTFOUND) return true;
    bool whole = true;
    for (size_t i = 0; i < list.n && whole; i++) {
        struct stat info;
        const char *path = tags_path(dir, list.names[i]);
        if (list.names[i][0] == '.' || stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) continue;
        char inner[128];
        snprintf(inner, sizeof inner, "%.60s/offloaded_tensors", list.names[i]);
        rmdir(tags_path(dir, inner));
        whole = tags_version(dir, list.names[i]) >= 0;
    }
    ckpt_list_free(&list);
    return whole;
}

#endif
