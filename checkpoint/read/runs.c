/* Elements of a tensor: where they are stored, and reading them. A run is the longest piece that is
 * contiguous in one file; a split tensor has one per rank. All reads go through runs, so the
 * layouts of the stages matter nowhere else. */
#include "checkpoint/read/checkpoint_impl.h"
#include "formats/file_io.h"

#include <string.h>

#define READ_PIECE_NBYTES ((size_t)16 << 10) /* on the stack, between the file and fp32 */
#define SAMPLE_NUMEL      32                 /* elements compared at either end of a tensor */

/* ---- places ---------------------------------------------------------------------------------- */

static const struct ckpt_place *place_of(const struct ckpt *ck, size_t idx, int what)
{
    const struct ckpt_entry *e = &ck->entries[idx];
    if (what == CKPT_MASTER) return &e->master;
    if (what == CKPT_MODULE) return &e->module;
    size_t state_idx = (size_t)(what - CKPT_STATE_0);
    return what >= CKPT_STATE_0 && state_idx < ck->info.n_states ? &e->states[state_idx] : NULL;
}

static cz_status not_there(const struct ckpt *ck, size_t idx, int what)
{
    const char *name = what == CKPT_MODULE ? "module" : "state";
    size_t state_idx = (size_t)(what - CKPT_STATE_0);
    if (what >= CKPT_STATE_0 && state_idx < ck->info.n_states) name = ck->states[state_idx];
    return err_set(CZ_NOTFOUND, 0, "%s: '%s' has no %s there", ck->tag_dir, ck->entries[idx].name,
                   name);
}

static cz_status find_place(const struct ckpt *ck, size_t idx, int what,
                            const struct ckpt_place **out)
{
    *out = place_of(ck, idx, what);
    return *out && (*out)->kind != PLACE_NONE ? CZ_OK : not_there(ck, idx, what);
}

bool ckpt_has_state(const struct ckpt *ck, size_t idx, size_t state_idx)
{
    return state_idx < ck->info.n_states && ck->entries[idx].states[state_idx].kind != PLACE_NONE;
}

