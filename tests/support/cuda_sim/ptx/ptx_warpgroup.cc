/* Products of a warpgroup: wgmma and what orders it.
 *
 * A warp computes its 16 rows of D when it begins a product. What hardware may still be reading
 * until wgmma.wait_group is looked at again there: it must be as it was. Operands in shared memory
 * are stored as a descriptor says: bits 0–13 address, 16–29 leading and 32–45 stride dimension byte
 * offset, each in units of 16 bytes, 49–51 base offset, 62–63 swizzle (1: 128 bytes, 2: 64, 3: 32).
 * Rows of eight lines of a swizzle's width are permuted by chunks of 16 bytes. Source: NVIDIA, PTX
 * ISA, "Asynchronous warpgroup level matrix instructions". */
#include "ptx_access.h"
#include "ptx_lanes.h"

#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#define MAX_N 256

namespace {

/* ---- operands ---- */

/* An operand of `n` rows (of m or n) by 16 (of k). */
struct matrix {
    uint32_t start, leading, stride, width; /* bytes; of a line */
    int n, swizzle;                         /* bits of the chunk's number that are permuted */
    bool by_columns;                        /* MN-major: lines run along m or n */
};

matrix describe(const ptx_warp &w, uint64_t d, int n, bool by_columns)
{
    static const struct {
        uint32_t width;
        int bits;
    } modes[] = {{16, 0}, {128, 3}, {64, 2}, {32, 1}};
    const auto &mode = modes[d >> 62];
    if ((d >> 49 & 7) != 0 || (by_columns && mode.bits == 0))
        ptx_fail(w, 0, "the interpreter does not know matrices like that of descriptor %#llx",
                 (unsigned long long)d);
    return {(uint32_t)(d & 0x3fff) << 4,
            (uint32_t)(d >> 16 & 0x3fff) << 4,
            (uint32_t)(d >> 32 & 0x3fff) << 4,
            mode.width,
            n,
            mode.bits,
            by_columns};
}

/* Where the eight elements (i, k..) along k, or (i.., k) along m or n, of a chunk begin. */
uint32_t chunk_at(const matrix &m, uint32_t i, uint32_t k)
{
    uint32_t at = m.start;
    if (m.by_columns)
        at += i * 2 / m.width * m.leading + k / 8 * m.stride + k % 8 * m.width + i * 2 % m.width;
    else if (m.swizzle == 0)
        at += i / 8 * m.stride + k / 8 * m.leading + i % 8 * 16;
    else
        at += i / 8 * m.stride + i % 8 * m.width + k * 2;
    return at ^ ((at >> 7 & ((1u << m.swizzle) - 1)) << 4);
}

/* Read it, 16 bytes at a time, as a reader of shared memory that no fence has passed by.
 * out[k][i]. Returns a sum over the bits. */
template <bool BF16>
uint64_t read_matrix(ptx_warp &w, const matrix &m, int first, float *out, int pitch)
{
    uint64_t sum = 1469598103934665603u;
    const int n_outer = m.by_columns ? 16 : m.n, n_inner = m.by_columns ? m.n : 16;
    for (int o = 0; o < n_outer; o++)
        for (int c = 0; c < n_inner; c += 8) {
            const int i = first + (m.by_columns ? c : o), k = m.by_columns ? o : c;
            const uint32_t at = chunk_at(m, (uint32_t)i, (uint32_t)k);
            uint16_t bits[8];
            uint64_t words[2];
            memcpy(bits, ptx_shared_at(w, 0, at, 16), sizeof bits);
            w.block->watch->shared_by_proxy(w, at, 16);
            memcpy(words, bits, sizeof words);
            sum = (sum ^ words[0]) * 1099511628211u;
            sum = (sum ^ words[1]) * 1099511628211u;
            for (int e = 0; e < 8; e++) {
                const float x = BF16 ? ptx_float((uint32_t)bits[e] << 16) : _cvtsh_ss(bits[e]);
                out[m.by_columns ? k * pitch + c + e : (k + e) * pitch + o] = x;
            }
        }
    return sum;
}

uint64_t read_matrix(ptx_warp &w, bool bf16, const matrix &m, int first, float *out, int pitch)
{
    return bf16 ? read_matrix<true>(w, m, first, out, pitch)
                : read_matrix<false>(w, m, first, out, pitch);
}

/* A warp's 16 rows of A in registers: a[k][i]. */
void read_registers(ptx_warp &w, bool bf16, const int32_t *slots, float *a, int pitch)
{
    for (int r = 0; r < 4; r++) {
        const uint32_t *x = w.from<uint32_t>(slots[r]);
        for (int l = 0; l < PTX_WARP; l++) {
            const int i = l / 4 + r % 2 * 8, k = l % 4 * 2 + r / 2 * 8;
            for (int e = 0; e < 2; e++) {
                const uint16_t bits = (uint16_t)(x[l] >> (16 * e));
                a[(k + e) * pitch + i] = bf16 ? ptx_float((uint32_t)bits << 16) : _cvtsh_ss(bits);
            }
        }
    }
}

/* ---- products ---- */

/* form: bit 0 bf16, bit 1 A in registers, bit 2 A by columns, bit 3 B by columns; imm: N.
 * s[1]: A's descriptor, s[2]: B's, s[3]: whether D is added to. more: D to read, D to write, A. */
void multiply(const float a[16][16], const float *b, int n, float *d, bool adds)
{
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < n; j += 4) {
            double sum[4] = {0, 0, 0, 0};
            for (int k = 0; k < 16; k++)
                for (int e = 0; e < 4; e++)
                    sum[e] += (double)a[k][i] * (double)b[k * MAX_N + j + e];
            for (int e = 0; e < 4; e++) {
                const double before = adds ? (double)d[i * n + j + e] : 0.0;
                d[i * n + j + e] = ptx_nan_is_one((float)(sum[e] + before));
            }
        }
}

