/* The output, read back from the disk, against the shards. */
#include "checkpoint/consolidate/consolidate_impl.h"

#include <string.h>

struct verify {
    const struct cons_plan *plan;
    const struct cons_sink_class *cls;
    const void *output;
};

static cz_status compare(void *user, const struct cons_tensor *t, uint64_t elem_off, size_t numel,
                         void *buf, void *buf2)
{
    const struct verify *v = user;
    const size_t size = t->dtype->size;
    TRY(cons_fetch(v->plan, t, elem_off, numel, buf));
    TRY(v->cls->read(v->output, t, elem_off, numel, buf2));
    if (memcmp(buf, buf2, numel * size) == 0) return CZ_OK;
    size_t i = 0;
    while (memcmp((char *)buf + i * size, (char *)buf2 + i * size, size) == 0) i++;
    return err_set(CZ_IO, 0,
                   "%s: element %llu of %s reads otherwise than it was written; the disk or the "
                   "memory is at fault",
                   v->plan->options->out_dir, (unsigned long long)(elem_off + i), t->tensor->name);
}

cz_status cons_verify(const struct cons_plan *plan, const struct cons_sink_class *cls)
{
    void *output = NULL;
    TRY(cls->open(plan, &output));
    struct verify v = {plan, cls, output};
    cz_status st = cons_for_each_piece(plan, compare, &v, true, plan->nbytes, 2 * plan->nbytes);
    cls->close(output);
    return st;
}
