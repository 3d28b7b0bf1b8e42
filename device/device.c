/* Finding a device by name: the host is built in, CUDA comes from the plug-in. */
#include "device/device.h"

#include <dlfcn.h>
#include <string.h>

#define PLUGIN_FILE   "libczero_cuda.so"
#define PLUGIN_SYMBOL "czero_device_ops"

/* Opened once and kept: a CUDA context does not survive its library being unmapped. */
static void *plugin;

static cz_status plugin_open(void)
{
    if (plugin) return CZ_OK;
    plugin = dlopen(PLUGIN_FILE, RTLD_NOW | RTLD_LOCAL);
    if (plugin) return CZ_OK;
    const char *reason = dlerror();
    return err_set(CZ_UNSUPPORTED, 0, "device cuda: the plug-in cannot be loaded (%s)",
                   reason ? reason : PLUGIN_FILE);
}

cz_status device_plugin_symbol(const char *symbol, void **out)
{
    TRY(plugin_open());
    *out = dlsym(plugin, symbol);
    if (!*out)
        return err_set(CZ_UNSUPPORTED, 0, "%s has no symbol %s: it belongs to another version",
                       PLUGIN_FILE, symbol);
    return CZ_OK;
}

/* Every slot is mandatory: a plug-in of another version is refused here, not met as a NULL call. */
static bool device_ops_complete(const struct device_ops *ops)
{
    return ops->name && ops->open && ops->close && ops->mem_alloc && ops->mem_free &&
           ops->mem_info && ops->copy && ops->fill_zero && ops->stream_create &&
           ops->stream_destroy && ops->stream_sync && ops->event_create && ops->event_destroy &&
           ops->event_record && ops->stream_wait && ops->event_wait_host;
}

cz_status device_open(const char *kind, int ordinal, struct device **out)
{
    *out = NULL;
    if (!kind || strcmp(kind, "cpu") == 0) return device_host_ops.open(ordinal, out);
    if (strcmp(kind, "cuda") != 0)
        return err_set(CZ_INVALID, 0, "device \"%s\" is unknown: use cpu or cuda", kind);
    void *symbol;
    TRY(device_plugin_symbol(PLUGIN_SYMBOL, &symbol));
    const struct device_ops *ops = symbol;
    if (!device_ops_complete(ops))
        return err_set(CZ_UNSUPPORTED, 0, "%s leaves device slots empty", PLUGIN_FILE);
    TRY(ops->open(ordinal, out));
    return CZ_OK;
}

void device_close(struct device *dev)
{
    if (dev) dev->ops->close(dev);
}
