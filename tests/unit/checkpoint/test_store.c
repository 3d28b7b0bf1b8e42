/* Claims: a tag appears whole or not at all, `latest` follows it; saving over a tag replaces all of
 * it; what crashes left is removed by the next save, and nothing else is; what stands in the way is
 * said in a sentence; pruning keeps the newest, what `latest` names, and the newest good one. */
#include "tests/support/check_main.h"
#include "tests/support/checkpoint/tags.h"

#include "base/log.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

static void put(const char *path, const char *text)
{
    ck_ok(file_save(path, text, strlen(text)));
}

static void check_sentence(const char *part)
{
    ck_assert_msg(strstr(cz_last_error(), part) != NULL, "\"%s\" is not in: %s", part,
                  cz_last_error());
}

START_TEST(a_tag_appears_and_latest_names_it)
{
    const char *tmp = test_tmp_make();
    char dir[128], *text;
    snprintf(dir, sizeof dir, "%s/a/b//c/", tmp); /* is made with its parents */
    ck_ok(tags_save(dir, "global_step1", 1, true));
    ck_assert_int_eq(tags_latest_version(dir), 1);
    ck_ok(file_load(tags_path(dir, "latest"), 100, &text, NULL));
    ck_assert_str_eq(text, "global_step1"); /* as DeepSpeed writes it: no line feed */
    free(text);
    ck_ok(tags_save(dir, "global_step2", 2, true));
    ck_assert_int_eq(tags_latest_version(dir), 2);
    ck_assert_int_eq(tags_version(dir, "global_step1"), 1);
    ck_ok(tags_save(dir, "a tag with spaces & ü", 3, false));
    ck_assert_int_eq(tags_version(dir, "a tag with spaces & ü"), 3);
    ck_assert_int_eq(tags_latest_version(dir), 2); /* save_latest=False */
    ck_assert_int_eq(tags_n_leftovers(dir), 0);
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(an_existing_tag_is_replaced_whole)
{
    const char *dir = test_tmp_make();
    ck_ok(tags_save(dir, "best", 1, true));
    put(tags_path(dir, "best/zero_pp_rank_7_mp_rank_00_model_states.pt"), "of a larger world");
    ck_assert_int_eq(mkdir(tags_path(dir, "best/offloaded_tensors"), 0777), 0);
    put(tags_path(dir, "best/offloaded_tensors/x"), "x");
    ck_ok(tags_save(dir, "best", 2, true));
    ck_assert_int_eq(tags_latest_version(dir), 2);
    ck_ok(tags_save(dir, "best", 3, false));
    ck_assert_int_eq(tags_latest_version(dir), 3);
    ck_assert_int_eq(tags_n_leftovers(dir), 0);
    test_tmp_remove(dir);
}
END_TEST

/* Links are replaced or removed themselves; what they point to is not czero's. */
START_TEST(links_are_not_followed)
{
    const char *dir = test_tmp_make();
    ck_assert_int_eq(mkdir(tags_path(dir, "elsewhere"), 0777), 0);
    put(tags_path(dir, "elsewhere/kept"), "kept");
    put(tags_path(dir, "elsewhere/latest"), "old");
    ck_assert_int_eq(mkdir(tags_path(dir, "run"), 0777), 0);
    char run[128];
    snprintf(run, sizeof run, "%s/run", dir);
    ck_assert_int_eq(symlink("../elsewhere", tags_path(run, "best")), 0);
    ck_assert_int_eq(symlink("../elsewhere/latest", tags_path(run, "latest")), 0);
    tags_staged(run, "x", tags_ended());
    ck_assert_int_eq(symlink("../../elsewhere", tags_path(run, ".x.saving/link")), 0);
    ck_assert_int_eq(symlink("../elsewhere", tags_path(run, ".y.deleting")), 0);
    ck_ok(tags_save(run, "best", 2, true));
    ck_assert_int_eq(tags_latest_version(run), 2);
    ck_assert_int_eq(tags_n_leftovers(run), 1);
    struct stat info;
    ck_assert_int_eq(lstat(tags_path(run, ".y.deleting"), &info), 0); /* no folder of ours */
    ck_assert(file_exists(tags_path(dir, "elsewhere/kept")));
    char *text;
    ck_ok(file_load(tags_path(dir, "elsewhere/latest"), 100, &text, NULL));
    ck_assert_str_eq(text, "old");
    free(text);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(what_crashes_left_goes_and_nothing_else)
{
    const char *dir = test_tmp_make();
    const char *const stay[] = {".hidden",   ".saving",         "latest.tmp",  "latest.tmpx",
                                "notes.txt", "zero_to_fp32.py", "latest.tmp1", "latest.tmp99999999",
                                ".by",       ".saving.by"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(stay); i++) put(tags_path(dir, stay[i]), "x");
    ck_assert_int_eq(mkdir(tags_path(dir, "deepspeeds"), 0777), 0);
    put(tags_path(dir, "deepspeeds/mp_rank_00_model_states.pt"), "x");
    tags_staged(dir, "t1", tags_ended());
    ck_assert_int_eq(mkdir(tags_path(dir, ".t1.saving/deep"), 0777), 0);
    put(tags_path(dir, ".t1.saving/deep/shard.pt"), "x");
    tags_staged(dir, "t7", "");
    put(tags_path(dir, ".t8.saving.by"), tags_ended()); /* killed before its folder was there */
    ck_assert_int_eq(mkdir(tags_path(dir, ".t0.deleting"), 0777), 0);
    put(tags_latest_temp(dir, tags_ended()), "x");
    ck_ok(tags_save(dir, "t1", 1, true));
    static const char *const gone[] = {".t1.saving",    ".t1.saving.by", ".t7.saving",
                                       ".t7.saving.by", ".t8.saving.by", ".t0.deleting"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(gone); i++)
        ck_assert_msg(!file_exists(tags_path(dir, gone[i])), "%s stays", gone[i]);
    ck_assert(!file_exists(tags_latest_temp(dir, tags_ended())));
    for (size_t i = 0; i < CZ_ARRAY_LEN(stay); i++)
        ck_assert_msg(file_exists(tags_path(dir, stay[i])), "%s is gone", stay[i]);
    ck_assert(file_exists(tags_path(dir, "deepspeeds/mp_rank_00_model_states.pt")));
    test_tmp_remove(dir);
}
END_TEST

/* A folder of such a name without a save's mark is the user's, and so is half a tag without a
 * manifest: neither goes. */
START_TEST(hidden_folders_of_the_user_stay)
{
    const char *dir = test_tmp_make();
    tags_staged(dir, "notes", NULL);
    tags_staged(dir, "theirs", tags_ended());
    const bool is_root = geteuid() == 0;
    if (is_root) ck_assert_int_eq(chown(tags_path(dir, ".theirs.saving.by"), 65534, 65534), 0);
    ck_assert_int_eq(mkdir(tags_path(dir, ".old.deleting"), 0777), 0);
    put(tags_path(dir, ".old.deleting/mine"), "x");
    ck_assert_int_eq(mkdir(tags_path(dir, ".another.deleting"), 0777), 0);
    if (is_root) ck_assert_int_eq(chown(tags_path(dir, ".another.deleting"), 65534, 65534), 0);
    ck_ok(tags_save(dir, "t1", 1, true));
    ck_assert(file_exists(tags_path(dir, ".notes.saving/x.pt")));
    ck_assert_int_eq(file_exists(tags_path(dir, ".theirs.saving/x.pt")), is_root);
    ck_assert(file_exists(tags_path(dir, "old/mine"))); /* not hidden any more */
    ck_assert_int_eq(file_exists(tags_path(dir, ".another.deleting")), is_root);
    ck_fails(store_stage(dir, "notes"), CZ_IO);
    check_sentence(".notes.saving: exists already, and no save of czero made it");
    ck_assert(file_exists(tags_path(dir, ".notes.saving/x.pt")));
    ck_assert(!file_exists(tags_path(dir, ".notes.saving.by")));
    test_tmp_remove(dir);
}
END_TEST

/* Process numbers of other hosts and containers say nothing here. */
START_TEST(saves_of_other_hosts_are_left_alone)
{
    const char *dir = test_tmp_make();
    tags_staged(dir, "t5", tags_elsewhere());
    put(tags_latest_temp(dir, tags_elsewhere()), "x");
    ck_ok(tags_save(dir, "t1", 1, true));
    ck_assert(file_exists(tags_path(dir, ".t5.saving/x.pt")));
    ck_assert(file_exists(tags_path(dir, ".t5.saving.by")));
    ck_assert(file_exists(tags_latest_temp(dir, tags_elsewhere())));
    ck_fails(store_stage(dir, "t5"), CZ_BUSY);
    check_sentence("perhaps on another host");
    store_discard(dir, "t5");
    ck_assert(file_exists(tags_path(dir, ".t5.saving/x.pt")));
    /* Nothing has changed there for two hours. */
    const struct timespec old[2] = {{.tv_sec = time(NULL) - 7200}, {.tv_sec = time(NULL) - 7200}};
    const char *const names[] = {".t5.saving/x.pt", ".t5.saving", ".t5.saving.by"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++)
        ck_assert_int_eq(utimensat(AT_FDCWD, tags_path(dir, names[i]), old, 0), 0);
    ck_assert_int_eq(utimensat(AT_FDCWD, tags_latest_temp(dir, tags_elsewhere()), old, 0), 0);
    ck_ok(tags_save(dir, "t5", 2, true));
    ck_assert_int_eq(tags_latest_version(dir), 2);
    ck_assert_int_eq(tags_n_leftovers(dir), 0);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(a_discarded_save_leaves_nothing)
{
    const char *dir = test_tmp_make();
    ck_ok(tags_save(dir, "t1", 1, true));
    ck_ok(store_stage(dir, "t2"));
    put(tags_path(dir, ".t2.saving/shard.pt"), "x");
    struct stat mark; /* no other user can open it, and so keep its lock */
    ck_assert_int_eq(stat(tags_path(dir, ".t2.saving.by"), &mark), 0);
    ck_assert_uint_eq(mark.st_mode & 07777, 0600);
    err_set(CZ_PEER, 0, "rank 1 died");
    store_discard(dir, "t2");
    ck_assert_str_eq(cz_last_error(), "rank 1 died");
    ck_assert_int_eq(cz_last_status(), CZ_PEER);
    store_discard(dir, "t2");
    store_discard(dir, "../t2");
    ck_assert_int_eq(tags_n_leftovers(dir), 0);
    ck_assert_int_eq(tags_latest_version(dir), 1);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(what_is_not_there_is_not_published)
{
    const char *dir = test_tmp_make();
    struct manifest m;
    manifest_init(&m);
    m.world_size = 1;
    ck_ok(tags_save(dir, "t1", 1, true));
    ck_ok(store_stage(dir, "t2"));
    ck_ok(manifest_add_file(&m, "missing.pt", 3, 0, NULL));
    ck_fails(store_publish(dir, "t2", &m, NULL, 0, true), CZ_CORRUPT);
    check_sentence("missing.pt");
    put(tags_path(dir, ".t2.saving/missing.pt"), "shorter");
    ck_fails(store_publish(dir, "t2", &m, NULL, 0, true), CZ_CORRUPT);
    check_sentence("7 bytes");
    put(tags_path(dir, ".t2.saving/missing.pt"), "xyz");
    put(tags_path(dir, ".t2.saving/unknown.pt"), "xyz");
    ck_fails(store_publish(dir, "t2", &m, NULL, 0, true), CZ_CORRUPT);
    check_sentence("unknown.pt");
    ck_assert_int_eq(tags_latest_version(dir), 1);
    ck_assert(!file_exists(tags_path(dir, "t2")));
    ck_ok(file_remove(tags_path(dir, ".t2.saving/unknown.pt")));
    const struct store_extra extra = {CKPT_STATE, "{}", 2};
    ck_ok(store_publish(dir, "t2", &m, &extra, 1, true)); /* a later try with the same manifest */
    ck_assert(file_exists(tags_path(dir, "t2/missing.pt")));
    ck_assert_int_eq(tags_n_leftovers(dir), 0);
    manifest_free(&m);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(what_stands_in_the_way_is_said_first)
{
    const char *dir = test_tmp_make();
    const char *const bad[] = {"../x", "", ".x", "a/b", "x\n", "/x"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++) ck_fails(store_stage(dir, bad[i]), CZ_INVALID);
    ck_assert_int_eq(tags_n_leftovers(dir), 0);
    ck_fails(store_stage("", "t"), CZ_INVALID);
    put(tags_path(dir, "file"), "x");
    ck_fails(store_stage(tags_path(dir, "file"), "t"), CZ_IO);
    check_sentence("/file: cannot be created as a folder");
    ck_fails(store_stage(tags_path(dir, "file/below"), "t"), CZ_IO);
    ck_fails(store_stage(dir, "file"), CZ_INVALID);
    check_sentence("/file: a file has the name");
    ck_assert_int_eq(mkdir(tags_path(dir, "latest"), 0777), 0);
    ck_fails(store_stage(dir, "t"), CZ_INVALID);
    check_sentence("/latest: is a folder");
    ck_fails(store_stage("/proc/czero-test", "t"), CZ_IO);
    ck_fails(store_stage("/proc/sys", "t"), CZ_IO);
    check_sentence("/proc/sys/.t.saving: cannot be created");
    test_tmp_remove(dir);
}
END_TEST

/* A save that is under way in another process is left alone; when that one dies, it is not. */
START_TEST(another_process_s_save_is_left_alone)
{
    const char *dir = test_tmp_make();
    int ready[2];
    char byte;
    ck_assert_int_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        bool ok = store_stage(dir, "theirs") == CZ_OK;
        ok = write(ready[1], ok ? "y" : "n", 1) == 1 && ok;
        for (;;) pause();
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    ck_assert_int_eq(byte, 'y');
    ck_fails(store_stage(dir, "theirs"), CZ_BUSY);
    check_sentence("another process");
    store_discard(dir, "theirs");
    ck_assert(file_exists(tags_path(dir, ".theirs.saving")));
    ck_ok(tags_save(dir, "ours", 1, true));
    ck_assert(file_exists(tags_path(dir, ".theirs.saving")));
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_ok(tags_save(dir, "theirs", 2, true));
    ck_assert_int_eq(tags_latest_version(dir), 2);
    ck_assert_int_eq(tags_n_leftovers(dir), 0);
    close(ready[0]);
    close(ready[1]);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(all_but_the_named_tags_go)
{
    const char *dir = test_tmp_make();
    const char *const names[] = {"step3", "step1", "missing", NULL}, *const none[] = {NULL};
    size_t n;
    for (int i = 1; i <= 5; i++) {
        char tag[32];
        snprintf(tag, sizeof tag, "step%d", i);
        ck_ok(tags_save(dir, tag, i, i == 2));
    }
    ck_assert_int_eq(mkdir(tags_path(dir, "mine"), 0777), 0);
    ck_ok(store_prune_others(dir, names, &n));
    ck_assert_uint_eq(n, 2); /* 4, and 5 although it is the newest */
    ck_assert_int_eq(tags_version(dir, "step1"), 1);
    ck_assert_int_eq(tags_version(dir, "step3"), 3);
    ck_assert_int_eq(tags_latest_version(dir), 2); /* `latest` names it */
    ck_assert(!file_exists(tags_path(dir, "step4")) && !file_exists(tags_path(dir, "step5")));
    ck_ok(store_prune_others(dir, none, NULL));
    ck_assert(!file_exists(tags_path(dir, "step1")) && !file_exists(tags_path(dir, "step3")));
    ck_assert_int_eq(tags_latest_version(dir), 2);
    ck_assert(file_exists(tags_path(dir, "mine")));
    test_tmp_remove(dir);
}
END_TEST

START_TEST(old_tags_go_newest_first_stays)
{
    const char *dir = test_tmp_make();
    size_t n;
    /* By step, not by name or by time of saving. */
    const int steps[] = {900, 1000, 90, 1200, 1100};
    for (size_t i = 0; i < CZ_ARRAY_LEN(steps); i++) {
        char tag[32];
        snprintf(tag, sizeof tag, "step%d", steps[i]);
        ck_ok(tags_save(dir, tag, steps[i], i == 0));
    }
    ck_assert_int_eq(mkdir(tags_path(dir, "deepspeeds"), 0777), 0);
    put(tags_path(dir, "deepspeeds/mp_rank_00_model_states.pt"), "x");
    ck_assert_int_eq(symlink("step900", tags_path(dir, "link")), 0);
    ck_fails(store_prune(dir, 0, &n), CZ_INVALID);
    ck_ok(store_prune(dir, 5, &n));
    ck_assert_uint_eq(n, 0);
    ck_ok(store_prune(dir, 2, &n));
    ck_assert_uint_eq(n, 2);
    ck_assert_int_eq(tags_version(dir, "step1200"), 1200);
    ck_assert_int_eq(tags_version(dir, "step1100"), 1100);
    ck_assert_int_eq(tags_latest_version(dir), 900); /* old, but `latest` names it */
    ck_assert(!file_exists(tags_path(dir, "step1000")));
    ck_assert(!file_exists(tags_path(dir, "step90")));
    ck_assert(file_exists(tags_path(dir, "deepspeeds/mp_rank_00_model_states.pt")));
    ck_ok(store_prune(dir, 1, NULL));
    ck_assert(!file_exists(tags_path(dir, "step1100")));
    ck_assert_int_eq(tags_latest_version(dir), 900);
    ck_assert(file_exists(tags_path(dir, "link")));
    ck_assert_int_eq(tags_n_leftovers(dir), 0);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(the_last_good_tag_is_never_removed)
{
    const char *dir = test_tmp_make();
    size_t n;
    for (int step = 1; step <= 4; step++) {
        char tag[32];
        snprintf(tag, sizeof tag, "step%d", step);
        ck_ok(tags_save(dir, tag, step, true));
    }
    /* 4 and 3 lose bytes, `latest` names nothing that is there. */
    const char *shard = "zero_pp_rank_0_mp_rank_00_model_states.pt";
    char path[256];
    snprintf(path, sizeof path, "step4/%s", shard);
    ck_assert_int_eq(truncate(tags_path(dir, path), 10), 0);
    snprintf(path, sizeof path, "step3/%s", shard);
    ck_ok(file_remove(tags_path(dir, path)));
    put(tags_path(dir, "latest"), "gone");
    ck_ok(store_prune(dir, 1, &n));
    ck_assert_uint_eq(n, 2);
    ck_assert_int_eq(tags_version(dir, "step2"), 2);
    ck_assert(file_exists(tags_path(dir, "step4")));
    ck_assert(!file_exists(tags_path(dir, "step3")));
    ck_assert(!file_exists(tags_path(dir, "step1")));
    put(tags_path(dir, "step2/" CKPT_STATE), "damaged"); /* no step any more: the oldest */
    ck_ok(store_prune(dir, 1, &n));
    test_tmp_remove(dir);
}
END_TEST

/* dir/from as dir/to, byte for byte, as `cp -r` does it. */
static void copy_tag(const char *dir, const char *from, const char *to)
{
    char command[2200];
    snprintf(command, sizeof command, "cp -r '%s/%s' '%s/%s'", dir, from, dir, to);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(copies_and_other_folders_with_a_manifest_are_not_counted)
{
    const char *dir = test_tmp_make();
    size_t n;
    char name[64], path[256];
    for (int step = 1; step <= 4; step++) {
        snprintf(name, sizeof name, "global_step%d", step);
        ck_ok(tags_save(dir, name, step, true));
    }
    copy_tag(dir, "global_step2", "best2");
    ck_assert_int_eq(rename(tags_path(dir, "global_step1"), tags_path(dir, "first")), 0);
    for (int i = 0; i < 3; i++) { /* with a manifest, a file of the user, and a late step */
        snprintf(name, sizeof name, "user_data_%d", i);
        copy_tag(dir, "global_step3", name);
        snprintf(path, sizeof path, "%s/mine.txt", name);
        put(tags_path(dir, path), "mine");
        if (i == 0) continue;
        snprintf(path, sizeof path, "%s/" CKPT_STATE, name);
        put(tags_path(dir, path), "{\"format\": \"czero state\", \"version\": 1, "
                                  "\"global_steps\": 1000000000000000}");
    }
    ck_ok(store_prune(dir, 2, &n));
    ck_assert_uint_eq(n, 1); /* 4 and 3 stay: nothing else counts */
    ck_assert(!file_exists(tags_path(dir, "global_step2")));
    ck_assert_int_eq(tags_version(dir, "global_step3"), 3);
    ck_assert_int_eq(tags_version(dir, "global_step4"), 4);
    ck_assert_int_eq(tags_version(dir, "best2"), 2);
    ck_assert_int_eq(tags_version(dir, "first"), 1);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "user_data_%d/mine.txt", i);
        ck_assert(file_exists(tags_path(dir, path)));
        snprintf(path, sizeof path, "user_data_%d/zero_pp_rank_1_mp_rank_00_model_states.pt", i);
        ck_assert(file_exists(tags_path(dir, path)));
    }
    test_tmp_remove(dir);
}
END_TEST

static char said[1024];
static void keep_line(enum cz_log_level level, const char *line, void *user)
{
    (void)user;
    if (level == LOG_WARN) snprintf(said, sizeof said, "%s", line);
}

START_TEST(a_user_s_files_in_a_tag_stay)
{
    const char *dir = test_tmp_make();
    size_t n;
    ck_ok(tags_save(dir, "t1", 1, true));
    ck_ok(tags_save(dir, "t2", 2, true));
    ck_ok(tags_save(dir, "t3", 3, true));
    put(tags_path(dir, "t1/notes.txt"), "mine");
    ck_assert_int_eq(mkdir(tags_path(dir, "t1/plots"), 0777), 0);
    put(tags_path(dir, "t1/plots/loss.svg"), "mine");
    cz_log_set_sink(keep_line, NULL);
    ck_ok(store_prune(dir, 1, &n));
    cz_log_set_sink(NULL, NULL);
    ck_assert_uint_eq(n, 2);
    ck_assert_msg(strstr(said, "/t1: ") && strstr(said, "other files are in it"), "%s", said);
    ck_assert(file_exists(tags_path(dir, "t1/notes.txt")));
    ck_assert(file_exists(tags_path(dir, "t1/plots/loss.svg")));
    struct ckpt_list list;
    ck_ok(ckpt_list_files(tags_path(dir, "t1"), "", &list));
    ck_assert_uint_eq(list.n, 2);
    ckpt_list_free(&list);
    ck_assert(!file_exists(tags_path(dir, "t2")));
    ck_assert_int_eq(tags_version(dir, "t3"), 3);
    ck_ok(store_prune(dir, 1, &n)); /* it is the user's now */
    ck_assert_uint_eq(n, 0);
    ck_assert_int_eq(tags_n_leftovers(dir), 0);
    /* A crash between the removal and giving the name back. */
    ck_assert_int_eq(rename(tags_path(dir, "t1"), tags_path(dir, ".t1.deleting")), 0);
    ck_ok(tags_save(dir, "t4", 4, true));
    ck_assert(file_exists(tags_path(dir, "t1/notes.txt")));
    test_tmp_remove(dir);
}
END_TEST

/* Version 0.2.0 did not write the tag into the state; its own names say the step. */
START_TEST(older_states_are_known_by_their_step)
{
    const char *dir = test_tmp_make();
    size_t n;
    static const char *const names[] = {"global_step1", "best", "global_step3", "global_step4"};
    for (int i = 0; i < 4; i++) {
        char state[256], path[256];
        struct manifest m;
        manifest_init(&m);
        m.world_size = 1;
        ck_ok(store_stage(dir, names[i]));
        snprintf(path, sizeof path, ".%s.saving", names[i]);
        ck_ok(tags_write_shard(tags_path(dir, path), 0, i + 1, &m));
        snprintf(state, sizeof state,
                 "{\"format\": \"czero state\", \"version\": 1, \"global_steps\": %d}", i + 1);
        const struct store_extra extra = {CKPT_STATE, state, strlen(state)};
        ck_ok(store_publish(dir, names[i], &m, &extra, 1, true));
        manifest_free(&m);
    }
    copy_tag(dir, "global_step4", "global_step5"); /* its state says 4 */
    ck_ok(store_prune(dir, 1, &n));
    ck_assert_uint_eq(n, 2);
    ck_assert(!file_exists(tags_path(dir, "global_step1")));
    ck_assert(!file_exists(tags_path(dir, "global_step3")));
    ck_assert(file_exists(tags_path(dir, "best")) && file_exists(tags_path(dir, "global_step5")));
    test_tmp_remove(dir);
}
END_TEST

static const char *const best_too[] = {"best", NULL};

/* Two moves get two folders, of which each keeps its own. */
START_TEST(an_earlier_run_moves_aside_and_what_is_no_checkpoint_stays)
{
    const char *dir = test_tmp_make();
    char name[32];
    struct ckpt_list run;
    ck_ok(store_find_run(tags_path(dir, "nothing"), best_too, &run));
    ck_assert_uint_eq(run.n, 0);
    ck_ok(store_find_run(dir, best_too, &run));
    ck_assert_uint_eq(run.n, 0);
    ck_assert_int_eq(mkdir(tags_path(dir, "logs"), 0777), 0);
    put(tags_path(dir, "metrics.csv"), "step");
    put(tags_path(dir, ".czero-run"), "me");
    for (int round = 1; round <= 2; round++) {
        ck_ok(tags_save(dir, "global_step2", round, true));
        ck_ok(tags_save(dir, "global_step10", round, true));
        ck_ok(tags_save(tags_path(dir, "best"), "global_step2", round + 4, true));
        ck_assert_int_eq(symlink("global_step2", tags_path(dir, "link")), 0);
        ck_ok(store_find_run(dir, best_too, &run));
        ck_assert_uint_eq(run.n, 4);
        ck_ok(store_set_aside(dir, &run, name));
        ckpt_list_free(&run);
        ck_assert_str_eq(name, round == 1 ? "earlier-1" : "earlier-2");
        ck_assert_int_eq(tags_version(tags_path(dir, name), "global_step2"), round);
        ck_assert_int_eq(tags_latest_version(tags_path(dir, name)), round);
        char best[64];
        snprintf(best, sizeof best, "%s/best", name);
        ck_assert_int_eq(tags_latest_version(tags_path(dir, best)), round + 4);
        ck_ok(store_find_run(dir, best_too, &run)); /* earlier-1 is no tag */
        ck_assert_uint_eq(run.n, 0);
        ckpt_list_free(&run);
        ck_assert_int_eq(unlink(tags_path(dir, "link")), 0); /* the user's */
    }
    ck_assert(file_exists(tags_path(dir, "logs")) && file_exists(tags_path(dir, "metrics.csv")) &&
              file_exists(tags_path(dir, ".czero-run")));
    ck_assert_int_eq(tags_version(tags_path(dir, "earlier-1"), "global_step10"), 1);
    test_tmp_remove(dir);
}
END_TEST

/* Each name alone tells of a run; `others` only where they are asked for. */
START_TEST(a_run_is_found_by_any_of_its_names)
{
    static const char *const none[] = {NULL};
    static const char *const names[] = {"latest", "latest_universal", "best"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        const char *dir = test_tmp_make();
        struct ckpt_list run;
        put(tags_path(dir, names[i]), "global_step1");
        ck_ok(store_find_run(dir, best_too, &run));
        ck_assert_uint_eq(run.n, 1);
        ck_assert_str_eq(run.names[0], names[i]);
        ckpt_list_free(&run);
        ck_ok(store_find_run(dir, none, &run));
        ck_assert_uint_eq(run.n, i < 2);
        ckpt_list_free(&run);
        test_tmp_remove(dir);
    }
}
END_TEST

TEST_MAIN("checkpoint/store", a_tag_appears_and_latest_names_it, an_existing_tag_is_replaced_whole,
          links_are_not_followed, what_crashes_left_goes_and_nothing_else,
          hidden_folders_of_the_user_stay, saves_of_other_hosts_are_left_alone,
          copies_and_other_folders_with_a_manifest_are_not_counted, a_user_s_files_in_a_tag_stay,
          older_states_are_known_by_their_step, a_discarded_save_leaves_nothing,
          what_is_not_there_is_not_published, what_stands_in_the_way_is_said_first,
          another_process_s_save_is_left_alone, old_tags_go_newest_first_stays,
          all_but_the_named_tags_go, the_last_good_tag_is_never_removed,
          an_earlier_run_moves_aside_and_what_is_no_checkpoint_stays,
          a_run_is_found_by_any_of_its_names)
