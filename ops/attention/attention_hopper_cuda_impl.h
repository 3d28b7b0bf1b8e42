/* What attention's kernels for compute capability 9.0 share: tiles in panels, products of tiles,
 * what marks hidden keys. Algorithm: Dao, "FlashAttention-2", arXiv 2307.08691; products
 * that run while the same warps work on the softmax: Shah et al., "FlashAttention-3", arXiv
 * 2407.08608.
 *
 * WIDTH, the head's, is 64 or 128: one panel or two (device/cuda/warpgroup.h). A tile is one panel
 * after the other, all its rows in each. A warpgroup owns 64 rows of a tile, a warp 16 of them, and
 * a thread's sums sum[c][0..1] are row g, columns 8c + 2t.., sum[c][2..3] row g + 8: the layout of
 * one 16-row slab in the kernels for mma.sync, whose masks these use. */
#ifndef CZ_OPS_ATTENTION_ATTENTION_HOPPER_CUDA_IMPL_H
#define CZ_OPS_ATTENTION_ATTENTION_HOPPER_CUDA_IMPL_H

#include "device/cuda/warpgroup.h"
#include "ops/attention/attention_flash_cuda_impl.h"
#include "ops/attention/attention_hopper_impl.h"

/* Bytes of a tile. */
template <int WIDTH> static __host__ __device__ constexpr int tile_nbytes(int n_rows)
{
    return n_rows * WIDTH * 2;
}

/* The first row of a thread's warpgroup, and of its warp. */
CUDA_FN int warpgroup_row(void)
{
    return (int)(thread_here() / WARPGROUP) * 64;
}

CUDA_FN int warp_row(void)
{
    return (int)(thread_here() / 32) * 16;
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Start copying N_ROWS rows, of which `n` exist; the others, hidden keys among them, become zeros.
 * `visible`: of these rows, NULL: all. Eight threads copy a row of a panel. */
template <int WIDTH, int N_ROWS, int N_THREADS>
CUDA_FN void start_panels(shared_at tile, const uint16_t *from, int64_t stride, int n,
                          const uint8_t *visible)
{
    constexpr int AT_ONCE = N_THREADS / 8;
    static_assert(AT_ONCE % 8 == 0, "a thread's rows have the same permutation");
    const int thread = (int)thread_here(), row = thread / 8, chunk = thread % 8;
    const shared_at to = tile + chunk_at<PANEL_COLUMNS>((unsigned)row, (unsigned)chunk);
    from += row * stride + chunk * 8;
#pragma unroll
    for (int i = 0; i < N_ROWS; i += AT_ONCE) {
        if (N_ROWS % AT_ONCE != 0 && row + i >= N_ROWS) break;
        const bool is = row + i < n && (!visible || visible[row + i]);
#pragma unroll
        for (int p = 0; p < WIDTH / PANEL_COLUMNS; p++)
            copy_async_16(to + (i + p * N_ROWS) * PANEL_ROW_NBYTES, from + p * PANEL_COLUMNS, is);
        from += AT_ONCE * stride;
    }
}

/* Keys, or values, from k0 on. */
template <int WIDTH, int N_ROWS, int N_THREADS>
CUDA_FN void start_key_panels(const struct attention_on_gpu &a, shared_at tile,
                              const volatile struct key_head *head, bool values, int k0)
{
    const int64_t stride = values ? a.v_stride : a.k_stride;
    const uint8_t *visible = a.key_mask ? head->visible + k0 : NULL;
    start_panels<WIDTH, N_ROWS, N_THREADS>(tile, (values ? head->v : head->k) + k0 * stride, stride,
                                           a.Tk - k0, visible);
}

/* The oldest copies of all threads are here, N groups of each at most are not, and products may
 * read them; what threads did before is done. */
template <int N> CUDA_FN void copies_to_products(void)
{
    copy_async_wait<N>();
    shared_to_products();
    __syncthreads();
}

/* ---- products ----------------------------------------------------------------------------------
 *
 * They begin here: commit and wait for them. */

/* s (64 by N) = x·yᵀ over the width: x and y are matrix_by_rows() of tiles with X_ROWS and Y_ROWS
 * rows. */
template <typename T, int WIDTH, int X_ROWS, int Y_ROWS, int N>
CUDA_FN void begin_scores(float (&s)[N / 8][4], shared_matrix x, shared_matrix y)
{
#pragma unroll
    for (int k = 0; k < WIDTH; k += 16) {
        const int panel = k / PANEL_COLUMNS, at = k % PANEL_COLUMNS * 2;
        multiply_shared<T, N, false>(s, x + ((panel * X_ROWS * PANEL_ROW_NBYTES + at) >> 4),
                                     y + ((panel * Y_ROWS * PANEL_ROW_NBYTES + at) >> 4), k > 0);
    }
}

/* sum (64 by WIDTH) += p·z: p as pack_operand() leaves it, z matrix_by_columns() of a tile with
 * K rows. */
template <typename T, int WIDTH, int K>
CUDA_FN void begin_sums(float (&sum)[WIDTH / 8][4], const uint32_t (&p)[K / 16][4], shared_matrix z)
{
#pragma unroll
    for (int k = 0; k < K; k += 16)
        multiply_registers<T, WIDTH, true>(sum, p[k / 16], z + (k * PANEL_ROW_NBYTES >> 4), true);
}

/* Rounded, as the left operand of the next product. */
template <typename T, int COLS>
CUDA_FN void pack_operand(uint32_t (&p)[COLS / 2][4], const float (&y)[COLS][4])
{
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        p[c / 2][c % 2 * 2] = pack_halves<T>(y[c][0], y[c][1]);
        p[c / 2][c % 2 * 2 + 1] = pack_halves<T>(y[c][2], y[c][3]);
    }
}

