/* What the tensor-core kernels of attention share: tiles in shared memory, the two products, masks,
 * dropout. Algorithm: Dao, "FlashAttention-2", arXiv 2307.08691.
 *
 * WIDTH is the head's width D rounded up to 32, 64, 96 or 128; the columns past D are zeros in
 * shared memory and are not stored. A warp owns ROWS·16 rows of a tile (queries; keys in the pass
 * that makes dk and dv), so that what its first product gives, S[row][column], is already laid out
 * as the left operand of its second one: neither p nor ds passes through shared memory. */
#ifndef CZ_OPS_ATTENTION_ATTENTION_FLASH_CUDA_IMPL_H
#define CZ_OPS_ATTENTION_ATTENTION_FLASH_CUDA_IMPL_H

#include "device/cuda/tensor_core.h"
#include "ops/attention/attention_cuda_impl.h"

/* Whether `n` blocks with so much shared memory each run on a multiprocessor at a time. Of each,
 * CUDA keeps 1 KiB for itself. Source: NVIDIA, CUDA C++ Programming Guide, "Compute capabilities".
 */
static inline bool flash_fits(const struct device_info *gpu, size_t shared_nbytes, int n)
{
    return shared_nbytes <= gpu->shared_block_nbytes &&
           (size_t)n * (shared_nbytes + 1024) <= gpu->shared_multiprocessor_nbytes;
}

/* threadIdx.x, from which the compiler makes what it needs anew: loops of these kernels have their
 * registers full of sums. */
CUDA_FN unsigned thread_here(void)
{
    unsigned thread = threadIdx.x;
    forget_origin(&thread);
    return thread;
}

/* blockIdx.x, likewise. */
CUDA_FN unsigned block_here(void)
{
    unsigned block = blockIdx.x;
    forget_origin(&block);
    return block;
}

/* Where a block works: batch row, head, first position of its tile. Blocks count tiles of T
 * positions, then heads, then batch rows. */
struct place {
    int b, head, t0;
};

template <int TILE>
CUDA_FN struct place place_of(unsigned block, int n_heads, int T, bool last_first)
{
    const int n_tiles = (T + TILE - 1) / TILE, tile = (int)block % n_tiles;
    const int row = (int)block / n_tiles;
    return {row / n_heads, row % n_heads, (last_first ? n_tiles - 1 - tile : tile) * TILE};
}

/* ---- tiles in shared memory ------------------------------------------------------------------ */

/* Rows of WIDTH 16-bit elements. 16-byte chunk c of row r is at chunk c ^ permutation(r), so that
 * eight rows at one chunk, which is what ldmatrix reads at a time, fall on all 32 banks. */
template <int WIDTH> CUDA_FN unsigned permutation(unsigned row)
{
    return WIDTH % 64 == 0 ? row & 7 : row >> 1 & 3;
}

template <int WIDTH> CUDA_FN unsigned chunk_at(unsigned row, unsigned chunk)
{
    return row * (WIDTH * 2) + ((chunk ^ permutation<WIDTH>(row)) << 4);
}

/* Which 16 bytes of a tile a thread copies first: neighbours take neighbouring chunks (of 4 at a
 * time where the width is 96), and further rows are a multiple of 8 away, so that the permutation
 * is the same. */
template <int WIDTH, int N_THREADS> struct copies {
    static constexpr int ACROSS = WIDTH == 96 ? 4 : WIDTH / 8, ROWS = N_THREADS / ACROSS;
};

/* Start copying N_ROWS rows of a head's width, of which `n` exist; the others, hidden keys among
 * them, become zeros. `visible`: of these rows, NULL: all. Strides are below 2^23. */
template <int WIDTH, int N_ROWS, int N_THREADS>
CUDA_FN void start_tile(shared_at tile, const uint16_t *from, int stride, int n, int D,
                        const uint8_t *visible)
{
    using by = copies<WIDTH, N_THREADS>;
    constexpr int N = N_ROWS / by::ROWS; /* of a thread */
    static_assert(N <= 32, "one bit each");
    const int thread = (int)thread_here(), row = thread / by::ACROSS, chunk = thread % by::ACROSS;
    const shared_at to = tile + chunk_at<WIDTH>((unsigned)row, (unsigned)chunk);
    from += (int64_t)row * stride + chunk * 8;
    uint32_t there = ~0u; /* known before the first copy: nothing comes between copies */
    if (visible || n < N_ROWS) {
        there = 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int r = row + i * by::ROWS;
            there |= (uint32_t)(r < n && (!visible || visible[r])) << i;
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll
        for (int c = 0; c < WIDTH / 8; c += by::ACROSS)
            copy_async_16(to + i * by::ROWS * WIDTH * 2 + c * 16, from + c * 8,
                          (there >> i & 1) && (chunk + c) * 8 < D);
        from += (int64_t)(by::ROWS * stride);
    }
}

