#!/usr/bin/env python3
"""Triton's PTX, which is proven on GPUs, run by the PTX interpreter of the simulated device, beside
PyTorch on the CPU: whether the interpreter reads the PTX ISA as GPUs do.

  triton_oracle.py PTX_FILE [NAME...]       PTX_FILE: build/tests/gpu_sim/ptx_file
    --list                names of the cases, which are compiled for sm_80 and sm_90 each
    --capability 80|90    one of them
    --order ORDER         CZERO_CUDA_SIM_ORDER of the runs (forward)
    --keep DIR            the PTX of each case
    --opcodes             afterwards: how often each instruction was compiled

NAME: a case, or how its name begins. Products take whole numbers whose sums are exact, so their
results have to be equal to the bit. Run with a Python that has torch and triton, without a GPU."""
import argparse
import collections
import dataclasses
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import triton_kernels as kernels

POINTERS = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16",
            torch.int32: "*i32", torch.int16: "*i16", torch.int8: "*i8", torch.int64: "*i64"}


# ---- compile, run ----

@dataclasses.dataclass
class Setting:
    """Where and how the cases run."""
    program: str
    capability: int
    order: str
    keep: pathlib.Path | None
    opcodes: collections.Counter


def compile_kernel(function, arguments, constants, capability, warps, stages):
    """As a launch from Python specialises it: numbers that 16 divides are known to be so, 1 is a
    constant."""
    signature, values, divisible = {}, dict(constants), {}
    for i, name in enumerate(function.arg_names):
        x = arguments.get(name)
        if name in constants or (isinstance(x, int) and x == 1):
            signature[name] = "constexpr"
            values[name] = constants.get(name, x)
        elif isinstance(x, torch.Tensor):
            signature[name] = POINTERS[x.dtype]
            divisible[(i,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if isinstance(x, float) else "i32"
            if isinstance(x, int) and x % 16 == 0:
                divisible[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature, values, divisible)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32),
                          options={"num_warps": warps, "num_stages": stages})


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def launch(setting, name, function, grid, arguments, warps=4, stages=2, **constants):
    """Run it. Tensors are read and written in place."""
    compiled = compile_kernel(function, arguments, constants, setting.capability, warps, stages)
    ptx, entry = compiled.asm["ptx"], compiled.metadata.name
    setting.opcodes.update(opcodes_of(ptx))
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if setting.keep:
            (setting.keep / f"{name}.sm{setting.capability}.ptx").write_text(ptx)
        (folder / "kernel.ptx").write_text(ptx)
        words, files = [], {}
        for argument, x in arguments.items():
            if isinstance(x, torch.Tensor):
                files[argument] = folder / argument
                files[argument].write_bytes(raw(x))
                words.append(f"io:{files[argument]}")
            elif not (isinstance(x, int) and x == 1):
                words.append(f"f32:{x}" if isinstance(x, float) else f"i32:{x}")
        words += ["i64:0", "i64:0"]  # Triton's scratch memory, of which these kernels need none
        run = subprocess.run(
            [setting.program, folder / "kernel.ptx", entry, ",".join(map(str, grid)),
             str(32 * compiled.metadata.num_warps), str(compiled.metadata.shared), *words],
            env={**os.environ, "CZERO_CUDA_SIM_ORDER": setting.order, "CZERO_CUDA_SIM_ECHO": "on"},
            capture_output=True, text=True)
        if run.returncode:
            raise Refused(run.stderr.strip() or f"ends with {run.returncode}")
        for argument, file in files.items():
            x = arguments[argument]
            bytes_ = bytearray(file.read_bytes())
            x.copy_(torch.frombuffer(bytes_, dtype=x.dtype).view(x.shape))
    return ptx


def opcodes_of(ptx):
    return re.findall(r"^\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_.:]*)\s[^;]*;", ptx, re.M)


class Refused(Exception):
    """The simulated device ended the run, or the PTX is not what the case is about."""


class Different(Exception):
    """Results differ."""


# ---- compare ----

def same(what, got, want):
    """To the bit."""
    if not torch.equal(got, want):
        wrong = (got != want) & ~((got != got) & (want != want))
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            raise Different(f"{what}: {int(wrong.sum())} of {got.numel()} differ, first at {at}: "
                            f"{got[at].item()}, want {want[at].item()}")


def close(what, got, want, tolerance):
    """tolerance: of the greatest size in want."""
    error = (got.double() - want.double()).abs().max().item()
    size = want.double().abs().max().item()
    if not error <= tolerance * size:
        raise Different(f"{what}: off by {error:.3g} of {size:.3g}, allowed {tolerance * size:.3g}")


