/* How fast a run's checkpoint becomes durable: GPT-2 in fp32 with AdamW, all files of it, through
 * engine_save_checkpoint(): shards, checksums, manifest, folder, `latest`.
 *
 *   bench_save_engine DIR [--model PRESET] [--runs N]
 *
 * Prints one line per save: seconds and MiB on disk. Removes the checkpoints. bench/save.py runs
 * the peers beside it. */
#include "base/clock.h"
#include "engine/engine.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define T_MAX 16

static const char config[] = "{\"train_batch_size\": 1, \"zero_optimization\": {\"stage\": 1},"
                             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}}}";

/* Optimizer states are there, and saved, after the first step. */
static cz_status one_step(struct cz_engine *e)
{
    int32_t ids[T_MAX], labels[T_MAX];
    for (int t = 0; t < T_MAX; t++) ids[t] = labels[t] = t;
    const struct cz_batch batch = {.size = sizeof batch, .B = 1, .T = T_MAX, .ids = ids, .labels = labels};
    TRY(engine_forward(e, &batch, NULL));
    TRY(engine_backward(e));
    return engine_step(e);
}

/* The folder's size, and with `remove` its end; folders inside it likewise. */
static double folder_mib(const char *dir, bool remove)
{
    double mib = 0;
    DIR *d = opendir(dir);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        char path[4096];
        struct stat info;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        if (lstat(path, &info) != 0) continue;
        if (S_ISDIR(info.st_mode)) {
            mib += folder_mib(path, remove);
            continue;
        }
        mib += (double)info.st_size / (1 << 20);
        if (remove) unlink(path);
    }
    if (d) closedir(d);
    if (remove) rmdir(dir);
    return mib;
}

static cz_status save_once(struct cz_engine *e, const char *dir)
{
    int64_t begin = clock_now_ns();
    TRY(engine_save_checkpoint(e, dir, NULL));
    double seconds = (double)(clock_now_ns() - begin) * 1e-9;
    printf("%.4f %.1f\n", seconds, folder_mib(dir, true));
    fflush(stdout);
    return CZ_OK;
}

static const char *option(int argc, char **argv, const char *name, const char *standard)
{
    for (int i = 2; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0) return argv[i + 1];
    return standard;
}

static void say_nothing(const char *text, void *user)
{
    (void)text;
    (void)user;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "use: bench_save_engine DIR [--model PRESET] [--runs N]\n");
        return 2;
    }
    char dir[3072];
    snprintf(dir, sizeof dir, "%s/bench_save_engine", argv[1]);
    struct cz_model *model = cz_model_from_preset(option(argc, argv, "--model", "gpt2"));
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = config, .print = say_nothing};
    struct cz_engine *e = NULL;
    cz_status st = model ? cz_model_set_shape(model, T_MAX) : cz_last_status();
    if (st == CZ_OK && !(e = engine_initialize_ex(&options, model))) st = cz_last_status();
    if (st == CZ_OK) st = one_step(e);
    for (int run = atoi(option(argc, argv, "--runs", "1")); st == CZ_OK && run > 0; run--)
        st = save_once(e, dir);
    if (st != CZ_OK) fprintf(stderr, "%s\n", cz_last_error());
    if (e)
        engine_destroy(e);
    else
        cz_model_destroy(model);
    return st == CZ_OK ? 0 : 1;
}