/* Where the keys, values and mask of a block's head begin: in shared memory, since the loops over
 * them have their registers full of sums. */
struct key_head {
    const uint16_t *k, *v;
    const uint8_t *visible; /* NULL: all */
};

CUDA_FN struct key_head key_head_of(const struct attention_on_gpu &a, int b, int g)
{
    return {(const uint16_t *)a.k + b * a.k_batch + g * a.D,
            (const uint16_t *)a.v + b * a.v_batch + g * a.D,
            a.key_mask ? a.key_mask + (int64_t)b * a.Tk : NULL};
}

/* N_ROWS keys, or values, from k0 on. */
template <int WIDTH, int N_ROWS, int N_THREADS>
CUDA_FN void start_keys(const struct attention_on_gpu &a, shared_at tile,
                        const volatile struct key_head *head, bool values, int k0)
{
    const int stride = (int)(values ? a.v_stride : a.k_stride);
    const uint8_t *visible = a.key_mask ? head->visible + k0 : NULL;
    start_tile<WIDTH, N_ROWS, N_THREADS>(tile, (values ? head->v : head->k) + (int64_t)k0 * stride,
                                         stride, a.Tk - k0, a.D, visible);
}

/* Where a lane's addresses for ldmatrix begin in a tile, which is aligned to 128 bytes. */
template <int WIDTH> CUDA_FN shared_at lane_begin(shared_at tile, unsigned row, unsigned chunk)
{
    return tile + row * (WIDTH * 2) + ((chunk ^ permutation<WIDTH>(row)) << 4);
}

/* Left operands (16 rows, 16 columns at a time), and transposed right ones (16 rows along k). */
template <int WIDTH> CUDA_FN shared_at lane_by_rows(shared_at tile, int row0)
{
    const unsigned lane = thread_here() % 32;
    return lane_begin<WIDTH>(tile, (unsigned)row0 + lane % 16, lane / 16);
}

/* Right operands as stored (16 rows along n, 16 columns along k), and transposed left ones. */
template <int WIDTH> CUDA_FN shared_at lane_by_columns(shared_at tile, int row0)
{
    const unsigned lane = thread_here() % 32;
    return lane_begin<WIDTH>(tile, (unsigned)row0 + lane % 8 + lane / 16 * 8, lane / 8 & 1);
}

/* The address `rows` (a multiple of 8) further down, `pair`·16 columns to the right. The
 * permutation reaches over 64 or 128 bytes, which begin at a multiple of their number; the rest is
 * added, and part of the instruction. */
template <int WIDTH> CUDA_FN shared_at lane_address(shared_at begin, int rows, int pair)
{
    constexpr int REACH = WIDTH % 64 == 0 ? 4 : 2; /* pairs */
    return (begin ^ (unsigned)(pair % REACH * 32)) +
           (unsigned)(rows * WIDTH * 2 + pair / REACH * REACH * 32);
}

/* ---- products -------------------------------------------------------------------------------- */

/* s (ROWS·16 by COLS·8) = x·yᵀ over the width; x: lane_by_rows, y: lane_by_columns. */
template <typename T, int WIDTH, int ROWS, int COLS>
CUDA_FN void multiply(float s[ROWS][COLS][4], shared_at x, shared_at y)
{
#pragma unroll
    for (int i = 0; i < ROWS * COLS * 4; i++) s[i / (COLS * 4)][i / 4 % COLS][i % 4] = 0;
#pragma unroll
    for (int k = 0; k < WIDTH / 16; k++) {
        uint32_t a[ROWS][4];
#pragma unroll
        for (int r = 0; r < ROWS; r++) load_matrices(a[r], lane_address<WIDTH>(x, 16 * r, k));
#pragma unroll
        for (int c = 0; c < COLS; c += 2) {
            uint32_t b[4];
            load_matrices(b, lane_address<WIDTH>(y, 8 * c, k));
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                mma_16x8x16<T>(s[r][c], a[r], b[0], b[1]);
                mma_16x8x16<T>(s[r][c + 1], a[r], b[2], b[3]);
            }
        }
    }
}

