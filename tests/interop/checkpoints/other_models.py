"""Models of others, of random small shapes, for checkpoints that DeepSpeed saves: transformers' BERT, LLaMA, OPT, T5 and
GPT-2, and one of torch's own modules with tied weights, a module that has two names, and buffers of many types.

build(kind, rng) gives (model, loss): loss(model, rng) is a scalar of a random batch. Sizes divide by nothing.
"""
KINDS = ("bert", "llama", "opt", "t5", "gpt2", "modules", "wide")


def heads(rng):
    """(hidden size, heads): a head's size is even, for rotary positions."""
    n = rng.choice([1, 2, 3])
    return 2 * n * rng.randint(1, 5), n


def bert(rng):
    from transformers import BertConfig, BertForMaskedLM
    hidden, n = heads(rng)
    return BertForMaskedLM(BertConfig(
        vocab_size=rng.randint(11, 90), hidden_size=hidden, num_attention_heads=n, num_hidden_layers=rng.randint(1, 3),
        intermediate_size=rng.randint(3, 40), max_position_embeddings=16, tie_word_embeddings=rng.random() < 0.7))


def llama(rng):
    from transformers import LlamaConfig, LlamaForCausalLM
    hidden, n = heads(rng)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=rng.randint(11, 90), hidden_size=hidden, num_attention_heads=n, num_key_value_heads=1,
        num_hidden_layers=rng.randint(1, 3), intermediate_size=rng.randint(3, 40), max_position_embeddings=16,
        attention_bias=rng.random() < 0.3, tie_word_embeddings=rng.random() < 0.5))


def opt(rng):
    from transformers import OPTConfig, OPTForCausalLM
    hidden, n = heads(rng)
    return OPTForCausalLM(OPTConfig(
        vocab_size=rng.randint(11, 90), hidden_size=hidden, num_attention_heads=n, num_hidden_layers=rng.randint(1, 3),
        ffn_dim=rng.randint(3, 40), max_position_embeddings=16, word_embed_proj_dim=rng.choice([hidden, hidden + 3])))


def t5(rng):
    from transformers import T5Config, T5ForConditionalGeneration
    hidden, n = heads(rng)
    return T5ForConditionalGeneration(T5Config(
        vocab_size=rng.randint(11, 90), d_model=hidden, num_heads=n, d_kv=rng.randint(2, 6), num_layers=rng.randint(1, 2),
        d_ff=rng.randint(3, 40), dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0,
        feed_forward_proj=rng.choice(["relu", "gated-gelu"])))


def gpt2(rng):
    from transformers import GPT2Config, GPT2LMHeadModel
    hidden, n = heads(rng)
    return GPT2LMHeadModel(GPT2Config(vocab_size=rng.randint(11, 90), n_embd=hidden, n_head=n, n_layer=rng.randint(1, 3),
                                      n_positions=16))


def modules(rng, wide=False):
    import torch
    from torch import nn

    class Norm(nn.Module):
        """What a BatchNorm saves, without its arithmetic."""

        def __init__(self, n):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))
            self.register_buffer("running_mean", torch.linspace(0, 1, n))
            self.register_buffer("num_batches_tracked", torch.tensor(1 << 40))

        def forward(self, x):
            self.num_batches_tracked += 1
            return x * self.weight + self.bias

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            a, b = rng.randint(1, 12), rng.randint(1, 12)
            self.emb = nn.Embedding(11, a)
            self.body = nn.Sequential(nn.Linear(a, b), nn.Tanh(), Norm(b), nn.Linear(b, a, bias=rng.random() < 0.5))
            if rng.random() < 0.6:
                self.again = self.body[0]  # two names of one module
                self.back = nn.Linear(b, a)
            self.head = nn.Linear(a, 11, bias=False)
            if rng.random() < 0.6:
                self.head.weight = self.emb.weight
            if wide:  # DeepSpeed swaps tensors of a MiB and more alone
                self.wide = nn.Linear(700, 701)
            self.register_buffer("mask", torch.arange(12).reshape(3, 4).t() % 3 == 0)
            self.register_buffer("positions", torch.arange(6).expand((1, -1)))
            self.register_buffer("scale", torch.tensor(0.625))
            self.register_buffer("scratch", torch.zeros(3), persistent=False)
            numbers = torch.randn(rng.randint(0, 9))
            for name in ("float64", "int8", "uint8", "int16", "float8_e4m3fn", "float8_e5m2", "complex64", "half"):
                if rng.random() < 0.3:
                    self.register_buffer("of_" + name, numbers.to(getattr(torch, name)))

        def forward(self, ids):
            x = self.body(self.emb(ids))
            if hasattr(self, "again"):
                x = x + self.back(self.again(x))
            loss = self.head(x).float().pow(2).mean() * self.scale.float()
            if wide:
                loss = loss + self.wide(torch.ones_like(self.wide.weight[:1])).float().pow(2).mean()
            return loss

    return Model()


def loss_of(kind):
    import torch

    def modules_loss(model, rng):
        return model(torch.tensor([[rng.randrange(11) for _ in range(6)] for _ in range(2)]))

    def transformers_loss(model, rng):
        ids = torch.tensor([[rng.randrange(1, 11) for _ in range(6)] for _ in range(2)])
        return model(input_ids=ids, labels=ids).loss.float()

    return modules_loss if kind in ("modules", "wide") else transformers_loss


def build(kind, rng):
    model = modules(rng, kind == "wide") if kind in ("modules", "wide") else globals()[kind](rng)
    return model, loss_of(kind)
