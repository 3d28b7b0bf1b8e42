"""Kernels in Triton for triton_oracle.py: products of every layout, attention forward and backward,
and kernels that use what surrounds products (reductions, scans, shuffles, atomics, conversions).

Triton compiles the functions of this file from their source; nothing else is run of it."""
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def matmul(a, b, c, M, N, K, a_row, a_col, b_row, b_col, BM: tl.constexpr, BN: tl.constexpr,
           BK: tl.constexpr, PRECISION: tl.constexpr):
    """c (M,N) fp32 = a (M,K) b (K,N); strides in elements. K need not be a multiple of BK."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    col = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a += row[:, None] * a_row + k[None, :] * a_col
    b += k[:, None] * b_row + col[None, :] * b_col
    sums = tl.zeros((BM, BN), tl.float32)
    for at in range(0, K, BK):
        x = tl.load(a, mask=k[None, :] < K - at, other=0.0)
        y = tl.load(b, mask=k[:, None] < K - at, other=0.0)
        sums = tl.dot(x, y, sums, input_precision=PRECISION)
        a += BK * a_col
        b += BK * b_row
    tl.store(c + row[:, None] * N + col[None, :], sums, mask=(row[:, None] < M) & (col[None, :] < N))


@triton.jit
def attention(q, k, v, o, lse, scale, T, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
              CAUSAL: tl.constexpr):
    """One head a block row: o (H,T,D) = softmax(scale q k^T) v in 16 bits, lse (H,T) base 2."""
    first = tl.program_id(0) * BM
    head = tl.program_id(1) * T * D
    row, key, d = first + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    x = tl.load(q + head + row[:, None] * D + d[None, :])
    most = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    sums = tl.zeros((BM, D), tl.float32)
    end = first + BM if CAUSAL else T
    for at in range(0, end, BN):
        kt = tl.load(k + head + (at + key)[None, :] * D + d[:, None])
        s = tl.dot(x, kt) * (scale * 1.4426950408889634)
        if CAUSAL:
            s = tl.where(row[:, None] >= (at + key)[None, :], s, float("-inf"))
        new = tl.maximum(most, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        shrink = tl.exp2(most - new)
        total = total * shrink + tl.sum(p, 1)
        y = tl.load(v + head + (at + key)[:, None] * D + d[None, :])
        sums = tl.dot(p.to(y.dtype), y, sums * shrink[:, None])
        most = new
    tl.store(o + head + row[:, None] * D + d[None, :], (sums / total[:, None]).to(o.dtype.element_ty))
    tl.store(lse + tl.program_id(1) * T + row, most + tl.log2(total))


@triton.jit
def attention_backward(q, k, v, do, lse, delta, dq, dk, dv, scale, T, BM: tl.constexpr,
                       BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    """Five products for a tile of keys: dk and dv (H,T,D) fp32 are written, dq fp32 is added to."""
    first = tl.program_id(0) * BN
    head = tl.program_id(1) * T * D
    key, query, d = first + tl.arange(0, BN), tl.arange(0, BM), tl.arange(0, D)
    keys = tl.load(k + head + key[:, None] * D + d[None, :])
    values = tl.load(v + head + key[:, None] * D + d[None, :])
    sum_k = tl.zeros((BN, D), tl.float32)
    sum_v = tl.zeros((BN, D), tl.float32)
    for at in range((first // BM) * BM if CAUSAL else 0, T, BM):
        row = at + query
        x = tl.load(q + head + row[:, None] * D + d[None, :])
        g = tl.load(do + head + row[:, None] * D + d[None, :])
        l = tl.load(lse + tl.program_id(1) * T + row)
        p = tl.exp2(tl.dot(keys, tl.trans(x)) * (scale * 1.4426950408889634) - l[None, :])
        if CAUSAL:
            p = tl.where(row[None, :] >= key[:, None], p, 0.0)
        sum_v = tl.dot(p.to(g.dtype), g, sum_v)
        dp = tl.dot(values, tl.trans(g))
        ds = (p * (dp - tl.load(delta + tl.program_id(1) * T + row)[None, :]) * scale).to(x.dtype)
        sum_k = tl.dot(ds, x, sum_k)
        part = tl.dot(tl.trans(ds), keys)
        tl.atomic_add(dq + head + row[:, None] * D + d[None, :], part, sem="relaxed")
    tl.store(dk + head + key[:, None] * D + d[None, :], sum_k)
    tl.store(dv + head + key[:, None] * D + d[None, :], sum_v)


@triton.jit
def layernorm(x, w, b, y, mean, rstd, C, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    value = tl.load(x + row * C + c, mask=c < C, other=0.0).to(tl.float32)
    m = tl.sum(value, 0) / C
    off = tl.where(c < C, value - m, 0.0)
    r = 1 / tl.sqrt(tl.sum(off * off, 0) / C + eps)
    out = off * r * tl.load(w + c, mask=c < C) + tl.load(b + c, mask=c < C)
    tl.store(y + row * C + c, out.to(y.dtype.element_ty), mask=c < C)
    tl.store(mean + row, m)
    tl.store(rstd + row, r)


@triton.jit
def softmax(x, y, C, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    value = tl.load(x + row * C + c, mask=c < C, other=float("-inf")).to(tl.float32)
    e = tl.exp(value - tl.max(value, 0))
    tl.store(y + row * C + c, (e / tl.sum(e, 0)).to(y.dtype.element_ty), mask=c < C)


@triton.jit
def columns(x, y, R, C, BR: tl.constexpr, BC: tl.constexpr):
    """y (C) = sums of columns, in a tile whose rows are in several warps."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    sums = tl.zeros((BC,), tl.float32)
    for at in range(0, R, BR):
        r = at + tl.arange(0, BR)
        sums += tl.sum(tl.load(x + r[:, None] * C + c[None, :], mask=(r[:, None] < R) & (c[None, :] < C),
                               other=0.0), 0)
    tl.store(y + c, sums, mask=c < C)


