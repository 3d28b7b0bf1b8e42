/* Inputs of recomputed segments, or of all layers of micro-batches that go together, that wait in
 * host memory or in a file from forward to backward. An output here is that of all micro-batches.
 *
 * Outputs k = 0 … n − 1 of the segments in front of the last one take turns in two places of the
 * device. Forward: once output k is made it is copied out on a stream of copies, and output k + 2
 * overwrites it when that is done. The last two are read first in backward, and stay. Backward:
 * once output k is no longer read, k − 2 comes back into its place, while the segment between
 * is at work. Events order the two streams; the host waits for nothing, but for a file. */
#include "engine/chain/chain_impl.h"

#define N_PLACES ((size_t)2)

static size_t n_kept_outputs(const struct chain *c)
{
    return c->n_segments - 1;
}

bool chain_is_kept(const struct chain *c, size_t i)
{
    return c->n_kept > 0 && (i + 1) % c->segment == 0 && i / c->segment < c->n_kept;
}

/* The last two are never copied. */
static bool is_sent(const struct chain *c, size_t k)
{
    return k + N_PLACES < c->n_kept;
}

/* The layer whose output is kept output k: the last one of segment k. */
static struct chain_node *node_of(const struct chain *c, size_t k)
{
    return &c->nodes[(k + 1) * c->segment - 1];
}

/* Bytes of an output for the planned shape. */
static cz_status output_nbytes(const struct chain *c, const struct chain_node *node, size_t *nbytes)
{
    *nbytes = node->sizes.out_nbytes;
    if (chain_is_together(c)) TRY(size_mul(c->n_sets, node->out_stride, nbytes));
    if (c->options.keep_in_file) *nbytes = size_round_up(*nbytes, CHAIN_FILE_ALIGN);
    return CZ_OK;
}

cz_status chain_kept_plan(struct chain *c, size_t *block)
{
    size_t largest = 0, off[N_PLACES], nbytes;
    const bool in_file = c->options.keep_in_file && chain_is_together(c);
    if ((!c->options.keep_on_host && !in_file) || n_kept_outputs(c) <= N_PLACES) return CZ_OK;
    c->n_kept = n_kept_outputs(c);
    for (size_t k = 0; k < c->n_kept; k++) {
        struct chain_node *node = node_of(c, k);
        TRY(output_nbytes(c, node, &nbytes));
        if (nbytes > largest) largest = nbytes;
        size_t *there = c->options.keep_in_file ? &c->sizes.file : &c->sizes.kept;
        if (is_sent(c, k)) TRY(chain_place_piece(there, nbytes, &node->kept_off));
    }
    for (size_t i = 0; i < N_PLACES; i++) TRY(chain_place_piece(block, largest, &off[i]));
    for (size_t k = 0; k < c->n_kept; k++) node_of(c, k)->out_off = off[k % N_PLACES];
    return CZ_OK;
}

cz_status chain_kept_create(struct chain *c)
{
    if (c->n_kept == 0 || c->options.keep_in_file) return CZ_OK;
    struct device *device = ops_device(c->options.ops);
    for (size_t i = 0; i < N_PLACES; i++) {
        TRY(device->ops->event_create(device, &c->made[i]));
        TRY(device->ops->event_create(device, &c->freed[i]));
        TRY(device->ops->event_create(device, &c->sent[i]));
        TRY(device->ops->event_create(device, &c->fetched[i]));
    }
    return CZ_OK;
}

void chain_kept_free(struct chain *c)
{
    if (c->n_kept == 0 || c->options.keep_in_file) return;
    struct device *device = ops_device(c->options.ops);
    for (size_t i = 0; i < N_PLACES; i++) {
        struct dev_event *events[] = {c->made[i], c->freed[i], c->sent[i], c->fetched[i]};
        for (size_t k = 0; k < CZ_ARRAY_LEN(events); k++)
            if (events[k]) device->ops->event_destroy(device, events[k]);
    }
}

/* ---- during a pass -------------------------------------------------------------------------- */

/* Without a stream of their own, copies stay in the order of the layers' stream. */
static struct dev_stream *copies_of(const struct chain *c, struct dev_stream *stream)
{
    return c->memory.copies ? c->memory.copies : stream;
}

/* `then` continues where `first` is now. */
static cz_status order(struct chain *c, struct dev_event *event, struct dev_stream *first,
                       struct dev_stream *then)
{
    struct device *device = ops_device(c->options.ops);
    TRY(device->ops->event_record(device, event, first));
    return device->ops->stream_wait(device, then, event);
}

