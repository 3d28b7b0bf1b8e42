/* Whether two folders hold the same checkpoint: the same files, in each the same records with the
 * same bytes and the same tree of objects, but for the config that made it. */
#ifndef CZ_TESTS_SAME_CKPT_H
#define CZ_TESTS_SAME_CKPT_H

#include "formats/pt/pt.h"
#include "tests/support/check_main.h"

#include <dirent.h>
#include <string.h>

/* What the run's config decides: ds_config itself, and the settings that DeepSpeed's host
 * optimizers keep in another order than its device ones. */
static inline bool same_ckpt_skips(const struct pickle_node *key)
{
    const char *text = pickle_to_string(key);
    return text && (strcmp(text, "ds_config") == 0 || strcmp(text, "param_groups") == 0);
}

static inline bool same_tensor(const struct pickle_tensor *a, const struct pickle_tensor *b)
{
    size_t nbytes = (size_t)a->ndim * sizeof *a->shape;
    return a->dtype == b->dtype && strcmp(a->key, b->key) == 0 && a->off == b->off &&
           a->ndim == b->ndim && memcmp(a->shape, b->shape, nbytes) == 0 &&
           memcmp(a->stride, b->stride, nbytes) == 0;
}

static inline bool same_text(const char *a, const char *b)
{
    return (!a && !b) || (a && b && strcmp(a, b) == 0);
}

static inline bool same_node(const struct pickle_node *a, const struct pickle_node *b)
{
    if (!a || !b) return a == b;
    if (a->kind != b->kind || a->n != b->n || a->n_pairs != b->n_pairs) return false;
    if (a->boolean != b->boolean) return false;
    if ((a->kind == PICKLE_INT || a->kind == PICKLE_FLOAT) && a->integer != b->integer)
        return false; /* all bits, also of a float */
    if (!same_text(a->more->module, b->more->module)) return false;
    if (!same_text(a->more->name, b->more->name)) return false;
    if (pickle_has_text(a) && memcmp(a->text, b->text, a->n) != 0) return false;
    if (a->kind == PICKLE_TENSOR && !same_tensor(a->tensor, b->tensor)) return false;
    for (size_t i = 0; a->items && i < a->n; i++)
        if (!same_node(a->items[i], b->items[i])) return false;
    for (size_t i = 0; i < a->n_pairs; i++) {
        if (!same_node(a->pairs[i].key, b->pairs[i].key)) return false;
        if (same_ckpt_skips(a->pairs[i].key)) continue;
        if (!same_node(a->pairs[i].value, b->pairs[i].value)) return false;
    }
    return same_node(a->more->args, b->more->args) && same_node(a->more->state, b->more->state);
}

static inline void same_pt(const char *path_a, const char *path_b)
{
    struct pt *a, *b;
    ck_ok(pt_open(path_a, &a));
    ck_ok(pt_open(path_b, &b));
    ck_ok(pt_verify(a, NULL, NULL));
    ck_ok(pt_verify(b, NULL, NULL));
    ck_assert_msg(same_node(pt_root(a), pt_root(b)), "%s and %s hold other objects", path_a,
                  path_b);
    ck_assert_uint_eq(pt_n_records(a), pt_n_records(b));
    for (size_t i = 0; i < pt_n_records(a); i++) {
        const struct pt_record *of_a = pt_record_at(a, i), *of_b = pt_record_at(b, i);
        ck_assert_str_eq(of_a->name, of_b->name);
        if (strncmp(of_a->name, "data/", strlen("data/")) != 0) continue;
        ck_assert_msg(of_a->nbytes == of_b->nbytes && of_a->crc == of_b->crc,
                      "%s and %s differ in %s", path_a, path_b, of_a->name);
    }
    pt_close(a);
    pt_close(b);
}

static inline int same_ckpt_count(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;
    ck_assert_ptr_nonnull(d);
    while (readdir(d) != NULL) n++;
    closedir(d);
    return n - 2;
}

/* Two tags' folders. The manifest holds sizes and sums of what is compared here. */
static inline void same_ckpt(const char *dir_a, const char *dir_b)
{
    char a[600], b[600], command[1400];
    ck_assert_int_eq(same_ckpt_count(dir_a), same_ckpt_count(dir_b));
    DIR *d = opendir(dir_a);
    for (struct dirent *entry; (entry = readdir(d)) != NULL;) {
        const char *suffix = strrchr(entry->d_name, '.');
        snprintf(a, sizeof a, "%s/%s", dir_a, entry->d_name);
        snprintf(b, sizeof b, "%s/%s", dir_b, entry->d_name);
        ck_assert_msg(access(b, R_OK) == 0, "%s is missing", b);
        if (strcmp(suffix, ".pt") == 0) same_pt(a, b);
        if (strcmp(entry->d_name, "czero_state.json") != 0) continue;
        snprintf(command, sizeof command, "cmp '%s' '%s'", a, b);
        ck_assert_int_eq(system(command), 0);
    }
    closedir(d);
}

#endif
