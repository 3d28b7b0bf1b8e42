/* Names to numbers: a table that borrows its keys. */
#ifndef CZ_CHECKPOINT_READ_NAME_MAP_IMPL_H
#define CZ_CHECKPOINT_READ_NAME_MAP_IMPL_H

#include "base/hash.h"

struct name_map {
    struct name_entry *entries;
    size_t n, cap;
    struct hash_index index; /* into entries */
};

#define NAME_MAP_NONE SIZE_MAX

/* The caller keeps the key valid as long as the map. An existing key gets the new value. CZ_NOMEM.
 */
cz_status name_map_put(struct name_map *map, const char *key, size_t value);
size_t name_map_get(const struct name_map *map, const char *key); /* NAME_MAP_NONE: not there */
void name_map_free(struct name_map *map);                         /* accepts zeroed; idempotent */

#endif
