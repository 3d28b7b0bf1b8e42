"""The activations of transformers, and their gated products, beside the library's rows: results and gradients of random
numbers in three types. A name that transformers has and czero lacks counts as refused."""
import ctypes as c
import json
import random
import tempfile
import pathlib

from . import outcome

AREA = "activations"
# transformers' names of each kind of ops/activation/activation.h, in its order.
KINDS = (("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python_tanh", "gelu_accurate"), ("gelu", "gelu_python"),
         ("silu", "swish"), ("relu",), ("tanh",), ("quick_gelu",), ("sigmoid",), ("mish",), ("relu2",))
DTYPES = ("float32", "bfloat16", "float16")  # in the order of enum cz_dtype
# Of fp32: beside float64, as a part of the larger one of the result and what it is made of; 16 bits round that once more.
FP32_ERROR = 2e-6


class Plain(c.Structure):
    _fields_ = [("kind", c.c_int), ("dtype", c.c_int), ("numel", c.c_size_t), ("x", c.c_void_p), ("y", c.c_void_p),
                ("dy", c.c_void_p), ("dx", c.c_void_p)]


class Gated(c.Structure):
    _fields_ = [("act", c.c_int), ("dtype", c.c_int), ("N", c.c_int64), ("C", c.c_int64), ("stride", c.c_int64),
                ("gate", c.c_void_p), ("up", c.c_void_p), ("y", c.c_void_p), ("dy", c.c_void_p), ("dgate", c.c_void_p),
                ("dup", c.c_void_p)]


class Library:
    def __init__(self, tools):
        self.lib = c.CDLL(str(tools.build / "libczero_internal.so"))
        self.lib.cz_last_error.restype = c.c_char_p
        device, self.ops = c.c_void_p(), c.c_void_p()
        self.check(self.lib.device_open(b"cpu", 0, c.byref(device)))
        self.check(self.lib.ops_create(device, c.byref(self.ops)))

    def check(self, status):
        if status:
            raise RuntimeError(self.lib.cz_last_error().decode())

    def call(self, name, arguments):
        self.check(getattr(self.lib, name)(self.ops, None, c.byref(arguments)))


def numbers(rng, shape, dtype):
    import torch
    t = torch.randn(shape) * 10 ** rng.uniform(-3, 1.3)
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 20.0, -20.0, 60.0, -60.0])
    flat = t.flatten()
    for _ in range(min(rng.randrange(6), flat.numel())):
        flat[rng.randrange(flat.numel())] = rng.choice(special)
    return flat.reshape(shape).to(dtype)


def worst(have, want, scale):
    """How far `have` is from float64's result, in what is allowed."""
    import torch
    allowed = FP32_ERROR * torch.maximum(want.abs(), scale.abs()) + 1e-37
    if have.dtype != torch.float32:
        allowed = allowed + want.abs() * torch.finfo(have.dtype).eps + torch.finfo(have.dtype).tiny
    return ((have.double() - want).abs() / allowed).max().item() if have.numel() else 0.0


def check_plain(library, rng, kind, name, dtype):
    import torch
    from transformers.activations import ACT2FN
    x, dy = numbers(rng, (rng.choice([0, 1, 7, 64, 333]),), dtype), None
    dy = numbers(rng, x.shape, dtype)
    y, dx = torch.empty_like(x), torch.empty_like(x)
    arguments = Plain(kind, DTYPES.index(str(dtype)[6:]), x.numel(), x.data_ptr(), y.data_ptr(), dy.data_ptr(), dx.data_ptr())
    library.call("ops_activation_forward", arguments)
    library.call("ops_activation_backward", arguments)
    exact = x.double().requires_grad_()
    want = ACT2FN[name](exact)
    want.backward(dy.double())
    return max(worst(y, want.detach(), x.double()), worst(dx, exact.grad, dy.double() * x.double().abs().clamp(min=1)))


def check_gated(library, rng, kind, name, dtype):
    import torch
    from transformers.activations import ACT2FN
    n, width = rng.randint(1, 5), rng.choice([1, 5, 16, 77])
    both, d_both = numbers(rng, (n, 2 * width), dtype), torch.empty(n, 2 * width, dtype=dtype)
    dy, y = numbers(rng, (n, width), dtype), torch.empty(n, width, dtype=dtype)
    second = both.data_ptr() + width * both.element_size(), d_both.data_ptr() + width * both.element_size()
    arguments = Gated(kind, DTYPES.index(str(dtype)[6:]), n, width, 2 * width, both.data_ptr(), second[0], y.data_ptr(),
                      dy.data_ptr(), d_both.data_ptr(), second[1])
    library.call("ops_swiglu_forward", arguments)
    library.call("ops_swiglu_backward", arguments)
    exact = both.double().requires_grad_()
    gate, up = exact[:, :width], exact[:, width:]
    want = ACT2FN[name](gate) * up
    want.backward(dy.double())
    a, b = both[:, :width].double().abs(), both[:, width:].double().abs()
    products = a * a.clamp(min=1) * b
    scale = dy.double().abs().repeat(1, 2) * torch.cat([b * a.clamp(min=1), a * a.clamp(min=1)], 1)
    return max(worst(y, want.detach(), products), worst(d_both, exact.grad, scale))


def known_names(tools):
    """What the reader of config.json takes, from the sentence that refuses a name."""
    with tempfile.TemporaryDirectory() as folder:
        config = {"model_type": "gpt2", "vocab_size": 5, "n_embd": 2, "n_head": 1, "n_layer": 1, "n_positions": 4,
                  "activation_function": "no such"}
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        done = tools.run("plan", "--model", folder)
    return outcome.sentence(done).split("supported:")[-1].replace(",", " ").split()


def run(tools, seed, n):
    import torch
    from transformers.activations import ACT2FN
    known, library = known_names(tools), Library(tools)
    for name in ACT2FN:
        if name not in known:
            yield outcome.refused(AREA, name, f'"{name}" is not supported')
    for name in known:
        if not any(name in names for names in KINDS):
            yield outcome.disagreed(AREA, name, "czero takes it, and this program does not compare it")
    for i in range(n):
        rng = random.Random(seed + i)
        torch.manual_seed(seed + i)
        kind, dtype = rng.randrange(len(KINDS)), getattr(torch, rng.choice(DTYPES))
        name, check = rng.choice(KINDS[kind]), rng.choice([check_plain, check_gated])
        if name not in ACT2FN:
            continue
        case = f"{'gated ' if check is check_gated else ''}{name} seed {seed + i}, {dtype}"
        error = check(library, rng, kind, name, dtype)
        yield outcome.agreed(AREA, case) if error <= 1 else outcome.disagreed(AREA, case, f"{error:.3g} times what is allowed")
