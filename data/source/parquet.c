/* The Parquet plug-in: found, checked and opened on demand, so that neither libczero nor its users
 * depend on Arrow. */
#include "data/source/parquet.h"

#include "data/source/parquet_plugin_impl.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC        "PAR1"
#define WHY_NBYTES   400
#define NBYTES_LEAST 12 /* both marks, and a length */

struct parquet_file {
    const struct parquet_plugin *plugin;
    const char *path;
    void *state;
};

static cz_status read_mark(int fd, const char *path, off_t at, char mark[4], bool *is_there)
{
    const ssize_t n = pread(fd, mark, 4, at);
    *is_there = n == 4;
    return n < 0 ? err_set(CZ_IO, errno, "%s: cannot be read", path) : CZ_OK;
}

cz_status parquet_is_file(int fd, const char *path, bool *is_it)
{
    struct stat info;
    char mark[4];
    *is_it = false;
    if (fstat(fd, &info) != 0) return err_set(CZ_IO, errno, "%s: cannot be examined", path);
    if (!S_ISREG(info.st_mode) || info.st_size < NBYTES_LEAST) return CZ_OK;
    TRY(read_mark(fd, path, 0, mark, is_it));
    *is_it = *is_it && memcmp(mark, MAGIC, sizeof mark) == 0;
    if (!*is_it) return CZ_OK;
    TRY(read_mark(fd, path, info.st_size - (off_t)sizeof mark, mark, is_it));
    *is_it = *is_it && (memcmp(mark, MAGIC, sizeof mark) == 0 || memcmp(mark, "PARE", 4) == 0);
    return CZ_OK;
}

/* Opened once and kept: Arrow has threads. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct parquet_plugin *plugin;

static cz_status plugin_load(const char *path)
{
    const char *file = getenv("CZERO_PARQUET_PLUGIN");
    if (plugin) return CZ_OK;
    if (!file || !*file) file = PARQUET_PLUGIN_FILE;
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) {
        const char *reason = dlerror();
        return err_set(
            CZ_UNSUPPORTED, 0,
            "%s: is a Parquet file, which this build of czero cannot read (%s): write its "
            "rows as JSON lines, for example with pandas: to_json(orient=\"records\", "
            "lines=True), or build czero where Arrow's C++ libraries are (docs/data.md)",
            path, reason ? reason : file);
    }
    const struct parquet_plugin *found = dlsym(handle, PARQUET_PLUGIN_SYMBOL);
    if (!found || found->version != PARQUET_PLUGIN_VERSION || !found->open || !found->read ||
        !found->close)
        return err_set(CZ_UNSUPPORTED, 0, "%s belongs to another version of czero", file);
    plugin = found;
    return CZ_OK;
}

static cz_status result_of(const char *path, enum parquet_result result, const char *why)
{
    return result == PARQUET_OK          ? CZ_OK
           : result == PARQUET_NO_MEMORY ? err_set(CZ_NOMEM, 0, "%s: no memory to read it", path)
           : result == PARQUET_UNSUPPORTED
               ? err_set(CZ_UNSUPPORTED, 0, "%s: Parquet: %s", path, why)
               : err_set(CZ_CORRUPT, 0, "%s: the Parquet data are damaged: %s", path, why);
}

cz_status parquet_open(int fd, const char *path, struct parquet_file **out)
{
    char why[WHY_NBYTES] = "";
    *out = NULL;
    pthread_mutex_lock(&lock);
    cz_status st = plugin_load(path);
    pthread_mutex_unlock(&lock);
    TRY(st);
    struct parquet_file *p = calloc(1, sizeof *p);
    if (!p) return err_set(CZ_NOMEM, 0, "%s: no memory to read it", path);
    p->plugin = plugin;
    p->path = path;
    st = result_of(path, plugin->open(fd, &p->state, why, sizeof why), why);
    if (st != CZ_OK) {
        free(p);
        return st;
    }
    *out = p;
    return CZ_OK;
}

void parquet_close(struct parquet_file *p)
{
    if (!p) return;
    p->plugin->close(p->state);
    free(p);
}

cz_status parquet_read(struct parquet_file *p, void *dst, size_t nbytes, size_t *got)
{
    char why[WHY_NBYTES] = "";
    return result_of(p->path, p->plugin->read(p->state, dst, nbytes, got, why, sizeof why), why);
}
