"""Hostile strings times commands, for test_hostile_names.sh: what a command prints, and the text files that it
writes, hold no character that controls a terminal or turns the direction of text, and no line that a name forged.

    hostile_names.py BUILD      in an empty folder"""
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import types
import zipfile

build = os.path.abspath(sys.argv[1])
czero, zero_to_fp32 = build + "/czero", build + "/zero_to_fp32"
models = build + "/fixtures/models"
FORGED = "czero: 1 file, 3 tensors: no damage"
# Text; raw bytes (as latin-1) are used where a format can hold bytes that are not UTF-8.
STRINGS = {
    "controls": "a\x1b[31mb\x07\x08\x7fc\x9b31md\x85\x0e",
    "title": "\x1b]0;pwned\x07",
    "line": f"k\n{FORGED}\nr\rt\tz",
    "bidi": "x\u202efdp.exe\u2066y\u2069\u200f\u061cz",
    "lines of Unicode": f"u\u2028{FORGED}\u2029\u200b\ufeffv",
    "long": "\u0434\x1b" + "n" * 70000,
}
RAW = {"not UTF-8": b"\xff\xfe\x9b[31m", "overlong": b"a\xc0\x8a\xe0\x80\x9bb", "surrogate": b"\xed\xa0\x80\xed\xb0\x80"}
HIDDEN = {*range(0, 0x20), *range(0x7f, 0xa0), 0x61c, 0x200b, 0x200e, 0x200f, *range(0x2028, 0x202f), *range(0x2060, 0x2070),
          0xfeff} - {0x0a}
failed = []
counts = {"runs": 0, "texts": 0}


def check(where, data, tabs=False):
    counts["texts"] += 1
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        failed.append(f"{where}: not UTF-8: {data[max(0, e.start - 30):e.start + 30]!r}")
        return
    bad = {c for c in text if ord(c) in HIDDEN and not (tabs and c == "\t")}
    if bad:
        at = min(text.index(c) for c in bad)
        failed.append(f"{where}: {[hex(ord(c)) for c in bad]} in {text[max(0, at - 60):at + 30]!r}")
    for line in text.split("\n"):
        if line.startswith(FORGED):
            failed.append(f"{where}: a forged line")


def run(what, *words, codes=(0, 1, 2, 4), shows=None, json_out=False, tabs=False, program=None):
    """One command; the names may be refused, but not shown as they are."""
    counts["runs"] += 1
    done = subprocess.run([program or czero, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    where = f"{what}: {' '.join(w[:40] for w in map(str, words[:4]))}"
    if done.returncode not in codes:
        failed.append(f"{where}: exit {done.returncode}: {done.stderr[-300:]}")
    check(where + ": stdout", done.stdout, tabs)
    check(where + ": stderr", done.stderr)
    if shows and shows.encode() not in done.stdout + done.stderr:
        failed.append(f"{where}: does not show {shows!r}: {done.stdout[:400]} {done.stderr[:400]}")
    if json_out and done.returncode == 0:
        json.loads(done.stdout)
    return done


def written(what, path, tabs=False):
    if os.path.exists(path):
        check(f"{what}: {os.path.basename(path)}", open(path, "rb").read(), tabs)


# ---- files ---------------------------------------------------------------------------------------
class Storage:
    def __init__(self, key, numel):
        self.key, self.numel = key, numel


class Tensor:
    def __init__(self, key, numel):
        self.storage = Storage(key, numel)

    def __reduce__(self):
        n = self.storage.numel
        return torch_utils._rebuild_tensor_v2, (self.storage, 0, (n,), (1,), False, OrderedDict())


class FloatStorage:
    pass


def _rebuild_tensor_v2(*_):
    pass


class HostileClass:
    def __reduce__(self):
        return HostileClass, ()


from collections import OrderedDict  # noqa: E402

torch = types.ModuleType("torch")
torch_utils = types.ModuleType("torch._utils")
torch.FloatStorage, torch._utils, torch_utils._rebuild_tensor_v2 = FloatStorage, torch_utils, _rebuild_tensor_v2
FloatStorage.__module__, _rebuild_tensor_v2.__module__ = "torch", "torch._utils"
sys.modules.update({"torch": torch, "torch._utils": torch_utils})


def write_pt(path, value):
    import io

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            if isinstance(obj, Storage):
                storages.append(obj)
                return ("storage", FloatStorage, obj.key, "cpu", obj.numel)
            return None

    storages, out = [], io.BytesIO()
    Pickler(out, protocol=2).dump(value)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        z.writestr("archive/data.pkl", out.getvalue())
        z.writestr("archive/byteorder", "little")
        for s in {s.key: s for s in storages}.values():
            z.writestr(f"archive/data/{s.key}", struct.pack("<f", 1.0) * s.numel)
        z.writestr("archive/version", "3\n")


def damaged(path):
    """The last float of the first storage, under an unchanged checksum."""
    data = open(path, "rb").read()
    at = data.index(struct.pack("<f", 1.0) * 2)
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(b"\1")


def write_safetensors(path, names, metadata=None):
    header = {"__metadata__": metadata} if metadata else {}
    header.update({n: {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]} for i, n in enumerate(names)})
    text = json.dumps(header, ensure_ascii=False).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"\0" * 8 * len(names))


