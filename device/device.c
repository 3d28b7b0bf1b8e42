/* Finding a device by name: the host is built in, CUDA comes from a plug-in that is opened on
 * demand, so that one build runs with and without GPUs. */
#include "device/plugin.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* Opened once and kept: a CUDA context does not survive its library being unmapped. */
static void *plugin;
static const struct device_plugin *plugin_head;

static const char *plugin_file(void)
{
    const char *file = getenv(DEVICE_PLUGIN_ENV);
    return file && *file ? file : DEVICE_PLUGIN_FILE;
}

/* Every slot is mandatory: a plug-in of another version is refused here, not met as a call of
 * NULL. */
static bool is_complete(const struct device_ops *ops)
{
    return ops->name && ops->count && ops->open && ops->close && ops->mem_alloc && ops->mem_free &&
           ops->is_device_memory && ops->mem_info && ops->copy && ops->fill_zero &&
           ops->stream_create && ops->stream_destroy && ops->stream_sync && ops->event_create &&
           ops->event_create_timed && ops->event_destroy && ops->event_record && ops->stream_wait &&
           ops->event_wait_host && ops->event_query && ops->event_seconds && ops->host_register &&
           ops->host_unregister && ops->info;
}

/* Sizes of the shared structs are compared, too: a change of a struct without a new version number
 * is then an error, and not a call through the wrong pointer. */
static cz_status plugin_check(const struct device_plugin *head)
{
    if (head && head->version == DEVICE_PLUGIN_VERSION &&
        head->ops_nbytes == sizeof(struct device_ops) &&
        head->host_nbytes == sizeof(struct device_plugin_host) && head->device &&
        is_complete(head->device))
        return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0,
                   "device cuda: %s belongs to another version of czero; install both from one "
                   "build, or use --device cpu",
                   plugin_file());
}

/* The loader's message begins with the file that could not be loaded: the plug-in itself, which a
 * build without nvcc leaves out, or a library that the plug-in needs. */
static cz_status refuse_load(const char *reason)
{
    const char *missing = reason ? strstr(reason, ": cannot open shared object file") : NULL;
    const int n = missing ? (int)(missing - reason) : 0;
    if (!missing)
        return err_set(CZ_UNSUPPORTED, 0,
                       "device cuda: the plug-in cannot be loaded (%s); --device cpu works",
                       reason ? reason : plugin_file());
    if (strncmp(reason, plugin_file(), (size_t)n) == 0)
        return err_set(CZ_UNSUPPORTED, 0,
                       "device cuda: the plug-in %s is not here (a build without nvcc has none); "
                       "--device cpu works",
                       plugin_file());
    return err_set(CZ_UNSUPPORTED, 0,
                   "device cuda: %s needs %.*s, which is not found: install that part of CUDA or "
                   "put its folder into LD_LIBRARY_PATH; --device cpu works",
                   plugin_file(), n, reason);
}

/* Opened once, by the first call, and never closed. */
static cz_status plugin_open(void)
{
    static const struct device_plugin_host calls = {.err_set = err_set,
                                                    .err_prefix = err_prefix,
                                                    .err_trace = err_trace,
                                                    .err_capture = err_capture,
                                                    .err_restore = err_restore,
                                                    .log_enabled = log_enabled,
                                                    .log_line = log_line};
    if (plugin) return CZ_OK;
    void *opened = dlopen(plugin_file(), RTLD_NOW | RTLD_LOCAL);
    if (!opened) return refuse_load(dlerror());
    const struct device_plugin *head = dlsym(opened, DEVICE_PLUGIN_SYMBOL);
    cz_status st = plugin_check(head);
    if (st != CZ_OK) {
        dlclose(opened);
        return st;
    }
    head->start(&calls);
    plugin = opened;
    plugin_head = head;
    return CZ_OK;
}

cz_status device_plugin_symbol(const char *symbol, void **out)
{
    TRY(plugin_open());
    *out = dlsym(plugin, symbol);
    if (!*out)
        return err_set(CZ_UNSUPPORTED, 0, "%s has no symbol %s: it belongs to another version",
                       plugin_file(), symbol);
    return CZ_OK;
}

/* Whether the name is of that kind, alone or with a colon; *rest is what follows. */
static bool starts_with(const char *name, const char *kind, const char **rest)
{
    const size_t n = strlen(kind);
    if (strncmp(name, kind, n) != 0 || (name[n] && name[n] != ':')) return false;
    *rest = name + n;
    return true;
}

cz_status device_parse(const char *name, enum device_kind *kind, int *ordinal)
{
    const char *rest = NULL; /* what follows the kind */
    *kind = DEVICE_HOST;
    *ordinal = -1;
    if (name && starts_with(name, "cuda", &rest))
        *kind = DEVICE_CUDA;
    else if (name && !starts_with(name, "cpu", &rest))
        return err_set(CZ_INVALID, 0, "device \"%s\" is unknown: use cpu, cuda or cuda:N", name);
    if (!rest || !*rest) return CZ_OK;
    /* At most four digits: no sign, no space, no overflow. */
    const size_t n_digits = strspn(rest + 1, "0123456789");
    if (n_digits < 1 || n_digits > 4 || rest[1 + n_digits])
        return err_set(CZ_INVALID, 0,
                       "device \"%s\": what follows the colon is which one, counted from 0", name);
    *ordinal = atoi(rest + 1);
    return CZ_OK;
}

static cz_status find(const char *kind, const struct device_ops **ops)
{
    *ops = &device_host_ops;
    if (!kind || strcmp(kind, "cpu") == 0) return CZ_OK;
    if (strcmp(kind, "cuda") != 0)
        return err_set(CZ_INVALID, 0, "device \"%s\" is unknown: use cpu or cuda", kind);
    TRY(plugin_open());
    *ops = plugin_head->device;
    return CZ_OK;
}

cz_status device_count(const char *kind, int *n)
{
    const struct device_ops *ops;
    *n = 0;
    TRY(find(kind, &ops));
    return ops->count(n);
}

cz_status device_open(const char *kind, int ordinal, struct device **out)
{
    const struct device_ops *ops;
    *out = NULL;
    TRY(find(kind, &ops));
    return ops->open(ordinal, out);
}

/* Ranks of a host are dealt to its GPUs in turn, unless the name has a number. */
cz_status device_open_named(const char *name, int rank_host, struct device **out)
{
    enum device_kind kind;
    int ordinal, n = 1;
    *out = NULL;
    TRY(device_parse(name, &kind, &ordinal));
    if (kind == DEVICE_HOST) return device_open("cpu", ordinal < 0 ? 0 : ordinal, out);
    if (ordinal < 0) TRY(device_count("cuda", &n));
    return device_open("cuda", ordinal < 0 ? rank_host % n : ordinal, out);
}

void device_close(struct device *dev)
{
    if (dev) dev->ops->close(dev);
}
