/* Finds the program to run as a shell would: by path, or on PATH. Done before the first rank
 * starts, so that a misspelt name is one message and not one per rank. */
#include "engine/launch/launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A folder is executable to access(): errno says what is wrong with it. */
static bool is_program(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return false;
    if (S_ISDIR(st.st_mode)) errno = EISDIR;
    return !S_ISDIR(st.st_mode) && access(path, X_OK) == 0;
}

/* An empty entry of PATH is the current folder. */
static bool find_on_path(const char *name, char *path, size_t nbytes)
{
    const char *dirs = getenv("PATH");
    if (!dirs || !*dirs) dirs = "/usr/local/bin:/usr/bin:/bin";
    for (;;) {
        size_t len = strcspn(dirs, ":");
        int n = snprintf(path, nbytes, "%.*s%s%s", (int)len, dirs, len > 0 ? "/" : "./", name);
        if ((size_t)n < nbytes && is_program(path)) return true;
        if (dirs[len] == '\0') return false;
        dirs += len + 1;
    }
}

cz_status launch_find(const char *program, char *path, size_t path_nbytes)
{
    if (*program == '\0') return err_set(CZ_NOTFOUND, 0, "the name of the program is empty");
    if (!strchr(program, '/')) {
        if (find_on_path(program, path, path_nbytes)) return CZ_OK;
        return err_set(CZ_NOTFOUND, 0, "there is no program \"%s\" on PATH", program);
    }
    if ((size_t)snprintf(path, path_nbytes, "%s", program) >= path_nbytes)
        return err_set(CZ_NOTFOUND, ENAMETOOLONG, "cannot run %s", program);
    if (!is_program(path)) return err_set(CZ_NOTFOUND, errno, "cannot run %s", program);
    return CZ_OK;
}
