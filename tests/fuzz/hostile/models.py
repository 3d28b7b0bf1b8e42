"""Cases of what people write or download: configs, models' config.json, tokenizers, texts, token files."""

import json
import struct

from .containers import BIDI, ESC, FORGED, safetensors, weights

GEN = "czero generate --model in --prompt ab --max-new-tokens 2"
PLAN = "czero plan --config common/ds.json --model in --seq-len 8"
TRAIN = "czero train --config common/ds.json --model common/model --tokenizer bytes --seq-len 8 --steps 2 --quiet --data"


def configs(c):
    c.category = "config"
    good = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "zero_optimization": {"stage": 2}}
    check, show = "czero config check in/ds.json", "czero config show in/ds.json"
    plan = "czero plan --config in/ds.json --model common/model --seq-len 8"
    train = "czero train --config in/ds.json --model common/model --tokenizer bytes --seq-len 8 --steps 2 --quiet --data common/text.txt"

    def raw(name, idea, data, run=(check, plan)):
        c.case(name, idea, run, {"in/ds.json": data})

    def put(name, idea, change=None, run=(check, plan), **values):
        value = json.loads(json.dumps(good))
        if change:
            change(value)
        raw(name, idea, json.dumps(value | values), run)

    raw("empty", "no byte", b"")
    raw("array", "an array", b"[]")
    raw("null", "null", b"null")
    raw("nul_bytes", "1000 NULs", b"\0" * 1000)
    raw("not_utf8", "a key that is not UTF-8", b'{"\xff": 1}')
    raw("utf16", "in UTF-16", json.dumps(good).encode("utf-16"))
    raw("bom", "after a byte order mark, as some editors write: it is read", b"\xef\xbb\xbf" + json.dumps(good).encode())
    raw("cut", "without its last brace", json.dumps(good)[:-1])
    raw("deep_objects", "objects nested 100,000 deep", b'{"a":' * 100000)
    raw("deep_arrays", "arrays nested 200,000 deep", b'{"a":' + b"[" * 200000)
    raw("brackets", "500,000 closing brackets", b"]" * 500000)
    raw("twice", "a key twice", '{"train_batch_size": 2, "train_batch_size": 4}')
    raw("twice_hidden", "a key twice, once with an escape", '{"train_batch_size": 2, "train_batch\\u005fsize": 4}')
    raw("key_escape", "an unknown key that colours the terminal", json.dumps(good | {ESC + "x": 1}))
    raw("key_title", "an unknown key that sets the window's title", json.dumps(good | {"\x1b]0;pwned\x07": 1}))
    raw("key_csi", "an unknown key with CSI as one character", json.dumps(good | {"\u009b31m": 1}))
    raw("key_newline", "an unknown key that forges a line", json.dumps(good | {FORGED: 1}))
    raw("key_bidi", "an unknown key that is shown backwards", json.dumps(good | {BIDI: 1}))
    raw("key_long", "an unknown key of 200,000 characters", json.dumps(good | {"k" * 200000: 1}))
    raw("keys_many", "20,000 unknown keys", json.dumps(good | {f"k{i}": 1 for i in range(20000)}))
    raw("keys_colliding", "2048 unknown keys with one hash under FNV-1a", json.dumps(good | dict.fromkeys(c.colliding, 1)))
    raw("value_escape", "an optimizer whose name colours the terminal", json.dumps(good | {"optimizer": {"type": ESC + "Adam"}}))
    raw("value_newline", "an optimizer whose name forges a line", json.dumps(good | {"optimizer": {"type": FORGED}}))
    raw("value_bidi", "a scheduler whose name is shown backwards", json.dumps(good | {"scheduler": {"type": BIDI}}))
    raw("comment", "a comment", b'{"train_batch_size": 2 // two\n}')
    raw("number_digits", "a number of 100,000 digits", b'{"train_batch_size": ' + b"9" * 100000 + b"}")
    raw("number_exponent", "a number 1e999999", b'{"gradient_clipping": 1e999999}')
    raw("nan", "NaN as gradient clipping", b'{"train_batch_size": 2, "gradient_clipping": NaN}')
    raw("infinity", "Infinity as a learning rate", b'{"train_batch_size": 2, "optimizer": {"type": "Adam", "params": {"lr": Infinity}}}')
    for name, idea, value in (("zero", "0", 0), ("negative", "-1", -1), ("huge", "2^62", 1 << 62), ("beyond", "2^64 + 2", (1 << 64) + 2), ("float", "2.5", 2.5), ("text", "text", "2; touch pwned"), ("bool", "true", True), ("null", "null", None), ("object", "an object", {}), ("int_max", "2^31 - 1", (1 << 31) - 1)):
        put("micro_batch_" + name, f"a micro-batch of {idea}", train_micro_batch_size_per_gpu=value)
    for name, idea, value in (("zero", "0", 0), ("huge", "2^62", 1 << 62), ("negative", "-4", -4)):
        put("accumulation_" + name, f"accumulation over {idea}", gradient_accumulation_steps=value)
        put("batch_" + name, f"a batch of {idea}", train_batch_size=value)
    put("batch_wraps", "batches whose product wraps around in 64 bits", train_micro_batch_size_per_gpu=1 << 32, gradient_accumulation_steps=1 << 32)
    zero = lambda **v: (lambda m: m["zero_optimization"].update(v))  # noqa: E731
    for name, idea, values in (
        ("stage_4", "stage 4", {"stage": 4}),
        ("stage_negative", "stage -1", {"stage": -1}),
        ("stage_float", "stage 2.5", {"stage": 2.5}),
        ("stage_text", "stage '2'", {"stage": "2"}),
        ("bucket_zero", "a bucket of 0", {"reduce_bucket_size": 0}),
        ("bucket_negative", "a bucket of -1", {"reduce_bucket_size": -1}),
        ("bucket_huge", "a bucket of 1e18", {"reduce_bucket_size": 1e18}),
        ("bucket_tiny", "a bucket of one element", {"reduce_bucket_size": 1}),
        ("sub_group_zero", "a sub-group of 0", {"stage": 3, "sub_group_size": 0}),
        ("sub_group_one", "sub-groups of one element each", {"stage": 3, "sub_group_size": 1}),
        ("prefetch_huge", "a prefetch of 2^62", {"stage": 3, "stage3_prefetch_bucket_size": 1 << 62}),
        ("offload_device", "a device that does not exist", {"offload_optimizer": {"device": ESC}}),
        ("offload_ratio", "a ratio of 2", {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 2}}),
        ("offload_buffers", "2^40 buffers", {"stage": 3, "offload_optimizer": {"device": "cpu", "buffer_count": 1 << 40}}),
    ):
        put("zero_" + name, f"ZeRO: {idea}", zero(**values), run=(check, plan, train))
    nvme = lambda path: zero(stage=3, offload_optimizer={"device": "nvme", "nvme_path": path})  # noqa: E731
    put("nvme_empty", "an empty nvme_path", nvme(""), run=(check, train))
    put("nvme_long", "an nvme_path of 5000 characters", nvme("d/" * 2500), run=(check, train))
    put("nvme_escape", "an nvme_path that colours the terminal, below a file", nvme("common/ds.json/" + ESC), run=(check, train))
    put("nvme_nul", "an nvme_path that ends before its end", nvme("out/a\0b"), run=(check, train))
    put("nvme_device", "an nvme_path that is /dev/null", nvme("/dev/null"), run=(check, train))
    put("nvme_proc", "an nvme_path in /proc", nvme("/proc/self"), run=(check, train))
    opt = lambda **v: (lambda m: m["optimizer"]["params"].update(v))  # noqa: E731
    for name, idea, values in (
        ("lr_negative", "a learning rate of -1", {"lr": -1}),
        ("lr_huge", "a learning rate of 1e308: finite, so it is what the user asked for", {"lr": 1e308}),
        ("lr_text", "a learning rate that is text", {"lr": "$(touch pwned)"}),
        ("betas_outside", "betas of 2 and -1", {"betas": [2, -1]}),
        ("betas_one", "one beta", {"betas": [0.9]}),
        ("betas_many", "10,000 betas", {"betas": [0.9] * 10000}),
        ("eps_negative", "an epsilon of -1", {"eps": -1}),
        ("decay_text", "a weight decay that is an object", {"weight_decay": {"a": 1}}),
        ("unknown", "a parameter that does not exist", {"__import__": "os"}),
    ):
        put("optimizer_" + name, f"the optimizer: {idea}", opt(**values), run=(check, train))
    for name, idea, values in (
        ("window_zero", "a window of 0", {"enabled": True, "loss_scale_window": 0}),
        ("power_huge", "an initial power of 1000", {"enabled": True, "initial_scale_power": 1000}),
        ("power_negative", "an initial power of -1000", {"enabled": True, "initial_scale_power": -1000}),
        ("scale_negative", "a scale of -1", {"enabled": True, "loss_scale": -1}),
        ("min_above", "a smallest scale above the largest", {"enabled": True, "min_loss_scale": 1e30}),
        ("hysteresis_negative", "a hysteresis of -1", {"enabled": True, "hysteresis": -1}),
        ("hysteresis_huge", "a hysteresis of 2^62", {"enabled": True, "hysteresis": 1 << 62}),
    ):
        put("fp16_" + name, f"fp16: {idea}", run=(check, train), fp16=values)
    sched = lambda kind, **p: {"type": kind, "params": p}  # noqa: E731
    for name, idea, value in (
        ("warmup_negative", "-5 warm-up steps", sched("WarmupLR", warmup_num_steps=-5)),
        ("warmup_huge", "2^62 warm-up steps", sched("WarmupLR", warmup_num_steps=1 << 62)),
        ("decay_before_warmup", "a total below the warm-up", sched("WarmupDecayLR", total_num_steps=1, warmup_num_steps=100)),
        ("total_zero", "0 steps in total", sched("WarmupDecayLR", total_num_steps=0)),
        ("cycle_zero", "a cycle of 0 steps", sched("OneCycle", cycle_min_lr=0.1, cycle_max_lr=0.2, cycle_first_step_size=0)),
        ("test_zero", "a range test of 0 steps", sched("LRRangeTest", lr_range_test_step_size=0)),
        ("params_list", "parameters in a list", {"type": "WarmupLR", "params": [1]}),
        ("type_number", "a type that is a number", {"type": 1}),
    ):
        put("schedule_" + name, f"the schedule: {idea}", run=(check, train), scheduler=value)
    put("monitor_above", "a CSV monitor that is told to write above its folder: the path is the user's own, as all in a config, here inside out/", run=(train,), csv_monitor={"enabled": True, "output_path": "out/a/../b", "job_name": "j"})
    put("monitor_job_escape", "a monitor's job whose name colours the terminal", run=(check, train), csv_monitor={"enabled": True, "output_path": "out", "job_name": ESC})
    put("monitor_on_file", "a monitor below a file", run=(train,), csv_monitor={"enabled": True, "output_path": "common/ds.json", "job_name": "j"})
    put("aio_huge", "a queue of 2^31 requests", run=(check, plan), aio={"queue_depth": 1 << 31, "block_size": 1 << 40})
    put("aio_zero", "blocks of 0 bytes", run=(check, plan), aio={"block_size": 0, "queue_depth": 0})
    put("checkpointing_huge", "2^62 checkpoints of activations", run=(check, plan), activation_checkpointing={"number_checkpoints": 1 << 62})
    put("tile_huge", "a tile of 2^62 elements", run=(check, plan), czero={"tile_numel": 1 << 62})
    put("auto_everywhere", "auto in place of numbers", run=(check, plan), train_micro_batch_size_per_gpu="auto", gradient_clipping="auto")
    for name, idea, setup in (("device", "/dev/zero", "link in/ds.json /dev/zero"), ("folder", "a folder", "mkdir in/ds.json"), ("hole", "10 GiB without content", "sparse in/ds.json 10737418240"), ("missing", "missing", "mkdir in/x"), ("loop", "a link to itself", "link in/ds.json ds.json")):
        c.case("file_" + name, f"the config is {idea}", (check, plan), setup=setup)


