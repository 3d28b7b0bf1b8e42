/* One .pt file. */
#include "checkpoint/inspect/inspect_impl.h"

#include <inttypes.h>
#include <stdio.h>

static void put_records(struct inspect *in, const struct pt *pt)
{
    char size[INSPECT_SIZE_NBYTES];
    json_write_text(&in->w, "\nrecords\n");
    for (size_t i = 0; i < pt_n_records(pt); i++) {
        const struct pt_record *r = pt_record_at(pt, i);
        inspect_indent(in, 2);
        inspect_column(in, r->name, 24);
        json_write_format(&in->w, " %10s at byte %" PRIu64 ", crc32 %08" PRIx32 "%s\n",
                          inspect_size(r->nbytes, size), r->off, r->crc,
                          r->has_crc ? "" : " (not computed)");
    }
}

static cz_status put_file(struct inspect *in, const struct pt *pt)
{
    char size[INSPECT_SIZE_NBYTES];
    inspect_puts(in, pt_path(pt));
    json_write_format(&in->w, ": torch file, %s, %zu records\n", inspect_size(pt_nbytes(pt), size),
                      pt_n_records(pt));
    TRY(inspect_put_node(in, pt, pt_root(pt), 2));
    json_write_text(&in->w, "\n");
    if (in->options->all) put_records(in, pt);
    return CZ_OK;
}

static cz_status json_file(struct inspect *in, const struct pt *pt)
{
    json_begin_object(&in->w);
    inspect_json_string(in, "kind", "torch");
    inspect_json_string(in, "path", pt_path(pt));
    json_put_int(&in->w, "nbytes", (int64_t)pt_nbytes(pt));
    json_write_key(&in->w, "records");
    json_begin_array(&in->w);
    for (size_t i = 0; i < pt_n_records(pt); i++) {
        const struct pt_record *r = pt_record_at(pt, i);
        char crc[9];
        const int indent = in->w.indent;
        snprintf(crc, sizeof crc, "%08" PRIx32, r->crc);
        json_begin_object(&in->w);
        in->w.indent = 0;
        inspect_json_string(in, "name", r->name);
        json_put_int(&in->w, "off", (int64_t)r->off);
        json_put_int(&in->w, "nbytes", (int64_t)r->nbytes);
        inspect_json_string(in, "crc32", r->has_crc ? crc : NULL);
        json_end_object(&in->w);
        in->w.indent = indent;
    }
    json_end_array(&in->w);
    json_write_key(&in->w, "root");
    TRY(inspect_json_node(in, pt, pt_root(pt)));
    json_end_object(&in->w);
    return CZ_OK;
}

cz_status inspect_pt_file(struct inspect *in, const char *dir, const char *name)
{
    struct pt *pt;
    TRY(pt_open_in(dir, name, &pt));
    in->sums_nbytes = 0;
    cz_status st = in->options->json ? json_file(in, pt) : put_file(in, pt);
    pt_close(pt);
    return st;
}
