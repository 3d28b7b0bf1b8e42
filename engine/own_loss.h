/* A loss of the program's own: engine_set_loss(). */
#ifndef CZ_ENGINE_OWN_LOSS_H
#define CZ_ENGINE_OWN_LOSS_H

#include "model/model.h"
#include "model/objective.h"

#include <czero/engine.h>

CZ_EXTERN_C_BEGIN

struct own_loss {
    cz_loss loss; /* NULL: the model's */
    void *user;
    struct objective objective; /* calls it */
};

/* It must stay where it is while it is set. host: as in struct objective. */
void own_loss_set(struct own_loss *own, cz_loss loss, void *user, float *host);

/* The objective of a training pass; NULL: the model's own loss. */
static inline const struct objective *own_loss_objective(const struct own_loss *own)
{
    return own->loss ? &own->objective : NULL;
}

/* CZ_UNSUPPORTED in the name of a call, if the model's head asks no objective. */
cz_status own_loss_check_head(const struct cz_model *m, const char *call);

CZ_EXTERN_C_END
#endif