def whole_numbers(generator, shape, dtype, most=4):
    return torch.randint(-most, most + 1, shape, generator=generator).to(dtype)


def normal(generator, shape, dtype, scale=1.0):
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


# ---- cases ----

CASES = {}


def case(name):
    def enter(function):
        CASES[name] = function
        return function
    return enter


#        rows, columns, k of a tile; warps, stages; tiles along each
TILES = [(64, 64, 32, 4, 2), (128, 64, 64, 4, 3), (128, 128, 32, 8, 4), (64, 128, 128, 4, 2),
         (128, 256, 64, 8, 3), (64, 16, 64, 4, 2), (32, 32, 16, 4, 2), (64, 64, 16, 4, 3),
         (16, 64, 64, 4, 2), (256, 64, 32, 8, 2)]
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def must_have(ptx, opcode):
    if opcode not in ptx:
        raise Refused(f"Triton made no {opcode} here: the case shows nothing")


def run_matmul(s, name, kind, tile, turned_a, turned_b):
    dtype = TYPES[kind]
    BM, BN, BK, warps, stages = tile
    M, N, K = 2 * BM, BN + 16, 2 * BK + 16
    g = torch.Generator().manual_seed(BM + BN + BK)
    a, b = whole_numbers(g, (M, K), dtype), whole_numbers(g, (K, N + BN - 16), dtype)
    c = torch.full((M, N), float("nan"))
    want = a.float() @ b.float()[:, :N]
    if turned_a:
        a = a.t().contiguous()
    if turned_b:
        b = b.t().contiguous()
    arguments = dict(a=a, b=b, c=c, M=M, N=N, K=K, a_row=1 if turned_a else K,
                     a_col=M if turned_a else 1, b_row=1 if turned_b else b.shape[1],
                     b_col=K if turned_b else 1)
    ptx = launch(s, name, kernels.matmul, (2, 2), arguments, warps, stages, BM=BM, BN=BN, BK=BK,
                 PRECISION="ieee")  # fp32 products are sums of FMAs, not TF32
    if kind != "f32":
        must_have(ptx, "wgmma" if s.capability == 90 and BM >= 64 else "mma.sync")
    same("c", c, want)


for kind_, tile_, (ta, tb) in itertools.product(TYPES, TILES, itertools.product((0, 1), (0, 1))):
    if kind_ == "f32" and tile_ not in TILES[:2]:
        continue
    CASES["matmul.{}.{}x{}x{}.{}{}".format(kind_, *tile_[:3], "nt"[ta], "nt"[tb])] = (
        lambda s, name, k=kind_, t=tile_, a=ta, b=tb: run_matmul(s, name, k, t, a, b))


def exact_attention(q, k, v, scale, causal):
    """In double: o, lse in base 2, p."""
    scores = scale * q.double() @ k.double().transpose(1, 2)
    if causal:
        T = scores.shape[1]
        scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
    p = scores.softmax(2)
    return p @ v.double(), scores.logsumexp(2) / torch.log(torch.tensor(2.0)).double(), p


ATTENTION = [(64, 64, 64, 4, 2), (128, 64, 64, 8, 3), (128, 128, 128, 8, 2), (64, 32, 32, 4, 3),
             (128, 64, 128, 4, 2)]


