/* Opening libnccl: by CZERO_NCCL_LIBRARY, else by the plug-in's run path, else where the system
 * looks. It is loaded at run time, so that the plug-in works on machines without NCCL, with one
 * GPU. */
#include "comm/nccl/nccl_api.h"

#include <dlfcn.h>
#include <stdlib.h>

#if defined(__has_include)
#if __has_include(<nccl.h>)
#include <nccl.h>
_Static_assert(sizeof(ncclUniqueId) == sizeof(struct nccl_id), "as nccl.h has it");
_Static_assert(sizeof(struct nccl_config) <= sizeof(ncclConfig_t), "as nccl.h has it");
_Static_assert(offsetof(ncclConfig_t, blocking) == offsetof(struct nccl_config, blocking),
               "as nccl.h has it");
_Static_assert(offsetof(ncclConfig_t, splitShare) == offsetof(struct nccl_config, split_share),
               "as nccl.h has it");
_Static_assert((int)ncclInProgress == (int)NCCL_IN_PROGRESS, "as nccl.h has it");
_Static_assert((int)ncclUint8 == NCCL_TYPE_UINT8, "as nccl.h has it");
_Static_assert(NCCL_CONFIG_UNDEF_INT == NCCL_CONFIG_UNSET, "as nccl.h has it");
#endif
#endif

static struct nccl_calls calls;
static bool is_open;

/* The oldest version with all of these is 2.18; a missing one is named. */
static cz_status look_up(void *library, const char *file)
{
    const struct {
        const char *name;
        void **slot;
    } symbols[] = {
        {"ncclGetVersion", (void **)&calls.GetVersion},
        {"ncclGetUniqueId", (void **)&calls.GetUniqueId},
        {"ncclCommInitRankConfig", (void **)&calls.CommInitRankConfig},
        {"ncclCommFinalize", (void **)&calls.CommFinalize},
        {"ncclCommDestroy", (void **)&calls.CommDestroy},
        {"ncclCommAbort", (void **)&calls.CommAbort},
        {"ncclCommGetAsyncError", (void **)&calls.CommGetAsyncError},
        {"ncclGroupStart", (void **)&calls.GroupStart},
        {"ncclGroupEnd", (void **)&calls.GroupEnd},
        {"ncclSend", (void **)&calls.Send},
        {"ncclRecv", (void **)&calls.Recv},
        {"ncclBroadcast", (void **)&calls.Broadcast},
        {"ncclGetErrorString", (void **)&calls.GetErrorString},
        {"ncclGetLastError", (void **)&calls.GetLastError},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(symbols); i++) {
        *symbols[i].slot = dlsym(library, symbols[i].name);
        if (!*symbols[i].slot)
            return err_set(CZ_UNSUPPORTED, 0, "%s has no %s: NCCL 2.18 or newer is needed", file,
                           symbols[i].name);
    }
    return CZ_OK;
}

static cz_status check_version(const char *file)
{
    int version = 0;
    if (calls.GetVersion(&version) == NCCL_SUCCESS && version >= NCCL_LIBRARY_MIN) return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0, "%s is NCCL %d.%d.%d: 2.18 or newer is needed", file,
                   version / 10000, version / 100 % 100, version % 100);
}

static cz_status open_file(const char *file)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *reason = dlerror();
        return err_set(CZ_UNSUPPORTED, 0, "NCCL cannot be loaded (%s): name it in %s",
                       reason ? reason : file, NCCL_LIBRARY_ENV);
    }
    cz_status st = look_up(library, file);
    if (st == CZ_OK) st = check_version(file);
    if (st != CZ_OK) dlclose(library);
    return st;
}

/* The simulated plug-in has its stand-in inside; a library that the environment names is opened all
 * the same. */
#ifdef CZ_CUDA_SIM
extern const struct nccl_calls sim_nccl_calls;

static cz_status open_default(void)
{
    calls = sim_nccl_calls;
    return check_version("the simulated NCCL");
}
#else
static cz_status open_default(void)
{
    return open_file(NCCL_LIBRARY_FILE);
}
#endif

cz_status nccl_load(const struct nccl_calls **out)
{
    const char *file = getenv(NCCL_LIBRARY_ENV);
    *out = NULL;
    if (!is_open) TRY(file && *file ? open_file(file) : open_default());
    is_open = true;
    *out = &calls;
    return CZ_OK;
}
