#!/usr/bin/env python3
"""Seeds for the fuzz targets: real files of tests/ and of the fixtures, and values of every kind.

    python3 tests/fuzz/seeds.py OUT        writes OUT/TARGET/NAME

Needs nothing but Python and CMake, which unpacks the fixtures."""

import collections
import datetime
import gzip
import hashlib
import json
import pathlib
import pickle
import struct
import sys
import types
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "interop"))
from fixtures import FIXTURES, ROOT  # noqa: E402
from hostile import tools as hostile  # noqa: E402

NBYTES_MAX = {"adapter": 16384, "bpe": 4096, "chat": 65536, "index": 4096, "latest": 256, "model": 4096, "onebit": 8192, "tokens": 4096, "checkpoint": 12288, "config": 2048, "run_state": 4096, "jinja": 262144, "json": 8192, "machine": 16384, "manifest": 4096, "pickle": 8192, "plot": 2048, "pt": 16384, "safetensors": 8192, "texts": 4096, "tokenizer": 12288, "pieces": 9216, "wordpiece": 4096}


def files(pattern, nbytes_max=64 << 20):
    for root in (ROOT / "tests", ROOT / "configs", FIXTURES):
        for path in sorted(root.rglob(pattern)):
            if "fuzz" not in path.relative_to(root).parts and path.is_file() and path.stat().st_size <= nbytes_max:
                yield path


class Out:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.n = 0

    def put(self, target, data):
        if len(data) > NBYTES_MAX[target]:
            return
        folder = self.folder / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ("seed-" + hashlib.sha1(data).hexdigest()[:12])).write_bytes(data)
        self.n += 1


def odd_values():
    deep = []
    for _ in range(50):
        deep = [deep]
    shared = ["x", (1, 2)]
    counter = collections.Counter("hello")
    default = collections.defaultdict(list, {"a": [1]})
    namespace = types.SimpleNamespace(lr=0.1, betas=(0.9, 0.999))
    yield from (None, True, 2**31, -(2**63), 2**100, 1.5, float("nan"), "h\u00e9 \U0001f600", "\ud800")
    yield from (b"", b"\x00\xff", bytearray(b"xy"), 1 + 2j, slice(1, 2), range(3), deque())
    yield from ([], (), {}, set(), frozenset({1}), {1, 2}, deep, [shared, shared, {"s": shared}])
    yield from (list(range(1001)), {i: str(i) for i in range(1000)}, counter, default, namespace)
    yield from (datetime.timedelta(1), pathlib.PurePosixPath("a/b"), ValueError("x"), len)
    yield {1: 1, True: 2, 1.0: 3, (1, (2, b"3")): 4, None: 5, frozenset(): 6}
    yield collections.OrderedDict(a=1, b=collections.OrderedDict())


def deque():
    return collections.deque([1, 2], 3)


def pickles(out):
    for value in odd_values():
        for protocol in (2, 3, 4, 5):
            out.put("pickle", pickle.dumps(value, protocol))
    for path in files("*.pt"):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as z:
                for name in z.namelist():
                    if name.endswith("/data.pkl") and path.name != "no_crc.pt":
                        out.put("pickle", z.read(name))


def texts(out):
    for path in files("*.json"):
        data = path.read_bytes()
        out.put("json", data)
        if "manifests" in path.parts:
            out.put("manifest", data)
        if "zero_optimization" in str(data) or "train_batch_size" in str(data):
            out.put("config", data)


def tensors(out):
    for path in files("*.safetensors"):
        data = path.read_bytes()
        out.put("safetensors", data)
        header = data[8 : 8 + int.from_bytes(data[:8], "little")]
        out.put("json", header)
    for path in files("*.pt"):
        out.put("pt", path.read_bytes())


# The names that fuzz_checkpoint.c chooses from.
NAMES = (
    "mp_rank_00_model_states.pt",
    "zero_pp_rank_0_mp_rank_00_model_states.pt",
    "zero_pp_rank_1_mp_rank_00_model_states.pt",
    "zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "zero_pp_rank_1_mp_rank_00_optim_states.pt",
    "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
    "zero/optimizer_state.pt",
    "zero/w/fp32.pt",
    "zero/w/exp_avg.pt",
    "zero/w/exp_avg_sq.pt",
    "zero/w/step.pt",
)


