/* Minimum, maximum, mean and CRC of a tensor's elements, in constant memory: pieces are read twice,
 * as bytes for the CRC and as numbers for the rest, because widening would lose what the file
 * holds. */
#include "checkpoint/inspect/inspect_impl.h"

#include "formats/crc32.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Sums are in double and in the order of the elements, so the same tensor gives the same mean in
 * every layout. */
static void count_values(struct inspect_sums *s, const float *values, size_t n, double *sum)
{
    for (size_t i = 0; i < n; i++) {
        const double v = (double)values[i];
        if (!isfinite(v)) {
            s->n_nonfinite++;
            continue;
        }
        if (s->n_finite == 0 || v < s->min) s->min = v;
        if (s->n_finite == 0 || v > s->max) s->max = v;
        s->n_finite++;
        *sum += v;
    }
}

/* A dtype that is no number (an unknown float8) still gets its CRC. */
static cz_status sum_pieces(const struct inspect_source *source, struct inspect_sums *s, void *buf)
{
    double sum = 0;
    for (uint64_t at = 0; at < source->numel; at += INSPECT_PIECE_NUMEL) {
        const uint64_t left = source->numel - at;
        const size_t n = left < INSPECT_PIECE_NUMEL ? (size_t)left : INSPECT_PIECE_NUMEL;
        TRY(source->bytes(source->of, at, n, buf));
        s->crc = crc32_update(s->crc, buf, n * source->elem_nbytes);
        if (!s->has_values) continue;
        cz_status st = source->values(source->of, at, n, buf);
        if (st == CZ_UNSUPPORTED) {
            s->has_values = false;
            err_clear();
        } else {
            TRY(st);
            count_values(s, buf, n, &sum);
        }
    }
    if (s->n_finite > 0) s->mean = sum / (double)s->n_finite;
    return CZ_OK;
}

cz_status inspect_sum(const struct inspect_source *source, struct inspect_sums *out)
{
    *out = (struct inspect_sums){.has_values = true};
    const size_t elem = source->elem_nbytes > sizeof(float) ? source->elem_nbytes : sizeof(float);
    if (source->elem_nbytes == 0)
        return err_set(CZ_UNSUPPORTED, 0, "elements of less than a byte have no sums here");
    void *buf = malloc(INSPECT_PIECE_NUMEL * elem);
    if (!buf) return err_set(CZ_NOMEM, 0, "no memory to read a tensor");
    cz_status st = sum_pieces(source, out, buf);
    free(buf);
    return st;
}

void inspect_put_sums(struct inspect *in, const struct inspect_sums *s)
{
    struct json_writer *w = &in->w;
    if (s->has_values && s->n_finite > 0)
        json_write_format(w, "  min %.6g  max %.6g  mean %.6g", s->min, s->max, s->mean);
    if (s->has_values && s->n_nonfinite > 0)
        json_write_format(w, "  %" PRIu64 " NOT FINITE", s->n_nonfinite);
    json_write_format(w, "  crc32 %08" PRIx32, s->crc);
}

static void write_value(struct inspect *in, const char *key, bool is_there, double value)
{
    json_write_key(&in->w, key);
    if (is_there)
        inspect_json_double(in, value);
    else
        json_write_null(&in->w);
}

void inspect_json_sums(struct inspect *in, const struct inspect_sums *s)
{
    const bool any = s->has_values && s->n_finite > 0;
    write_value(in, "min", any, s->min);
    write_value(in, "max", any, s->max);
    write_value(in, "mean", any, s->mean);
    if (s->has_values) json_put_int(&in->w, "nonfinite", (int64_t)s->n_nonfinite);
    char crc[9];
    snprintf(crc, sizeof crc, "%08" PRIx32, s->crc);
    inspect_json_string(in, "crc32", crc);
}

/* ---- a tensor of a .pt ----------------------------------------------------------------------- */

struct tensor_of {
    const struct pt *pt;
    const struct pickle_tensor *tensor;
};

static cz_status read_bytes(const void *of, uint64_t off, size_t numel, void *dst)
{
    const struct tensor_of *t = of;
    return pt_read(t->pt, t->tensor, off, numel, dst);
}

static cz_status read_values(const void *of, uint64_t off, size_t numel, float *dst)
{
    const struct tensor_of *t = of;
    return pt_read_f32(t->pt, t->tensor, off, numel, dst);
}

cz_status inspect_sum_tensor(struct inspect *in, const struct pt *pt, const struct pickle_tensor *t,
                             struct inspect_sums *sums)
{
    TRY(pt_count_elements(pt_path(pt), pt_nbytes(pt), &in->sums_nbytes, t->numel, t->dtype->size));
    const struct tensor_of of = {pt, t};
    const struct inspect_source source = {&of, read_bytes, read_values, t->numel, t->dtype->size};
    return inspect_sum(&source, sums);
}
