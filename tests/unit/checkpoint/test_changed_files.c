/* Claim: a file that is truncated, extended or written in place after it was opened is an error
 * with a sentence, never other bytes and never a signal: safetensors, .pt, whole checkpoints. One
 * that a new file replaces is read as it was opened, or there is an error. */
#include "checkpoint/read/checkpoint.h"
#include "formats/safetensors/safetensors.h"
#include "tests/support/check_main.h"

#include <fcntl.h>
#include <string.h>

static char dir[64], path[512];

/* An open file of one of the kinds: `read` gets the first element. */
struct reader {
    const char *name, *source, *file; /* source: of the fixtures; file: what is changed */
    cz_status (*open)(void **of);
    cz_status (*read)(void *of, float *first);
    void (*close)(void *of);
};

static cz_status open_safetensors(void **of)
{
    return safetensors_open(path, (struct safetensors **)of);
}

static cz_status read_safetensors(void *of, float *first)
{
    return safetensors_read_f32(of, safetensors_at(of, 0), 0, 1, first);
}

static void close_safetensors(void *of)
{
    safetensors_close(of);
}

static cz_status open_pt(void **of)
{
    return pt_open(path, (struct pt **)of);
}

/* Of the model's first tensor, as in a checkpoint's model file. */
static cz_status read_pt(void *of, float *first)
{
    const struct pickle_node *module = pickle_get(pt_root(of), "module");
    return pt_read_f32(of, module->pairs[0].value->tensor, 0, 1, first);
}

static void close_pt(void *of)
{
    pt_close(of);
}

static cz_status open_ckpt(void **of)
{
    const struct ckpt_open_options o = {.dir = dir, .tag = "tag"};
    return ckpt_open(&o, (struct ckpt **)of);
}

static cz_status read_ckpt(void *of, float *first)
{
    return ckpt_read(of, 0, CKPT_MASTER, 0, 1, first);
}

static void close_ckpt(void *of)
{
    ckpt_close(of);
}

static const struct reader readers[] = {
    {"safetensors", "models/gpt2-tiny", "model.safetensors", open_safetensors, read_safetensors,
     close_safetensors},
    {"pt", "runs/s2-fp32-adamw-gas2/ckpt/global_step20", "mp_rank_00_model_states.pt", open_pt,
     read_pt, close_pt},
    {"checkpoint", "runs/s2-fp32-adamw-gas2/ckpt/global_step20",
     "zero_pp_rank_0_mp_rank_00_optim_states.pt", open_ckpt, read_ckpt, close_ckpt},
};

static void begin(const struct reader *r)
{
    char command[1024];
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    snprintf(command, sizeof command, "cp -r %s %s/tag", test_fixture(r->source), dir);
    ck_assert_int_eq(system(command), 0);
    snprintf(path, sizeof path, "%s/tag/%s", dir, r->file);
}

static off_t size_of(const char *file)
{
    struct stat info;
    ck_assert_int_eq(stat(file, &info), 0);
    return info.st_size;
}

static void cut_in_half(void)
{
    ck_assert_int_eq(truncate(path, size_of(path) / 2), 0);
}

static void cut_to_nothing(void)
{
    ck_assert_int_eq(truncate(path, 0), 0);
}

static void extend(void)
{
    ck_assert_int_eq(truncate(path, size_of(path) + 1), 0);
}

/* Shorter for a moment, then as long as before: the size shows nothing. */
static void write_anew(void)
{
    const off_t n = size_of(path);
    ck_assert_int_eq(truncate(path, 0), 0);
    ck_assert_int_eq(truncate(path, n), 0);
}

static void (*const changes[])(void) = {cut_in_half, cut_to_nothing, extend, write_anew};

/* Coarse clocks: what happens within their tick is at the same time. */
static void wait_a_tick(void)
{
    usleep(20000);
}

START_TEST(changed_files_are_errors)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(readers); i++)
        for (size_t k = 0; k < CZ_ARRAY_LEN(changes); k++) {
            const struct reader *r = &readers[i];
            float first, again = 0;
            void *of;
            begin(r);
            wait_a_tick();
            ck_ok(r->open(&of));
            ck_ok(r->read(of, &first));
            ck_ok(r->read(of, &again));
            ck_assert(memcmp(&first, &again, sizeof first) == 0);
            changes[k]();
            ck_fails(r->read(of, &again), CZ_CORRUPT);
            ck_assert_msg(strstr(cz_last_error(), path) != NULL, "%s", cz_last_error());
            r->close(of);
            test_tmp_remove(dir);
        }
}
END_TEST

/* Before the first read of the numbers: a checkpoint opens its files only then. */
START_TEST(files_that_change_before_they_are_read_are_errors)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(readers); i++)
        for (size_t k = 0; k < CZ_ARRAY_LEN(changes); k++) {
            const struct reader *r = &readers[i];
            float first;
            void *of;
            begin(r);
            wait_a_tick();
            ck_ok(r->open(&of));
            changes[k]();
            ck_fails(r->read(of, &first), CZ_CORRUPT);
            r->close(of);
            test_tmp_remove(dir);
        }
}
END_TEST

START_TEST(replaced_files_are_read_as_they_were_or_not_at_all)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(readers); i++) {
        const struct reader *r = &readers[i];
        float first, again;
        char other[600];
        void *of;
        begin(r);
        ck_ok(r->open(&of));
        ck_ok(r->read(of, &first));
        snprintf(other, sizeof other, "%s.new", path);
        int fd = open(other, O_WRONLY | O_CREAT | O_EXCL, 0666);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(ftruncate(fd, size_of(path)), 0);
        close(fd);
        ck_assert_int_eq(rename(other, path), 0);
        ck_ok(r->read(of, &again)); /* its descriptor is the old file's */
        ck_assert(memcmp(&first, &again, sizeof first) == 0);
        r->close(of);
        test_tmp_remove(dir);
    }
    begin(&readers[2]); /* replaced before it is opened for its numbers */
    char command[1300];
    float first;
    void *of;
    ck_ok(readers[2].open(&of));
    snprintf(command, sizeof command, "cp %s %s.new && mv %s.new %s", path, path, path, path);
    ck_assert_int_eq(system(command), 0);
    ck_fails(readers[2].read(of, &first), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "was replaced"));
    readers[2].close(of);
    test_tmp_remove(dir);
}
END_TEST

int main(void)
{
    const TTest *const cases[] = {changed_files_are_errors,
                                  files_that_change_before_they_are_read_are_errors,
                                  replaced_files_are_read_as_they_were_or_not_at_all};
    return test_run("checkpoint/changed_files", cases, CZ_ARRAY_LEN(cases));
}