def model_configs(c):
    c.category = "model"

    def raw(name, idea, data, run=(PLAN, GEN), base="hostile/bases/model"):
        c.case(name, idea, run, {"in/config.json": data}, base)

    def put(name, idea, run=(PLAN, GEN), remove=(), **values):
        raw(name, idea, json.dumps({k: v for k, v in (c.config | values).items() if k not in remove}), run)

    raw("empty", "no byte", b"")
    raw("array", "an array", b"[]")
    raw("deep", "arrays nested 200,000 deep", b'{"model_type":' + b"[" * 200000)
    raw("twice", "model_type twice", '{"model_type": "gpt2", "model_type": "llama"}')
    raw("nan", "NaN as a size", b'{"model_type": "gpt2", "n_embd": NaN}')
    put("no_type", "no model_type", remove=("model_type",))
    for name, idea, value in (("unknown", "that does not exist", "evil"), ("escape", "that colours the terminal", ESC), ("newline", "that forges a line", FORGED), ("path", "that is a path", "../../victim/secret.txt"), ("number", "that is a number", 2), ("long", "of 100,000 characters", "g" * 100000)):
        put("type_" + name, f"a model_type {idea}", model_type=value)
    put("architecture_escape", "an architecture that colours the terminal", architectures=[ESC])
    put("architecture_other", "an architecture of another kind", architectures=["GPT2DoubleHeadsModel"])
    put("architectures_many", "20,000 architectures", architectures=["GPT2LMHeadModel"] * 20000)
    for key, what in (("n_embd", "width"), ("n_layer", "number of layers"), ("n_head", "number of heads"), ("vocab_size", "vocabulary"), ("n_positions", "context")):
        for name, value in (("zero", 0), ("negative", -4), ("float", 1.5), ("text", "4"), ("null", None), ("2_31", 1 << 31), ("2_62", 1 << 62), ("beyond_64_bits", (1 << 64) + 4)):
            put(f"{key}_{name}", f"a {what} of {value if abs(float(value) if isinstance(value, (int, float)) else 0) < 1e9 else name.replace('_', '^', 1)}", **{key: value})
    put("layers_8192", "8192 layers: 100 bytes that ask for a large table", n_layer=8192)
    put("layers_65536", "65,536 layers", n_layer=65536)
    put("layers_million", "a million layers", n_layer=1000000)
    put("heads_no_divisor", "three heads for a width of 4", n_head=3)
    put("heads_more_than_width", "eight heads for a width of 4", n_head=8)
    put("width_other", "a width of 8, with weights of 4", n_embd=8)
    put("layers_more", "two layers, with the weights of one", n_layer=2)
    put("vocab_smaller", "a vocabulary of 255, with weights of 256", vocab_size=255)
    put("vocab_million", "a vocabulary of 10^12", vocab_size=10**12)
    put("inner_huge", "an MLP of 2^40", n_inner=1 << 40)
    put("activation_unknown", "an activation that does not exist", activation_function=ESC)
    put("activation_code", "an activation that is code", activation_function="__import__('os').system('touch pwned')")
    put("epsilon_negative", "an epsilon of -1", layer_norm_epsilon=-1)
    put("epsilon_text", "an epsilon that is text", layer_norm_epsilon="1e-5")
    put("dropout_outside", "a dropout of 2", resid_pdrop=2)
    put("range_negative", "weights with a deviation of -1", initializer_range=-1)
    put("tie_text", "tied weights: 'yes'", tie_word_embeddings="yes")
    put("quantized", "quantised weights", quantization_config={"quant_method": ESC})
    put("auto_map", "auto_map names code to run: it is ignored", auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"}, trust_remote_code=True)
    put("eos_huge", "an end token of 2^62", eos_token_id=1 << 62)
    put("eos_negative", "an end token of -1", eos_token_id=-1)
    put("eos_many", "20,000 end tokens", eos_token_id=list(range(20000)))
    put("eos_text", "an end token that is text", eos_token_id=ESC)
    put("labels_many", "20,000 labels", id2label={str(i): f"L{i}" for i in range(20000)})
    put("keys_colliding", "2048 keys with one hash under FNV-1a", **dict.fromkeys(c.colliding, 1))
    # LLaMA: rotary positions
    llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16}

    def rope(name, idea, **values):
        raw("llama_" + name, idea, json.dumps(llama | values), (PLAN,))

    rope("key_heads_zero", "0 key heads", num_key_value_heads=0)
    rope("key_heads_more", "three key heads for two heads", num_key_value_heads=3)
    rope("head_dim_odd", "heads of odd width", head_dim=3)
    rope("head_dim_huge", "heads of width 2^40", head_dim=1 << 40)
    rope("theta_zero", "a rotation base of 0", rope_theta=0)
    rope("theta_negative", "a rotation base of -1", rope_theta=-1)
    rope("theta_text", "a rotation base that is text", rope_theta=ESC)
    rope("scaling_unknown", "a kind of scaling that does not exist", rope_scaling={"type": ESC, "factor": 2})
    rope("scaling_zero", "scaling by 0", rope_scaling={"type": "linear", "factor": 0})
    rope("scaling_list", "scaling in a list", rope_scaling=[1])
    rope("longrope_short", "too few factors", rope_scaling={"type": "longrope", "short_factor": [1], "long_factor": [1], "factor": 2})
    rope("longrope_many", "100,000 factors", rope_scaling={"type": "longrope", "short_factor": [1] * 100000, "long_factor": [1] * 100000, "factor": 2})
    rope("window_zero", "a sliding window of 0 in Qwen2", model_type="qwen2", architectures=["Qwen2ForCausalLM"], use_sliding_window=True, sliding_window=0)
    rope("epsilon_zero", "a norm with an epsilon of -1", rms_norm_eps=-1)
    # BERT: classes
    bert = "hostile/bases/bert"
    predict = "czero predict --model in --text ab"
    base = json.loads((c.out / "bases/bert/config.json").read_text())

    def cls(name, idea, run=(predict,), **values):
        raw("bert_" + name, idea, json.dumps(base | values), run, bert)

    cls("label_escape", "a class whose name colours the terminal", (predict, predict + " --json"), id2label={"0": ESC + "A", "1": "B"})
    cls("label_title", "a class whose name sets the window's title", (predict,), id2label={"0": "A\x1b]0;pwned\x07", "1": "B"})
    cls("label_csi", "a class whose name has CSI as one character", (predict, predict + " --json"), id2label={"0": "\u009b31mA", "1": "B"})
    cls("label_newline", "a class whose name forges a line", (predict, predict + " --json"), id2label={"0": FORGED, "1": "B"})
    cls("label_tab", "a class whose name holds a tab, which divides columns", (predict,), id2label={"0": "A\tB", "1": "C"})
    cls("label_bidi", "a class whose name is shown backwards", (predict, predict + " --json"), id2label={"0": BIDI, "1": "B"})
    cls("label_same", "two classes of one name", id2label={"0": "A", "1": "A"})
    cls("label_number", "a class whose name is a number", id2label={"0": 1, "1": 2})
    cls("label_key", "a class with number -1", id2label={"-1": "A", "0": "B"})
    cls("label_key_huge", "a class with number 2^62", id2label={"0": "A", str(1 << 62): "B"})
    cls("label_gap", "classes 0 and 2", id2label={"0": "A", "2": "B"})
    cls("label_one", "one class: a regression, whose head the weights do not have", id2label={"0": "A"})
    cls("label_none", "no class", id2label={})
    cls("labels_huge", "2^40 classes", num_labels=1 << 40, id2label=None)
    cls("label_long", "a class with a name of 100,000 characters", id2label={"0": "A" * 100000, "1": "B"})
    cls("pad_outside", "a pad token outside the vocabulary", pad_token_id=1 << 20)
    cls("types_zero", "0 token types", type_vocab_size=0)
    cls("problem", "a kind of problem that colours the terminal", problem_type=ESC)
    c.case("generation_config", "generation_config.json with an end token that is an object", GEN, {"in/generation_config.json": '{"eos_token_id": {"a": 1}}'}, "hostile/bases/model")
    c.case("generation_deep", "generation_config.json nested 200,000 deep", GEN, {"in/generation_config.json": b"[" * 200000}, "hostile/bases/model")


