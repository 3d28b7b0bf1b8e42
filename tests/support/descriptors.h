/* Descriptors that stay open: what opens and closes leaves as many as there were, whether it
 * succeeds or fails. Leak checkers do not see them. Every case of Check is looked at when it ends
 * (check_main.h). */
#ifndef CZ_TESTS_DESCRIPTORS_H
#define CZ_TESTS_DESCRIPTORS_H

#include <check.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How many are open, beside the one that looks, with their numbers and names; -1: not known here.
 */
static inline int descriptors_open(char *names, size_t cap)
{
    DIR *dir = opendir("/proc/self/fd");
    bool has_driver = false;
    int n = 0;
    size_t at = 0;
    names[0] = '\0';
    if (!dir) return -1;
    if (getenv("CZERO_CUDA_PLUGIN")) has_driver = true;
    for (struct dirent *e; (e = readdir(dir));) {
        char path[64], name[256];
        if (e->d_name[0] == '.' || atoi(e->d_name) == dirfd(dir)) continue;
        snprintf(path, sizeof path, "/proc/self/fd/%.16s", e->d_name);
        ssize_t len = readlink(path, name, sizeof name - 1);
        name[len < 0 ? 0 : len] = '\0';
        if (at < cap) at += (size_t)snprintf(names + at, cap - at, " %.16s=%s", e->d_name, name);
        has_driver |= strncmp(name, "/dev/nvidia", strlen("/dev/nvidia")) == 0;
        n++;
    }
    closedir(dir);
    return has_driver ? -1 : n;
}

static inline void descriptors_expect(int n, const char *before)
{
    char after[1500];
    int left = descriptors_open(after, sizeof after);
    ck_assert_msg(left <= n || left < 0 || n < 0,
                  "%d descriptors were open, %d are now:%s\nwere:%s", n, left, after, before);
}

/* Calls `use` once, because a first call may open what a process keeps, and then again several
 * times, with number 0 for the first file that is opened: as when standard input is closed. */
static inline void descriptors_stay(void (*use)(void *user), void *user)
{
    char before[1500];
    use(user);
    close(STDIN_FILENO);
    int n = descriptors_open(before, sizeof before);
    for (int i = 0; i < 20; i++) use(user);
    descriptors_expect(n, before);
}

/* Around a case. */
static char descriptors_before[1500];
static int descriptors_n;

static inline void descriptors_begin(void)
{
    descriptors_n = descriptors_open(descriptors_before, sizeof descriptors_before);
}

static inline void descriptors_end(void)
{
    descriptors_expect(descriptors_n, descriptors_before);
}

#endif
