/* Megatron's index (.idx): the lengths of documents and the type of tokens in the .bin beside it.
 * Only the concatenation matters here; documents are followed in their order.
 *
 * DeepSpeed's writer (runtime/data_pipeline, indexed_dataset.py) makes the same file with other
 * codes for the last three types: 6, 7, 8 are uint16, uint32, uint64 there, and float64, float32,
 * uint16 in Megatron's. The pointers tell: from one sequence to the next they grow by its bytes. */
#include "data/corpus/store_impl.h"
#include "formats/file_io.h"

#include <string.h>

#define IDX_MAGIC         "MMIDIDX\0\0"
#define IDX_MAGIC_NBYTES  9
#define IDX_HEADER_NBYTES 34
#define PIECE_N           1024 /* sequences or marks read at once: an index may be larger than memory */

struct idx {
    const struct token_file *file;
    const char *path;
    uint64_t nbytes;
    uint64_t n_sequences, n_marks;
    enum token_kind kind;
    int code;                         /* of the type, in the header */
    uint64_t lengths, offsets, marks; /* where they begin in the file */
};

static uint64_t load_u64(const unsigned char *src)
{
    uint64_t v;
    memcpy(&v, src, sizeof v);
    return v;
}

static int64_t load_i64(const unsigned char *src)
{
    int64_t v;
    memcpy(&v, src, sizeof v);
    return v;
}

static int64_t load_i32(const unsigned char *src)
{
    int32_t v;
    memcpy(&v, src, sizeof v);
    return v;
}

/* By code and bytes per element; 0: of any. A float32 of Megatron's looks like a uint32 of
 * DeepSpeed's, which is what a set of tokens is; its values would be far beyond any vocabulary.
 * DeepSpeed's uint64 holds ids as int64 does. */
static cz_status find_kind(struct idx *idx, uint64_t width)
{
    static const struct {
        int code;
        uint64_t width;
        enum token_kind kind;
    } codes[] = {{1, 0, TOKEN_U8},  {2, 0, TOKEN_I8},  {3, 0, TOKEN_I16},
                 {4, 0, TOKEN_I32}, {5, 0, TOKEN_I64}, {6, 2, TOKEN_U16},
                 {7, 4, TOKEN_U32}, {8, 8, TOKEN_I64}, {8, 0, TOKEN_U16}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(codes); i++) {
        if (codes[i].code != idx->code || (codes[i].width != 0 && codes[i].width != width))
            continue;
        idx->kind = codes[i].kind;
        return CZ_OK;
    }
    if (idx->code == 6 || idx->code == 7)
        return err_set(CZ_UNSUPPORTED, 0, "%s: contains floating-point data, not tokens",
                       idx->path);
    return err_set(CZ_CORRUPT, 0, "%s: unknown dtype code %d", idx->path, idx->code);
}

/* Lengths are compared by division: counts from a damaged file may not be multiplied yet. */
static cz_status parse_header(struct idx *idx)
{
    if (idx->nbytes < IDX_HEADER_NBYTES)
        return err_set(CZ_CORRUPT, 0, "%s: truncated: %llu bytes are too few for the header of %d",
                       idx->path, (unsigned long long)idx->nbytes, IDX_HEADER_NBYTES);
    unsigned char header[IDX_HEADER_NBYTES];
    TRY(store_bytes(idx->file, 0, sizeof header, header));
    if (memcmp(header, IDX_MAGIC, IDX_MAGIC_NBYTES) != 0)
        return err_set(CZ_CORRUPT, 0, "%s: does not begin with Megatron's magic MMIDIDX",
                       idx->path);
    uint64_t version = load_u64(header + 9);
    if (version != 1)
        return err_set(CZ_VERSION, 0, "%s: version %llu of Megatron's index; 1 is read", idx->path,
                       (unsigned long long)version);
    idx->code = header[17];
    if (idx->code < 1 || idx->code > 8) return find_kind(idx, 0);
    idx->n_sequences = load_u64(header + 18);
    idx->n_marks = load_u64(header + 26);
    uint64_t left = idx->nbytes - IDX_HEADER_NBYTES;
    bool fits = idx->n_sequences <= left / 12 && idx->n_marks <= (left - 12 * idx->n_sequences) / 8;
    if (fits) left -= 12 * idx->n_sequences + 8 * idx->n_marks;
    /* A byte per sequence at the end: modes, which only multimodal sets have. */
    if (fits && left != 0 && left == idx->n_sequences)
        return err_set(CZ_UNSUPPORTED, 0, "%s: a multimodal index; only tokens are read",
                       idx->path);
    if (!fits || left != 0)
        return err_set(CZ_CORRUPT, 0,
                       "%s: %s: %llu sequences and %llu document marks do not make its %llu bytes",
                       idx->path, fits ? "damaged" : "truncated",
                       (unsigned long long)idx->n_sequences, (unsigned long long)idx->n_marks,
                       (unsigned long long)idx->nbytes);
    idx->lengths = IDX_HEADER_NBYTES;
    idx->offsets = idx->lengths + 4 * idx->n_sequences;
    idx->marks = idx->offsets + 8 * idx->n_sequences;
    return CZ_OK;
}

static size_t piece_of(uint64_t n_left)
{
    return n_left < PIECE_N ? (size_t)n_left : PIECE_N;
}

/* Bytes per element. Where a sequence's successor is behind it, the distance between their
 * pointers over its length; else all bytes over all lengths. 0: it cannot be told. */
