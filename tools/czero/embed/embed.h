/* czero embed, in parts: what they share.
 *
 * cmd_embed.c      the options, pooling, output
 * embed_recipe.c   what a folder of sentence-transformers says */
#ifndef CZ_TOOLS_CZERO_EMBED_EMBED_H
#define CZ_TOOLS_CZERO_EMBED_EMBED_H

#include "base/status.h"

enum embed_pool { EMBED_CLS = 0, EMBED_MEAN, EMBED_LAST, EMBED_NONE };
extern const char *const embed_pools[]; /* their names, NULL behind the last */

struct embed_recipe {
    bool given; /* the folder has one: modules.json */
    enum embed_pool pool;
    bool normalize;
    int64_t max_len; /* 0: not said */
    char *model;     /* the folder of the model inside it; never NULL */
    char *unapplied; /* a sentence's part: what czero cannot apply; NULL: nothing */
    char *not_put;   /* a prompt that is put in front of texts by default; NULL: none */
};

/* Of a model's folder; one without modules.json, or a preset, has none. Errors: CZ_CORRUPT,
 * CZ_INVALID (another form than sentence-transformers writes), CZ_IO, CZ_NOMEM. */
cz_status embed_recipe_read(const char *dir, struct embed_recipe *out);
void embed_recipe_free(struct embed_recipe *r); /* accepts zeroed */

#endif