/* One step of sum += x·z: 16 rows of z from `row` on, whose matching columns of x are in a[]. Of
 * z's pairs of 8 columns every PARTS-th belongs to sum (z: lane_by_rows, moved to the first). */
template <typename T, int WIDTH, int PARTS, int ROWS, int COLS>
CUDA_FN void multiply_add_step(float sum[ROWS][COLS][4], const uint32_t a[ROWS][4], shared_at z,
                               int row)
{
    static_assert(COLS % 2 == 0, "by pairs");
#pragma unroll
    for (int c = 0; c < COLS; c += 2) {
        uint32_t b[4];
        load_matrices_transposed(b, lane_address<WIDTH>(z, row, c / 2 * PARTS));
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            mma_16x8x16<T>(sum[r][c], a[r], b[0], b[1]);
            mma_16x8x16<T>(sum[r][c + 1], a[r], b[2], b[3]);
        }
    }
}

/* sum (ROWS·16 by WIDTH) += p·z, p (ROWS·16 by COLS·8) in the layout of s, rounded to T, two to a
 * register; z: lane_by_rows. 16 rows of z at a time, from the first or from the last on. */
template <typename T, int WIDTH, bool LAST_FIRST, int ROWS, int COLS>
CUDA_FN void multiply_add(float sum[ROWS][WIDTH / 8][4], const uint32_t p[ROWS][COLS][2],
                          shared_at z)
{
#pragma unroll
    for (int i = 0; i < COLS; i += 2) {
        const int k = LAST_FIRST ? COLS - 2 - i : i;
        uint32_t a[ROWS][4];
#pragma unroll
        for (int e = 0; e < ROWS * 4; e++) a[e / 4][e % 4] = p[e / 4][k + e % 4 / 2][e % 2];
        multiply_add_step<T, WIDTH, 1, ROWS, WIDTH / 8>(sum, a, z, 8 * k);
    }
}

/* Over the four lanes that share a row. */
template <typename Op> CUDA_FN float quad_reduce(float x)
{
    x = Op::apply(x, __shfl_xor_sync(CUDA_ALL_LANES, x, 1));
    return Op::apply(x, __shfl_xor_sync(CUDA_ALL_LANES, x, 2));
}

/* ---- masks ----------------------------------------------------------------------------------- */

/* Which of `N` keys from k0 on exist and are not masked out: bit k % 32 of word k / 32. */
template <int N>
CUDA_FN void visible_keys(uint32_t word[N / 32], const struct attention_on_gpu &a, int b, int k0)
{
#pragma unroll
    for (int i = 0; i < N / 32; i++) {
        const int k = k0 + 32 * i + (int)threadIdx.x % 32;
        const bool is = k < a.Tk && (!a.key_mask || a.key_mask[(int64_t)b * a.Tk + k]);
        word[i] = __ballot_sync(CUDA_ALL_LANES, is);
    }
}

/* Of 32 keys from k0 on, those below n_seen that are in `word`, moved so that this lane's first key
 * in eight number c, 8c + 2t, is bit 8c. */
CUDA_FN uint32_t lane_sees(uint32_t word, int k0, int n_seen)
{
    const int n = n_seen - k0;
    const uint32_t below = n >= 32 ? ~0u : n <= 0 ? 0u : (1u << n) - 1;
    return (word & below) >> (2 * (threadIdx.x % 4));
}

/* ---- queries of a pass by keys --------------------------------------------------------------- */

/* Position of the walk over tiles of queries: head, first query. */
struct step {
    int h, q0;
};

/* Which of a thread's keys, k0 + lane / 4 + 8i, are there and visible: bit i. */
template <int ROWS> CUDA_FN unsigned keys_there(const struct attention_on_gpu &a, int b, int k0)
{
    unsigned there = 0;
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) {
        const int key = k0 + 8 * i + (int)threadIdx.x % 32 / 4;
        const bool is = key < a.Tk && (!a.key_mask || a.key_mask[(int64_t)b * a.Tk + key]);
        there |= (unsigned)is << i;
    }
    return there;
}

/* What this thread has to put beside a tile of QUERIES by put_row_value(): lse or delta of one. */
template <int QUERIES>
CUDA_FN float row_value(const struct attention_on_gpu &a, int b, const struct step &at)
{
    const int i = (int)threadIdx.x, tq = at.q0 + i % QUERIES;
    if (i >= 2 * QUERIES || tq >= a.Tq) return 0;
    return (i < QUERIES ? a.lse : a.delta)[((int64_t)b * a.H + at.h) * a.Tq + tq];
}

