/* Claims: when the power goes at any moment of a save, with any part of what was not synced lost,
 * `latest` names the whole old tag or the whole new one, every visible tag is whole, and the next
 * save works. */
#include "checkpoint/store/store_impl.h"
#include "tests/support/checkpoint/power_cut.h"
#include "tests/support/checkpoint/tag_scenarios.h"

static const struct scenario *current;
static char crash_dir[128];
static long n_cuts;

static void check_disk(int choice)
{
    ck_assert_msg(all_whole(crash_dir), "%s, cut %ld (choice %d): part of a tag is visible",
                  current->name, n_cuts, choice);
    const int version = tags_latest_version(crash_dir);
    ck_assert_msg(version == current->old_version || version == current->new_version,
                  "%s, cut %ld (choice %d): latest is of version %d", current->name, n_cuts, choice,
                  version);
    if (n_cuts % 5 == 0) {
        ck_ok(tags_save(crash_dir, "after", 50, true));
        ck_assert_int_eq(tags_latest_version(crash_dir), 50);
        ck_assert_int_eq(tags_n_leftovers(crash_dir), 0);
    }
}

static void cut_now(void)
{
    struct err saved; /* the save continues with the error it may have */
    err_capture(&saved);
    for (int choice = 0; choice < 8; choice++, n_cuts++) {
        power_cut(crash_dir, choice);
        power.on = false;
        check_disk(choice);
        ck_ok(store_remove_tree(crash_dir));
        power.on = true;
    }
    err_restore(&saved);
}

START_TEST(the_power_goes_at_any_moment)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(scenarios); i++) {
        char dir[128];
        const char *tmp = fast_tmp();
        current = &scenarios[i];
        snprintf(dir, sizeof dir, "%s/run", tmp);
        snprintf(crash_dir, sizeof crash_dir, "%s/crash", tmp);
        ck_assert_int_eq(mkdir(dir, 0777), 0);
        current->before(dir);
        power.no_exchange = current->no_exchange;
        power.seed = (uint32_t)i;
        power_before_change = cut_now;
        n_cuts = 0;
        power_watch(dir);
        const bool succeeded = current->act(dir) == CZ_OK;
        ck_assert_msg(succeeded == (current->old_version != current->new_version), "%s: %s",
                      current->name, succeeded ? "it succeeded" : cz_last_error());
        struct scenario done = *current; /* what was reported as done is done */
        if (succeeded) done.old_version = done.new_version;
        current = &done;
        cut_now();
        power_unwatch();
        power.no_exchange = false;
        ck_assert_int_gt(n_cuts, 100);
        ck_ok(store_remove_tree(tmp));
    }
}
END_TEST

TEST_MAIN_SECONDS(120, "checkpoint/store_power", the_power_goes_at_any_moment)
