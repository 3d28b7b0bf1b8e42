/* A map from names to numbers over base/hash.h. Keys are not copied; the tables that own the names
 * live as long as the map. */
#include "checkpoint/read/name_map_impl.h"

#include <stdlib.h>
#include <string.h>

struct name_entry {
    const char *key;
    size_t value;
};

struct wanted {
    const struct name_map *map;
    const char *key;
};

static bool is_key(const void *key, size_t item)
{
    const struct wanted *w = key;
    return strcmp(w->map->entries[item].key, w->key) == 0;
}

cz_status name_map_put(struct name_map *map, const char *key, size_t value)
{
    const uint64_t hash = hash_text(key);
    size_t at = hash_index_find(&map->index, hash, is_key, &(struct wanted){map, key});
    if (at != HASH_NONE) {
        map->entries[at] = (struct name_entry){key, value};
        return CZ_OK;
    }
    if (map->n == map->cap) {
        size_t cap = map->cap ? map->cap * 2 : 64;
        struct name_entry *entries = realloc(map->entries, cap * sizeof *entries);
        if (!entries) return err_set(CZ_NOMEM, 0, "out of memory");
        map->entries = entries;
        map->cap = cap;
    }
    TRY(hash_index_add(&map->index, hash, map->n));
    map->entries[map->n++] = (struct name_entry){key, value};
    return CZ_OK;
}

size_t name_map_get(const struct name_map *map, const char *key)
{
    size_t at = hash_index_find(&map->index, hash_text(key), is_key, &(struct wanted){map, key});
    return at == HASH_NONE ? NAME_MAP_NONE : map->entries[at].value;
}

void name_map_free(struct name_map *map)
{
    free(map->entries);
    hash_index_free(&map->index);
    memset(map, 0, sizeof *map);
}