/* stats: QUERIES of lse in units of log 2, then delta. A row that sees no key has p = 0. */
template <int QUERIES> CUDA_FN void put_row_value(float *stats, float x)
{
    const int i = (int)threadIdx.x;
    if (i < QUERIES)
        stats[i] = x == -INFINITY ? INFINITY : x * ATTENTION_LOG2E;
    else if (i < 2 * QUERIES)
        stats[i] = x;
}

/* Raw scores of a warp's keys from k0 on, as rows, and queries from q0 on become p; those of pairs
 * that do not see each other become 0. there: which of a thread's keys, k0 + lane / 4 + 8i, are
 * visible at all: bit i. lse: of the first query on. */
template <int ROWS, int COLS>
CUDA_FN void make_p_of_keys(const struct attention_on_gpu &a, int q0, int k0, bool is_masked,
                            unsigned there, float s[ROWS][COLS][4], const float *lse)
{
    const int lane = (int)(thread_here() % 32);
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        float l[2];
        load_f32<2>(lse + 8 * c + 2 * (lane % 4), l);
#pragma unroll
        for (int e = 0; e < ROWS * 4; e++)
            s[e / 4][c][e % 4] = exp2_approx(fmaf(s[e / 4][c][e % 4], a.scale_log2, -l[e % 2]));
    }
    if (!is_masked) return;
    /* query q0 + 8c + 2t + e sees key k iff 8c + e ≥ k − future − q0 − 2t */
    const int first = k0 + lane / 4 - a.future - q0 - 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) {
        const int from = there >> i & 1 ? first + 8 * i : 8 * COLS;
#pragma unroll
        for (int e = 0; e < COLS * 2; e++)
            if (e / 2 * 8 + e % 2 < from) s[i / 2][e / 2][i % 2 * 2 + e % 2] = 0;
    }
}

/* ---- blocks of backward -----------------------------------------------------------------------
 *
 * They have so many keys each, and add to dq in the order of their keys (turns.h). */

#define BACKWARD_KEYS 128

/* What a block does: batch row, key head, first key. In shared memory: registers are full. */
struct task {
    int b, g, k0;
};

/* Numbers count the rows (b, g) of a bundle, then its tiles of keys from the first on, which are
 * the longest when causal, then bundles. A tile's predecessor has a lower number, and started one
 * bundle's width of blocks earlier. Bundles are as narrow as that allows: what their blocks share
 * is to stay in the L2 cache. */
CUDA_FN struct task task_of(const struct attention_on_gpu &a, int number)
{
    const int n_tiles = attention_key_tiles(a.Tk), n_rows = a.B * a.G;
    const int first = number / (a.bundle * n_tiles) * a.bundle,
              width = min(a.bundle, n_rows - first);
    const int i = number - first * n_tiles, row = first + i % width;
    return {row / a.G, row % a.G, i / width * BACKWARD_KEYS};
}

/* The tile of keys that adds to dq last; the first one walks queries that see no key, too. */
template <int QUERIES> CUDA_FN int last_tile(const struct attention_on_gpu &a, int q0)
{
    return max(0, keys_seen(a, min(q0 + QUERIES, a.Tq) - 1) - 1) / BACKWARD_KEYS;
}

template <int QUERIES>
CUDA_FN int64_t dq_tile(const struct attention_on_gpu &a, int b, const struct step &at)
{
    return ((int64_t)b * a.H + at.h) * ((a.Tq + QUERIES - 1) / QUERIES) + at.q0 / QUERIES;
}

/* ---- dropout --------------------------------------------------------------------------------- */

/* Bits of the four elements of c[] in one 16 by 8 tile, rows queries and columns keys: `row` and
 * `row8` are the indices of (this lane's query, key 0) and of the query 8 further, `key` this
 * lane's first key (2t of the tile). All lanes call. Where rows start at a Philox block, two lanes
 * share one draw of each row. */