static void *on_device(const struct chain *c, size_t k)
{
    return (unsigned char *)c->memory.activations + node_of(c, k)->out_off;
}

/* Bytes of an output of this pass. */
static size_t moved_nbytes(const struct chain *c, size_t k)
{
    if (!chain_is_together(c)) return node_of(c, k)->out_nbytes;
    size_t nbytes = c->n_runs * node_of(c, k)->out_stride;
    return c->options.keep_in_file ? size_round_up(nbytes, CHAIN_FILE_ALIGN) : nbytes;
}

cz_status chain_file_wait(struct chain *c, uint64_t *ticket)
{
    const uint64_t waited = *ticket;
    *ticket = 0;
    return waited ? c->memory.file.wait(c->memory.file.user, waited) : CZ_OK;
}

/* What moves from or to a place. */
static cz_status file_wait(struct chain *c, size_t at)
{
    return chain_file_wait(c, &c->moving[at]);
}

static void *on_host(const struct chain *c, size_t k)
{
    return (unsigned char *)c->memory.kept + node_of(c, k)->kept_off;
}

/* The last pass's copies out must be over before the first place is overwritten. */
cz_status chain_kept_begin(struct chain *c, struct dev_stream *stream)
{
    if (c->n_kept == 0) return CZ_OK;
    if (c->options.keep_in_file) {
        TRY(file_wait(c, 0));
        return file_wait(c, 1);
    }
    return order(c, c->sent[0], copies_of(c, stream), stream);
}

/* Output k − 2 has the same place and may still be copied out. */
cz_status chain_kept_before_write(struct chain *c, size_t i)
{
    const size_t k = i / c->segment;
    if (!chain_is_kept(c, i) || k < N_PLACES) return CZ_OK;
    if (c->options.keep_in_file) return file_wait(c, k % N_PLACES);
    struct device *device = ops_device(c->options.ops);
    return device->ops->stream_wait(device, c->runs[0].stream, c->sent[k % N_PLACES]);
}

cz_status chain_kept_after_write(struct chain *c, size_t i)
{
    struct dev_stream *copies = copies_of(c, c->runs[0].stream);
    const size_t k = i / c->segment, at = k % N_PLACES;
    if (!chain_is_kept(c, i) || !is_sent(c, k)) return CZ_OK;
    if (c->options.keep_in_file)
        return c->memory.file.write_begin(c->memory.file.user, node_of(c, k)->kept_off,
                                          moved_nbytes(c, k), on_device(c, k), &c->moving[at]);
    struct device *device = ops_device(c->options.ops);
    TRY(order(c, c->made[at], c->runs[0].stream, copies));
    TRY(device->ops->copy(device, copies, on_host(c, k), on_device(c, k), moved_nbytes(c, k)));
    return device->ops->event_record(device, c->sent[at], copies);
}

/* The first two outputs to be read have never left the device. */
cz_status chain_kept_before_read(struct chain *c, size_t i)
{
    if (i == 0 || !chain_is_kept(c, i - 1) || !is_sent(c, (i - 1) / c->segment)) return CZ_OK;
    const size_t at = (i - 1) / c->segment % N_PLACES;
    if (c->options.keep_in_file) return file_wait(c, at);
    struct device *device = ops_device(c->options.ops);
    return device->ops->stream_wait(device, c->runs[0].stream, c->fetched[at]);
}

cz_status chain_kept_after_backward(struct chain *c, size_t i)
{
    struct dev_stream *copies = copies_of(c, c->runs[0].stream);
    if (i == 0 || !chain_is_kept(c, i - 1) || (i - 1) / c->segment < N_PLACES) return CZ_OK;
    const size_t k = (i - 1) / c->segment - N_PLACES, at = k % N_PLACES;
    if (c->options.keep_in_file) {
        TRY(file_wait(c, at)); /* a write that has not been waited for */
        return c->memory.file.read_begin(c->memory.file.user, node_of(c, k)->kept_off,
                                         moved_nbytes(c, k), on_device(c, k), &c->moving[at]);
    }
    struct device *device = ops_device(c->options.ops);
    TRY(order(c, c->freed[at], c->runs[0].stream, copies));
    TRY(device->ops->copy(device, copies, on_device(c, k), on_host(c, k), moved_nbytes(c, k)));
    return device->ops->event_record(device, c->fetched[at], copies);
}