@triton.jit
def scans(x, sums, products, back, R: tl.constexpr, C: tl.constexpr):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    value = tl.load(x + at)
    tl.store(sums + at, tl.cumsum(value, 1))
    tl.store(products + at, tl.cumprod(value, 0))
    tl.store(back + at, tl.cumsum(value, 1, reverse=True))


@triton.jit
def order(x, sorted_, least, most, turned, R: tl.constexpr, C: tl.constexpr):
    """Rows sorted, where their least and greatest are, and the tile turned."""
    r, c = tl.arange(0, R), tl.arange(0, C)
    value = tl.load(x + r[:, None] * C + c[None, :])
    tl.store(sorted_ + r[:, None] * C + c[None, :], tl.sort(value))
    tl.store(least + r, tl.argmin(value, 1))
    tl.store(most + r, tl.argmax(value, 1))
    tl.store(turned + c[:, None] * R + r[None, :], tl.trans(value))


@triton.jit
def atomics(x, count, sums, halves, most, least, bits, n, BLOCK: tl.constexpr):
    """Into 16 cells each: how many, sums in fp32 and fp16, greatest, least, bits."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=0)
    cell = value & 15
    tl.atomic_add(count + cell, 1, mask=i < n)
    tl.atomic_add(sums + cell, value.to(tl.float32), mask=i < n)
    tl.atomic_add(halves + cell, (value & 3).to(tl.float16), mask=i < n)
    tl.atomic_max(most + cell, value, mask=i < n)
    tl.atomic_min(least + cell, value, mask=i < n)
    tl.atomic_or(bits + cell, value, mask=i < n)


@triton.jit
def turns(lock, total, C, BLOCK: tl.constexpr):
    """Blocks add to a row one after another, behind a lock."""
    c = tl.arange(0, BLOCK)
    while tl.atomic_cas(lock, 0, 1, sem="acquire") == 1:
        pass
    row = tl.load(total + c, mask=c < C)
    tl.store(total + c, row + c * (tl.program_id(0) + 1), mask=c < C)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0, sem="release")


@triton.jit
def casts(x, half, brain, single, whole, small, back, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    h = value.to(tl.float16)
    b = value.to(tl.bfloat16)
    tl.store(half + i, h, mask=i < n)
    tl.store(brain + i, b, mask=i < n)
    tl.store(single + i, h.to(tl.float32) + b.to(tl.float32), mask=i < n)
    tl.store(whole + i, value.to(tl.int32), mask=i < n)
    tl.store(small + i, value.to(tl.int8), mask=i < n)
    tl.store(back + i, value.to(tl.int16).to(tl.float32) + value.to(tl.int64).to(tl.float32), mask=i < n)


@triton.jit
def functions(x, y, out, n, BLOCK: tl.constexpr):
    """out (11,n)"""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=1.0)
    b = tl.load(y + i, mask=i < n, other=1.0)
    tl.store(out + i, tl.exp2(a), mask=i < n)
    tl.store(out + n + i, tl.log2(b), mask=i < n)
    tl.store(out + 2 * n + i, tl.sqrt(b), mask=i < n)
    tl.store(out + 3 * n + i, tl.rsqrt(b), mask=i < n)
    tl.store(out + 4 * n + i, a / b, mask=i < n)
    tl.store(out + 5 * n + i, tl.div_rn(a, b), mask=i < n)
    tl.store(out + 6 * n + i, tl.sqrt_rn(b), mask=i < n)
    tl.store(out + 7 * n + i, tl.sin(a) + tl.cos(a), mask=i < n)
    tl.store(out + 8 * n + i, tl.erf(a), mask=i < n)
    tl.store(out + 9 * n + i, libdevice.tanh(a), mask=i < n)
    tl.store(out + 10 * n + i, tl.fma(a, b, tl.floor(a) + tl.ceil(b)) + tl.abs(a), mask=i < n)


@triton.jit
def integers(x, y, out, n, BLOCK: tl.constexpr):
    """out (8,n) of whole numbers"""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=1)
    b = tl.load(y + i, mask=i < n, other=1)
    tl.store(out + i, a // b, mask=i < n)
    tl.store(out + n + i, a % b, mask=i < n)
    tl.store(out + 2 * n + i, tl.umulhi(a, b), mask=i < n)
    tl.store(out + 3 * n + i, (a << (b & 31)) ^ (a >> (b & 31)), mask=i < n)
    tl.store(out + 4 * n + i, (a.to(tl.int64) * b.to(tl.int64) >> 20).to(tl.int32), mask=i < n)
    tl.store(out + 5 * n + i, tl.minimum(a, b) + tl.maximum(a, b) * 3, mask=i < n)
    tl.store(out + 6 * n + i, tl.randint(7, a), mask=i < n)
    tl.store(out + 7 * n + i, libdevice.popc(a) + libdevice.clz(b), mask=i < n)


@triton.jit
def histogram(x, counts, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=0)
    tl.store(counts + tl.program_id(0) * BINS + tl.arange(0, BINS), tl.histogram(value, BINS, i < n))