CUDA_FN unsigned kept_by_queries(const struct attention_on_gpu &a, uint64_t row, uint64_t row8,
                                 int key)
{
    if (a.Tk % 4 != 0)
        return (unsigned)draw_keeps(a, row + (uint64_t)key) |
               (unsigned)draw_keeps(a, row + (uint64_t)key + 1) << 1 |
               (unsigned)draw_keeps(a, row8 + (uint64_t)key) << 2 |
               (unsigned)draw_keeps(a, row8 + (uint64_t)key + 1) << 3;
    const bool is_odd = threadIdx.x & 1; /* this lane draws for row 8, and has keys 2, 3 of four */
    uint32_t w[4];
    draw_block(a, ((is_odd ? row8 : row) + (uint64_t)(key & ~3)) >> 2, w);
    const uint32_t other0 = __shfl_xor_sync(CUDA_ALL_LANES, is_odd ? w[0] : w[2], 1);
    const uint32_t other1 = __shfl_xor_sync(CUDA_ALL_LANES, is_odd ? w[1] : w[3], 1);
    const uint32_t first0 = is_odd ? other0 : w[0], first1 = is_odd ? other1 : w[1];
    const uint32_t second0 = is_odd ? w[2] : other0, second1 = is_odd ? w[3] : other1;
    return (unsigned)(first0 >= a.threshold) | (unsigned)(first1 >= a.threshold) << 1 |
           (unsigned)(second0 >= a.threshold) << 2 | (unsigned)(second1 >= a.threshold) << 3;
}

/* The same for rows keys and columns queries: `column` is the index of (this lane's first query,
 * key 0), `key` this lane's first key. Lanes whose g differs in its lower two bits share four
 * draws, of two queries by two groups of keys 8 apart. */
CUDA_FN unsigned kept_by_keys(const struct attention_on_gpu &a, uint64_t column, int key)
{
    const uint64_t Tk = (uint64_t)a.Tk, at = column + (uint64_t)key;
    if (a.Tk % 4 != 0)
        return (unsigned)draw_keeps(a, at) | (unsigned)draw_keeps(a, at + Tk) << 1 |
               (unsigned)draw_keeps(a, at + 8) << 2 | (unsigned)draw_keeps(a, at + Tk + 8) << 3;
    const unsigned own = threadIdx.x / 4 & 3; /* bit 0: the keys 8 further, bit 1: second query */
    const uint64_t first = column + (own & 2 ? Tk : 0) + (uint64_t)((key & ~3) + (own & 1 ? 8 : 0));
    uint32_t w[4];
    draw_block(a, first >> 2, w);
    unsigned kept = 0;
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        const unsigned from = own ^ i; /* whose draw this is; it gets our word of its number */
        const uint32_t low = from & 1 ? w[1] : w[0], high = from & 1 ? w[3] : w[2];
        const uint32_t mine = from & 2 ? high : low;
        const uint32_t word = i == 0 ? mine : __shfl_xor_sync(CUDA_ALL_LANES, mine, (int)(4 * i));
        kept |= (unsigned)(word >= a.threshold) << (2 * (from & 1) + (from >> 1));
    }
    return kept;
}

/* ---- results --------------------------------------------------------------------------------- */

/* A warp's rows of a result, times factor(row, half), rounded, into a tile of WIDTH columns, from
 * row `row0` on. The columns are those of multiply_add_step(). */
template <typename T, int WIDTH, int PARTS, int ROWS, int COLS>
CUDA_FN void put_rows(unsigned char *tile, int row0, int part, const float sum[ROWS][COLS][4],
                      const float factor[ROWS][2])
{
    const int lane = (int)(thread_here() % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) {
        const float f = factor[i / 2][i % 2];
        const unsigned row = (unsigned)(row0 + 16 * (i / 2) + 8 * (i % 2) + g);
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const unsigned chunk = (unsigned)(2 * (c / 2 * PARTS + part) + c % 2);
            const float *x = sum[i / 2][c] + 2 * (i % 2);
            *(uint32_t *)(void *)(tile + chunk_at<WIDTH>(row, chunk) + 4 * t) =
                pack_halves<T>(f == 0 ? 0.0f : f * x[0], f == 0 ? 0.0f : f * x[1]);
        }
    }
}

/* N_ROWS rows of a tile, from `row0` on, to global memory by one warp. `to`: the first of them, of
 * which `n` exist. */
template <int WIDTH, int N_ROWS>
CUDA_FN void copy_rows(const unsigned char *tile, int row0, void *to, int64_t stride, int n, int D)
{
    constexpr int CHUNKS = WIDTH / 8;
#pragma unroll 4
    for (int i = (int)(thread_here() % 32); i < N_ROWS * CHUNKS; i += 32) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        if (row >= n || chunk * 8 >= D) continue;
        *(uint4 *)(void *)((uint16_t *)to + row * stride + chunk * 8) =
            *(const uint4 *)(const void *)(tile + chunk_at<WIDTH>((unsigned)(row0 + row),
                                                                  (unsigned)chunk));
    }
}

#endif