def folder(name):
    shutil.rmtree(name, ignore_errors=True)
    os.makedirs(name)
    return name


def dump(path, value):
    with open(path, "wb") as f:
        f.write(value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode())


# ---- commands ------------------------------------------------------------------------------------
def torch_files(what, s):
    write_pt("x.pt", OrderedDict({s: Tensor("0", 4), "list": [s, {s: s}], "cls": s.encode()}))
    run(what, "inspect", "x.pt")
    run(what, "inspect", "x.pt", "--all", "--sums")
    run(what, "inspect", "x.pt", "--json", "--sums", json_out=True)
    run(what, "fsck", "x.pt")
    damaged("x.pt")
    run(what, "fsck", "x.pt", codes=(4,))
    key = s[:2000]
    write_pt("k.pt", {"a": Tensor(key, 4)})
    run(what, "inspect", "k.pt")
    run(what, "inspect", "k.pt", "--json", json_out=True)
    damaged("k.pt")
    run(what, "fsck", "k.pt")
    run(what, "fsck", "k.pt", "--json")
    HostileClass.__module__, HostileClass.__qualname__ = "os", s
    # A class written manually: pickle refuses names that it cannot import.
    with zipfile.ZipFile("c.pt", "w", zipfile.ZIP_STORED) as z:
        z.writestr("archive/data.pkl", b"\x80\x02}X\x01\0\0\0ac" + b"os\n" + s.replace("\n", " ").encode() + b"\n)R.")
        z.writestr("archive/version", "3\n")
    run(what, "inspect", "c.pt")
    run(what, "fsck", "c.pt")