static cz_status find_width(const struct idx *idx, uint64_t bin_nbytes, uint64_t *width)
{
    unsigned char lengths[4 * PIECE_N], offsets[16];
    uint64_t n_tokens = 0;
    *width = 0;
    for (uint64_t i = 0; i < idx->n_sequences; i++) {
        const size_t at = i % PIECE_N, n = piece_of(idx->n_sequences - i);
        if (at == 0) TRY(store_bytes(idx->file, idx->lengths + 4 * i, 4 * n, lengths));
        const int64_t length = load_i32(lengths + 4 * at);
        if (length <= 0) continue;
        n_tokens += (uint64_t)length;
        if (i + 1 == idx->n_sequences) break;
        TRY(store_bytes(idx->file, idx->offsets + 8 * i, sizeof offsets, offsets));
        const uint64_t begin = load_u64(offsets), end = load_u64(offsets + 8);
        if (end <= begin || (end - begin) % (uint64_t)length != 0) continue;
        *width = (end - begin) / (uint64_t)length;
        return CZ_OK;
    }
    if (n_tokens > 0 && bin_nbytes % n_tokens == 0) *width = bin_nbytes / n_tokens;
    return CZ_OK;
}

static cz_status check_marks(const struct idx *idx)
{
    unsigned char marks[8 * PIECE_N];
    int64_t last = 0;
    for (uint64_t d = 0; d < idx->n_marks; d++) {
        if (d % PIECE_N == 0)
            TRY(store_bytes(idx->file, idx->marks + 8 * d, 8 * piece_of(idx->n_marks - d), marks));
        int64_t mark = load_i64(marks + 8 * (d % PIECE_N));
        if (mark < last || (uint64_t)mark > idx->n_sequences || (d == 0 && mark != 0))
            return err_set(CZ_CORRUPT, 0,
                           "%s: document %llu starts at sequence %lld (there are %llu)", idx->path,
                           (unsigned long long)d, (long long)mark,
                           (unsigned long long)idx->n_sequences);
        last = mark;
    }
    if (idx->n_marks > 0 && (uint64_t)last != idx->n_sequences)
        return err_set(CZ_CORRUPT, 0, "%s: the last document ends at sequence %lld of %llu",
                       idx->path, (long long)last, (unsigned long long)idx->n_sequences);
    return CZ_OK;
}

static cz_status add_sequences(struct token_store *s, const struct idx *idx, size_t bin_idx)
{
    const struct token_file *bin = &s->files[bin_idx];
    const uint64_t width = token_kind_size(idx->kind);
    unsigned char lengths[4 * PIECE_N], offsets[8 * PIECE_N];
    uint64_t end_max = 0, before = s->n_tokens;
    for (uint64_t i = 0; i < idx->n_sequences; i++) {
        const size_t at = i % PIECE_N, n = piece_of(idx->n_sequences - i);
        if (at == 0) TRY(store_bytes(idx->file, idx->lengths + 4 * i, 4 * n, lengths));
        if (at == 0) TRY(store_bytes(idx->file, idx->offsets + 8 * i, 8 * n, offsets));
        int64_t length = load_i32(lengths + 4 * at), offset = load_i64(offsets + 8 * at);
        if (length < 0 || offset < 0 || (uint64_t)offset % width != 0)
            return err_set(CZ_CORRUPT, 0, "%s: sequence %llu: %lld tokens at byte %lld", idx->path,
                           (unsigned long long)i, (long long)length, (long long)offset);
        uint64_t end = (uint64_t)offset + (uint64_t)length * width;
        if (end > bin->nbytes)
            return err_set(CZ_CORRUPT, 0,
                           "%s: truncated: sequence %llu ends at byte %llu, the file has %llu",
                           bin->path, (unsigned long long)i, (unsigned long long)end,
                           (unsigned long long)bin->nbytes);
        if (end > end_max) end_max = end;
        TRY(store_add_run(s, bin_idx, idx->kind, (uint64_t)offset, (uint64_t)length));
    }
    if (s->n_tokens == before) return err_set(CZ_INVALID, 0, "%s: contains no tokens", idx->path);
    if (end_max != bin->nbytes)
        return err_set(CZ_CORRUPT, 0, "%s: %llu bytes, of which %s describes only %llu", bin->path,
                       (unsigned long long)bin->nbytes, idx->path, (unsigned long long)end_max);
    return CZ_OK;
}

cz_status store_add_megatron(struct token_store *s, const struct data_path *idx_path,
                             const struct data_path *bin_path)
{
    /* The index is opened by a store of its own and let go once its runs are known. */
    struct token_file file;
    struct token_store own;
    size_t file_idx, bin_idx;
    cz_status st;
    store_init(&own, &file);
    TRY_GOTO(store_open(&own, idx_path, &file_idx), done);
    struct idx idx = {.file = &file, .path = idx_path->shown, .nbytes = file.nbytes};
    TRY_GOTO(parse_header(&idx), done);
    TRY_GOTO(check_marks(&idx), done);
    TRY_GOTO(store_open(s, bin_path, &bin_idx), done);
    uint64_t width;
    TRY_GOTO(find_width(&idx, s->files[bin_idx].nbytes, &width), done);
    TRY_GOTO(find_kind(&idx, width), done);
    TRY_GOTO(add_sequences(s, &idx, bin_idx), done);
done:
    store_free(&own);
    return st;
}