def checkpoints(out):
    folders = {path.parent for path in files("*_model_states.pt")}
    for folder in sorted(folders):
        data = b""
        for number, name in enumerate(NAMES):
            if (folder / name).exists():
                with zipfile.ZipFile(folder / name) as z:
                    pkl = z.read(next(n for n in z.namelist() if n.endswith("/data.pkl")))
                data += bytes([number]) + len(pkl).to_bytes(2, "little") + pkl
        out.put("checkpoint", data)


def states(out):
    scale = {
        "dynamic": True,
        "growth_0_16": False,
        "consecutive_hysteresis": False,
        "scale": 65536.0,
        "factor": 2.0,
        "iter": 7,
        "last_overflow_iter": -1,
        "window": 1000,
        "min_scale": 1.0,
        "delayed_shift": 2,
        "hysteresis": 2,
    }
    state = {"format": "czero state", "version": 1, "global_steps": 7, "zero_stage": 2, "world_size": 4, "dtype": "bf16"}
    counts = ("global_samples", "skipped_steps", "micro_steps", "n_updates", "n_skipped_in_a_row", "n_scales")
    state |= {name: i for i, name in enumerate(counts)}
    groups = [{"lr": 0.00025, "betas": [0.9, 0.95]}, {"lr": 0, "betas": [0, 0.5]}]
    data = {"epoch": 1, "sample": 12, "n_rows": 100, "seed": "17", "shuffle": True}
    state |= {"scale_history": [2.0**i for i in range(8)], "loss_scale": scale, "seed": "42"}
    out.put("run_state", json.dumps(state | {"groups": []}).encode())
    out.put("run_state", json.dumps(state | {"groups": groups, "data": data, "last_batch_iteration": 6}, indent=2).encode())


def machines(out):
    rates = "gemm_fp32_operations gemm_bf16_operations gemm_fp16_operations triad_bytes adam_fp32_parameters "
    rates += "adam_bf16_parameters comm_bytes host_to_device_bytes device_to_host_bytes device_gemm_fp32_operations "
    rates += "device_gemm_bf16_operations device_gemm_fp16_operations device_copy_bytes nvme_read_bytes nvme_write_bytes "
    profile = {"format": "czero machine", "version": 1, "cpu": "a CPU", "isa": "avx2", "device": "", "threads": 2}
    profile |= {f"{name}_per_second": 1.5e9 for name in rates.split()}
    profile |= {"device_memory_bytes": 0, "nvme_path": "/mnt", "nvme_read_and_write_bytes_per_second": 3e9}
    profile |= {"nvme_block_bytes": 1 << 20, "nvme_queue_depth": 8, "nvme_how": "io_uring"}
    out.put("machine", json.dumps(profile, indent=1).encode())
    for name, value in (("threads", 0), ("version", 2), ("triad_bytes_per_second", -1), ("isa", "x" * 16), ("typo", 1)):
        out.put("machine", json.dumps(profile | {name: value}).encode())


