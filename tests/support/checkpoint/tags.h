/* Small tags for tests of the store: a shard or two, a state, through the calls that the engine
 * uses. What is in them follows from (tag, version), so that a whole tag can be told from a mix. */
#ifndef CZ_TESTS_TAGS_H
#define CZ_TESTS_TAGS_H

#include "base/host/process_mark.h"
#include "checkpoint/store/store.h"
#include "formats/crc32.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TAGS_N_SHARDS 2

/* dir/name, in one of eight buffers that rotate. */
static inline const char *tags_path(const char *dir, const char *name)
{
    static char paths[8][1024];
    static int turn;
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return strcpy(paths[turn++ & 7], path);
}

/* Of a process that has ended: this host was started anew since. */
static inline const char *tags_ended(void)
{
    static char mark[PROCESS_MARK_NBYTES];
    process_mark(mark);
    mark[0] = mark[0] == '5' ? '6' : '5';
    return mark;
}

/* One that may run: of another host. */
static inline const char *tags_elsewhere(void)
{
    static char mark[PROCESS_MARK_NBYTES];
    process_mark(mark);
    mark[0] = mark[0] == '5' ? '6' : '5';
    mark[8] = mark[8] == '5' ? '6' : '5';
    return mark;
}

/* A staging folder with a file, and the mark of its process ("": it had not written it; NULL:
 * none). */
static inline void tags_staged(const char *dir, const char *tag, const char *mark)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/.%s.saving", dir, tag);
    ck_assert_int_eq(mkdir(path, 0777), 0);
    strcat(path, "/x.pt");
    ck_ok(file_save(path, "x", 1));
    snprintf(path, sizeof path, "%s/.%s.saving.by", dir, tag);
    if (mark) ck_ok(file_save(path, mark, strlen(mark)));
}

/* "latest.tmp" and a mark. */
static inline const char *tags_latest_temp(const char *dir, const char *mark)
{
    char name[128];
    snprintf(name, sizeof name, "latest.tmp%s", mark);
    return tags_path(dir, name);
}

/* One shard, as a rank writes it: complete and synced. */
static inline cz_status tags_write_shard(const char *staging, int rank, int version,
                                         struct manifest *m)
{
    char name[64], path[1024], bytes[4096];
    struct manifest_file *file;
    size_t n = (size_t)(1000 + 37 * rank + version % 50);
    snprintf(name, sizeof name, "zero_pp_rank_%d_mp_rank_00_model_states.pt", rank);
    for (size_t i = 0; i < n; i++) bytes[i] = (char)(version * 31 + rank * 7 + (int)i);
    snprintf(path, sizeof path, "%s/%s", staging, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0) return err_set(CZ_IO, errno, "%s: cannot be created", name);
    cz_status st = file_pwrite(fd, name, bytes, n, 0);
    if (st == CZ_OK && fsync(fd) != 0) st = err_set(CZ_IO, errno, "%s: cannot be synced", name);
    close(fd);
    if (st != CZ_OK) return st;
    TRY(manifest_add_file(m, name, n, crc32_update(0, bytes, n), &file));
    return manifest_add_tensor(file, "w", "param", 100, 200, crc32_update(0, bytes + 100, 200));
}

/* A whole save of `version` (also its step) under `tag`; discarded when it fails. */
static inline cz_status tags_save(const char *dir, const char *tag, int version, bool update_latest)
{
    char state[512];
    struct manifest m;
    cz_status st = store_stage(dir, tag);
    manifest_init(&m);
    m.world_size = TAGS_N_SHARDS;
    m.stage = 3;
    char *staging = store_staging_path(dir, tag);
    for (int rank = 0; rank < TAGS_N_SHARDS && st == CZ_OK; rank++)
        st = tags_write_shard(staging, rank, version, &m);
    free(staging);
    snprintf(
        state, sizeof state,
        "{\"format\": \"czero state\", \"version\": 1, \"global_steps\": %d, \"tag\": \"%s\"}\n",
        version, tag);
    const struct store_extra extra = {CKPT_STATE, state, strlen(state)};
    if (st == CZ_OK) st = store_publish(dir, tag, &m, &extra, 1, update_latest);
    if (st != CZ_OK) store_discard(dir, tag);
    manifest_free(&m);
    return st;
}

/* The version of the tag in dir/tag: every file there with its size and sum, of one version.
 * -1 when anything is wrong. */
static inline int tags_version(const char *dir, const char *tag)
{
    char tag_dir[1024], first[4096];
    struct manifest m;
    struct ckpt_list list;
    int version = -1;
    snprintf(tag_dir, sizeof tag_dir, "%s/%s", dir, tag);
    if (manifest_load(tag_dir, &m) != CZ_OK) return -1;
    bool whole = m.n_files == TAGS_N_SHARDS + 1;
    for (size_t i = 0; i < m.n_files && whole; i++) {
        char *bytes = NULL;
        size_t n = 0;
        whole =
            file_load(tags_path(tag_dir, m.files[i].name), sizeof first - 1, &bytes, &n) == CZ_OK &&
            n == m.files[i].nbytes && crc32_update(0, bytes, n) == m.files[i].crc;
        if (whole && strcmp(m.files[i].name, CKPT_STATE) == 0)
            whole = sscanf(bytes, "{%*[^,],%*[^,], \"global_steps\": %d", &version) == 1;
        free(bytes);
    }
    if (whole && ckpt_list_files(tag_dir, "", &list) == CZ_OK) {
        whole = list.n == m.n_files + 1;
        ckpt_list_free(&list);
    }
    manifest_free(&m);
    return whole ? version : -1;
}

/* The version of what `latest` names; -1 when there is none or it is not whole. */
static inline int tags_latest_version(const char *dir)
{
    char *tag = NULL;
    if (ckpt_latest_read(dir, false, &tag) != CZ_OK) return -1;
    int version = tags_version(dir, tag);
    free(tag);
    return version;
}

/* Names in dir that begin with a dot, or are temporaries. */
static inline int tags_n_leftovers(const char *dir)
{
    struct ckpt_list list;
    int n = 0;
    if (ckpt_list_files(dir, "", &list) != CZ_OK) return -1;
    for (size_t i = 0; i < list.n; i++)
        n += list.names[i][0] == '.' || strstr(list.names[i], ".tmp") != NULL;
    ckpt_list_free(&list);
    return n;
}

#endif
