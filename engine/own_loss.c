/* Between a loss of the program's own and the heads that ask an objective. */
#include "engine/own_loss.h"

#include <string.h>

/* The program's gradients are those of the loss alone. */
static cz_status run(const void *user, struct objective_call *call)
{
    const struct own_loss *own = user;
    const size_t numel = (size_t)(call->n * call->k);
    const struct cz_batch batch = batch_given(call->batch);
    struct cz_loss_call theirs = {.size = sizeof theirs,
                                  .batch = &batch,
                                  .n = call->n,
                                  .k = call->k,
                                  .values = call->values,
                                  .gradients = call->gradients};
    memset(call->gradients, 0, numel * sizeof *call->gradients);
    TRY(own->loss(own->user, &theirs));
    for (size_t i = 0; i < numel; i++) call->gradients[i] *= call->dloss;
    call->loss = theirs.loss;
    return CZ_OK;
}

void own_loss_set(struct own_loss *own, cz_loss loss, void *user, float *host)
{
    own->loss = loss;
    own->user = user;
    own->objective = (struct objective){.run = run, .user = own, .host = host};
}

cz_status own_loss_check_head(const struct cz_model *m, const char *call)
{
    const struct layer_class *head = model_layer_at(m, model_n_layers(m) - 1)->cls;
    if (head->flags & LAYER_OBJECTIVE) return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0, "%s: the loss layer \"%s\" is the program's own", call,
                   head->name);
}