def tokenizers(out):
    for path in files("tokenizer.json"):
        out.put("tokenizer", path.read_bytes())
    letters = [chr(c) for c in range(0x21, 0x7F)] + ["Ġ", "Ċ", "å", "¤", "©"]
    vocab = {c: i for i, c in enumerate(letters)}
    merges = [("a", "b"), ("ab", "'"), ("Ġ", "a"), ("Ġa", "b"), ("1", "2"), ("å", "¤")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    caseless, spaces = "(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\s*[\r\n]+|\s+(?!\S)|\s+"
    llama3 = caseless + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + spaces
    split = {"type": "Split", "pattern": {"Regex": llama3}, "behavior": "Isolated", "invert": False}
    digits = {"type": "Digits", "individual_digits": True}
    flags = {"single_word": True, "lstrip": True, "rstrip": True, "normalized": True, "special": False}
    added = [{"id": len(vocab), "content": "<s>"} | flags, {"id": len(vocab) + 5, "content": "it", "special": True}]
    item = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": item, "pair": [*item, {"Sequence": {"id": "B", "type_id": 1}}]}
    template["special_tokens"] = {"<s>": {"id": "<s>", "ids": [len(vocab)], "tokens": ["<s>"]}}
    model = {"type": "BPE", "vocab": vocab, "merges": [" ".join(m) for m in merges], "unk_token": None}
    plain = {"version": "1.0", "pre_tokenizer": byte_level | {"use_regex": True}, "model": model}
    steps = {"type": "Sequence", "pretokenizers": [digits, split, byte_level | {"add_prefix_space": True}]}
    full = plain | {"added_tokens": added, "normalizer": {"type": "NFC"}, "pre_tokenizer": steps, "post_processor": template}
    full["model"] = model | {"ignore_merges": True, "byte_fallback": True, "fuse_unk": True, "unk_token": "a", "merges": merges}
    pieces = {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1, "##b": 2, "it": 3}, "unk_token": "[UNK]"}
    words = {"normalizer": {"type": "BertNormalizer", "lowercase": True}, "pre_tokenizer": {"type": "BertPreTokenizer"}, "model": pieces}
    for value in (plain, full, words, full | {"pre_tokenizer": split}):
        out.put("tokenizer", json.dumps(value, ensure_ascii=False).encode())
    out.put("tokenizer", json.dumps(full, ensure_ascii=False).encode() + b"\0 ab' it's 12  \n\nab \xff e\xcc\x81 ab")


def zstd_stored(data):
    """A zstd frame of one block that is stored as it is; up to 255 bytes."""
    return b"\x28\xb5\x2f\xfd\x20" + bytes([len(data)]) + (len(data) << 3 | 1).to_bytes(3, "little") + data


# The first byte: form (0 JSON, 1 .csv, 2 .tsv, 3 plain) and options, as fuzz_texts.c has them.
def labelled_texts(out):
    rows = [["one, \u201ctwo\u201d", 1], ["\u4f60 \u597d\n", 0], ["", 1], ["a\ud83d\ude00\x00b", 10]]
    objects = [{"text": t, "label": str(k), "x": [1, {"y": None}]} for t, k in rows]
    pairs = [{"sentence1": "p", "sentence2": "q", "target": True}, {"sentence1": "", "pair": None, "target": False}]
    bodies = {0: [json.dumps(rows), json.dumps(objects, indent=1), "\ufeff" + json.dumps(pairs, ensure_ascii=False)]}
    bodies[0] += ["\n".join(json.dumps(row) for row in rows), "\r\n".join(json.dumps(o) for o in objects)]
    bodies[0] += ['[["x", "y", "LABEL_1"], ["z", null, "LABEL_0"]]', '[["\\ud83d", NaN], ["\\ude00x", 1e0], ["y", -0]]']
    bodies[1] = ['id,text,label\r\n1,"a ""b"", c\n",0\r\n2,,1\r\n', "\ufefftext,label\nx,pos\n\n y , neg \n", "sentence1,sentence2,class\na,b,1\nc,,2"]
    bodies[2] = [body.replace(",", "\t") for body in bodies[1]]
    bodies[3] = ["one\r\n\n two\nthree", "[\n"]
    for form, texts_of_form in bodies.items():
        for text in texts_of_form:
            for options in (0, 4, 8, 24, 44):
                out.put("texts", bytes([form | options]) + text.encode("utf-8", "surrogatepass"))
        packed = texts_of_form[0].encode("utf-8", "surrogatepass")[:250]
        out.put("texts", bytes([form]) + gzip.compress(packed, mtime=0))
        out.put("texts", bytes([form]) + zstd_stored(packed))


def plots(out):
    header = "step,epoch,split,loss,accuracy,macro_f1,weighted_f1,lr,seconds\n"
    train = "".join(f"{s},{s / 4},train,{2 / s},{s / 9},,,5e-05,{s}\n" for s in range(1, 9))
    out.put("plot", (header + train + "8,2,eval,1.5,0.5,0.4,0.3,,9\n9,2.25,train,0.2").encode())
    out.put("plot", (header + "1,0.25,train,nan,inf,,,-0,1\n2,0.5,train,1e308,-1e308,,,1e-320,2\n").encode())
    out.put("plot", b"step,loss,lr_next,grad_norm,loss_scale\n1,5,0.1,1,65536\n2,4,0.1,1,65536\n")
    out.put("plot", b"step,lr\r\n8,0.0\r\nstep,lr\r\n16,1e-05\r\n")
    out.put("plot", b'\xef\xbb\xbfstep,"a ""b"", c"\n1,"2"\n2,\n\n3,4\n')


