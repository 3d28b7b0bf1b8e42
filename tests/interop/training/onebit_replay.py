"""The 1-bit family from its formulas alone: all ranks in one process, PyTorch for the gradients.

What it does where DeepSpeed 0.16.9 errs is what docs/compatibility.md says of czero: accumulated
gradients are divided by the accumulation steps after the freeze too; ranks clip by one norm, the
root mean square of theirs; one rank alone takes its own gradient; elements whose frozen variance is
next to nothing have no momentum; a tensor without momentum has scaling_coeff 1; bf16 works as fp16.
masks=False leaves the fourth out, which DeepSpeed has only when it is given masks.
"""
import math

import curves

MASK_RATIO = 2.0**-40


def torch_():
    import torch
    return torch


# ---- compressed all-reduce -----------------------------------------------------------------------


def padded(numel, world):
    unit = world * math.lcm(world, 8)
    return (numel + unit - 1) // unit * unit


def signs(x):
    torch = torch_()
    return torch.where(x >= 0, torch.ones_like(x), -torch.ones_like(x))


def scale_of(x):
    return x.norm() / math.sqrt(x.numel())


class Exchange:
    """The compressed mean over ranks of one segment, and its errors."""
    def __init__(self, numel, world):
        torch = torch_()
        self.numel, self.world, n = numel, world, padded(numel, world)
        self.worker = [torch.zeros(n) for _ in range(world)]
        self.server = [torch.zeros(n // world) for _ in range(world)]

    def forget(self):
        for error in self.worker + self.server:
            error.zero_()

    def mean(self, xs):
        """xs: each rank's vector; returns what all of them get. One rank keeps its own."""
        torch = torch_()
        if self.world == 1:
            return xs[0].clone()
        sent = []
        for error, x in zip(self.worker, xs):
            error[:self.numel] += x
            said = scale_of(error) * signs(error)
            error -= said
            sent.append(said.view(self.world, -1))
        served = []
        for rank, error in enumerate(self.server):
            error += sum(said[rank] / self.world for said in sent)
            said = scale_of(error) * signs(error)
            error -= said
            served.append(said)
        return torch.cat(served)[:self.numel]


# ---- the model and the loss scale ----------------------------------------------------------------


class Tensor:
    """One parameter: masters and moves of every rank, and the state that they share."""
    def __init__(self, p, decay, world):
        torch = torch_()
        self.param, self.decay, self.shape, self.numel = p, decay, p.shape, p.numel()
        start = p.detach().float().flatten()
        self.weights = [start.clone() for _ in range(world)]
        self.momenta = [torch.zeros_like(start) for _ in range(world)]  # they differ in local steps alone
        self.moves = [torch.zeros_like(start) for _ in range(world)]
        self.variance, self.fresh = torch.zeros_like(start), torch.zeros_like(start)
        self.mask = torch.ones_like(start)
        self.coeff_freeze, self.last_factor, self.scaling = 0.0, 1.0, 0.0

    @property
    def momentum(self):
        return self.momenta[0]

    def share(self, momentum):
        for m in self.momenta:
            m.copy_(momentum)


class LossScale:
    """Dynamic: halved on every overflow, doubled after `window` clean steps and one."""
    def __init__(self, fp16):
        self.dynamic = bool(fp16.get("enabled")) and not fp16.get("loss_scale", 0)
        self.value = 1.0
        if fp16.get("enabled"):
            self.value = 2.0**fp16.get("initial_scale_power", 16) if self.dynamic else float(fp16["loss_scale"])
        self.window, self.least = fp16.get("loss_scale_window", 1000), fp16.get("min_loss_scale", 1)
        self.step, self.last = 0, -1

    def update(self, overflow):
        if self.dynamic and overflow:
            self.value, self.last = max(self.value / 2, self.least), self.step
        elif self.dynamic:
            clean = self.step - self.last - 1
            if clean > 0 and clean % self.window == 0:
                self.value *= 2
        self.step += 1


def rate(config, updates):
    """The learning rate after that many scheduler steps: WarmupLR or none."""
    lr = config["optimizer"]["params"].get("lr", 1e-3)
    if "scheduler" not in config:
        return lr
    assert config["scheduler"]["type"] == "WarmupLR"
    p = config["scheduler"]["params"]
    low, high, n = p.get("warmup_min_lr", 0), p.get("warmup_max_lr", lr), max(2, p["warmup_num_steps"])
    i = updates - 1
    if i >= n:
        return high
    share = 0 if i <= 0 else i / n if p.get("warmup_type") == "linear" else math.log(i + 1) / math.log(n)
    return low + (high - low) * share


def batch_of(config):
    return config["train_micro_batch_size_per_gpu"], config.get("gradient_accumulation_steps", 1)


class World:
    """All ranks: their parameters, gradients, and the segments that are exchanged as one."""
    def __init__(self, run, nudged, masks):
        torch = torch_()
        torch.manual_seed(0)
        config, self.run, self.size, self.masked = run["config"], run, run["world"], masks
        self.dtype = torch.bfloat16 if config.get("bf16", {}).get("enabled") else \
            torch.float16 if config.get("fp16", {}).get("enabled") else torch.float32
        self.is_16bit = self.dtype != torch.float32
        self.model = curves.load_model(str(curves.FIXTURES / "models" / "gpt2-tiny"), run["freeze"])
        if nudged:
            curves.nudge(self.model, nudged)
        self.model.to(self.dtype)
        decay = config["optimizer"]["params"].get("weight_decay", 0.0)
        groups = curves.param_groups(self.model, run["groups"] if run["groups"] == "hf" else "")
        groups = groups if isinstance(groups[0], dict) else [{"params": groups}]
        self.groups = [[Tensor(p, g.get("weight_decay", decay), self.size) for p in g["params"]] for g in groups]
        self.tensors = [t for group in self.groups for t in group]
        self.clip = config.get("gradient_clipping", 1.0)
        self.scale = LossScale(config.get("fp16", {}))
        self.losses = []

    def segments(self, one):
        if one:
            return [self.tensors]
        return self.groups if self.is_16bit else [[t] for t in self.tensors]

    def gradients(self, tokens, step):
        """Per tensor and rank, as the backward leaves them: times the loss scale, in the model's type."""
        micro, gas = batch_of(self.run["config"])
        self.losses, grads = [], [[] for _ in self.tensors]
        for rank in range(self.size):
            for t in self.tensors:
                t.param.data.copy_((t.weights[rank] + t.moves[rank]).view(t.shape))
                t.param.grad = None
            for g in range(gas):
                row = ((step * gas + g) * self.size + rank) * micro
                loss = curves.token_loss(self.model, *curves.micro_batch(tokens, row, micro, self.run["seq"]))
                self.losses.append(loss.item())
                (loss.float() / gas * self.scale.value).backward()
            for t, out in zip(self.tensors, grads):
                out.append(t.param.grad.float().flatten().clone())
        return grads

    def mean(self, grads):
        """Summed in the gradients' type, where a sum may overflow, then divided."""
        sums = [sum(g).to(self.dtype).float() for g in grads]
        return [[(g / self.size).to(self.dtype).float()] * self.size for g in sums]

    def finite(self, grads):
        torch = torch_()
        return all(bool(torch.isfinite(g).all()) for ranks in grads for g in ranks)

    def norm(self, grads):
        total = sum(float(g.double().pow(2).sum()) for ranks in grads for g in ranks)
        return math.sqrt(total / self.size) / self.scale.value

    def unscale(self, grads, norm, scale):
        factor = max(1.0, (norm + 1e-6) / self.clip) if self.clip > 0 else 1.0
        return [[g / (factor * scale) for g in ranks] for ranks in grads]

    def freeze(self):
        for t in self.tensors:
            if self.masked and self.size > 1:
                t.mask = (t.variance > t.variance.max() * MASK_RATIO).float()
            t.share(t.momentum * t.mask)


# ---- optimizers ----------------------------------------------------------------------------------


class OneBit:
    def __init__(self, world):
        p = world.run["config"]["optimizer"]["params"]
        self.world, self.params = world, p
        self.beta1, self.beta2 = p.get("betas", [0.9, 0.999])
        self.eps, self.step, self.frozen = p.get("eps", 1e-8), int(world.is_16bit), False
        self.segments = world.segments(self.one_segment)
        self.exchanges = [Exchange(sum(t.numel for t in s), world.size) for s in self.segments]
        self.index = {id(t): i for i, t in enumerate(world.tensors)}

    one_segment = False

    def averages(self):
        return not self.frozen

    def moments(self, t, g):
        t.share(self.beta1 * t.momentum + (1 - self.beta1) * g)
        t.variance = self.beta2 * t.variance + (1 - self.beta2) * g * g

    def update_of(self, t, rank, weights):
        return t.momenta[rank] / (t.variance.sqrt() + self.eps) + t.decay * weights

    def move_all(self, t, lr):
        update = self.update_of(t, 0, t.weights[0])
        for w in t.weights:
            w -= lr * update

    def exchange(self, vectors):
        """vectors[i][rank] of every tensor; returns each tensor's mean, compressed."""
        torch, out = torch_(), [None] * len(vectors)
        for segment, exchange in zip(self.segments, self.exchanges):
            idx = [self.index[id(t)] for t in segment]
            whole = exchange.mean([torch.cat([vectors[i][r] for i in idx]) for r in range(self.world.size)])
            for i, part in zip(idx, whole.split([t.numel for t in segment])):
                out[i] = part
        return out

    def update(self, grads, lr):
        """grads[tensor][rank], unscaled and clipped. The first call of all only initialises."""
        self.step += 1
        if self.step > 1:
            self.take(grads, lr)


class OneBitAdam(OneBit):
    def take(self, grads, lr):
        tensors = self.world.tensors
        if not self.frozen:
            for t, g in zip(tensors, grads):
                self.moments(t, g[0])
        else:
            local = [[self.beta1 * t.momentum + (1 - self.beta1) * g for g in ranks]
                     for t, ranks in zip(tensors, grads)]
            for t, m in zip(tensors, self.exchange(local)):
                t.share(m * t.mask)
        for t in tensors:
            self.move_all(t, lr)
        if not self.frozen and self.step >= self.params.get("freeze_step", 100000):
            self.frozen = True
            self.world.freeze()


class ZeroOneAdam(OneBit):
    def __init__(self, world):
        super().__init__(world)
        self.var_interval, self.var_counter, self.local_interval, self.local_counter = 1, 0, 1, 0
        self.lrs = 0.0

    def averages(self):
        return not self.frozen and (self.step + 1) % self.var_interval == 0

    def take(self, grads, lr):
        if self.frozen:
            self.local(grads, lr)
        else:
            self.learn(grads, lr)

    def learn(self, grads, lr):
        tensors = self.world.tensors
        if self.step % self.var_interval == 0:
            for t, g in zip(tensors, grads):
                self.moments(t, g[0])
            self.var_counter += 1
            if self.var_counter == self.params.get("var_update_scaler", 16):
                self.var_counter, self.var_interval = 0, 2 * self.var_interval
        else:
            for t, g in zip(tensors, self.exchange(grads)):
                t.share(self.beta1 * t.momentum + (1 - self.beta1) * g)
        for t in tensors:
            self.move_all(t, lr)
        if self.step > self.params.get("var_freeze_step", 100000):
            self.frozen = True
            self.world.freeze()
            for exchange in self.exchanges:
                exchange.forget()

    def local(self, grads, lr):
        self.lrs += lr
        for t, ranks in zip(self.world.tensors, grads):
            for rank, g in enumerate(ranks):
                t.momenta[rank] = (self.beta1 * t.momenta[rank] + (1 - self.beta1) * g) * t.mask
                t.moves[rank] -= lr * self.update_of(t, rank, t.weights[rank] + t.moves[rank])
        if self.step % self.local_interval == 0:
            self.settle()
        self.local_counter += 1
        if self.local_counter == self.params.get("local_step_scaler", 32678):
            self.local_counter = 0
            self.local_interval = min(self.params.get("local_step_clipper", 16), 2 * self.local_interval)

    def settle(self):
        tensors = self.world.tensors
        roots = [t.variance.sqrt() + self.eps for t in tensors]
        moved = self.exchange([[u * d for u in t.moves] for t, d in zip(tensors, roots)])
        for t, u, d in zip(tensors, moved, roots):
            u = u * t.mask
            if self.lrs:
                t.share(-u / self.lrs)
            for w, own in zip(t.weights, t.moves):
                w += u / d
                own.zero_()
        self.lrs = 0.0


class OneBitLamb(OneBit):
    one_segment = True

    def __init__(self, world):
        super().__init__(world)
        get = self.params.get
        self.max_coeff, self.min_coeff, self.coeff_beta = get("max_coeff", 10.0), get("min_coeff", 0.01), \
            get("coeff_beta", 0.9)
        self.factor_max, self.factor_min, self.threshold = get("factor_max", 4.0), get("factor_min", 0.5), \
            get("factor_threshold", 0.1)

    def take(self, grads, lr):
        if self.frozen:
            self.compressed(grads, lr)
            return
        for t, g in zip(self.world.tensors, grads):
            self.moments(t, g[0])
            self.move(t, lr * self.trust(t), self.update_of(t, 0, t.weights[0]))
        if self.step >= self.params.get("freeze_step", 100000):
            self.frozen = True
            self.world.freeze()
            self.scale()

    def trust(self, t):
        weight, update = t.weights[0].norm().item(), self.update_of(t, 0, t.weights[0]).norm().item()
        if not weight or not update:
            return 1.0
        ratio = min(max(weight / update, self.min_coeff), self.max_coeff)
        if ratio != 1:
            t.coeff_freeze = self.coeff_beta * t.coeff_freeze + (1 - self.coeff_beta) * ratio
        return ratio

    @staticmethod
    def move(t, factor, update):
        for w in t.weights:
            w -= factor * update

    def scale(self):
        tensors = self.world.tensors
        scales = [t.momentum.norm().item() / math.sqrt(t.numel) for t in tensors]
        for t, own in zip(tensors, scales):
            t.fresh = t.variance.clone()
            t.scaling = sum(scales) / len(scales) / own if own else 1.0

    def compressed(self, grads, lr):
        tensors = self.world.tensors
        local = [[(self.beta1 * t.momentum + (1 - self.beta1) * g) * t.scaling for g in ranks]
                 for t, ranks in zip(tensors, grads)]
        for t, m in zip(tensors, self.exchange(local)):
            m = m / t.scaling * t.mask
            g = (m - self.beta1 * t.momentum) / (1 - self.beta1)
            t.fresh = self.beta2 * t.fresh + (1 - self.beta2) * g * g
            t.share(m)
            self.move(t, lr * t.coeff_freeze * self.factor(t), self.update_of(t, 0, t.weights[0]))

    def factor(self, t):
        d = t.variance.sqrt() + self.eps
        ratios = (d / (t.fresh.sqrt() + self.eps))[t.mask > 0]
        if ratios.numel() == 0:
            return t.last_factor
        factor = ratios.max().item()
        if t.decay > 0:
            norm = self.update_of(t, 0, t.weights[0]).norm().item()
            share = min(1.0, (t.momentum / d).norm().item() / norm) if norm else 1.0
            factor = factor * share + 1 - share
        factor = max(min(factor, self.factor_max), self.factor_min)
        factor = min(factor, t.last_factor * (1 + self.threshold))
        t.last_factor = max(factor, t.last_factor * (1 - self.threshold))
        return t.last_factor


CLASSES = {c.__name__.lower(): c for c in (OneBitAdam, ZeroOneAdam, OneBitLamb)}


def replay(run, nudged=0.0, masks=True):
    """Rows of the curve without the step: loss, lr_next, grad_norm, loss_scale."""
    from onebit_curves import text_tokens
    torch = torch_()
    world = World(run, nudged, masks)
    optimizer = CLASSES[run["config"]["optimizer"]["type"].lower()](world)
    micro, gas = batch_of(run["config"])
    tokens = text_tokens(run["steps"] * gas * world.size * micro * run["seq"] + 1)
    rows, updates = [], 0
    for step in range(run["steps"]):
        grads = world.gradients(tokens, step)
        with torch.no_grad():
            if optimizer.averages():
                grads = world.mean(grads)
            ok, scale = world.finite(grads), world.scale.value
            norm = world.norm(grads) if ok else math.inf
            world.scale.update(not ok)
            if ok:
                optimizer.update(world.unscale(grads, norm, scale), rate(run["config"], updates))
                updates += 1
        rows.append((sum(world.losses) / len(world.losses), rate(run["config"], updates), norm, world.scale.value))
    return rows