def checkpoint(what, s):
    d = folder("ck/tag")
    names = [s, "b"]
    dump("ck/latest", b"tag")
    optim = {"optimizer_state_dict": {
        "base_optimizer_state": {"state": {0: {"step": 1, s[:200]: Tensor("1", 8), "exp_avg_sq": Tensor("2", 8)}},
                                 "param_groups": [{"lr": 0.1, s: s, "params": [0]}]},
        "single_partition_of_fp32_groups": [Tensor("0", 8)], "zero_stage": 1, "partition_count": 1, "group_paddings": [0]},
        "ds_version": s}
    write_pt(d + "/zero_pp_rank_0_mp_rank_00_optim_states.pt", optim)
    model = {"module": OrderedDict((n, Tensor(str(i), 4)) for i, n in enumerate(names)),
             "param_shapes": [OrderedDict((n, (4,)) for n in names)], "buffer_names": [], "shared_params": {"t" + s: s},
             "ds_version": s, "dp_world_size": 1, "mp_world_size": 1, "global_steps": 1, s: s}
    write_pt(d + "/mp_rank_00_model_states.pt", model)
    for words in (["inspect", "ck"], ["inspect", "ck", "--sums", "--all"], ["fsck", "ck"]):
        run(what, *words)
    run(what, "inspect", "ck", "--json", json_out=True)
    folder("out")
    run(what, "ck", "out", "-d", program=zero_to_fp32)
    run(what, "ck", folder("out2"), "--safe_serialization", "-d", "--max_shard_size", "20B", program=zero_to_fp32)
    for name in os.listdir("out2"):
        if name.endswith(".json"):
            written(what, "out2/" + name)
    dump("ck/latest", s.encode())
    run(what, "inspect", "ck")
    run(what, "fsck", "ck")
    run(what, "fsck", "ck", "--json")
    dump("ck/tag/manifest.json", {"format": s, "files": [{"name": s}]})
    run(what, "fsck", "ck", "--tag", "tag")
    os.remove("ck/tag/manifest.json")
    dump("ck/tag/czero_state.json", {"format": s, "version": 1, s: 1})
    run(what, "inspect", "ck", "--tag", "tag")
    run(what, "train", "--config", "ds.json", "--model", "gpt2-tiny", "--data", "text.txt", "--seq-len", "8", "--steps", "1",
        "--resume", "ck", "--quiet")


def weights(what, s):
    d = folder("w")
    write_safetensors(d + "/model.safetensors", [s, "b"], {s[:1000]: s[:1000]})
    run(what, "inspect", d)
    run(what, "inspect", d, "--json", "--sums", json_out=True)
    run(what, "fsck", d)
    d = folder("wi")
    dump(d + "/model.safetensors.index.json", {"metadata": {}, "weight_map": {s: "../" + s, "c": s}})
    run(what, "inspect", d)
    run(what, "fsck", d)
    run(what, "fsck", d, "--json")
    d = folder("m")
    config = json.load(open(models + "/gpt2-tiny/config.json"))
    shutil.copy(models + "/gpt2-tiny/model.safetensors", d)
    for key in ("model_type", "activation_function", "_name_or_path", "n_embd"):
        dump(d + "/config.json", {**config, key: s})
        run(what, "plan", "--model", d, "--config", "ds.json", "--seq-len", "8")
    run(what, "generate", "--model", d, "--prompt", s[:20])
    dump(d + "/config.json", {**config, "_name_or_path": s})
    run(what, "generate", "--model", d, "--prompt", s[:20], "--tokenizer", "bytes", "--max-new-tokens", "5", tabs=True, codes=(0,))
    dump(d + "/tokenizer.json", {"model": {"type": s}, "added_tokens": [{"id": s, "content": s}]})
    run(what, "generate", "--model", d, "--prompt", "x")
    write_safetensors(d + "/model.safetensors", [s, "b"])
    run(what, "generate", "--model", d, "--prompt", "x")
    shutil.copy(models + "/gpt2-tiny/model.safetensors", d)
    write_safetensors(d + "/oracle.safetensors", ["in.input_ids", "out." + s])
    run(what, "verify", d)