uint64_t uniform(const ptx_warp &w, int32_t slot)
{
    const uint64_t *d = w.from<uint64_t>(slot);
    for (int l = 1; l < PTX_WARP; l++)
        if (d[l] != d[0]) ptx_fail(w, l, "the descriptor is another than lane 0's");
    return d[0];
}

struct operands {
    uint64_t a, b, sum;
    float left[16][16]; /* [k][i] */
    float right[16 * MAX_N];
};

void read_operands(ptx_warp &w, const ptx_op &o, operands *x)
{
    const int n = (int)o.imm, row = w.number % 4 * 16;
    x->sum = 0;
    if (!(o.form & 2)) {
        const matrix m = describe(w, x->a, 16, o.form & 4);
        x->sum = read_matrix(w, o.form & 1, m, row, &x->left[0][0], 16);
    }
    x->sum += read_matrix(w, o.form & 1, describe(w, x->b, n, o.form & 8), 0, x->right, MAX_N);
}

/* The warps of a warpgroup have to begin the same products in the same order. */
void compare_with_group(ptx_warp &w, const ptx_op &o, const operands &x, bool adds)
{
    std::vector<ptx_product> &products = w.block->products[w.number / 4];
    const ptx_product mine = {&o, x.a, x.b, adds};
    const size_t at = w.n_products++;
    if (at == products.size()) products.push_back(mine);
    const ptx_product &p = products[at];
    if (p.op != mine.op || p.a != mine.a || p.b != mine.b || p.adds != mine.adds)
        ptx_fail(w, 0, "other warps of the warpgroup began another product");
}

void run_wgmma(ptx_warp &w, const ptx_op &o)
{
    if (!ptx_together(w, PTX_ALL_LANES)) return;
    static operands x;
    static float d[16 * MAX_N];
    const int n = (int)o.imm;
    const int32_t *more = w.more(o);
    const uint32_t p = *w.from<uint32_t>(o.s[3]);
    if (p != 0 && p != PTX_ALL_LANES) ptx_fail(w, 0, "lanes differ in whether D is added to");
    if (!w.is_fenced) ptx_fail(w, 0, "no wgmma.fence is between this and the last wait");
    x.a = o.form & 2 ? 0 : uniform(w, o.s[1]);
    x.b = uniform(w, o.s[2]);
    compare_with_group(w, o, x, p != 0);
    read_operands(w, o, &x);
    if (o.form & 2) read_registers(w, o.form & 1, more + n, &x.left[0][0], 16);
    for (int r = 0; r < n / 2; r++) {
        const float *from = w.from<float>(more[r]);
        for (int l = 0; l < PTX_WARP; l++)
            d[(l / 4 + r / 2 % 2 * 8) * n + r / 4 * 8 + l % 4 * 2 + r % 2] = from[l];
    }
    multiply(x.left, x.right, n, d, p != 0);
    for (int r = 0; r < n / 2; r++) {
        float *to = w.to<float>(more[n / 2 + r]);
        for (int l = 0; l < PTX_WARP; l++)
            to[l] = d[(l / 4 + r / 2 % 2 * 8) * n + r / 4 * 8 + l % 4 * 2 + r % 2];
    }
    w.under_way.push_back({&o, x.a, x.b, x.sum, w.product_group});
}

