#include "engine/chain/chain.h"

#include <stdlib.h>

cz_status chain_create(const struct cz_model *model, const struct chain_options *options,
                       struct chain **out)
{
    *out = NULL;
    size_t n_layers = model_n_layers(model);
    struct model_layer *layers = calloc(n_layers + 1, sizeof *layers);
    if (!layers) return err_set(CZ_NOMEM, 0, "no memory for a chain of %zu layers", n_layers);
    for (size_t i = 0; i < n_layers; i++) layers[i] = *model_layer_at(model, i);
    cz_status st =
        chain_create_layers(layers, n_layers, model_params(model)->n_params, options, out);
    free(layers);
    if (st != CZ_OK) return err_prefix("model %s", cz_model_name(model));
    return CZ_OK;
}