def bert_model(c):
    H, V, T, F = 4, 40, 16, 8
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [chr(97 + i) for i in range(26)] + [f"##{chr(97 + i)}" for i in range(9)]
    shapes = {"embeddings.word_embeddings.weight": (V, H), "embeddings.position_embeddings.weight": (T, H), "embeddings.token_type_embeddings.weight": (2, H), "embeddings.LayerNorm.weight": (H,), "embeddings.LayerNorm.bias": (H,)}
    for part, dims in (("attention.self.query", (H, H)), ("attention.self.key", (H, H)), ("attention.self.value", (H, H)), ("attention.output.dense", (H, H)), ("intermediate.dense", (F, H)), ("output.dense", (H, F))):
        shapes |= {f"encoder.layer.0.{part}.weight": dims, f"encoder.layer.0.{part}.bias": dims[:1]}
    for part in ("attention.output.LayerNorm", "output.LayerNorm"):
        shapes |= {f"encoder.layer.0.{part}.weight": (H,), f"encoder.layer.0.{part}.bias": (H,)}
    shapes |= {"pooler.dense.weight": (H, H), "pooler.dense.bias": (H,)}
    shapes = {f"bert.{k}": v for k, v in shapes.items()} | {"classifier.weight": (2, H), "classifier.bias": (2,)}
    config = {"architectures": ["BertForSequenceClassification"], "model_type": "bert", "vocab_size": V, "hidden_size": H, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": F, "max_position_embeddings": T, "type_vocab_size": 2, "pad_token_id": 0, "id2label": {"0": "A", "1": "B"}, "label2id": {"A": 0, "B": 1}}
    header, data = weights(shapes)
    for folder in ("bases/bert", "common/bert"):
        c.put(f"{folder}/config.json", json.dumps(config))
        c.put(f"{folder}/model.safetensors", safetensors(header, data))
        c.put(f"{folder}/vocab.txt", "\n".join(names) + "\n")
        c.put(f"{folder}/tokenizer_config.json", '{"do_lower_case": true}')


def byte_letters():
    """GPT-2's visible characters for bytes."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    return [chr(b) if b in keep else chr(256 + sum(1 for x in range(b) if x not in keep)) for b in range(256)]


def bpe():
    letters = byte_letters()
    vocab = {x: i for i, x in enumerate(letters)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": []}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model}


def bpe_model(c):
    """bases/bpe: the small model with a byte-level tokenizer and what Hugging Face keeps beside one."""
    header = (c.out / "bases/model/model.safetensors").read_bytes()
    c.put("bases/bpe/config.json", json.dumps(c.config))
    c.put("bases/bpe/model.safetensors", header)
    c.put("bases/bpe/tokenizer.json", json.dumps(bpe()))
    c.put("bases/bpe/tokenizer_config.json", '{"tokenizer_class": "GPT2Tokenizer"}')
    c.put("bases/bpe/special_tokens_map.json", "{}")
    c.put("bases/bpe/added_tokens.json", "{}")


def tokenizers(c):
    c.category = "tokenizer"
    base = "hostile/bases/bpe"
    gen = "czero generate --model in --prompt ab --max-new-tokens 2"
    export = "czero train --config common/ds.json --model in --data common/text.txt --seq-len 8 --steps 1 --quiet --export out/hf"

    def raw(name, idea, data, run=(gen,), file="tokenizer.json", more=None):
        c.case(name, idea, run, {f"in/{file}": data} | (more or {}), base)

    def put(name, idea, change, run=(gen,)):
        value = bpe()
        change(value)
        raw(name, idea, json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"), run)

    model = lambda **v: (lambda t: t["model"].update(v))  # noqa: E731
    raw("empty", "no byte", b"")
    raw("array", "an array", b"[]")
    raw("deep", "arrays nested 200,000 deep", b'{"model":' + b"[" * 200000)
    raw("brackets", "500,000 closing brackets", b"}" * 500000)
    raw("nul", "NULs", b"\0" * 100)
    raw("model_twice", "two models", b'{"model": {}, "model": {}}')
    put("model_none", "no model", lambda t: t.pop("model"))
    put("type_unknown", "a type that colours the terminal", model(type=ESC))
    put("type_unigram", "a type that is not supported", model(type="Unigram"))
    put("vocab_list", "a vocabulary in a list", model(vocab=["a"]))
    put("vocab_empty", "an empty vocabulary", model(vocab={}))
    put("vocab_huge_id", "an id of 2^62", lambda t: t["model"]["vocab"].update({"zz": 1 << 62}))
    put("vocab_2_31", "an id of 2^31", lambda t: t["model"]["vocab"].update({"zz": 1 << 31}))
    put("vocab_limit", "an id of 4,194,304, one more than the limit", lambda t: t["model"]["vocab"].update({"zz": 4194304}))
    put("vocab_gap", "an id of 4,194,303: a table of 4 million rows for 257 tokens, and beyond the model", lambda t: t["model"]["vocab"].update({"zz": 4194303}))
    put("vocab_negative", "an id of -1", lambda t: t["model"]["vocab"].update({"zz": -1}))
    put("vocab_float", "an id of 1.5", lambda t: t["model"]["vocab"].update({"zz": 1.5}))
    put("vocab_text", "an id that is text", lambda t: t["model"]["vocab"].update({"zz": "7"}))
    put("vocab_same_id", "two tokens with one id", lambda t: t["model"]["vocab"].update({"zz": 5}))
    put("vocab_beyond_model", "a token whose id the model does not have", lambda t: t["model"]["vocab"].update({"a": 256}))
    put("vocab_byte_missing", "a byte without a token: it becomes nothing, as in Hugging Face's library", lambda t: t["model"]["vocab"].pop("a"))
    put("vocab_colliding", "2048 tokens with one hash under FNV-1a", lambda t: t["model"]["vocab"].update({k: 256 + i for i, k in enumerate(c.colliding)}))
    put("vocab_control", "a token of raw control characters", lambda t: t["model"]["vocab"].update({"\x1b[2J\x07": 256}))
    put("vocab_long", "a token of 200,000 characters", lambda t: t["model"]["vocab"].update({"a" * 200000: 256}))
    put("vocab_nul", "a token with a NUL", lambda t: t["model"]["vocab"].update({"a\0b": 256}))
    put("merge_unknown", "a merge of tokens that do not exist", model(merges=["zz yy"]))
    put("merge_result_missing", "a merge whose result does not exist", model(merges=["a b"]))
    put("merge_one", "a merge of one part", model(merges=["ab"]))
    put("merge_three", "a merge of three parts", model(merges=["a b c"]))
    put("merge_three_list", "a merge of three parts in a list", model(merges=[["a", "b", "c"]]))
    put("merge_numbers", "a merge of numbers", model(merges=[[1, 2]]))
    put("merge_object", "merges in an object", model(merges={"a": "b"}))
    put("merge_twice", "one merge 20,000 times", lambda t: (t["model"]["vocab"].update({"ab": 256}), t["model"].update(merges=["a b"] * 20000)))
    put("merge_escape", "a merge that colours the terminal", model(merges=[ESC + " x"]))
    put("merge_empty", "a merge of nothing", model(merges=[""]))

    def growing(t, n=1000):
        for i in range(2, n):
            t["model"]["vocab"]["a" * i] = 254 + i
        t["model"]["merges"] = ["a" * i + " a" for i in range(1, n - 1)]

    put("merges_growing", "merges that build a token of 1000 letters one by one", growing)
    c.case("merges_growing_text", "the same, for a text of 30,000 letters", "czero train --config common/ds.json --model common/model --tokenizer in --data in/a.txt --seq-len 8 --steps 1 --quiet", {"in/tokenizer.json": json.dumps((lambda t: (growing(t, 300), t)[1])(bpe())), "in/a.txt": "a" * 30000})
    put("unk_missing", "an unknown token that does not exist", model(unk_token=ESC))
    put("dropout", "merges that are left out at random", model(dropout=0.5))
    put("prefix", "a prefix of words", model(continuing_subword_prefix="##"))
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        put(f"{part}_escape", f"a {part} whose type colours the terminal", lambda t, part=part: t.update({part: {"type": ESC}}))
        put(f"{part}_text", f"a {part} that is text", lambda t, part=part: t.update({part: "x"}))
        nested = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True} if part != "normalizer" else {"type": "NFC"}

        def deep(t, part=part, nested=nested):
            kind = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors", "decoder": "decoders"}[part]
            for _ in range(300):
                nested = {"type": "Sequence", kind: [nested]}
            t.update({part: nested})

        put(f"{part}_deep", f"a {part} of sequences nested 300 deep", deep)
    split = lambda regex: (lambda t: t.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}, t["pre_tokenizer"] | {"use_regex": False}]}))  # noqa: E731
    put("regex_exponential", "a pattern that backtracks for ever: (a+)+$", split("(a+)+$"))
    put("regex_huge", "a pattern of 200,000 characters", split("a?" * 100000))
    put("regex_nested", "a pattern with counts of counts", split("((a{1000}){1000}){1000}"))
    put("regex_escape", "a pattern that colours the terminal", split(ESC))
    put("replace", "a normalizer that replaces nothing by text", lambda t: t.update(normalizer={"type": "Replace", "pattern": {"String": ""}, "content": "a"}))
    added = lambda *tokens: (lambda t: t.update(added_tokens=[{"id": 256 + i, "content": x, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} if isinstance(x, str) else x for i, x in enumerate(tokens)]))  # noqa: E731
    put("added_empty", "an added token of no character", added(""))
    put("added_escape", "an added token that colours the terminal", added(ESC))
    put("added_long", "an added token of 100,000 letters, of which a text holds nearly half", added("a" * 99999 + "b"))
    c.case("added_long_text", "the same, with a text of 50,000 letters", "czero train --config common/ds.json --model common/model --tokenizer in --data in/a.txt --seq-len 8 --steps 1 --quiet", {"in/tokenizer.json": json.dumps((lambda t: (added("a" * 99999 + "b")(t), t)[1])(bpe())), "in/a.txt": "a" * 50000})
    put("added_prefixes", "600 added tokens, each a beginning of the next", added(*["a" * i for i in range(1, 600)]))
    put("added_many", "5000 added tokens", added(*[f"<{i}>" for i in range(5000)]))
    put("added_same", "one added token twice", added("<x>", "<x>"))
    put("added_huge_id", "an added token with id 2^62", added({"id": 1 << 62, "content": "<x>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}))
    put("added_negative_id", "an added token with id -1", added({"id": -1, "content": "<x>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}))
    put("added_no_content", "an added token without text", added({"id": 256}))
    put("added_object", "added tokens in an object", lambda t: t.update(added_tokens={"<x>": 256}))
    put("template_unknown", "a template that names a token without giving it", lambda t: t.update(post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": ESC, "type_id": 0}}], "pair": [], "special_tokens": {}}))
    put("template_huge", "a template of 20,000 parts", lambda t: t.update(post_processor={"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 20000, "pair": [], "special_tokens": {}}))
    put("template_type", "a template with segment 2^62", lambda t: t.update(post_processor={"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 1 << 62}}], "pair": [], "special_tokens": {}}))
    put("padding_huge", "padding to 2^62 tokens, which is not used", lambda t: t.update(padding={"strategy": {"Fixed": 1 << 62}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": ESC}))
    # beside a tokenizer
    for file in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        stem = file[:-5]
        raw(f"{stem}_not_json", f"{file} is not JSON", "hello", (gen, export), file)
        raw(f"{stem}_deep", f"{file} nested 200,000 deep", b"[" * 200000, (gen, export), file)
        raw(f"{stem}_array", f"{file} is an array", b"[1]", (gen, export), file)
    raw("eos_object", "an end token that is an object without text", '{"eos_token": {"a": 1}}', (gen, export), "tokenizer_config.json")
    raw("eos_escape", "an end token that colours the terminal", json.dumps({"eos_token": ESC}), (gen,), "tokenizer_config.json")
    raw("class_escape", "a tokenizer class that colours the terminal", json.dumps({"tokenizer_class": ESC}), (gen,), "tokenizer_config.json")
    raw("chat_template", "a chat template that tries to leave its language: it is text here", json.dumps({"chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"}), (gen, export), "tokenizer_config.json")
    raw("added_json_huge", "added_tokens.json with an id of 2^62, beside a tokenizer.json that rules", '{"x": 4611686018427387904}', (gen, export), "added_tokens.json")
    # the older files
    old = "hostile/bases/model"
    vocab = {x: i for i, x in enumerate(byte_letters())}

    def older(name, idea, vocab_json, merges, config="{}"):
        c.case("old_" + name, idea, gen, {"in/vocab.json": vocab_json, "in/merges.txt": merges, "in/tokenizer_config.json": config}, old)

    good = json.dumps(vocab)
    older("vocab_text", "vocab.json that is text", "hello", "")
    older("vocab_array", "vocab.json that is an array", "[]", "")
    older("vocab_twice", "a token twice in vocab.json", '{"a": 1, "a": 2}', "")
    older("merges_binary", "merges.txt of random bytes", good, bytes(range(256)) * 4)
    older("merges_long_line", "merges.txt of one line of 500,000 letters", good, "a" * 500000)
    older("merges_empty_lines", "merges.txt of 300,000 empty lines", good, "\n" * 300000)
    older("merges_version", "a version line that colours the terminal", good, "#version: " + ESC + "\n")
    older("merges_unknown", "a merge that colours the terminal", good, ESC + " x\n")
    older("added_decoder", "added_tokens_decoder with an id of 2^62", good, "", json.dumps({"added_tokens_decoder": {str(1 << 62): {"content": "x"}}}))
    older("added_decoder_text", "added_tokens_decoder with an id that is text", good, "", json.dumps({"added_tokens_decoder": {ESC: {"content": "x"}}}))
    # WordPiece
    predict = "czero predict --model in --text abc"

    def words(name, idea, data, config='{"do_lower_case": true}', run=predict):
        c.case("wordpiece_" + name, idea, run, {"in/vocab.txt": data, "in/tokenizer_config.json": config}, "hostile/bases/bert")

    lines = (c.out / "bases/bert/vocab.txt").read_text()
    words("empty", "vocab.txt without lines", "")
    words("no_unk", "no [UNK]", lines.replace("[UNK]", "x1"))
    words("no_cls", "no [CLS]", lines.replace("[CLS]", "x1"))
    words("more", "more lines than the model has rows", lines + "more\n")
    words("nul", "lines with NULs", lines.replace("\nb\n", "\nb\0c\n"))
    words("not_utf8", "lines that are not UTF-8", lines.encode().replace(b"\nb\n", b"\n\xff\xfe\n"))
    words("escape", "a line that colours the terminal, twice", lines.replace("\nb\n", f"\n{ESC}\n").replace("\nc\n", f"\n{ESC}\n"))
    words("same", "20,000 equal lines", lines + "same\n" * 20000)
    words("long", "a line of 500,000 letters", lines.replace("\nb\n", "\n" + "b" * 500000 + "\n"))
    words("config_list", "tokenizer_config.json with a list as do_lower_case", lines, '{"do_lower_case": []}')
    words("config_special", "additional special tokens without end", lines, json.dumps({"additional_special_tokens": [f"<{i}>" for i in range(20000)]}))
    words("config_unk", "an unknown token that colours the terminal", lines, json.dumps({"unk_token": ESC}))
    sentencepieces(c, gen, old)
    c.case("named_file", "a tokenizer named by another file", "czero generate --model in --tokenizer in/config.json --prompt a --max-new-tokens 2", None, old)


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out) + bytes([n])


def message(*members):
    """A protocol buffer of (field, value) or (field, value, wire type): whole numbers, bytes or text, floats of 32 bits."""
    out = b""
    for field, value, *wire in members:
        if isinstance(value, int):
            out += varint(field << 3 | (wire[0] if wire else 0)) + varint(value)
        elif isinstance(value, float):
            out += varint(field << 3 | 5) + struct.pack("<f", value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(field << 3 | (wire[0] if wire else 2)) + varint(len(data)) + data
    return out


def sentencepieces(c, gen, base):
    """tokenizer.model: fields 1 pieces (1 text, 2 score, 3 type), 2 trainer (3 type, 40 unknown's id), 3 normalizer (2 character map)."""
    UNIGRAM, BPE, WORD, CHAR = 1, 2, 3, 4
    NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
    head = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    letters = [("\u2581", -2.0, NORMAL), ("a", -3.0, NORMAL), ("b", -3.5, NORMAL), ("ab", -6.0, NORMAL), ("\u2581ab", -7.0, NORMAL)]

    def pieces(rows):
        return b"".join(message((1, message((1, text), (2, score), (3, kind)))) for text, score, kind in rows)

    def raw(name, idea, data, setup=""):
        c.case("pieces_" + name, idea, gen, None if data is None else {"in/tokenizer.model": data}, base, setup)

    def put(name, idea, rows=(), kind=UNIGRAM, trainer=(), normalizer=(), first=head + letters):
        raw(name, idea, pieces([*first, *rows]) + message((2, message((3, kind), *trainer)), (3, message(*normalizer))))

    good = pieces(head + letters) + message((2, message((3, UNIGRAM))))
    c.case("sentencepiece", "a tokenizer.model that ends inside a piece", gen, {"in/tokenizer.model": b"\x0a\x0e\x0a\x05<unk>"}, base)
    raw("empty", "tokenizer.model without a byte", b"")
    raw("text", "a tokenizer.model that is text", "hello\nworld\n")
    raw("pointer", "a tokenizer.model that Git LFS left behind", "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 499723\n")
    raw("zeros", "a tokenizer.model of NULs", b"\0" * 1000)
    raw("ones", "a tokenizer.model of bytes 0xFF", b"\xff" * 1000)
    raw("cut", "cut inside the last field", good[:-1])
    raw("half", "the first half", good[: len(good) // 2])
    raw("json", "tokenizer.json under the name tokenizer.model", json.dumps(bpe()))
    raw("length_huge", "a piece of 2^63 - 1 bytes", b"\x0a" + varint((1 << 63) - 1))
    raw("length_wraps", "a piece of 2^64 - 1 bytes", b"\x0a" + varint((1 << 64) - 1) + b"a")
    raw("varint_long", "a length of eleven bytes", b"\x0a" + b"\x80" * 10 + b"\x01a")
    raw("field_zero", "a field of number 0", good + b"\x02\x00")
    raw("group", "a group that does not end", good + b"\x5b")
    raw("wire_six", "a field of a kind that there is not", good + b"\x5e\x00")
    raw("fixed_cut", "a number of eight bytes with three left", good + b"\x59\x00\x00\x00")
    raw("piece_number", "a piece that is a number", message((1, 7)) + good)
    raw("score_text", "a score that is text", pieces(head + letters) + message((1, message((1, "zz"), (2, "high"), (3, 1)))) + message((2, message((3, UNIGRAM)))))
    raw("fields_unknown", "100,000 unknown fields", good + message((99, "x")) * 100000)
    raw("trainers_many", "100,000 trainers, the last one of type char", good + message((2, message((3, CHAR)))) * 100000)
    raw("hole", "a tokenizer.model of 5 GiB without content", None, "sparse in/tokenizer.model 5368709120")
    raw("fifo", "a tokenizer.model that is a pipe", None, "fifo in/tokenizer.model")
    raw("folder", "a tokenizer.model that is a folder", None, "mkdir in/tokenizer.model")
    raw("device", "a tokenizer.model that is a link to /dev/zero", None, "link in/tokenizer.model /dev/zero")
    raw("link_out", "a tokenizer.model that is a link outside", None, "link in/tokenizer.model ../victim/secret.txt")
    put("none", "no piece at all", first=[])
    put("unknown_missing", "no piece of type unknown", first=letters)
    put("unknown_twice", "two pieces of type unknown", [("<unk2>", 0.0, UNKNOWN)])
    put("unknown_id", "the unknown's id is 2^31", trainer=[(40, 1 << 31)])
    put("same", "a piece twice", [("ab", -1.0, NORMAL)])
    put("same_escape", "a piece twice whose text colours the terminal", [(ESC, -1.0, NORMAL)] * 2)
    put("piece_empty", "a piece without text", [("", -1.0, NORMAL)])
    put("piece_nul", "a piece with a NUL", [(b"a\0b", -1.0, NORMAL)])
    put("piece_not_utf8", "a piece that is not UTF-8", [(b"\xff\xfe", -1.0, NORMAL)])
    put("piece_surrogate", "a piece with half of a surrogate pair", [(b"\xed\xa0\x80", -1.0, NORMAL)])
    put("piece_long", "a piece of 500,000 letters", [("a" * 500000, -1.0, NORMAL)])
    put("pieces_growing", "a, aa, … up to 200 letters: 20,100 bytes to try at every place", [("a" * n, -1.0 * n, NORMAL) for n in range(2, 200)])
    put("pieces_many", "60,000 pieces for a model of 256 rows", [(f"{n:06d}", -9.0, NORMAL) for n in range(60000)])
    put("score_nan", "a score that is not a number", [("zz", float("nan"), NORMAL)])
    put("score_infinite", "an infinite score", [("zz", float("inf"), NORMAL)])
    put("score_lowest", "the score minus infinity", [("zz", float("-inf"), NORMAL)])
    put("kind_unknown", "a piece of type 99", [("zz", -1.0, 99)])
    put("user_overlaps", "pieces that users defined, each the beginning of the next", [("a" * n, 0.0, USER) for n in range(2, 100)])
    put("user_empty", "a piece without text that a user defined", [("", 0.0, USER)])
    put("control_escape", "a control piece that colours the terminal", [(ESC, 0.0, CONTROL)])
    put("unused", "every letter unused", first=head + [(t, s, UNUSED) for t, s, _ in letters])
    put("byte_name", "a byte's piece that is not of the form <0xNN>", [("<0xZZ>", 0.0, BYTE)], trainer=[(35, 1)])
    put("byte_missing", "bytes as a last resort, with 255 of 256", [(f"<0x{n:02X}>", 0.0, BYTE) for n in range(255)], trainer=[(35, 1)], first=head)
    put("byte_twice", "one byte's piece twice", [(f"<0x{min(n, 254):02X}>", 0.0, BYTE) for n in range(256)], trainer=[(35, 1)], first=head)
    put("type_zero", "a model of type 0", kind=0)
    put("type_unknown", "a model of type 77", kind=77)
    put("type_huge", "a model of type 2^64 - 1", kind=(1 << 64) - 1)
    for name, kind in (("bpe", BPE), ("word", WORD), ("char", CHAR)):
        put(f"{name}_odd", f"a model of type {name} with a piece of control characters", [("\x1b\x07", -1.0, NORMAL)], kind=kind)
    # a character map: four bytes with the size of a double array, the array, texts that end with NUL
    units = struct.pack("<3I", 0x100 | 1 << 10, 0x80000000, 0x61)
    put("map_short", "a character map of three bytes", normalizer=[(2, b"\0\0\0")])
    put("map_size", "a character map that says it is larger", normalizer=[(2, struct.pack("<I", 1 << 31) + units + b"b\0")])
    put("map_odd", "a character map of 13 bytes of units", normalizer=[(2, struct.pack("<I", 13) + units + b"xb\0")])
    put("map_empty", "a character map without units", normalizer=[(2, struct.pack("<I", 0) + b"b\0")])
    put("map_open", "a character map whose text does not end", normalizer=[(2, struct.pack("<I", 12) + units + b"b")])
    put("map_outside", "a character map whose text is 2^30 bytes on", normalizer=[(2, struct.pack("<I", 12) + struct.pack("<3I", 0x100 | 1 << 10, 0xBFFFFFFF, 0x61) + b"b\0")])
    put("map_away", "a character map whose first unit leads far away", normalizer=[(2, struct.pack("<I", 12) + struct.pack("<3I", 0xFFFFFFFF, 0x80000000, 0x61) + b"b\0")])
    put("map_circle", "a character map whose units lead to each other", normalizer=[(2, struct.pack("<I", 1024) + struct.pack("<I", 0x100) * 256 + b"b\0")])
    put("map_not_utf8", "a character map that makes bytes that are not UTF-8", normalizer=[(2, struct.pack("<I", 1024) + struct.pack("<256I", *(0x80000000 if n == 0 else 0x100 | n for n in range(256))) + b"\xff\0")])


def labelled(c):
    c.category = "texts"
    vocab = "--strip-spaces --size 40 -o out/v"
    train = "czero train --config common/ds.json --model common/bert --task classification --seq-len 8 --steps 1 --quiet --data"

    def put(name, idea, data, ending="json", run=None, setup=""):
        file = f"in/x.{ending}"
        commands = run or (f"czero vocab --data {file} {vocab}", f"{train} {file}")
        c.case(name, idea, commands, {file: data} if data is not None else None, "-", setup)

    ok = [["ab", "A"], ["cd", "B"]]
    put("empty", "no byte", b"")
    put("empty_list", "an empty list", b"[]")
    put("not_json", "text", "hello\nworld\n")
    put("cut", "cut in a string", json.dumps(ok)[:-8])
    put("deep", "arrays nested 200,000 deep", b"[" * 200000)
    put("brackets", "500,000 closing brackets", b"[" + b"]" * 500000)
    put("objects_deep", "objects nested 100,000 deep", b'[{"text":' * 100000)
    put("row_short", "a row of one value", b'[["ab"]]')
    put("row_long", "a row of 50,000 values", json.dumps([["ab"] * 50000]))
    put("row_number", "a row that is a number", b"[1, 2]")
    put("text_number", "a text that is a number", b'[[1, "A"], [2, "B"]]')
    put("text_null", "a text that is null", b'[[null, "A"], [null, "B"]]')
    put("text_list", "a text that is a list", b'[[["a"], "A"]]')
    put("labels_mixed", "labels of two kinds", b'[["ab", "A"], ["cd", 1]]')
    put("label_float", "a label of 0.5: a value", b'[["ab", 0.5], ["cd", 1]]')
    put("label_huge", "a label of 2^64", b'[["ab", 18446744073709551616], ["cd", 1]]')
    put("label_huge_float", "a label of 1e300", b'[["ab", 1e300], ["cd", 1]]')
    put("label_negative", "labels of -1 and 1: integers in numeric order", b'[["ab", -1], ["cd", 1]]')
    put("label_object", "a label that is an object", b'[["ab", {}], ["cd", {}]]')
    put("label_long", "a label of 200,000 letters", json.dumps([["ab", "A" * 200000], ["cd", "B"]]))
    put("label_escape", "a label that colours the terminal", json.dumps([["ab", ESC], ["cd", "B"]]))
    put("label_newline", "a label that forges a line", json.dumps([["ab", FORGED], ["cd", "B"]]))
    put("label_nul", "a label with a NUL", json.dumps([["ab", "A\0B"], ["cd", "B"]]))
    put("label_one", "one label only", b'[["ab", "A"], ["cd", "A"]]')
    put("labels_many", "10,000 labels", json.dumps([["ab", f"L{i}"] for i in range(10000)]))
    put("labels_colliding", "2048 labels with one hash under FNV-1a", json.dumps([["a", k] for k in c.colliding]))
    put("nul_in_text", "a text with NULs", json.dumps([["a\0b", "A"], ["\0", "B"]]))
    put("surrogates", "texts of half surrogate pairs", b'[["\\ud83d", "A"], ["\\ude00x", "B"]]')
    put("escape_bad", "an escape that does not exist", b'[["\\q", "A"]]')
    put("not_utf8", "texts that are not UTF-8", b'[["\xff\xfe\xc3", "A"], ["\x80", "B"]]')
    put("control_raw", "a raw line end in a string", b'[["a\nb", "A"], ["c", "B"]]')
    put("combining", "a text of 100,000 combining marks", json.dumps([["a" + "\u0301" * 100000, "A"], ["b", "B"]]))
    put("ligatures", "characters that one becomes 18 when decomposed", json.dumps([["\ufdfa" * 20000, "A"], ["b", "B"]]))
    put("one_word", "a word of 300,000 letters", json.dumps([["a" * 300000, "A"], ["b", "B"]]))
    put("keys_colliding", "an object of 2048 keys with one hash under FNV-1a", json.dumps([dict.fromkeys(c.colliding, 1) | {"text": "a", "label": "A"}]))
    put("keys_twice", "text twice in an object", b'[{"text": "a", "text": "b", "label": "A"}]')
    put("key_escape", "members that colour the terminal, and none with a text", json.dumps([{ESC: "a", "label": "A"}]))
    put("lines_mixed", "lines of two forms", b'{"text": "a", "label": "A"}\n["b", "B"]\n', "jsonl")
    put("lines_cut", "a line without its end", b'{"text": "a", "label": "A"}\n{"text": "b"', "jsonl")
    put("lines_nul", "lines of NULs", b"\0\n" * 5000, "jsonl")
    put("csv_empty_header", "a header without names", b"\n1,2\n", "csv")
    put("csv_no_text", "a header without a text", f"{ESC},label\na,A\n".encode(), "csv")
    put("csv_header_twice", "two columns `text`", b"text,text,label\na,b,A\nc,d,B\n", "csv")
    put("csv_fewer_cells", "a row with fewer cells than the header", b"text,label\na\nb,B\n", "csv")
    put("csv_more_cells", "a row with more cells than the header", b"text,label\na,A,x\n", "csv")
    put("csv_quote_open", "a quote that never closes", b'text,label\n"a,A\nb,B\n', "csv")
    put("csv_quote_inside", "a quote inside an unquoted cell", b'text,label\na"b,A\nc,B\n', "csv")
    put("csv_quote_text_after", "text after a closing quote", b'text,label\n"a"b,A\n', "csv")
    put("csv_quotes", "500,000 quotes", b"text,label\n" + b'"' * 500000, "csv")
    put("csv_columns", "100,000 columns", b"text,label" + b",c" * 100000 + b"\na,A" + b"," * 100000 + b"\nb,B" + b"," * 100000 + b"\n", "csv")
    put("csv_returns", "line ends of CR only", b"text,label\ra,A\rb,B\r", "csv")
    put("csv_formula", "a text that a spreadsheet would run: it is text here", b"text,label\n=cmd|' /C calc'!A0,A\nb,B\n", "csv")
    put("csv_utf16", "in UTF-16", "text,label\na,A\n".encode("utf-16"), "csv")
    put("csv_nul", "NULs between the cells", b"text,label\na\0,A\0\nb,B\n", "csv")
    put("tsv_quotes", "quotes in a TSV, where they mean nothing", b'text\tlabel\n"a\tA\nb"\tB\n', "tsv")
    predict = "czero predict --model common/bert --data in/x.txt"
    put("predict_escape", "lines that colour the terminal, echoed beside their class", f"{ESC}ab\n\x1b]0;x\x07\n\u009b1m\n{BIDI}\n", "txt", (predict, predict + " --json"))
    put("predict_tabs", "lines with tabs and returns, echoed in a table", "a\tb\r\nc\rd\n", "txt", (predict,))
    put("predict_not_utf8", "lines that are not UTF-8", b"\xff\xfe\n\x80\n", "txt", (predict, predict + " --json"))
    put("predict_nul", "lines of NULs", b"\0\0\n\0\n", "txt", (predict,))
    put("predict_long", "a line of 500,000 letters", b"a" * 500000 + b"\n", "txt", (predict + " -o out/o.tsv",))
    put("predict_empty_lines", "2000 empty lines", b"\n" * 2000, "txt", (predict + " -o out/o.tsv",))
    evaluate = "czero eval --model common/bert --data in/x.json"
    put("eval_unknown_label", "a label that the model does not have, which colours the terminal", json.dumps([["a", ESC]]), "json", (evaluate,))
    put("eval_label_number", "labels by number, of which one is beyond the classes", b'[["a", 0], ["b", 7]]', "json", (evaluate,))
    put("fifo", "a pipe", None, "json", None, "fifo in/x.json")
    put("device", "a link to /dev/zero", None, "json", None, "link in/x.json /dev/zero")
    put("folder", "an empty folder", None, "json", None, "mkdir in/x.json")
    put("hole", "100 GiB without content", None, "json", None, "sparse in/x.json 107374182400")
    # figures of a run
    plot = "czero plot in/x.csv"
    for name, idea, data in (
        ("empty", "no byte", b""),
        ("header_only", "a header only", b"step,loss\n"),
        ("header_escape", "columns that colour the terminal", f"step,{ESC}\n1,2\n".encode()),
        ("header_bidi", "columns that are shown backwards", f"step,{BIDI}\n1,2\n".encode()),
        ("header_markup", "columns that are markup in an SVG", b"step,<script>alert(1)</script>\n1,2\n"),
        ("values_text", "values that are text", f"step,loss\n1,{ESC}\n".encode()),
        ("values_huge", "values of 1e308 and -1e308", b"step,loss\n1,1e308\n2,-1e308\n"),
        ("values_nan", "values that are no numbers", b"step,loss\n1,nan\n2,inf\n3,-inf\n"),
        ("steps_back", "steps that go back", b"step,loss\n5,1\n3,2\n4,3\n"),
        ("columns", "20,000 columns", b"step" + b",c" * 20000 + b"\n1" + b",2" * 20000 + b"\n"),
        ("rows", "100,000 rows", b"step,loss\n" + b"1,2\n" * 100000),
        ("quotes", "a quote that never closes", b'step,loss\n1,"2\n'),
        ("nul", "NULs", b"step,loss\n1\0,2\n"),
        ("huge_step", "steps of 1e300", b"step,loss\n1e300,1\n-1e300,2\n"),
    ):
        put("plot_" + name, f"figures: {idea}", data, "csv", (plot, plot + " -o out/p.svg"))
    put("plot_device", "figures: a link to /dev/zero", None, "csv", (plot,), "link in/x.csv /dev/zero")


def token_files(c):
    c.category = "tokens"
    H = struct.pack

    def put(name, idea, files, path, setup="", more=""):
        c.case(name, idea, f"{TRAIN} {path}{more}", {f"in/{k}": v for k, v in files.items()}, "-", setup)

    head = lambda magic=20240520, version=1, n=200: H("<3i", magic, version, n) + b"\0" * (1024 - 12)  # noqa: E731
    toks = b"".join(H("<H", i % 200) for i in range(200))
    for name, idea, data in (
        ("empty", "no byte", b""),
        ("one_byte", "one byte", b"\x01"),
        ("header_cut", "a header that is cut", head()[:1000] ),
        ("header_only", "a header without the tokens that it promises", head()),
        ("one_token_less", "one token fewer than promised", head() + toks[:-2]),
        ("one_byte_more", "one byte more than promised", head() + toks + b"\0"),
        ("count_negative", "-1 tokens", head(n=-1) + toks),
        ("count_zero", "0 tokens", head(n=0)),
        ("count_max", "2^31 - 1 tokens", head(n=(1 << 31) - 1) + toks),
        ("version", "version 7 of the 16-bit form", head(version=7) + toks),
        ("magic_other", "another magic number", head(magic=20240521) + toks),
        ("magic_swapped", "a magic number in the other byte order", H(">3i", 20240520, 1, 200) + b"\0" * 1012 + toks),
        ("width_other", "32-bit tokens that are 16-bit", head(20240801, 7, 200) + toks),
        ("outside_vocabulary", "tokens outside the vocabulary", head() + H("<H", 65535) * 200),
        ("outside_by_one", "a token that is one too large", head() + toks[:-2] + H("<H", 256)),
        ("tokens_32_negative", "32-bit tokens of 2^32 - 1", head(20240801, 7, 100) + b"\xff" * 400),
        ("few", "fewer tokens than a row", head(n=5) + toks[:10]),
        ("text", "text with the ending .bin", b"hello world\n" * 100),
        ("elf", "a program", b"\x7fELF" + b"\0" * 2000),
    ):
        put("llmc_" + name, f"llm.c's tokens: {idea}", {"x.bin": data}, "in/x.bin")
    put("u16_odd", "plain 16-bit tokens in an odd number of bytes", {"x": toks + b"\0"}, "u16:in/x")
    put("u32_odd", "plain 32-bit tokens in 4n + 2 bytes", {"x": toks[:398]}, "u32:in/x")
    put("u16_empty", "no plain token", {"x": b""}, "u16:in/x")
    put("u32_outside", "plain tokens of 2^32 - 1", {"x": b"\xff" * 400}, "u32:in/x")
    put("u16_prefix_twice", "a prefix of a prefix", {"x": toks}, "u16:u16:in/x")
    put("u16_no_file", "a prefix without a file", {"x": toks}, "u16:")
    c.case("plain_fifo", "plain tokens from a pipe", f"{TRAIN} u16:in/x", None, "-", "fifo in/x")
    c.case("plain_device", "plain tokens from /dev/zero", f"{TRAIN} u16:in/x", None, "-", "link in/x /dev/zero")
    c.case("text_fifo", "a text that is a pipe", f"{TRAIN} in/x.txt", None, "-", "fifo in/x.txt")
    c.case("text_device", "a text that is /dev/urandom", f"{TRAIN} in/x.txt", None, "-", "link in/x.txt /dev/urandom")
    c.case("text_folder", "an empty folder", f"{TRAIN} in/x.txt", None, "-", "mkdir in/x.txt")
    c.case("text_hole", "a text of 1 TiB without content", f"{TRAIN} in/x.txt", None, "-", "sparse in/x.txt 1099511627776")
    put("text_empty", "a text without a byte", {"x.txt": b""}, "in/x.txt")
    put("text_control", "a text of control characters, NUL among them", {"x.txt": bytes(range(32)) * 20}, "in/x.txt")
    put("text_not_utf8", "a text that is not UTF-8: bytes are tokens", {"x.txt": bytes(range(128, 256)) * 4}, "in/x.txt")

    # Megatron
    def idx(magic=b"MMIDIDX\0\0", version=1, kind=8, sequences=1, marks=2, lengths=(200,), offsets=(0,), documents=(0, 1), rest=b""):
        data = magic + H("<QB2Q", version, kind, sequences, marks)
        data += b"".join(H("<i", x) for x in lengths) + b"".join(H("<q", x) for x in offsets) + b"".join(H("<q", x) for x in documents)
        return data + rest

    for name, idea, index in (
        ("empty", "an index without a byte", b""),
        ("header_cut", "an index whose header is cut", idx()[:33]),
        ("magic", "another magic", idx(magic=b"TNTIDX\0\0\0")),
        ("version_0", "version 0", idx(version=0)),
        ("version_max", "version 2^64 - 1", idx(version=(1 << 64) - 1)),
        ("kind_0", "a type 0", idx(kind=0)),
        ("kind_float", "floats", idx(kind=6)),
        ("kind_255", "a type 255", idx(kind=255)),
        ("kind_wider", "64-bit integers, in a file of 16-bit ones", idx(kind=5)),
        ("sequences_more", "two sequences, lengths of one", idx(sequences=2)),
        ("sequences_huge", "2^61 sequences, whose bytes wrap around", idx(sequences=1 << 61)),
        ("sequences_max", "2^64 - 1 sequences", idx(sequences=(1 << 64) - 1)),
        ("sequences_zero", "no sequence", idx(sequences=0, lengths=(), offsets=(), documents=(0, 0))),
        ("marks_zero", "no document", idx(marks=0, documents=())),
        ("marks_huge", "2^61 documents", idx(marks=1 << 61)),
        ("length_negative", "a sequence of -200 tokens", idx(lengths=(-200,))),
        ("length_more", "a sequence of one token more", idx(lengths=(201,))),
        ("length_max", "a sequence of 2^31 - 1 tokens", idx(lengths=((1 << 31) - 1,))),
        ("offset_negative", "a sequence at -2", idx(offsets=(-2,))),
        ("offset_beyond", "a sequence behind the end", idx(offsets=(1 << 40,))),
        ("offset_odd", "a sequence in the middle of a token", idx(lengths=(199,), offsets=(1,))),
        ("offset_wraps", "a sequence whose end wraps around in 64 bits", idx(offsets=((1 << 63) - 1,))),
        ("document_negative", "a document that begins at -1", idx(documents=(-1, 1))),
        ("document_beyond", "a document that ends at sequence 2^62", idx(documents=(0, 1 << 62))),
        ("document_back", "documents that go back", idx(marks=3, documents=(0, 1, 0))),
        ("rest", "bytes after the last document", idx(rest=b"\0" * 8)),
        ("overlap", "two sequences that share tokens", idx(sequences=2, lengths=(200, 200), offsets=(0, 0), documents=(0, 2))),
        ("bomb", "20,000 documents that are the same 200 tokens", idx(sequences=20000, lengths=(200,) * 20000, offsets=(0,) * 20000, documents=(0, 20000))),
    ):
        put("megatron_" + name, f"Megatron's index: {idea}", {"x.idx": index, "x.bin": toks}, "in/x")
    put("megatron_no_bin", "Megatron's index without tokens", {"x.idx": idx()}, "in/x.idx")
    put("megatron_bin_empty", "Megatron's index with an empty file of tokens", {"x.idx": idx(), "x.bin": b""}, "in/x.bin")
    put("megatron_outside_vocabulary", "Megatron's tokens outside the vocabulary", {"x.idx": idx(), "x.bin": b"\xff" * 400}, "in/x")
    c.case("megatron_bin_link", "Megatron's tokens are a link, which the user named: data files are followed", f"{TRAIN} in/x", {"in/x.idx": idx(), "in/y": toks}, "-", "link in/x.bin y")
    c.case("megatron_bin_fifo", "Megatron's tokens are a pipe", f"{TRAIN} in/x", {"in/x.idx": idx()}, "-", "fifo in/x.bin")