/* ---- order ---- */

void run_fence(ptx_warp &w, const ptx_op &)
{
    if (ptx_together(w, PTX_ALL_LANES)) w.is_fenced = true;
}

void run_commit(ptx_warp &w, const ptx_op &)
{
    if (ptx_together(w, PTX_ALL_LANES)) w.product_group++;
}

/* imm: how many groups may be under way. */
void run_wait(ptx_warp &w, const ptx_op &o)
{
    if (!ptx_together(w, PTX_ALL_LANES)) return;
    static operands x;
    size_t n_kept = 0;
    for (const ptx_under_way &u : w.under_way) {
        if ((int64_t)u.group >= (int64_t)w.product_group - o.imm) {
            w.under_way[n_kept++] = u;
            continue;
        }
        x.a = u.a, x.b = u.b;
        read_operands(w, *u.op, &x);
        if (x.sum != u.sum)
            ptx_fail(w, 0, "operands of the product at PTX line %d were written before this wait",
                     u.op->line);
    }
    w.under_way.resize(n_kept);
    w.is_fenced = false;
}

void decode_product(ptx_builder &b, const ptx_instruction &i)
{
    const std::string shape = i.parts.size() > 4 ? i.parts[4] : "";
    const int n = shape.compare(0, 4, "m64n") == 0 ? atoi(shape.c_str() + 4) : 0;
    const bool bf16 = i.type() == "bf16";
    const std::string end = "k16.f32." + i.type() + "." + i.type();
    if (n < 8 || n > MAX_N || n % 8 != 0 || (!bf16 && i.type() != "f16") ||
        i.opcode.size() < end.size() ||
        i.opcode.compare(i.opcode.size() - end.size(), end.size(), end) != 0)
        ptx_refuse(i, "this product is not known to the interpreter");
    const bool in_registers = i.operand(1).kind == ptx_operand::LIST;
    if (i.operand(0).parts.size() != (size_t)n / 2) ptx_refuse(i, "D has another size");
    b.op.run = run_wgmma;
    b.op.imm = n;
    b.op.form = (uint8_t)(bf16 | in_registers << 1);
    for (const ptx_operand &d : i.operand(0).parts) b.read_more(d, 4);
    for (const ptx_operand &d : i.operand(0).parts) b.write_more(d, 4);
    if (in_registers) {
        for (const ptx_operand &a : i.operand(1).parts) b.read_more(a, 4);
    } else {
        b.read(1, i.operand(1), 8);
    }
    b.read(2, i.operand(2), 8);
    b.read(3, i.operand(3), PTX_PREDICATE);
    if (i.operand(4).bits != 1 || i.operand(5).bits != 1) ptx_refuse(i, "negated operands");
    if (!in_registers && i.operand(6).bits) b.op.form |= 4;
    if (i.operand(in_registers ? 6 : 7).bits) b.op.form |= 8;
}

/* wgmma.fence, .mma_async, .commit_group, .wait_group */
void decode_wgmma(ptx_builder &b, const ptx_instruction &i)
{
    if (i.has("mma_async")) return decode_product(b, i);
    b.op.run = i.has("fence") ? run_fence : i.has("commit_group") ? run_commit : run_wait;
    if (i.has("wait_group")) b.op.imm = (int64_t)i.operand(0).bits;
}

} // namespace

ptx_family ptx_find_warpgroup(const std::string &base)
{
    return base == "wgmma" ? decode_wgmma : nullptr;
}