def wordpieces(out):
    golden = FIXTURES / "tokenizers" / "wordpiece"
    vocab = (golden / "vocab.txt").read_bytes()
    config = b'{"do_lower_case": true, "unk_token": {"content": "[UNK]"}, "additional_special_tokens": ["<x>"]}'
    decoder = b'{"added_tokens_decoder": {"9": {"content": "Ab", "normalized": true, "lstrip": true}}, "strip_accents": null}'
    for i, text in enumerate((golden / "texts.bin").read_bytes().split(b"\n%%%\n")):
        name, data = (vocab[:900], vocab[-1500:], config, decoder)[i % 4], text[:300]
        flags = (i * 7 % 16) * 2 | (i % 4 >= 2)
        out.put("wordpiece", bytes([flags]) + len(name).to_bytes(2, "big") + name + data)


def piece_models(out):
    """tokenizer.model of SentencePiece, behind a text and its length."""

    def field(number, value):
        if isinstance(value, int):
            return bytes([number << 3, value])
        return bytes([number << 3 | 2, len(value)]) + value

    def model(pieces, kind, normalizer=b"", trainer=b""):
        data = b""
        for text, score, what in pieces:
            data += field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + field(3, what))
        return data + field(2, field(3, kind) + trainer) + field(3, normalizer)

    pieces = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("\u2581", -2, 1), ("a", -3.1, 1), ("b", -3.5, 1), ("ab", -6.7, 1), ("<s>x", 0, 4),
              ("\u2581ab", -6.9, 1), ("it", -5, 1), ("1", -4.1, 1), ("12", -1e30, 1), ("\u5929", -4, 1)]  # fmt: skip
    array = struct.pack("<4I", 8, 0x100 | 1 << 10, 0x80000000, 0x61)  # a charsmap of two units
    text = b" ab it's 12  ab\xff<s>x \xe5\xa4\xa9"
    for kind in (1, 2, 3, 4):
        for normalizer in (b"", field(3, 0) + field(4, 0) + field(5, 0), field(2, array + b"b\0")):
            out.put("pieces", bytes([len(text)]) + text + model(pieces, kind, normalizer))
        out.put("pieces", bytes([len(text)]) + text + model([*pieces, ("abb", -1, 5)], kind, b"", b"\xc0\x01\x01"))
    out.put("pieces", b"\0" + (FIXTURES / "tokenizers" / "pieces" / "tokenizer.model").read_bytes())


def of_hostile(category, prefix=""):
    """Inputs of tests/fuzz/hostile that are one file each, by name."""
    folder = FIXTURES / "hostile" / category
    return {path.name: path.read_bytes() for path in sorted(folder.glob(prefix + "*"))}


def rank_files(out):
    def vector(key, numel, kind="FloatStorage"):
        return hostile.tensor(key, numel, 0, (numel,), (1,), kind)

    segment = {"params": ["w", "b"], "tensor_size": 13, "corrected_tensor_size": 16}
    segment |= {"worker_error": vector("0", 16), "server_error": vector("1", 8)}
    head = {"format": "czero 1-bit", "version": 1, "rank": 1, "world_size": 2, "step": 3, "global_steps": 4}
    head |= {"optimizer": "zerooneadam", "segments": [segment], "state": {}}
    states = {"w": {"exp_avg": vector("2", 10), "momentum_accumulator": vector("3", 10)}, "b": {"exp_avg": vector("4", 3)}}
    changes = [{}, {"state": states}, {"version": 2}, {"rank": 0}, {"segments": []}, {"segments": [segment, segment], "state": states}]
    changes += [{"segments": [segment | other]} for other in ({"tensor_size": 17}, {"worker_error": vector("0", 16, "DoubleStorage")}, {"params": []})]
    for change in changes:
        out.put("onebit", hostile.pickled(head | change))


