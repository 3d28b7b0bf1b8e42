/* One file per block: a mark, a hash of what follows, and that. Names are 128 bits of hashes, so
 * that blocks of any number of data sets do not meet. */
#include "data/chat/chat_cache.h"

#include "base/hash.h"
#include "base/log.h"
#include "data/tokenizer/tokenizer_impl.h"
#include "formats/beneath.h"
#include "formats/file_io.h"
#include "formats/output.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MARK        "CZTOKEN3" /* rises with any change of what tokens are, or how they are kept */
#define HEAD_NBYTES (8 + sizeof(uint64_t))
#define FILE_MAX    ((size_t)2 << 30)
/* Of what rows of n bytes can become: a template may write this much to each, and any text so many
 * times. */
#define ROW_ADDED   ((size_t)64 << 10)
#define ROW_TIMES   16
#define NAME_NBYTES 64
#define PART_MAX    ((size_t)512 << 20) /* of a tokenizer's file */

struct chat_cache {
    struct out_folder dir;
    uint64_t key[2]; /* of all that tokens depend on besides the rows */
    bool failed;
};

/* Two halves of a name. */
static void hash_both(uint64_t key[2], const void *bytes, size_t n)
{
    key[0] = hash_sip(1, 3, key[0], 0x637A65726F746F6Bu, bytes, n);
    key[1] = hash_sip(1, 3, key[1], 0x6368617463616368u, bytes, n);
}

static cz_status hash_tokenizer(struct chat_cache *c, const struct cz_tokenizer *tok)
{
    const char *name = cz_tokenizer_name(tok);
    hash_both(c->key, name, strlen(name) + 1);
    for (size_t i = 0; tok->dir && tok->files && tok->files[i]; i++) {
        char *text;
        size_t n;
        if (!beneath_is_there(tok->dir, tok->files[i])) continue;
        TRY(beneath_load(tok->dir, tok->files[i], PART_MAX, &text, &n));
        hash_both(c->key, tok->files[i], strlen(tok->files[i]) + 1);
        hash_both(c->key, text, n);
        free(text);
    }
    return CZ_OK;
}

cz_status chat_cache_open(const char *dir, const struct chat_encoder *e, struct chat_cache **out)
{
    *out = NULL;
    if (e->chat && chat_template_tells_time(e->chat)) {
        LOGV(LOG_WARN, SUB_DATA,
             "data: tokens are not kept in %s, since the chat template writes the time", dir);
        return CZ_OK;
    }
    struct chat_cache *c = calloc(1, sizeof *c);
    cz_status st =
        c ? out_folder_open(dir, &c->dir) : err_set(CZ_NOMEM, 0, "no memory for kept tokens");
    if (st == CZ_OK) {
        const uint64_t of_template = e->chat ? chat_template_hash(e->chat) : 0;
        hash_both(c->key, &of_template, sizeof of_template);
        hash_both(c->key, &e->loss, sizeof e->loss);
        hash_both(c->key, e->end, strlen(e->end) + 1);
        hash_both(c->key, e->turn_end, strlen(e->turn_end) + 1);
        st = hash_tokenizer(c, e->tokenizer);
    }
    if (st != CZ_OK) {
        chat_cache_close(c);
        return st;
    }
    *out = c;
    return CZ_OK;
}

void chat_cache_close(struct chat_cache *c)
{
    if (!c) return;
    out_folder_close(&c->dir);
    free(c);
}

static void name_of(const struct chat_cache *c, const char *rows, size_t n, char name[NAME_NBYTES])
{
    uint64_t key[2] = {c->key[0], c->key[1]};
    hash_both(key, rows, n);
    snprintf(name, NAME_NBYTES, "%016" PRIx64 "%016" PRIx64 ".tokens", key[0], key[1]);
}

static uint64_t sum_of(const char *bytes, size_t n)
{
    return hash_sip(1, 3, 0x746F6B656E730000u, 0x73756D0000000000u, bytes, n);
}

/* A longer file is neither kept nor read: it is no block's. */
static size_t file_max(size_t n_rows, size_t n)
{
    const size_t added = HEAD_NBYTES + n_rows * ROW_ADDED;
    return n < (FILE_MAX - added) / ROW_TIMES ? added + n * ROW_TIMES : FILE_MAX;
}

cz_status chat_cache_get(const struct chat_cache *c, const char *rows, size_t n, size_t n_rows,
                         char **kept, size_t *nbytes)
{
    char name[NAME_NBYTES], *file = NULL;
    size_t n_file = 0;
    uint64_t sum;
    *kept = NULL;
    name_of(c, rows, n, name);
    if (!out_is_there(&c->dir, name)) return CZ_OK;
    if (beneath_load(c->dir.path, name, file_max(n_rows, n), &file, &n_file) != CZ_OK) {
        err_clear();
        return CZ_OK;
    }
    bool is_whole = n_file >= HEAD_NBYTES && memcmp(file, MARK, 8) == 0;
    if (is_whole) {
        memcpy(&sum, file + 8, sizeof sum);
        is_whole = sum == sum_of(file + HEAD_NBYTES, n_file - HEAD_NBYTES);
    }
    if (!is_whole) {
        free(file);
        return CZ_OK;
    }
    memmove(file, file + HEAD_NBYTES, n_file - HEAD_NBYTES);
    *kept = file;
    *nbytes = n_file - HEAD_NBYTES;
    return CZ_OK;
}

void chat_cache_put(struct chat_cache *c, const char *rows, size_t n, size_t n_rows,
                    const char *kept, size_t nbytes)
{
    if (c->failed || nbytes > file_max(n_rows, n) - HEAD_NBYTES) return;
    char name[NAME_NBYTES], *file = malloc(HEAD_NBYTES + nbytes);
    const uint64_t sum = sum_of(kept, nbytes);
    cz_status st = file ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for kept tokens");
    if (st == CZ_OK) {
        memcpy(file, MARK, 8);
        memcpy(file + 8, &sum, sizeof sum);
        memcpy(file + HEAD_NBYTES, kept, nbytes);
        name_of(c, rows, n, name);
        st = file_save_in(&c->dir, name, file, HEAD_NBYTES + nbytes);
    }
    free(file);
    if (st == CZ_OK) return;
    c->failed = true;
    LOGV(LOG_WARN, SUB_DATA, "data: tokens are not kept in %s: %s", c->dir.path, cz_last_error());
    err_clear();
}
