/* The files of a folder, in the order in which people count: rank_2 before rank_10, step 900 before
 * step 1000. All listings use it, so that messages and results do not depend on the file system's
 * order. */
#include "checkpoint/read/names.h"

#include "formats/beneath.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool ends_in(const char *name, const char *suffix)
{
    size_t n = strlen(name), n_suffix = strlen(suffix);
    return n >= n_suffix && strcmp(name + n - n_suffix, suffix) == 0;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Compares two runs of digits as numbers of any length, without converting them: leading zeros are
 * skipped, then the longer one is larger. Both pointers end after their run. */
static int number_order(const char **a, const char **b)
{
    while (**a == '0') ++*a;
    while (**b == '0') ++*b;
    const char *a_begin = *a, *b_begin = *b;
    while (is_digit(**a)) ++*a;
    while (is_digit(**b)) ++*b;
    ptrdiff_t n_a = *a - a_begin, n_b = *b - b_begin;
    if (n_a != n_b) return n_a < n_b ? -1 : 1;
    return memcmp(a_begin, b_begin, (size_t)n_a);
}

/* Equal as counted but different as text ("01" and "1") falls back to strcmp(), so the order is
 * total and qsort() gives one result. */
static int natural_order(const void *left, const void *right)
{
    const char *a = *(char *const *)left, *b = *(char *const *)right;
    const char *whole_a = a, *whole_b = b;
    while (*a && *b) {
        if (is_digit(*a) && is_digit(*b)) {
            int order = number_order(&a, &b);
            if (order != 0) return order;
        } else if (*a != *b) {
            return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        } else {
            a++, b++;
        }
    }
    if (*a || *b) return *a ? 1 : -1;
    return strcmp(whole_a, whole_b); /* "01" and "1" */
}

static cz_status list_add(struct ckpt_list *list, size_t *cap, const char *name)
{
    if (list->n == *cap) {
        size_t grown = *cap ? *cap * 2 : 16;
        char **names = realloc(list->names, grown * sizeof *names);
        if (!names) return err_set(CZ_NOMEM, 0, "out of memory");
        list->names = names;
        *cap = grown;
    }
    list->names[list->n] = strdup(name);
    if (!list->names[list->n]) return err_set(CZ_NOMEM, 0, "out of memory");
    list->n++;
    return CZ_OK;
}

static cz_status list_fill(DIR *handle, const char *dir, const char *suffix, struct ckpt_list *out)
{
    size_t cap = 0;
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(handle);
        if (!entry) break;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (ends_in(entry->d_name, suffix)) TRY(list_add(out, &cap, entry->d_name));
    }
    if (errno) return err_set(CZ_IO, errno, "%s: cannot be listed", dir);
    if (out->n > 1) qsort(out->names, out->n, sizeof *out->names, natural_order);
    return CZ_OK;
}

cz_status ckpt_list_files_in(const char *dir, const char *name, const char *suffix,
                             struct ckpt_list *out)
{
    int fd;
    memset(out, 0, sizeof *out);
    TRY(beneath_open_folder(dir, name, &fd));
    DIR *handle = fdopendir(fd); /* takes over fd */
    if (!handle) {
        close(fd);
        return err_set(CZ_NOMEM, 0, "out of memory");
    }
    cz_status st = list_fill(handle, name, suffix, out);
    closedir(handle);
    if (st != CZ_OK) ckpt_list_free(out);
    return st;
}

cz_status ckpt_list_files(const char *dir, const char *suffix, struct ckpt_list *out)
{
    memset(out, 0, sizeof *out);
    DIR *handle = opendir(dir);
    if (!handle) {
        bool absent = errno == ENOENT || errno == ENOTDIR;
        return err_set(absent ? CZ_NOTFOUND : CZ_IO, errno, "%s: cannot be listed", dir);
    }
    cz_status st = list_fill(handle, dir, suffix, out);
    closedir(handle);
    if (st != CZ_OK) ckpt_list_free(out);
    return st;
}

void ckpt_list_free(struct ckpt_list *list)
{
    for (size_t i = 0; i < list->n; i++) free(list->names[i]);
    free(list->names);
    memset(list, 0, sizeof *list);
}