def token_files(out):
    tokens = struct.pack("<200H", *range(200))
    for name, data in of_hostile("tokens").items():
        if name.startswith("megatron"):
            out.put("tokens", b"\1" + struct.pack("<H", len(data) & 0xFFFF) + data + tokens)
        else:
            for form in (0, 2, 3):
                out.put("tokens", bytes([form]) + data)
    index = b"MMIDIDX\0\0" + struct.pack("<QB2Q3i3q3q", 1, 8, 3, 3, 100, 60, 40, 0, 200, 320, 0, 1, 3)
    out.put("tokens", b"\1" + struct.pack("<H", len(index)) + index + tokens)
    out.put("tokens", b"\0" + struct.pack("<3i", 20240520, 1, 200) + bytes(1012) + tokens)
    out.put("tokens", b"\0" + struct.pack("<3i", 20240801, 7, 100) + bytes(1012) + tokens)
    rows = b'{"text": "one \\u4f60\\n", "x": [1, {"y": null}]}\n{"id": 2, "text": ""}\r\n{"text": "\xf0\x9f\x98\x80"}'
    for text in (rows, b"[" + rows.replace(b"}\n{", b"}, {").replace(b"}\r\n{", b"}, {") + b"]", b'{"messages": []}', b"plain\ntext \xff"):
        for data in (text, gzip.compress(text, mtime=0), gzip.compress(text[:9], mtime=0) + gzip.compress(text[9:], mtime=0)):
            out.put("tokens", b"\4" + data)
            out.put("tokens", b"\5" + data)


# Numbers of the files as in fuzz_bpe.c; 6 is a text.
def bpe_folders(out):
    def put(*files):
        out.put("bpe", b"".join(bytes([number]) + struct.pack("<H", len(data)) + data for number, data in files if len(data) < 1 << 16))

    def text(value):
        return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()

    words = (6, b" ab it's 12  \n\nab \xff e\xcc\x81 <s>ab</s>")
    classes = [{"tokenizer_class": name} for name in ("GPT2Tokenizer", "Qwen2TokenizerFast", "RobertaTokenizer", "X")]
    flags = {"content": "<s>", "lstrip": True, "normalized": False, "single_word": True, "special": True}
    configs = [*classes, {"added_tokens_decoder": {"6": flags, "20": flags | {"content": "it"}}, "add_bos_token": True, "bos_token": "<s>"}]
    for config in configs:
        put((2, text(config | {"add_prefix_space": True})), words)
        put((2, text(config)), (3, text({"unk_token": flags, "eos_token": "</s>"})), (4, text({"<x>": 30, "ab": 31})), words)
    for kind in ("qwen2", "roberta", "gpt2"):
        put((5, text({"model_type": kind})), words)
    put((0, text({"a": 0, "b": 1, "ab": 2, "aba": 5, "Ġ": 3})), (1, b"a b\r\nab a\r\n"), words)
    for name, data in of_hostile("tokenizer", "old_").items():
        put(({"": 0, "1": 1, "2": 2}.get(name.partition(".")[2], 3), data), words)


def models(out):
    for path in files("config.json"):
        for task in range(4):
            out.put("model", bytes([task]) + path.read_bytes())
    for data in of_hostile("model").values():
        if b"model_type" in data:
            out.put("model", b"\0" + data)


def names(out):
    for path in files("*.index.json"):
        out.put("index", path.read_bytes())
    for data in of_hostile("index").values():
        out.put("index", data)
    for data in (b"global_step7", b" global_step7\r\n", b"\xe4\xbd\xa0", b"../x", b"a\0b", *of_hostile("latest").values()):
        out.put("latest", data)


def templates(out):
    sys.path.insert(0, str(ROOT / "tests" / "interop" / "chat"))
    from snippets import SNIPPETS

    for text in SNIPPETS:
        out.put("jinja", text.encode())
    for text in SNIPPETS[::7]:
        out.put("jinja", text.encode() + b'\0{"s": "\\u00df x", "l": [1, {"a": null}], "d": {"items": 2.5}, "i": 7, "yes": true}')


