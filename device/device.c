/* Finding a device by name: the host is built in, CUDA comes from the plug-in. */
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

/* Every slot is mandatory: a plug-in of another version is refused here, not met as a NULL call. */
static bool is_complete(const struct device_ops *ops)
{
    return ops->name && ops->count && ops->open && ops->close && ops->mem_alloc && ops->mem_free &&
           ops->is_device_memory && ops->mem_info && ops->copy && ops->fill_zero &&
           ops->stream_create && ops->stream_destroy && ops->stream_sync && ops->event_create &&
           ops->event_destroy && ops->event_record && ops->stream_wait && ops->event_wait_host &&
           ops->event_query && ops->host_register && ops->host_unregister && ops->info;
}

static cz_status plugin_check(const struct device_plugin *head)
{
    if (head && head->version == DEVICE_PLUGIN_VERSION &&
        head->ops_nbytes == sizeof(struct device_ops) &&
        head->host_nbytes == sizeof(struct device_plugin_host) && is_complete(head->device))
        return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0,
                   "device cuda: %s belongs to another version of czero; install both from one "
                   "build, or use --device cpu",
                   plugin_file());
}

static cz_status plugin_open(void)
{
    static const struct device_plugin_host calls = {.err_set = err_set,
                                                    .err_prefix = err_prefix,
                                                    .err_trace = err_trace,
                                                    .log_enabled = log_enabled,
                                                    .log_line = log_line};
    if (plugin) return CZ_OK;
    void *opened = dlopen(plugin_file(), RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
        const char *reason = dlerror();
        return err_set(CZ_UNSUPPORTED, 0,
                       "device cuda: the plug-in cannot be loaded (%s); --device cpu works",
                       reason ? reason : plugin_file());
    }
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

void device_close(struct device *dev)
{
    if (dev) dev->ops->close(dev);
}
