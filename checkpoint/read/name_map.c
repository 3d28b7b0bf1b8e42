/* A map from names to numbers: open addressing, at most half full, never shrinking. Keys are not
 * copied; the tables that own the names live as long as the map. */
#include "checkpoint/read/name_map_impl.h"

#include <stdlib.h>
#include <string.h>

struct name_slot {
    const char *key; /* NULL: free */
    size_t value;
};

/* FNV-1a: names are short, and a crafted file gains nothing but its own slow loading. */
static size_t hash_of(const char *key)
{
    uint64_t h = 14695981039346656037u;
    for (; *key; key++) h = (h ^ (unsigned char)*key) * 1099511628211u;
    return (size_t)(h ^ (h >> 32));
}

/* The slot of a key, or the free one where it belongs. */
static struct name_slot *slot_of(struct name_slot *slots, size_t cap, const char *key)
{
    size_t at = hash_of(key) & (cap - 1);
    while (slots[at].key && strcmp(slots[at].key, key) != 0) at = (at + 1) & (cap - 1);
    return &slots[at];
}

cz_status name_map_put(struct name_map *map, const char *key, size_t value)
{
    if (map->n * 2 >= map->cap) {
        size_t cap = map->cap ? map->cap * 2 : 64;
        struct name_slot *slots = calloc(cap, sizeof *slots);
        if (!slots) return err_set(CZ_NOMEM, 0, "out of memory");
        for (size_t i = 0; i < map->cap; i++)
            if (map->slots[i].key) *slot_of(slots, cap, map->slots[i].key) = map->slots[i];
        free(map->slots);
        map->slots = slots;
        map->cap = cap;
    }
    struct name_slot *slot = slot_of(map->slots, map->cap, key);
    if (!slot->key) map->n++;
    *slot = (struct name_slot){key, value};
    return CZ_OK;
}

size_t name_map_get(const struct name_map *map, const char *key)
{
    if (map->n == 0) return NAME_MAP_NONE;
    const struct name_slot *slot = slot_of(map->slots, map->cap, key);
    return slot->key ? slot->value : NAME_MAP_NONE;
}

void name_map_free(struct name_map *map)
{
    free(map->slots);
    memset(map, 0, sizeof *map);
}
