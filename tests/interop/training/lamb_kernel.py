"""Lamb as ops/lamb/lamb.h has it, in plain PyTorch, and DeepSpeed's FusedLamb on a CPU: its class, whose only kernel, which
exists for CUDA alone, is this one."""
import math


def lamb(p, copy, m, v, g, lr, beta1, beta2, max_coeff, min_coeff, eps, scale, step, mode, bias_correction, decay):
    """One update of one tensor, in its own dtype, with the arguments of DeepSpeed's kernel. The trust ratio is returned."""
    import torch
    g = g / scale
    m.mul_(beta1).add_((1 - beta1) * g)
    v.mul_(beta2).add_((1 - beta2) * g * g)
    u = m / ((v + eps).sqrt() if mode == 0 else v.sqrt() + eps) + decay * p
    norm_p, norm_u = p.norm().item(), u.norm().item()
    ratio = min(max(norm_p / norm_u, min_coeff), max_coeff) if norm_p and norm_u else 1.0
    p.sub_((lr * math.sqrt(1 - beta2**step) / (1 - beta1**step) if bias_correction else lr) * ratio * u)
    return torch.tensor(ratio)


def allow_lamb():
    """From now on FusedLamb can be made."""
    from deepspeed.ops.lamb import fused_lamb

    class Builder:
        def load(self):
            return Builder

    Builder.lamb = staticmethod(lamb)
    fused_lamb.FusedLambBuilder = Builder
