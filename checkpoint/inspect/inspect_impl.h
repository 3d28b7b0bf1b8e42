/* What the parts of inspect share: text that is safe on a terminal, JSON of any text, sums. */
#ifndef CZ_CHECKPOINT_INSPECT_INSPECT_IMPL_H
#define CZ_CHECKPOINT_INSPECT_INSPECT_IMPL_H

#include "checkpoint/read/checkpoint.h"
#include "formats/json/json_write.h"
#include "formats/pt/pt.h"
#include "formats/safetensors/safetensors.h"
#include <czero/checkpoint.h>

/* One output, in one of the two forms. */
struct inspect {
    const struct cz_inspect_options *options;
    struct json_writer w; /* of either form: the text is written to `out` when it is complete */
    size_t n_nodes;       /* pickled values shown so far, against trees that unfold without end */
    uint64_t sums_nbytes; /* of the elements summed so far, against views that repeat them */
};
#define INSPECT_NODES_MAX 5000000

/* One more. Errors: CZ_UNSUPPORTED (too many). */
cz_status inspect_count_node(struct inspect *in);

/* ---- text ------------------------------------------------------------------------------------ */

/* Text from the file, escaped for one line (base/printable.h). */
void inspect_put(struct inspect *in, const char *text, size_t n);
void inspect_puts(struct inspect *in, const char *text);

/* `n` spaces. */
void inspect_indent(struct inspect *in, int n);

/* At least `width` columns of ASCII text. */
void inspect_column(struct inspect *in, const char *text, int width);

/* "(256, 64)", "(64,)", "()": as Python writes a shape. */
#define INSPECT_SHAPE_NBYTES 400
const char *inspect_shape(const int64_t *shape, size_t ndim, char text[INSPECT_SHAPE_NBYTES]);

/* "1.7 MB" (decimal, as file managers do), "812 bytes" */
#define INSPECT_SIZE_NBYTES 32
const char *inspect_size(uint64_t nbytes, char text[INSPECT_SIZE_NBYTES]);

/* Which of n entries to show: of long lists the first and the last few, unless --all. */
struct inspect_window {
    size_t head, tail_begin; /* [0, head) and [tail_begin, n) */
};
struct inspect_window inspect_window(const struct inspect *in, size_t n, size_t n_max);

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Strings of any bytes (json_write_string_n). */
void inspect_json_text(struct inspect *in, const char *text, size_t n);
void inspect_json_key(struct inspect *in, const char *key, size_t n);

void inspect_json_string(struct inspect *in, const char *key, const char *value); /* NULL: null */
void inspect_json_shape(struct inspect *in, const int64_t *shape, size_t ndim);   /* key "shape" */

/* A number; infinities and NaN, which JSON has not, as strings. */
void inspect_json_double(struct inspect *in, double value);

/* Our state file, when the tag has one: a line "run", or the member "run". Errors: CZ_CORRUPT,
 * CZ_IO.
 */
cz_status inspect_run(struct inspect *in, const char *tag_dir);

/* ---- sums ------------------------------------------------------------------------------------ */

struct inspect_sums {
    uint32_t crc;          /* of the elements' bytes, in order */
    bool has_values;       /* min … were taken: the type is a number */
    double min, max, mean; /* of the finite ones */
    uint64_t n_finite, n_nonfinite;
};

/* Where elements come from, in pieces of at most INSPECT_PIECE_NUMEL. */
#define INSPECT_PIECE_NUMEL 65536
struct inspect_source {
    const void *of;
    /* Either may fail; CZ_UNSUPPORTED from `values`: no numbers. */
    cz_status (*bytes)(const void *of, uint64_t off, size_t numel, void *dst);
    cz_status (*values)(const void *of, uint64_t off, size_t numel, float *dst);
    uint64_t numel;
    size_t elem_nbytes; /* 0: elements of less than a byte */
};
cz_status inspect_sum(const struct inspect_source *source, struct inspect_sums *out);
cz_status inspect_sum_tensor(struct inspect *in, const struct pt *pt, const struct pickle_tensor *t,
                             struct inspect_sums *out);
void inspect_put_sums(struct inspect *in, const struct inspect_sums *s);
void inspect_json_sums(struct inspect *in, const struct inspect_sums *s); /* members */

/* ---- kinds ----------------------------------------------------------------------------------- */

cz_status inspect_pt_file(struct inspect *in, const char *dir, const char *name);
cz_status inspect_safetensors(struct inspect *in, struct safetensors *st);
cz_status inspect_checkpoint(struct inspect *in, const struct ckpt *ck);

/* A pickled value: a tree for people, or JSON. pt: the file that it is from, for sums; NULL: none.
 */
cz_status inspect_put_node(struct inspect *in, const struct pt *pt, const struct pickle_node *node,
                           int indent);
cz_status inspect_json_node(struct inspect *in, const struct pt *pt,
                            const struct pickle_node *node);

#endif
