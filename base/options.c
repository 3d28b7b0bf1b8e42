/* Option structs of public calls, copied with the size that the caller was compiled with. */
#include "base/options.h"

#include <string.h>

/* Larger is not a size, but memory that was never set. */
#define SIZE_MAX_KNOWN ((size_t)1 << 16)

static cz_status check_size(size_t size, const char *name)
{
    if (size >= sizeof(size_t) && size <= SIZE_MAX_KNOWN) return CZ_OK;
    return err_set(CZ_INVALID, 0, "%s.size is %zu: set it to sizeof(struct %s)", name, size, name);
}

cz_status options_take(void *ours, size_t nbytes, const void *theirs, const char *name)
{
    memset(ours, 0, nbytes);
    if (theirs) {
        size_t size;
        memcpy(&size, theirs, sizeof size);
        TRY(check_size(size, name));
        for (size_t i = nbytes; i < size; i++)
            if (((const unsigned char *)theirs)[i] != 0)
                return err_set(CZ_UNSUPPORTED, 0,
                               "struct %s has %zu bytes, and this version of czero knows %zu: the "
                               "program was compiled for a newer one",
                               name, size, nbytes);
        memcpy(ours, theirs, size < nbytes ? size : nbytes);
    }
    memcpy(ours, &nbytes, sizeof nbytes);
    return CZ_OK;
}

cz_status options_give(void *theirs, const void *ours, size_t nbytes, const char *name)
{
    size_t size;
    if (!theirs) return err_set(CZ_INVALID, 0, "NULL was given in the place of a struct %s", name);
    memcpy(&size, theirs, sizeof size);
    TRY(check_size(size, name));
    const size_t n = size < nbytes ? size : nbytes;
    memcpy((unsigned char *)theirs + sizeof size, (const unsigned char *)ours + sizeof size,
           n - sizeof size);
    return CZ_OK;
}