/* ---- masks ----------------------------------------------------------------------------------- */

/* Elements of keys that a row does not see become `hidden`; q: this thread's first query. */
template <int COLS>
CUDA_FN void hide_keys(const struct attention_on_gpu &a, int b, int q, int k0, float hidden,
                       float (&s)[COLS][4])
{
    uint32_t word[COLS / 4];
    visible_keys<COLS * 8>(word, a, b, k0);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int n_seen = keys_seen(a, q + 8 * half);
#pragma unroll
        for (int c = 0; c < COLS; c += 4) {
            const uint32_t seen = lane_sees(word[c / 4], k0 + 8 * c, n_seen);
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (!(seen >> (e / 2 * 8 + e % 2) & 1)) s[c + e / 2][2 * half + e % 2] = hidden;
        }
    }
}

/* ---- results --------------------------------------------------------------------------------- */

/* A warp's 16 rows of a result, times factor[half], rounded, to global memory: through its rows of
 * `tile`, which has 128. `to`: the first row, of which `n` exist. */
template <typename T, int WIDTH>
CUDA_FN void store_warp_rows(unsigned char *tile, const float (&sum)[WIDTH / 8][4],
                             const float factor[2], uint16_t *to, int64_t stride, int n)
{
    constexpr int CHUNKS = WIDTH / 8, IN_PANEL = PANEL_COLUMNS / 8, PANEL = 128 * PANEL_ROW_NBYTES;
    const int lane = (int)(thread_here() % 32), g = lane / 4, t = lane % 4;
    unsigned char *const mine = tile + warp_row() * PANEL_ROW_NBYTES;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2 * CHUNKS; i++) {
        const int c = i / 2, half = i % 2;
        const float f = factor[half], *x = sum[c] + 2 * half;
        const unsigned at = chunk_at<PANEL_COLUMNS>((unsigned)(8 * half + g), c % IN_PANEL);
        *(uint32_t *)(void *)(mine + c / IN_PANEL * PANEL + at + 4 * t) =
            pack_halves<T>(f == 0 ? 0.0f : f * x[0], f == 0 ? 0.0f : f * x[1]);
    }
    __syncwarp();
#pragma unroll 4
    for (int i = lane; i < 16 * CHUNKS; i += 32) {
        const int row = i / CHUNKS, c = i % CHUNKS;
        if (row >= n) break;
        const unsigned at = chunk_at<PANEL_COLUMNS>((unsigned)row, (unsigned)(c % IN_PANEL));
        *(uint4 *)(void *)(to + row * stride + c * 8) =
            *(const uint4 *)(const void *)(mine + c / IN_PANEL * PANEL + at);
    }
}

#endif