def config(what, s):
    base = {"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
    for value in ({**base, s: 1}, {**base, "optimizer": {"type": s}}, {**base, "optimizer": {"type": "AdamW", "params": {s: s}}},
                  {**base, "tensorboard": {"enabled": True, "job_name": s, "output_path": "tb"}},
                  {**base, "zero_optimization": {"stage": s, s: 2}}, {**base, "steps_per_print": s},
                  {**base, "scheduler": {"type": s, "params": {s: 1}}}, {**base, "communication_data_type": s}):
        dump("c.json", value)
        run(what, "config", "check", "c.json")
        run(what, "config", "check", "c.json", "--strict")
        run(what, "config", "show", "c.json", json_out=True)
        run(what, "config", "show", "c.json", "--explain")
    run(what, "config", "diff", "c.json", "ds.json")
    run(what, "plan", "--model", "gpt2-tiny", "--config", "c.json", "--seq-len", "8")
    run(what, "config", "check", "ds.json", "--set", "a." + s[:100].replace("=", "") + "=1")


def classifier(what, s):
    d = folder("cls")
    shutil.copy(models + "/bert-cls/model.safetensors", d)
    settings = json.load(open(models + "/bert-cls/config.json"))
    n = len(settings["id2label"])
    labels = [s[:3000] + str(i) for i in range(n)]
    dump(d + "/config.json", {**settings, "id2label": {str(i): l for i, l in enumerate(labels)},
                              "label2id": {l: i for i, l in enumerate(labels)}})
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
    dump(d + "/vocab.txt", "\n".join(tokens).encode())
    dump("texts.jsonl", "".join(json.dumps({"text": f"a {s[:3000]} b", "label": labels[i % n]}, ensure_ascii=False) + "\n" for i in range(4)).encode())
    run(what, "predict", "--model", d, "--text", "a b", codes=(0,))
    run(what, "predict", "--model", d, "--text", "a b", "--json", codes=(0,), json_out=True)
    run(what, "predict", "--model", d, "--data", "texts.jsonl", tabs=True, codes=(0,))
    run(what, "predict", "--model", d, "--data", "texts.jsonl", "-o", "p.tsv", codes=(0,))
    written(what, "p.tsv", tabs=True)
    run(what, "predict", "--model", d, "--data", "texts.jsonl", "--json", "-o", "predictions.json", codes=(0,))
    written(what, "predictions.json")
    run(what, "eval", "--model", d, "--data", "texts.jsonl", codes=(0,))
    run(what, "eval", "--model", d, "--data", "texts.jsonl", "--json", json_out=True, codes=(0,))
    dump("bad.jsonl", json.dumps({"text": "a", "label": "other" + s}).encode())
    run(what, "eval", "--model", d, "--data", "bad.jsonl", codes=(2,))
    run(what, "eval", "--model", d, "--data", "texts.jsonl", "--text-column", s)
    run(what, "train", "--config", "ds.json", "--model", d, "--task", "classification", "--data", "texts.jsonl", "--steps", "1",
        "--export", folder("exported"), "--metrics", "m.csv", "--force", "--save", folder("run"), "--seq-len", "8", codes=(0,))
    for root, _, names in [*os.walk("exported"), *os.walk("run")]:
        for name in names:
            if name.endswith((".json", ".csv")):
                written(what, os.path.join(root, name))
    written(what, "m.csv")
    dump("t.csv", f'{s[:200]},"{s[:200]}"\n1,2\n'.encode())
    run(what, "train", "--config", "ds.json", "--model", d, "--task", "classification", "--data", "t.csv", "--steps", "1")
    run(what, "vocab", "--data", "texts.jsonl", "--kind", "wordpiece", "--size", "60", "-o", folder("v"))


def figures(what, s):
    s = s[:200]
    quoted = '"' + s.replace('"', '""') + '"'
    dump("f.csv", f"step,{quoted},loss\n1,1,2\n2,3,4\n".encode())
    for words in ([], ["--y", s], ["--title", s], ["--x", s], ["-o", "f.svg"], ["--y", s, "--title", s, "-o", "g.svg"]):
        run(what, "plot", "f.csv", *words)
    written(what, "f.svg")
    written(what, "g.svg")
    run(what, "bench", "--seconds", "0.01", "--nvme", "text.txt/" + s, codes=(1, 2))


def machine(what, s):
    profile = {"format": "czero machine", "version": 1, "cpu": s[:60], "isa": s[:20], "nvme_path": s[:90], "nvme_how": s[:30]}
    for p in (profile, {**profile, "cpu": "c", "isa": "i", "nvme_path": "/tmp", "nvme_how": "h", s: 1}):
        dump("p.json", p)
        tune = ["tune", "--model", "gpt2-tiny", "--seq-len", "8", "--host-memory", "4GB", "--nvme", "4GB", "--profile", "p.json"]
        run(what, *tune, "-o", "t.json")
        run(what, *tune, "--json", json_out=True)
        written(what, "t.json")
        run(what, "plan", "--model", "gpt2-tiny", "--config", "ds.json", "--seq-len", "8", "--profile", "p.json")


def words(what, s):
    s = s[:200].replace("/", "_")
    for w in ([s], ["help", s], ["train", s], ["train", "--" + s], ["plan", "--model", s, "--config", "ds.json", "--seq-len", "8"],
              ["train", "--config", s], ["config", s], ["launch", "--", s], ["inspect", s], ["fsck", s], ["verify", s], ["plot", s], ["data", s], ["data", "show", s, "--tokenizer", "bytes"],
              ["generate", "--model", s, "--prompt", s], ["predict", "--model", s, "--text", "a"], ["export", s, "-o", "e"],
              ["train", "--config", "ds.json", "--model", "gpt2-tiny", "--data", s, "--seq-len", "8", "--steps", "1"]):
        run(what, *w)
    run(what, s, "out", program=zero_to_fp32)
    if len(s) < 200:
        shutil.copy("text.txt", s)
        done = run(what, "init", "--model", "gpt2-tiny", "--data", s, "--task", "causal-lm", "--seq-len", "8", "--tokenizer", "bytes",
                   "--host-memory", "4GB", "--steps", "1", "--yes", "--force", "-o", "init.json")
        if done.returncode == 0:
            failed.append(f"{what}: init wrote a script with a hidden name")
        written(what, "train.sh")


def raw(what, data):
    """Bytes that are not UTF-8, in formats that may hold any."""
    write_safetensors("r.safetensors", ["NAME", "b"])
    text = open("r.safetensors", "rb").read()
    header = text[8:8 + struct.unpack("<Q", text[:8])[0]].replace(b"NAME", data)
    dump("r.safetensors", struct.pack("<Q", len(header)) + header + b"\0" * 16)
    run(what, "inspect", "r.safetensors", codes=(4,))
    dump("c.json", b'{"train_batch_size": 1, "' + data + b'": 1}')
    run(what, "config", "check", "c.json", codes=(2,))
    dump("texts.txt", b"a " + data + b" b\n")
    run(what, "predict", "--model", models + "/bert-cls", "--data", "texts.txt", tabs=True)
    dump("f.csv", b"step," + data + b"\n1,2\n2,3\n")
    run(what, "plot", "f.csv")
    run(what, "plot", "f.csv", "-o", "r.svg")
    written(what, "r.svg")
    folder("ck")
    dump("ck/latest", data)
    run(what, "inspect", "ck")
    for words in (["inspect", data], ["train", "--config", data], [b"x" + data]):
        run(what, *words)
    with zipfile.ZipFile("z.pt", "w", zipfile.ZIP_STORED) as z:
        z.writestr("archive/data.pkl", b"\x80\x02}X" + struct.pack("<I", len(data)) + data + b"K\1s.")
        z.writestr("archive/version", "3\n")
    run(what, "inspect", "z.pt")
    run(what, "inspect", "z.pt", "--json", json_out=True)


dump("ds.json", {"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}})
dump("text.txt", b"some text to train on, and a little more of it. " * 20)
os.environ.update(OMP_NUM_THREADS="1", LC_ALL="C.UTF-8")
parts = (torch_files, checkpoint, weights, config, classifier, figures, machine, words)
for name, string in STRINGS.items():
    for part in parts:
        part(f"{name}/{part.__name__}", string)
every = "".join(s for s in STRINGS.values() if len(s) < 100)  # one measurement: it takes seconds
run("all", "bench", "--seconds", "0.01", "--nvme", folder(every), codes=(0,), shows="\\u202e")
for name, string in RAW.items():
    raw(name, string)
for line in failed[:60]:
    print(line, file=sys.stderr)
print(f"{counts['runs']} runs, {counts['texts']} texts, {len(failed)} findings")
sys.exit(1 if failed or counts["runs"] < 400 else 0)
