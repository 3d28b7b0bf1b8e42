/* Descriptors that stay open: what opens and closes leaves as many as there were, whether it
 * succeeds or fails. Leak checkers do not see them. */
#ifndef CZ_TESTS_DESCRIPTORS_H
#define CZ_TESTS_DESCRIPTORS_H

#include "tests/support/check_main.h"

#include <dirent.h>
#include <string.h>

/* What is open, by number and name, beside the descriptor that looks. */
static inline int descriptors_open(char *names, size_t cap)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    size_t at = 0;
    ck_assert_ptr_nonnull(dir);
    names[0] = '\0';
    for (struct dirent *e; (e = readdir(dir));) {
        char path[64], name[256];
        if (e->d_name[0] == '.' || atoi(e->d_name) == dirfd(dir)) continue;
        snprintf(path, sizeof path, "/proc/self/fd/%.16s", e->d_name);
        ssize_t len = readlink(path, name, sizeof name - 1);
        name[len < 0 ? 0 : len] = '\0';
        if (at < cap) at += (size_t)snprintf(names + at, cap - at, " %.16s=%s", e->d_name, name);
        n++;
    }
    closedir(dir);
    return n;
}

/* Calls `use` once, because a first call may open what a process keeps, and then again several
 * times. */
static inline void descriptors_stay(void (*use)(void *user), void *user)
{
    char before[1500], after[1500];
    use(user);
    int n = descriptors_open(before, sizeof before);
    for (int i = 0; i < 20; i++) use(user);
    int left = descriptors_open(after, sizeof after);
    ck_assert_msg(left == n, "%d descriptors were open, %d are now:%s\nwas:%s", n, left, after,
                  before);
}

#endif
