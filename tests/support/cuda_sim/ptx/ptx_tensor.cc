/* Matrices of a warp: mma.sync and ldmatrix, with the register layouts of the PTX ISA. With
 * g = lane / 4 and t = lane % 4, of m16n8k16:
 *   A  a0 (g, 2t..)  a1 (g+8, 2t..)  a2 (g, 2t+8..)  a3 (g+8, 2t+8..)
 *   B  b0 (2t.., g)  b1 (2t+8.., g)
 *   C  c0 c1 (g, 2t..)   c2 c3 (g+8, 2t..) */
#include "ptx_access.h"
#include "ptx_lanes.h"

#include <immintrin.h>
#include <string.h>

namespace {

float value_of(uint16_t bits, bool is_bf16)
{
    return is_bf16 ? ptx_float((uint32_t)bits << 16) : _cvtsh_ss(bits);
}

struct fragments {
    float a[16][16], b[16][8], c[16][8];
};

void gather(ptx_warp &w, const ptx_op &o, fragments *f)
{
    const int32_t *more = w.more(o) + 4;
    const bool is_bf16 = o.form & 1;
    for (int r = 0; r < 4; r++) {
        const uint32_t *a = w.from<uint32_t>(more[r]);
        const float *c = w.from<float>(more[6 + r]);
        for (int l = 0; l < PTX_WARP; l++) {
            const int g = l / 4, t = l % 4;
            float *at = &f->a[g + 8 * (r & 1)][2 * t + 8 * (r >> 1)];
            at[0] = value_of((uint16_t)a[l], is_bf16);
            at[1] = value_of((uint16_t)(a[l] >> 16), is_bf16);
            f->c[g + 8 * (r >> 1)][2 * t + (r & 1)] = c[l];
        }
    }
    for (int r = 0; r < 2; r++) {
        const uint32_t *b = w.from<uint32_t>(more[4 + r]);
        for (int l = 0; l < PTX_WARP; l++) {
            const int g = l / 4, t = l % 4;
            f->b[2 * t + 8 * r][g] = value_of((uint16_t)b[l], is_bf16);
            f->b[2 * t + 8 * r + 1][g] = value_of((uint16_t)(b[l] >> 16), is_bf16);
        }
    }
}

/* Sums in double, rounded once: what the hardware's sums, whose order and rounding are its own, are
 * near to. */
void multiply(fragments *f)
{
    for (int i = 0; i < 16; i++) {
        double sum[8];
        for (int j = 0; j < 8; j++) sum[j] = 0;
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++) sum[j] += (double)f->a[i][k] * (double)f->b[k][j];
        for (int j = 0; j < 8; j++) f->c[i][j] = (float)(sum[j] + (double)f->c[i][j]);
    }
}

/* As tensor cores are known to do it: each step of eight products is cut off towards zero. */
float cut(double x)
{
    const float y = (float)x;
    if (!(y - y == 0) || (double)y == x || ((double)y < x) == (x > 0)) return y;
    return ptx_float(ptx_bits(y) - 1);
}
void multiply_cut(fragments *f)
{
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++)
            for (int half = 0; half < 16; half += 8) {
                double sum = (double)f->c[i][j];
                for (int k = half; k < half + 8; k++)
                    sum += (double)f->a[i][k] * (double)f->b[k][j];
                f->c[i][j] = cut(sum);
            }
}

/* more: d0..3, a0..3, b0..1, c0..3 */
void run_mma(ptx_warp &w, const ptx_op &o)
{
    if (!ptx_together(w, PTX_ALL_LANES)) return;
    fragments f;
    gather(w, o, &f);
    if (ptx_approx_seed == 0)
        multiply(&f);
    else
        multiply_cut(&f);
    const int32_t *more = w.more(o);
    for (int r = 0; r < 4; r++) {
        float *d = w.to<float>(more[r]);
        for (int l = 0; l < PTX_WARP; l++)
            d[l] = ptx_nan_is_one(f.c[l / 4 + 8 * (r >> 1)][2 * (l % 4) + (r & 1)]);
    }
}

void lists(ptx_builder &b, const ptx_instruction &i, size_t at, size_t n, bool is_write)
{
    const ptx_operand &x = i.operand(at);
    if (x.kind != ptx_operand::LIST || x.parts.size() != n) ptx_refuse(i, "a fragment is missing");
    for (const ptx_operand &part : x.parts) {
        if (is_write)
            b.write_more(part, 4);
        else
            b.read_more(part, 4);
    }
}

