/* zero_to_fp32 over a big checkpoint, and what it took. */
#ifndef CZ_TESTS_SPARSE_RUN_H
#define CZ_TESTS_SPARSE_RUN_H

#include "formats/pt/pt.h"
#include "formats/safetensors/safetensors.h"
#include "tests/support/checkpoint/sparse_ckpt.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#define SPARSE_RSS_MAX ((long)64 << 10) /* KiB: the promise of docs/zero_to_fp32.md */

/* The tool in a process with little address space to begin with; gives its peak RSS in KiB. */
static inline long sparse_consolidate(const char *dir, const char *out, bool safetensors,
                                      const char *max_shard_size)
{
    struct rusage usage;
    int status;
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        const struct rlimit address_space = {(rlim_t)512 << 20, (rlim_t)512 << 20};
        setrlimit(RLIMIT_AS, &address_space);
        execl(CZ_BINARY_DIR "/zero_to_fp32", "zero_to_fp32", dir, out, "--quiet",
              "--max_shard_size", max_shard_size, safetensors ? "--safe_serialization" : NULL,
              (char *)NULL);
        _exit(127);
    }
    ck_assert_int_eq(wait4(child, &status, 0, &usage), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
    return usage.ru_maxrss;
}

static inline void sparse_expect(const char *name, size_t k, float first, float second, float last)
{
    ck_assert_msg(first == (float)(k + 1) && second == 0 && last == -first, "%s: %g, %g … %g", name,
                  first, second, last);
}

static inline void sparse_check_bin(const char *out, const struct sparse_model *m)
{
    size_t n = 0;
    DIR *d = opendir(out);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d));) {
        struct pt *pt;
        const size_t len = strlen(e->d_name);
        if (len < 4 || strcmp(e->d_name + len - 4, ".bin") != 0) continue;
        char *path = file_join(out, e->d_name);
        ck_ok(pt_open(path, &pt));
        for (size_t i = 0; i < pt_root(pt)->n_pairs; i++, n++) {
            const struct pickle_pair *pair = &pt_root(pt)->pairs[i];
            const struct pickle_tensor *t = pair->value->tensor;
            size_t k = strtoul(pair->key->text + strlen("layers."), NULL, 10);
            float x[3];
            ck_assert_uint_eq(t->numel, (uint64_t)m->numel);
            ck_ok(pt_read_f32(pt, t, 0, 2, x));
            ck_ok(pt_read_f32(pt, t, t->numel - 1, 1, x + 2));
            sparse_expect(pair->key->text, k, x[0], x[1], x[2]);
        }
        pt_close(pt);
        free(path);
    }
    closedir(d);
    ck_assert_uint_eq(n, m->n);
}

static inline void sparse_check_safetensors(const char *out, const struct sparse_model *m)
{
    struct safetensors *st;
    ck_ok(safetensors_dir_open(out, &st));
    ck_assert_uint_eq(safetensors_count(st), m->n);
    for (size_t k = 0; k < m->n; k++) {
        const struct safetensors_info *info = safetensors_find(st, sparse_name(k));
        float x[3];
        ck_assert_ptr_nonnull(info);
        ck_assert_uint_eq(info->numel, (uint64_t)m->numel);
        ck_ok(safetensors_read_f32(st, info, 0, 2, x));
        ck_ok(safetensors_read_f32(st, info, info->numel - 1, 1, x + 2));
        sparse_expect(info->name, k, x[0], x[1], x[2]);
    }
    safetensors_close(st);
}

static inline bool sparse_has_room(const char *dir, uint64_t nbytes)
{
    struct statvfs fs;
    return statvfs(dir, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize > nbytes * 5 / 4;
}

/* Make, consolidate, check, delete; false when the disk is too small. */
static inline bool sparse_run(size_t n, int64_t numel, bool safetensors, const char *max_shard_size)
{
    const struct sparse_model m = sparse_model(n, numel);
    const char *tmp = test_tmp_make();
    const bool room = sparse_has_room(tmp, m.whole * 4);
    if (room) {
        char *out = file_join(tmp, "out");
        sparse_ckpt_make(tmp, &m);
        long rss = sparse_consolidate(tmp, out, safetensors, max_shard_size);
        printf("%.2f GB of weights, shards of %s: peak RSS %.1f MiB\n", (double)m.whole * 4e-9,
               max_shard_size, (double)rss / 1024);
        (safetensors ? sparse_check_safetensors : sparse_check_bin)(out, &m);
        ck_assert_int_le(rss, SPARSE_RSS_MAX);
        free(out);
    } else {
        printf("left out: no space for %.1f GB in %s\n", (double)m.whole * 4e-9, tmp);
    }
    test_tmp_remove(tmp);
    return room;
}

#endif