def chats(out):
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b\u00e9", "reasoning": "r"}]
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]}
    rows = [{"messages": turn * 2}, {"messages": [turn[0], call, {"role": "tool", "content": "5"}, turn[1]], "tools": [{"name": "f"}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}, {"role": "assistant", "content": None}]},
            {"prompt": turn[:1], "completion": turn[1:]}, {"prompt": "ab", "completion": "cd"}, {"text": "abc"}, {"messages": turn[:1]},
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a" * 60}, {"from": "function_call", "value": "{\"name\": \"f\"}"}], "system": "s"},
            {"instruction": "i", "input": "x", "output": "o", "history": [["q", "r"]]},
            {"messages": [turn[0], dict(turn[1], weight=0), turn[0], dict(turn[1], train=True)], "loss_mask": [1, 0]},
            {"conversation": [{"role": "human", "value": ["a", {"text": "b"}], "note": 1}, {"from": "gpt", "content": [{"type": "text", "text": "c"}]}], "train": True, "score": 2}]
    lines = [json.dumps(row) for row in rows]
    kwargs = [{"enable_thinking": False}, [1], 1, None, {"a": {"b": [1]}}, {"messages": 1}, {}]
    lines += [json.dumps({"messages": turn, "chat_template_kwargs": k}) for k in kwargs]
    for text in ("{{ enable_thinking }}{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}", "{{ tools | tojson }}{{ messages[-1].content | trim }}",
                 "{% for m in messages %}{% if m.tool_calls %}{% for t in m.tool_calls %}{{ t.function.arguments | tojson }}{% endfor %}{% endif %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"):
        for mode, line in enumerate(lines):
            out.put("chat", bytes([64 | mode]) + text.encode() + b"\0" + line.encode())
    for mode in range(64):
        out.put("chat", bytes([mode]) + lines[mode % len(rows)].encode())
    out.put("chat", b"\x30" + "\n".join(lines).encode())
    out.put("chat", b"\x19[" + ",\n".join(lines).encode() + b"]")
    out.put("chat", b"\x20" + gzip.compress(lines[0].encode(), mtime=0))


def adapters(out):
    """A byte, adapter_config.json, and the header of its tensors: tests/fuzz/fuzz_adapter.c."""
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "lora_dropout": 0.1, "alpha_pattern": {"h.0.*c_attn": 3}, "modules_to_save": None, "init_lora_weights": True}

    def header(shapes):
        end, tensors = 0, {}
        for name, shape in shapes.items():
            n = 4
            for side in shape:
                n *= side
            tensors["base_model.model." + name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + n]}
            end += n
        return json.dumps(tensors).encode()

    attn, pooler = "transformer.h.0.attn.c_attn.", "bert.pooler.dense."
    A, B, M = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"
    for mode, more, shapes in (
        (0, {}, {attn + A: [2, 4], attn + B: [12, 2]}),
        (2, {"use_dora": True}, {attn + A: [2, 4], attn + B: [12, 2], attn + M: [12]}),
        (0, {"modules_to_save": ["ln_f"]}, {attn + A: [1, 4], attn + B: [12, 1], "transformer.ln_f.weight": [4], "transformer.ln_f.bias": [4]}),
        (1, {"modules_to_save": ["classifier"]}, {pooler + A: [2, 4], pooler + B: [4, 2], "classifier.weight": [2, 4], "classifier.bias": [2]}),
        (3, {"use_rslora": True, "alpha_pattern": {"pooler|(query|key)": 2.5}}, {pooler + A: [2, 4], pooler + B: [4, 2]}),
        (0, {"init_lora_weights": "pissa", "bias": "all"}, {attn + A: [2, 4]}),
    ):
        out.put("adapter", bytes([mode]) + json.dumps(config | more).encode() + b"\0" + header(shapes) + b"\0" + b"\x3f" * 8)


def main():
    out = Out(sys.argv[1])
    rank_files(out)
    token_files(out)
    bpe_folders(out)
    models(out)
    names(out)
    templates(out)
    chats(out)
    adapters(out)
    labelled_texts(out)
    pickles(out)
    texts(out)
    tensors(out)
    checkpoints(out)
    states(out)
    machines(out)
    tokenizers(out)
    plots(out)
    wordpieces(out)
    piece_models(out)
    print(out.n, "seeds in", out.folder)


if __name__ == "__main__":
    main()