void decode_mma(ptx_builder &b, const ptx_instruction &i)
{
    const bool f16 = i.opcode == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32";
    const bool bf16 = i.opcode == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32";
    if (!f16 && !bf16) ptx_refuse(i, "this product is not known to the interpreter");
    b.op.run = run_mma;
    b.op.form = bf16;
    lists(b, i, 0, 4, true);
    lists(b, i, 1, 4, false);
    lists(b, i, 2, 2, false);
    lists(b, i, 3, 4, false);
}

/* ---- ldmatrix, stmatrix ---- */

/* Lane i brings the address of row i % 8 of matrix i / 8, and has of each matrix the elements
 * (g, 2t..) or, transposed, (2t.., g). form: bit 1: transposed; more: a register per matrix. */
uint16_t rows[4][8][8];

uint32_t lanes_with_rows(const ptx_op &o)
{
    return o.n_more == 4 ? PTX_ALL_LANES : (1u << 8 * o.n_more) - 1;
}

void access_rows(ptx_warp &w, const ptx_op &o, uint32_t lanes, ptx_touch touch, ptx_access *a)
{
    w.mask = lanes;
    ptx_access_lanes(w, o, 1, touch, a);
    w.mask = PTX_ALL_LANES;
}

void run_ldmatrix(ptx_warp &w, const ptx_op &o)
{
    if (!ptx_together(w, PTX_ALL_LANES)) return;
    ptx_access a;
    access_rows(w, o, lanes_with_rows(o), PTX_READ, &a);
    const bool across = o.form & 2;
    for (int m = 0; m < o.n_more; m++) {
        for (int r = 0; r < 8; r++) memcpy(rows[m][r], a.at[8 * m + r], 16);
        uint32_t *d = w.to<uint32_t>(w.more(o)[m]);
        for (int l = 0; l < PTX_WARP; l++) {
            const int g = l / 4, t = l % 4;
            const uint16_t low = across ? rows[m][2 * t][g] : rows[m][g][2 * t];
            const uint16_t high = across ? rows[m][2 * t + 1][g] : rows[m][g][2 * t + 1];
            d[l] = (uint32_t)high << 16 | low;
        }
    }
}

void run_stmatrix(ptx_warp &w, const ptx_op &o)
{
    if (!ptx_together(w, PTX_ALL_LANES)) return;
    const bool across = o.form & 2;
    for (int m = 0; m < o.n_more; m++) {
        const uint32_t *s = w.from<uint32_t>(w.more(o)[m]);
        for (int l = 0; l < PTX_WARP; l++) {
            const int g = l / 4, t = l % 4;
            rows[m][across ? 2 * t : g][across ? g : 2 * t] = (uint16_t)s[l];
            rows[m][across ? 2 * t + 1 : g][across ? g : 2 * t + 1] = (uint16_t)(s[l] >> 16);
        }
    }
    ptx_access a;
    uint32_t lanes = lanes_with_rows(o);
    ptx_addresses(w, o, 1, a.address);
    if (o.space == PTX_SHARED)
        for (int l = 0; l < 8 * o.n_more; l++)
            if (ptx_is_echo(w, l, a.address[l], rows[l / 8][l % 8], 16)) lanes &= ~(1u << l);
    access_rows(w, o, lanes, PTX_WRITE, &a);
    for (; lanes; lanes &= lanes - 1) {
        const int l = __builtin_ctz(lanes);
        memcpy(a.at[l], rows[l / 8][l % 8], 16);
    }
}

void decode_matrix(ptx_builder &b, const ptx_instruction &i)
{
    const bool is_load = i.parts[0] == "ldmatrix";
    const size_t n = i.has("x4") ? 4 : i.has("x2") ? 2 : 1;
    if (!i.has("m8n8") || i.type() != "b16") ptx_refuse(i, "these matrices are not known");
    b.op.run = is_load ? run_ldmatrix : run_stmatrix;
    b.op.space = i.has("shared") || i.has("shared::cta") ? PTX_SHARED : PTX_GENERIC;
    b.op.nbytes = 16;
    b.address(1, i.operand(is_load ? 1 : 0));
    if (i.has("trans")) b.op.form |= 2;
    lists(b, i, is_load ? 0 : 1, n, is_load);
}

} // namespace

ptx_family ptx_find_tensor(const std::string &base)
{
    if (base == "mma") return decode_mma;
    if (base == "ldmatrix" || base == "stmatrix") return decode_matrix;
    return nullptr;
}