const struct pickle_dtype *ckpt_dtype(const struct ckpt *ck, size_t idx, int what)
{
    const struct ckpt_place *place = place_of(ck, idx, what);
    return place && place->kind != PLACE_NONE ? place->dtype : NULL;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void run_set(struct ckpt_run *run, const struct ckpt_spot *spot, uint64_t elem,
                    uint64_t numel, const struct pickle_dtype *dtype)
{
    run->file_idx = spot->file_idx;
    run->file_off = spot->off + elem * dtype->size;
    run->numel = numel;
    run->dtype = dtype;
}

/* A split tensor: `shift` is its first element in the group's flat tensor (stages 1, 2), `add` its
 * offset inside each rank's part (stage 3), `part` the elements that a rank holds. */
static void place_run(const struct ckpt *ck, const struct ckpt_place *place, uint64_t elem_off,
                      uint64_t numel, struct ckpt_run *run)
{
    uint64_t left = numel - elem_off;
    if (place->kind == PLACE_WHOLE) {
        run_set(run, &place->whole, elem_off, left, place->dtype);
        return;
    }
    uint64_t at = elem_off + place->split.shift, part = place->split.part;
    uint64_t in_rank = at % part, until = part - in_rank;
    const struct ckpt_spot *spot = &ck->vecs[place->split.vec_idx].spots[at / part];
    run_set(run, spot, in_rank + place->split.add, left < until ? left : until, place->dtype);
}

cz_status ckpt_run(const struct ckpt *ck, size_t idx, int what, uint64_t elem_off,
                   struct ckpt_run *out)
{
    const struct ckpt_place *place;
    TRY(find_place(ck, idx, what, &place));
    const struct ckpt_entry *e = &ck->entries[idx];
    if (elem_off >= e->tensor.numel)
        return err_set(CZ_INVALID, 0, "'%s' has no element %llu", e->name,
                       (unsigned long long)elem_off);
    if (place->kind == PLACE_STRIDED)
        return err_set(CZ_UNSUPPORTED, 0, "%s: '%s' is stored with strides",
                       pt_path(place->strided.pt), e->name);
    place_run(ck, place, elem_off, e->tensor.numel, out);
    return CZ_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

static cz_status check_range(const struct ckpt_entry *e, uint64_t elem_off, size_t numel)
{
    if (elem_off <= e->tensor.numel && numel <= e->tensor.numel - elem_off) return CZ_OK;
    return err_set(CZ_INVALID, 0, "elements %llu to %llu of '%s', which has %llu",
                   (unsigned long long)elem_off, (unsigned long long)(elem_off + numel), e->name,
                   (unsigned long long)e->tensor.numel);
}

/* Strided tensors are left to pt_read(), which knows how to gather them. */
cz_status ckpt_read_raw(const struct ckpt *ck, size_t idx, int what, uint64_t elem_off,
                        size_t numel, void *dst)
{
    const struct ckpt_place *place;
    const struct ckpt_entry *e = &ck->entries[idx];
    TRY(find_place(ck, idx, what, &place));
    TRY(check_range(e, elem_off, numel));
    if (place->kind == PLACE_STRIDED)
        return pt_read(place->strided.pt, place->strided.t, elem_off, numel, dst);
    char *at = dst;
    while (numel > 0) {
        struct ckpt_run run;
        place_run(ck, place, elem_off, e->tensor.numel, &run);
        size_t n = run.numel < numel ? (size_t)run.numel : numel;
        int fd;
        TRY(ckpt_file_acquire(ck, run.file_idx, &fd));
        cz_status st =
            file_pread(fd, ckpt_file_path(ck, run.file_idx), at, n * run.dtype->size, run.file_off);
        if (st == CZ_OK) st = ckpt_file_check(ck, run.file_idx, fd);
        ckpt_file_release(ck, run.file_idx);
        TRY(st);
        at += n * run.dtype->size;
        elem_off += n;
        numel -= n;
    }
    return CZ_OK;
}

/* ---- widening -------------------------------------------------------------------------------- */

#define WIDEN(type, expr)                                                                          \
    do {                                                                                           \
        for (size_t i = 0; i < numel; i++) {                                                       \
            type x;                                                                                \
            memcpy(&x, (const char *)src + i * sizeof x, sizeof x);                                \
            dst[i] = (float)(expr);                                                                \
        }                                                                                          \
    } while (0)

/* To fp32. Bytes are copied out one by one because offsets in a file need not be aligned. */
static void widen(enum cz_dtype dtype, size_t numel, const void *src, float *dst)
{
    switch (dtype) {
    case DTYPE_F32: memcpy(dst, src, numel * sizeof *dst); break;
    case DTYPE_BF16: WIDEN(uint16_t, bf16_to_f32(x)); break;
    case DTYPE_F16: WIDEN(uint16_t, f16_to_f32(x)); break;
    case DTYPE_F64: WIDEN(double, x); break;
    case DTYPE_I64: WIDEN(int64_t, x); break;
    case DTYPE_I32: WIDEN(int32_t, x); break;
    case DTYPE_I16: WIDEN(int16_t, x); break;
    case DTYPE_I8: WIDEN(int8_t, x); break;
    case DTYPE_U8: WIDEN(uint8_t, x); break;
    case DTYPE_BOOL: WIDEN(uint8_t, x != 0); break;
    }
}

/* Goes through a small buffer on the stack, so that threads need no allocation for each piece. */
cz_status ckpt_read(const struct ckpt *ck, size_t idx, int what, uint64_t elem_off, size_t numel,
                    float *dst)
{
    const struct ckpt_place *place;
    TRY(find_place(ck, idx, what, &place));
    const struct pickle_dtype *dtype = place->dtype;
    const bool is_float8 = pickle_is_float8(dtype);
    if (!dtype->has_base && !is_float8)
        return err_set(CZ_UNSUPPORTED, 0, "'%s' is stored as %s, which is not read as numbers",
                       ck->entries[idx].name, dtype->torch_name);
    if (!is_float8 && dtype->base == DTYPE_F32)
        return ckpt_read_raw(ck, idx, what, elem_off, numel, dst);
    TRY(check_range(&ck->entries[idx], elem_off, numel));
    unsigned char piece[READ_PIECE_NBYTES];
    size_t most = sizeof piece / dtype->size;
    while (numel > 0) {
        size_t n = numel < most ? numel : most;
        TRY(ckpt_read_raw(ck, idx, what, elem_off, n, piece));
        if (is_float8)
            pickle_float8_widen(dtype, piece, n, dst);
        else
            widen(dtype->base, n, piece, dst);
        dst += n;
        elem_off += n;
        numel -= n;
    }
    return CZ_OK;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static float rounded(float x, enum cz_dtype dtype)
{
    if (dtype == DTYPE_BF16) return bf16_to_f32(f32_to_bf16(x));
    if (dtype == DTYPE_F16) return f16_to_f32(f32_to_f16(x));
    return x;
}

/* NaN equals NaN here: a diverged run is still its own checkpoint. */
static cz_status piece_rounds(const struct ckpt *ck, size_t idx, uint64_t off, size_t n, bool *yes)
{
    float weight[SAMPLE_NUMEL], master[SAMPLE_NUMEL];
    TRY(ckpt_read(ck, idx, CKPT_MODULE, off, n, weight));
    TRY(ckpt_read(ck, idx, CKPT_MASTER, off, n, master));
    for (size_t i = 0; i < n; i++) {
        float want = rounded(master[i], ck->entries[idx].module.dtype->base);
        bool both_nan = want != want && weight[i] != weight[i];
        if (want != weight[i] && !both_nan) *yes = false;
    }
    return CZ_OK;
}

/* Whether the 16-bit weight is the master rounded, by samples from both ends. That is enough to
 * tell two tensors of trained values apart, and reading all of a large model is not an option. */
cz_status ckpt_rounds_to_module(const struct ckpt *ck, size_t idx, bool *yes)
{
    const struct ckpt_entry *e = &ck->entries[idx];
    uint64_t numel = e->tensor.numel;
    size_t n = numel < SAMPLE_NUMEL ? (size_t)numel : SAMPLE_NUMEL;
    *yes = true;
    if (e->module.kind == PLACE_NONE || e->master.kind == PLACE_NONE) return CZ_OK;
    if (!e->module.dtype->has_base || !e->master.dtype->has_base) return CZ_OK;
    TRY(piece_rounds(ck, idx, 0, n, yes));
    return *yes ? piece_rounds(ck, idx, numel - n, n, yes) : CZ_OK;
}