def run_attention(s, name, kind, tile, causal):
    dtype = TYPES[kind]
    BM, BN, D, warps, stages = tile
    H, T = 2, 256
    g = torch.Generator().manual_seed(D)
    q, k, v = (normal(g, (H, T, D), dtype) for _ in range(3))
    o, lse = torch.zeros_like(q), torch.zeros(H, T)
    scale = D ** -0.5
    ptx = launch(s, name, kernels.attention, (T // BM, H),
                 dict(q=q, k=k, v=v, o=o, lse=lse, scale=scale, T=T), warps, stages, BM=BM, BN=BN,
                 D=D, CAUSAL=causal)
    must_have(ptx, "wgmma" if s.capability == 90 else "mma.sync")
    want_o, want_lse, _ = exact_attention(q, k, v, scale, causal)
    close("o", o, want_o, 2 ** (-8 if kind == "bf16" else -10))  # p and o have 8 or 11 bits
    close("lse", lse, want_lse, 1e-6)


for kind_, tile_, causal_ in itertools.product(("bf16", "f16"), ATTENTION, (0, 1)):
    CASES["attention.{}.{}x{}x{}.{}".format(kind_, *tile_[:3], "causal" if causal_ else "full")] = (
        lambda s, name, k=kind_, t=tile_, c=causal_: run_attention(s, name, k, t, c))


BACKWARD = [(64, 64, 64, 4, 2), (64, 128, 64, 8, 2), (64, 64, 128, 4, 2), (32, 64, 32, 4, 3),
            (128, 64, 64, 8, 1)]


def run_backward(s, name, kind, tile, causal):
    dtype = TYPES[kind]
    BM, BN, D, warps, stages = tile
    H, T = 2, 256
    g = torch.Generator().manual_seed(D)
    q, k, v, do = (normal(g, (H, T, D), dtype) for _ in range(4))
    scale = D ** -0.5
    o, lse, p = exact_attention(q, k, v, scale, causal)
    delta = (o * do.double()).sum(2)
    dq, dk, dv = (torch.zeros(H, T, D) for _ in range(3))
    launch(s, name, kernels.attention_backward, (T // BN, H),
           dict(q=q, k=k, v=v, do=do, lse=lse.float(), delta=delta.float(), dq=dq, dk=dk, dv=dv,
                scale=scale, T=T), warps, stages, BM=BM, BN=BN, D=D, CAUSAL=causal)
    ds = p * (do.double() @ v.double().transpose(1, 2) - delta[:, :, None]) * scale
    bound = 2 ** (-7 if kind == "bf16" else -10)
    close("dv", dv, p.transpose(1, 2) @ do.double(), bound)
    close("dk", dk, ds.transpose(1, 2) @ q.double(), bound)
    close("dq", dq, ds @ k.double(), bound)


for kind_, tile_, causal_ in itertools.product(("bf16", "f16"), BACKWARD, (0, 1)):
    CASES["backward.{}.{}x{}x{}.{}".format(kind_, *tile_[:3], "causal" if causal_ else "full")] = (
        lambda s, name, k=kind_, t=tile_, c=causal_: run_backward(s, name, k, t, c))


def rows(kind, C, seed=1, R=6):
    return normal(torch.Generator().manual_seed(seed), (R, C), TYPES[kind])


def run_layernorm(s, name, kind, C, warps):
    x = rows(kind, C)
    w, b = rows("f32", C, 2, 1)[0], rows("f32", C, 3, 1)[0]
    y, mean, rstd = torch.zeros_like(x), torch.zeros(x.shape[0]), torch.zeros(x.shape[0])
    launch(s, name, kernels.layernorm, (x.shape[0],),
           dict(x=x, w=w, b=b, y=y, mean=mean, rstd=rstd, C=C, eps=1e-5), warps,
           BLOCK=triton.next_power_of_2(C))
    want = torch.nn.functional.layer_norm(x.double(), (C,), w.double(), b.double(), 1e-5)
    close("y", y, want, {"bf16": 2 ** -8, "f16": 2 ** -11}.get(kind, 2e-6))
    close("rstd", rstd, (x.double().var(1, unbiased=False) + 1e-5).rsqrt(), 1e-6)


def run_softmax(s, name, kind, C, warps):
    x = rows(kind, C)
    y = torch.zeros_like(x)
    launch(s, name, kernels.softmax, (x.shape[0],), dict(x=x, y=y, C=C), warps,
           BLOCK=triton.next_power_of_2(C))
    close("y", y, x.double().softmax(1), {"bf16": 2 ** -8, "f16": 2 ** -11}.get(kind, 1e-6))


for kind_, (C_, warps_) in itertools.product(("bf16", "f16", "f32"), ((768, 4), (1000, 8), (77, 1))):
    CASES[f"layernorm.{kind_}.{C_}"] = (
        lambda s, name, k=kind_, c=C_, w=warps_: run_layernorm(s, name, k, c, w))
    CASES[f"softmax.{kind_}.{C_}"] = (
        lambda s, name, k=kind_, c=C_, w=warps_: run_softmax(s, name, k, c, w))


@case("columns")
def run_columns(s, name):
    x = whole_numbers(torch.Generator().manual_seed(1), (300, 70), torch.float32, 50)
    y = torch.zeros(70)
    launch(s, name, kernels.columns, (3,), dict(x=x, y=y, R=300, C=70), 8, BR=64, BC=32)
    same("y", y, x.sum(0))


@case("scans")
def run_scans(s, name):
    x = 2 * torch.randint(0, 2, (32, 128), generator=torch.Generator().manual_seed(1)) - 1.0
    sums, products, back = (torch.zeros_like(x) for _ in range(3))
    launch(s, name, kernels.scans, (1,), dict(x=x, sums=sums, products=products, back=back), 4, R=32,
           C=128)
    same("sums", sums, x.cumsum(1))
    same("products", products, x.cumprod(0))
    same("back", back, x.flip(1).cumsum(1).flip(1))


@case("order")
def run_order(s, name):
    x = torch.randperm(16 * 64, generator=torch.Generator().manual_seed(1)).int().view(16, 64)
    sorted_, turned = torch.zeros_like(x), torch.zeros(64, 16, dtype=torch.int32)
    least, most = (torch.zeros(16, dtype=torch.int32) for _ in range(2))
    launch(s, name, kernels.order, (1,),
           dict(x=x, sorted_=sorted_, least=least, most=most, turned=turned), 4, R=16, C=64)
    same("sorted", sorted_, x.sort(1)[0])
    same("least", least, x.argmin(1).int())
    same("most", most, x.argmax(1).int())
    same("turned", turned, x.t())


@case("atomics")
def run_atomics(s, name):
    n = 1000
    x = torch.randint(0, 1 << 20, (n,), generator=torch.Generator().manual_seed(1)).int()
    cells = [torch.zeros(16, dtype=torch.int32), torch.zeros(16), torch.zeros(16).half(),
             torch.zeros(16, dtype=torch.int32), torch.full((16,), 1 << 30, dtype=torch.int32),
             torch.zeros(16, dtype=torch.int32)]
    names = ["count", "sums", "halves", "most", "least", "bits"]
    launch(s, name, kernels.atomics, (4,), dict(x=x, **dict(zip(names, cells)), n=n), 4, BLOCK=256)
    groups = [x[(x & 15) == i] for i in range(16)]
    same("count", cells[0], torch.tensor([len(g) for g in groups]).int())
    close("sums", cells[1], torch.stack([g.double().sum() for g in groups]), 1e-6)
    same("halves", cells[2], torch.stack([(g & 3).sum() for g in groups]).half())
    same("most", cells[3], torch.stack([g.max() for g in groups]))
    same("least", cells[4], torch.stack([g.min() for g in groups]))
    every = torch.zeros(16, dtype=torch.int32)
    for i, g in enumerate(groups):
        for value in g:
            every[i] |= value
    same("bits", cells[5], every)


@case("turns")
def run_turns(s, name):
    lock, total = torch.zeros(1, dtype=torch.int32), torch.zeros(100, dtype=torch.int32)
    launch(s, name, kernels.turns, (5,), dict(lock=lock, total=total, C=100), 4, BLOCK=128)
    same("total", total, torch.arange(100).int() * 15)
    same("lock", lock, torch.zeros(1, dtype=torch.int32))


@case("casts")
def run_casts(s, name):
    n = 500
    x = normal(torch.Generator().manual_seed(1), (n,), torch.float32, 40).clamp(-120, 120)
    x[:4] = torch.tensor([1.00390625, 1.01171875, 2049.0 / 2048, -0.0])  # ties
    out = [torch.zeros(n, dtype=t) for t in (torch.float16, torch.bfloat16, torch.float32,
                                             torch.int32, torch.int8, torch.float32)]
    launch(s, name, kernels.casts, (2,),
           dict(x=x, **dict(zip(("half", "brain", "single", "whole", "small", "back"), out)), n=n), 4,
           BLOCK=256)
    same("half", out[0], x.half())
    same("brain", out[1], x.bfloat16())
    same("single", out[2], x.half().float() + x.bfloat16().float())
    same("whole", out[3], x.int())
    same("small", out[4], x.to(torch.int8))
    same("back", out[5], x.short().float() + x.long().float())


@case("functions")
def run_functions(s, name):
    n = 700
    g = torch.Generator().manual_seed(1)
    x, y = normal(g, (n,), torch.float32, 3), normal(g, (n,), torch.float32, 3).abs() + 0.01
    out = torch.zeros(11, n)
    launch(s, name, kernels.functions, (3,), dict(x=x, y=y, out=out, n=n), 4, BLOCK=256)
    a, b = x.double(), y.double()
    want = [a.exp2(), b.log2(), b.sqrt(), b.rsqrt(), a / b, a / b, b.sqrt(), a.sin() + a.cos(),
            a.erf(), a.tanh(), a * b + a.floor() + b.ceil() + a.abs()]
    for i, exact in enumerate(want):
        if i in (5, 6):  # rounded to nearest
            same(f"function {i}", out[i], exact.float())
        else:
            close(f"function {i}", out[i], exact, 1e-6)


def as_int32(x):
    return ((x + (1 << 31)) % (1 << 32) - (1 << 31)).int()


@case("integers")
def run_integers(s, name):
    n = 600
    g = torch.Generator().manual_seed(1)
    x = torch.randint(-1 << 31, 1 << 31, (n,), generator=g).int()
    y = torch.randint(1, 1 << 16, (n,), generator=g).int()
    out = torch.zeros(8, n, dtype=torch.int32)
    launch(s, name, kernels.integers, (3,), dict(x=x, y=y, out=out, n=n), 4, BLOCK=256)
    a, b = x.long(), y.long()
    same("//", out[0], (a.sign() * (a.abs() // b)).int())  # towards zero, as C
    same("%", out[1], (a.sign() * (a.abs() % b)).int())
    same("umulhi", out[2], as_int32((a % (1 << 32)) * b >> 32))
    same("shifts", out[3], as_int32((a << (b & 31)) % (1 << 32)) ^ (a >> (b & 31)).int())
    same("64 bits", out[4], as_int32(a * b >> 20))
    same("min, max", out[5], as_int32(torch.minimum(a, b) + 3 * torch.maximum(a, b)))
    same("randint", out[6], as_int32(philox(7, a)))
    ones = torch.tensor([bin(v % (1 << 32)).count("1") for v in a.tolist()])
    zeros = torch.tensor([32 - v.bit_length() for v in b.tolist()])
    same("popc, clz", out[7], (ones + zeros).int())


def philox(seed, counter):
    """Philox 4x32, 10 rounds, its first word: what tl.randint promises."""
    words = [counter % (1 << 32)] + [torch.zeros_like(counter)] * 3
    keys = [seed, 0]
    for _ in range(10):
        high = [split_product(words[0], 0xD2511F53), split_product(words[2], 0xCD9E8D57)]
        words = [high[1][0] ^ words[1] ^ keys[0], high[1][1],
                 high[0][0] ^ words[3] ^ keys[1], high[0][1]]
        keys = [(keys[0] + 0x9E3779B9) % (1 << 32), (keys[1] + 0xBB67AE85) % (1 << 32)]
    return words[0]


def split_product(x, factor):
    """High and low 32 bits of x times factor, without overflow of 64 bits."""
    low = (x & 0xFFFF) * factor
    sum_ = (x >> 16) * factor + (low >> 16)
    return sum_ >> 16, ((sum_ & 0xFFFF) << 16) | (low & 0xFFFF)


@case("histogram")
def run_histogram(s, name):
    x = torch.randint(0, 32, (512,), generator=torch.Generator().manual_seed(1)).int()
    counts = torch.zeros(2, 32, dtype=torch.int32)
    launch(s, name, kernels.histogram, (2,), dict(x=x, counts=counts, n=500), 4, BINS=32, BLOCK=256)
    want = [torch.bincount(part, minlength=32).int() for part in (x[:256], x[256:500])]
    same("counts", counts, torch.stack(want))


# ---- all of them ----

def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("program")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--capability", type=int, choices=(80, 90))
    parser.add_argument("--order", default="forward")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--opcodes", action="store_true")
    o = parser.parse_intermixed_args()
    chosen = [n for n in CASES if not o.names or any(n.startswith(x) for x in o.names)]
    if o.list:
        print("\n".join(chosen))
        return 0
    if o.keep:
        o.keep.mkdir(parents=True, exist_ok=True)
    opcodes = collections.Counter()
    outcomes = collections.Counter()
    for name, capability in itertools.product(chosen, (80, 90)):
        if o.capability not in (None, capability):
            continue
        setting = Setting(o.program, capability, o.order, o.keep, opcodes)
        try:
            CASES[name](setting, name)
            outcome = "agrees"
        except (Refused, Different) as e:
            outcome = "differs" if isinstance(e, Different) else "refused"
            print(f"{name} sm_{capability}: {outcome}: {e}", flush=True)
        outcomes[outcome] += 1
    if o.opcodes:
        for opcode, n in sorted(opcodes.items()):
            print(f"{n:8} {opcode}")
    print(", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items())))
    return 0 if set(outcomes) == {"agrees"} else 1


if __name__ == "__main__":
    sys.exit(main())
