"""Cases of what people take from others: adapters, chat rows, their templates, kept tokens, recipes of embedding models, generation
configs, values in checkpoints. Most are a sound document with one member bent (bent())."""

import gzip
import json
import shutil
import subprocess

from .checkpoints import INSPECT
from .containers import BIDI, ESC, FORGED, safetensors, weights
from .models import GEN
from .tools import Call, Global, Raw, Torch

DEEP = "\0deep"  # becomes arrays nested 200,000 deep
BAD = {
    "null": (None, "null"),
    "true": (True, "true"),
    "minus": (-1, "-1"),
    "half": (0.5, "0.5"),
    "beyond": ((1 << 64) + 4, "2^64 + 4"),
    "escape": (ESC, "text that colours the terminal"),
    "list": ([[ESC]], "lists"),
    "object": ({ESC: FORGED}, "an object"),
    "deep": (DEEP, "arrays nested 200,000 deep"),
}


def at(document, path):
    for key in path:
        document = document[key]
    return document


def bent(document, path, value):
    """The document as JSON, with another value at path."""
    copy = json.loads(json.dumps(document))
    at(copy, path[:-1])[path[-1]] = value
    return json.dumps(copy).replace(json.dumps(DEEP), "[" * 200000)


def bend(c, name, what, document, paths, put, values=BAD):
    """Each of these members with each value that it cannot have."""
    for path in paths:
        for kind, (value, idea) in values.items():
            if kind in BAD and type(value) is type(at(document, path)) and kind not in ("deep", "escape", "minus"):
                continue
            place = "_".join(str(p) for p in path)
            put(f"{name}_{place}_{kind}", f"{what}: {'.'.join(map(str, path))} is {idea}", bent(document, path, value))


# ---- adapters -------------------------------------------------------------------------------------

MODULE = "base_model.model.transformer.h.0.attn.c_attn"
ADAPTER = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "common/model", "r": 2, "lora_alpha": 4, "lora_dropout": 0.0,
           "target_modules": ["c_attn"], "alpha_pattern": {}, "rank_pattern": {}, "modules_to_save": None, "bias": "none", "use_rslora": False,
           "use_dora": False, "fan_in_fan_out": True, "init_lora_weights": True}
BRANCH = {f"{MODULE}.lora_A.weight": (2, 4), f"{MODULE}.lora_B.weight": (12, 2)}
MERGE = "czero export in out/merged --merge --model common/model"
USE = "czero generate --model common/model --adapter in --prompt ab --max-new-tokens 1"


def adapters(c):
    c.category = "adapter"
    header, data = weights(BRANCH)
    c.put("bases/adapter/adapter_config.json", json.dumps(ADAPTER))
    c.put("bases/adapter/adapter_model.safetensors", safetensors(header, data))
    base = "hostile/bases/adapter"

    def config(name, idea, text, run=(MERGE,)):
        c.case(name, idea, run, {"in/adapter_config.json": text}, base)

    def tensors(name, idea, text, run=(MERGE,)):
        c.case(name, idea, run, {"in/adapter_model.safetensors": text}, base)

    def shapes(name, idea, change, run=(MERGE,)):
        names = dict(BRANCH)
        change(names)
        tensors(name, idea, safetensors(*weights(names)), run)

    config("empty", "no byte", b"", (MERGE, USE))
    config("array", "an array", b"[]")
    config("cut", "without its last brace", json.dumps(ADAPTER)[:-1])
    config("not_utf8", "a key that is not UTF-8", b'{"\xff": 1}')
    config("twice", "peft_type twice", '{"peft_type": "LORA", "peft_type": "IA3"}')
    config("deep_bare", "arrays nested 200,000 deep", b"[" * 200000)
    config("colliding", "2048 keys with one hash under FNV-1a", json.dumps(ADAPTER | dict.fromkeys(c.colliding, 1)), (MERGE + " --strict",))
    keys = [[k] for k in ("peft_type", "r", "lora_alpha", "lora_dropout", "alpha_pattern", "modules_to_save", "bias", "use_rslora", "use_dora", "init_lora_weights", "base_model_name_or_path")]
    bend(c, "config", "adapter_config.json", ADAPTER, keys, config)
    for key in ("lora_bias", "layer_replication", "trainable_token_indices", "target_parameters", "alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config", "megatron_config"):
        config(f"kind_{key}", f"a kind of adapter that is not supported ({key}), in a shape of its own", bent(ADAPTER | {key: 0}, [key], {ESC: [1]}))
    for name, idea, pattern in (
        ("nested", "repeats repeats of repeats", "((((.{1,255}){1,255}){1,255}){1,255})"),
        ("star_of_star", "stars stars thirty times", "(" * 30 + "a" + "*)" * 30),
        ("open", "opens a group", "a("),
        ("look", "looks ahead", "(?=a)"),
        ("group", "refers to a group", "(a)\\1"),
        ("class", "opens a class", "[a"),
        ("range", "has a range that goes back", "[z-a]"),
        ("huge_count", "repeats 10^12 times", "a{1000000000000}"),
        ("long", "has 100,000 characters", "a" * 100000),
        ("deep", "opens 50,000 groups", "(" * 50000 + ")" * 50000),
        ("escape", "colours the terminal", ESC + "("),
        ("alternatives", "has 40,000 alternatives", "|".join(["a"] * 40000)),
    ):
        config(f"pattern_{name}", f"an expression of alpha_pattern that {idea}", json.dumps(ADAPTER | {"alpha_pattern": {pattern: 2}}))
        c.case(f"targets_{name}", f"targets of a new adapter, as an expression that {idea}", "czero plan --config in/ds.json --model common/model --seq-len 8", {"in/ds.json": json.dumps({"train_micro_batch_size_per_gpu": 1, "czero": {"lora": {"targets": pattern + "^" * (name == "long")}}})})
    config("patterns_many", "20,000 expressions", json.dumps(ADAPTER | {"alpha_pattern": {f"a{i}.*b.*c": 1 for i in range(20000)}}))
    config("alpha_zero", "an alpha of 0", json.dumps(ADAPTER | {"alpha_pattern": {"c_attn": 0}}))
    config("alpha_nan", "NaN as alpha", json.dumps(ADAPTER | {"lora_alpha": float("nan")}))
    config("saved_many", "20,000 modules to save", json.dumps(ADAPTER | {"modules_to_save": [f"m{i}" for i in range(20000)]}))
    config("saved_tied", "a tied module to save", json.dumps(ADAPTER | {"modules_to_save": ["wte"]}))
    config("saved_head", "the other name of a tied module to save", json.dumps(ADAPTER | {"modules_to_save": ["lm_head"]}))
    config("saved_absent", "a module to save that is not in the file", json.dumps(ADAPTER | {"modules_to_save": ["ln_f"]}))
    config("saved_path", "a module to save whose name is a path", json.dumps(ADAPTER | {"modules_to_save": ["../../victim/secret.txt", "ln_f"]}))
    for name, value in (("absolute", "/etc"), ("above", "../../victim"), ("nul", "a\0b"), ("long", "x" * 100000)):
        c.case(f"base_{name}", f"the base's folder is a name that is {name}", "czero export in out/merged --merge", {"in/adapter_config.json": json.dumps(ADAPTER | {"base_model_name_or_path": value})}, base)

    A, B = BRANCH
    tensors("file_empty", "no byte", b"", (MERGE, USE))
    tensors("file_zeros", "zeros", b"\0" * 1000)
    tensors("header_huge", "a header of 2^63 bytes", b"\0" * 7 + b"\x80" + b"{}")
    tensors("header_cut", "a header that is cut", safetensors(header, data)[:60])
    tensors("data_cut", "data that are cut", safetensors(header, data)[:-1])
    tensors("data_more", "a byte behind the data", safetensors(header, data) + b"x")
    tensors("pickle", "a pickle", b"\x80\x02cos\nsystem\nX\x0b\0\0\0touch pwned\x85R.")
    shapes("only_a", "A without B", lambda t: t.pop(B))
    shapes("only_b", "B without A", lambda t: t.pop(A))
    shapes("no_tensor", "no tensor", lambda t: t.clear())
    shapes("rank_zero", "a rank of 0", lambda t: t.update({A: (0, 4), B: (12, 0)}))
    shapes("ranks_differ", "A of rank 2 and B of rank 3", lambda t: t.update({B: (12, 3)}))
    shapes("rank_large", "a rank of 70,000", lambda t: t.update({A: (70000, 4), B: (12, 70000)}))
    shapes("a_wide", "A for another width", lambda t: t.update({A: (2, 5)}))
    shapes("b_turned", "B the other way round", lambda t: t.update({B: (2, 12)}))
    shapes("a_vector", "A as a vector", lambda t: t.update({A: (8,)}))
    shapes("a_scalar", "A as a number", lambda t: t.update({A: ()}))
    shapes("a_many_sides", "A with twelve dimensions", lambda t: t.update({A: (1,) * 10 + (2, 4)}))
    shapes("extra", "a module that the model does not have", lambda t: t.update({"base_model.model.evil.lora_A.weight": (2, 4), "base_model.model.evil.lora_B.weight": (4, 2)}))
    shapes("extra_escape", "a tensor whose name colours the terminal", lambda t: t.update({ESC + "w": (1,)}))
    shapes("extra_bidi", "a tensor whose name is shown backwards", lambda t: t.update({BIDI: (1,)}))
    shapes("extra_newline", "a tensor whose name forges a line", lambda t: t.update({FORGED: (1,)}))
    shapes("extra_long", "a tensor with a name of 100,000 characters", lambda t: t.update({"base_model.model." + "n" * 100000: (1,)}))
    shapes("extra_many", "20,000 tensors of no module", lambda t: t.update({f"base_model.model.m{i}.lora_A.weight": (1, 1) for i in range(20000)}))
    shapes("embedding", "branches of the embedding", lambda t: t.update({"base_model.model.transformer.wte.lora_embedding_A": (2, 256), "base_model.model.transformer.wte.lora_embedding_B": (4, 2)}))
    shapes("lengths_unasked", "lengths of DoRA without use_dora", lambda t: t.update({f"{MODULE}.lora_magnitude_vector": (12,)}))
    shapes("head_tied", "a head of its own, which the model ties", lambda t: t.update({"base_model.model.lm_head.weight": (256, 4)}))
    shapes("norm_wide", "a norm of another width", lambda t: t.update({"base_model.model.transformer.ln_f.weight": (5,)}))
    shapes("no_prefix", "names without PEFT's prefix", lambda t: (t.clear(), t.update({k.removeprefix("base_model.model."): v for k, v in BRANCH.items()})))
    for kind, nbytes in (("I64", 8), ("BOOL", 1), ("F8_E4M3", 1), ("F4", 1), ("", 4), (ESC, 4)):
        odd = json.loads(json.dumps(header))
        odd[B]["dtype"] = kind
        tensors(f"dtype_{kind if kind.isalnum() or '_' in kind and kind.isprintable() else 'odd' + str(len(kind))}", "B of a type that is no weight's", safetensors(odd, data))
    for name, idea, member, value in (("shape_huge", "a shape whose product wraps around", "shape", [1 << 62, 4]), ("shape_negative", "a negative shape", "shape", [-2, -4]), ("shape_text", "a shape of text", "shape", ["2", "4"]), ("offsets_swapped", "offsets that go back", "data_offsets", [32, 0]), ("offsets_beyond", "offsets beyond the file", "data_offsets", [0, 1 << 40])):
        odd = json.loads(json.dumps(header))
        odd[A][member] = value
        tensors(name, f"A with {idea}", safetensors(odd, data))
    for name, idea, setup in (
        ("config_fifo", "adapter_config.json is a pipe", "rm in/adapter_config.json;fifo in/adapter_config.json"),
        ("config_device", "adapter_config.json is a device", "rm in/adapter_config.json;link in/adapter_config.json /dev/zero"),
        ("config_link", "adapter_config.json leads out", "rm in/adapter_config.json;link in/adapter_config.json ../victim/config.json"),
        ("config_hole", "adapter_config.json of 10 GiB without content", "rm in/adapter_config.json;sparse in/adapter_config.json 10737418240"),
        ("tensors_fifo", "the tensors are a pipe", "rm in/adapter_model.safetensors;fifo in/adapter_model.safetensors"),
        ("tensors_device", "the tensors are a device", "rm in/adapter_model.safetensors;link in/adapter_model.safetensors /dev/zero"),
        ("tensors_link", "the tensors lead out", "rm in/adapter_model.safetensors;link in/adapter_model.safetensors ../victim/model.safetensors"),
        ("tensors_folder", "the tensors are a folder", "rm in/adapter_model.safetensors;mkdir in/adapter_model.safetensors"),
        ("tensors_bin", "the tensors are a pickle of old", "move in/adapter_model.bin in/adapter_model.safetensors"),
    ):
        c.case(name, idea, (MERGE, USE), {}, base, setup)


# ---- rows of chats, and templates -----------------------------------------------------------------

ROW = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]}, {"role": "tool", "content": "c"}, {"role": "assistant", "content": "d"}],
       "tools": [{"type": "function", "function": {"name": "f", "description": "f", "parameters": {}}}], "chat_template_kwargs": {"enable_thinking": False}}
TEMPLATE = "{{ tools | tojson if tools }}{{ enable_thinking }}{% for m in messages %}[{{ m.role }}:{{ m.content }}{% for t in m.tool_calls or [] %}{{ t.function.name }}{{ t.function.arguments | tojson }}{% endfor %}]{% endfor %}"
SHOW = "czero data show in/rows.jsonl --tokenizer bytes --chat-template in/t.jinja --seq-len 512 --left-out"
SFT = "czero train --config common/ds.json --model common/model --task sft --data in/rows.jsonl --tokenizer bytes --chat-template in/t.jinja --seq-len 8 --steps 1 --quiet"


def chats(c):
    c.category = "chat"
    c.put("bases/chat/t.jinja", TEMPLATE)
    c.put("bases/chat/rows.jsonl", json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}) + "\n")
    base = "hostile/bases/chat"

    def rows(name, idea, text, run=(SHOW, SFT)):
        c.case(name, idea, run, {"in/rows.jsonl": text}, base)

    paths = [["messages"], ["messages", 0], ["messages", 1, "role"], ["messages", 1, "content"], ["messages", 2, "tool_calls"], ["messages", 2, "tool_calls", 0], ["messages", 2, "tool_calls", 0, "function"], ["messages", 2, "tool_calls", 0, "function", "arguments"], ["tools"], ["tools", 0], ["chat_template_kwargs"], ["chat_template_kwargs", "enable_thinking"]]
    bend(c, "row", "a row", ROW, paths, lambda n, i, t: rows(n, i, t, (SHOW,)))
    for name, idea, more in (
        ("prompt_number", "a prompt that is a number", {"prompt": 1, "completion": "b"}),
        ("completion_list", "a completion that is a list of numbers", {"prompt": "a", "completion": [1]}),
        ("text_object", "a text that is an object", {"text": {"a": 1}}),
        ("conversations_text", "conversations that are text", {"conversations": "a"}),
        ("from_number", "a turn from a number", {"conversations": [{"from": 1, "value": "a"}]}),
        ("value_list", "a turn whose value is a list", {"conversations": [{"from": "human", "value": [1]}]}),
        ("kwargs_messages", "kwargs that name messages", ROW | {"chat_template_kwargs": {"messages": 1, "tools": 2}}),
        ("kwargs_escape", "kwargs with a name that colours the terminal", ROW | {"chat_template_kwargs": {ESC: 1}}),
        ("kwargs_many", "20,000 kwargs", ROW | {"chat_template_kwargs": {f"k{i}": 1 for i in range(20000)}}),
        ("role_escape", "a role that colours the terminal", {"messages": [{"role": ESC, "content": "a"}, {"role": "assistant", "content": "b"}]}),
        ("parts_numbers", "parts that are numbers", {"messages": [{"role": "user", "content": [1, 2]}, {"role": "assistant", "content": "b"}]}),
        ("parts_image", "a part that names a file", {"messages": [{"role": "user", "content": [{"type": "image", "image": "victim/secret.txt"}]}, {"role": "assistant", "content": "b"}]}),
        ("members_colliding", "2048 members with one hash under FNV-1a", ROW | dict.fromkeys(c.colliding, 1)),
    ):
        rows(name, idea, json.dumps(more) + "\n", (SHOW,))
    for name, idea, data in (
        ("empty", "no byte", b""),
        ("nul", "NULs", b"\0" * 1000),
        ("array", "an array of numbers", b"[1, 2]\n"),
        ("cut", "a row that is cut", json.dumps(ROW).encode()[:-2] + b"\n"),
        ("not_utf8", "a text that is not UTF-8", b'{"messages": [{"role": "user", "content": "\xff"}, {"role": "assistant", "content": "b"}]}\n'),
        ("surrogate", "half of a surrogate pair", b'{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "b"}]}\n'),
        ("twice", "messages twice", b'{"messages": [], "messages": [{"role": "user", "content": "a"}]}\n'),
        ("deep", "arrays nested 200,000 deep", b'{"messages": ' + b"[" * 200000 + b"\n"),
        ("brackets", "500,000 closing brackets", b"]" * 500000 + b"\n"),
        ("messages_1000", "1000 messages", json.dumps({"messages": [{"role": r, "content": "a"} for _ in range(500) for r in ("user", "assistant")]}).encode() + b"\n"),
        ("messages_10000", "10,000 messages", json.dumps({"messages": [{"role": r, "content": "a"} for _ in range(5000) for r in ("user", "assistant")]}).encode() + b"\n"),
        ("long_text", "a text of 4 MB", json.dumps({"messages": [{"role": "user", "content": "a" * 4000000}, {"role": "assistant", "content": "b"}]}).encode() + b"\n"),
        ("gzip_bomb", "a row of 20 MB of zeros in 20 KB", gzip.compress(b"\0" * 20000000)),
    ):
        file = "rows.jsonl.gz" if name == "gzip_bomb" else "rows.jsonl"
        c.case(name, idea, [r.replace("rows.jsonl", file) for r in (SHOW, SFT)], {f"in/{file}": data}, base)
    nest = lambda a, b, n: a * n + "x" + b * n  # noqa: E731
    for name, idea, text in (
        ("unclosed", "a tag that never ends", "{% for m in messages %}{{ m"),
        ("unknown_tag", "a tag that does not exist", "{% evil %}"),
        ("unknown_tag_escape", "a tag that colours the terminal", "{% " + ESC + " %}"),
        ("unknown_filter", "a filter that does not exist", "{{ messages | evil }}"),
        ("unknown_test", "a test that does not exist", "{{ messages is evil }}"),
        ("include", "an include of a file", "{% include 'victim/secret.txt' %}"),
        ("import", "an import of a file", "{% import 'victim/secret.txt' as x %}"),
        ("extends", "a base in a file", "{% extends 'victim/secret.txt' %}"),
        ("subclasses", "the way to Python's classes", "{{ ''.__class__.__mro__[1].__subclasses__() }}"),
        ("attr", "the same by a filter", "{{ ''|attr('__class__') }}"),
        ("globals", "globals of a function", "{{ raise_exception.__globals__['os'].system('touch pwned') }}"),
        ("raise_escape", "an error that colours the terminal", "{{ raise_exception('" + ESC + FORGED + "') }}"),
        ("raise_bidi", "an error that is shown backwards", "{{ raise_exception('" + BIDI + "') }}"),
        ("loop_long", "10^9 rounds", "{% for i in range(1000000000) %}{{ i }}{% endfor %}"),
        ("loop_nested", "10^12 rounds in four loops", "{% for a in range(1000) %}{% for b in range(1000) %}{% for d in range(1000) %}{% for e in range(1000) %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}"),
        ("range_huge", "a range of 2^62", "{{ range(4611686018427387904) | list }}"),
        ("range_negative", "a range with a step of 0", "{{ range(1, 5, 0) | list }}"),
        ("times", "10^12 letters", "{{ 'a' * 1000000000000 }}"),
        ("times_list", "a list 10^12 times", "{{ [1] * 1000000000000 }}"),
        ("double", "a text that doubles forty times", "{% set x = namespace(t='aaaa') %}{% for i in range(40) %}{% set x.t = x.t ~ x.t %}{% endfor %}{{ x.t }}"),
        ("laughs", "lists in lists, written out", "{% set x = namespace(t=['lol']) %}{% for i in range(40) %}{% set x.t = [x.t, x.t, x.t] %}{% endfor %}{{ x.t | tojson }}"),
        ("cycle", "a list that holds itself", "{% set x = [] %}{% set _ = x.append(x) %}{{ x }}{{ x | tojson }}"),
        ("power", "10 to the 10 to the 10", "{{ 10 ** 10 ** 10 }}"),
        ("divide_zero", "a division by 0", "{{ 1 // 0 }}{{ 1 % 0 }}{{ 1 / 0 }}"),
        ("smallest", "the smallest integer by -1", "{{ (-9223372036854775807 - 1) // -1 }}{{ (-9223372036854775807 - 1) % -1 }}"),
        ("digits", "a number of 100,000 digits", "{{ " + "9" * 100000 + " }}"),
        ("int_digits", "the same from a text", "{{ ('9' * 100000) | int }}"),
        ("slice_huge", "slices beyond 64 bits", "{{ 'abc'[-9223372036854775807:9223372036854775807:9223372036854775807] }}{{ 'abc'[::-9223372036854775807] }}"),
        ("slice_zero", "a slice with a step of 0", "{{ 'abc'[::0] }}"),
        ("index_huge", "an index of 2^63 - 1", "{{ [1][9223372036854775807] }}"),
        ("recursion", "a macro that calls itself", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
        ("recursion_two", "two macros that call each other", "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}"),
        ("map_map", "map of map 40,000 times", '{{ "a"|map(' + ",".join(['"map"'] * 40000) + ") }}"),
        ("parens", "100,000 parentheses", nest("(", ")", 100000).join(("{{ ", " }}"))),
        ("lists", "100,000 lists", nest("[", "]", 100000).join(("{{ ", " }}"))),
        ("nots", "100,000 times not", "{{ " + "not " * 100000 + "x }}"),
        ("minuses", "100,000 minus signs", "{{ " + "-" * 100000 + "1 }}"),
        ("ifs", "20,000 conditions in each other", "{% if 1 %}" * 20000 + "{% endif %}" * 20000),
        ("ternaries", "20,000 conditional expressions", "{{ " + "1 if 1 else " * 20000 + "1 }}"),
        ("dots", "100,000 attributes", "{{ x" + ".a" * 100000 + " }}"),
        ("filters", "100,000 filters", "{{ 'a'" + "|trim" * 100000 + " }}"),
        ("kwargs", "20,000 named arguments", "{{ namespace(" + ",".join(f"a{i}=1" for i in range(20000)) + ") }}"),
        ("kwargs_twice", "a named argument twice", "{{ namespace(a=1, a=2) }}"),
        ("parameters", "a macro with 20,000 parameters", "{% macro f(" + ",".join(f"a{i}" for i in range(20000)) + ") %}{% endmacro %}{{ f() }}"),
        ("star_number", "arguments out of a number", "{{ f(*1) }}{{ f(**1) }}{% macro f() %}{% endmacro %}"),
        ("unpack", "three names for two values", "{% for a, b, d in [[1, 2]] %}{% endfor %}"),
        ("string_open", "a text that never ends", "{{ 'abc }}"),
        ("escape_odd", "an escape that does not exist", "{{ '\\x' }}{{ '\\u12' }}{{ '\\N{evil}' }}"),
        ("comment_open", "a comment that never ends", "{# abc"),
        ("raw_open", "raw text that never ends", "{% raw %}abc"),
        ("generation_open", "a trained part that never ends", "{% generation %}abc"),
        ("generation_nested", "a trained part in a trained part", "{% generation %}{% generation %}a{% endgeneration %}{% endgeneration %}"),
        ("join_json", "JSON of 200,000 control characters, twice", "{% set a = '\x01' * 200000 %}{% for i in range(2) %}{{ a | tojson }}{% endfor %}"),
        ("replace_grow", "a text that a replacement makes 10^9 long", "{{ ('a' * 100000) | replace('a', 'b' * 10000) }}"),
        ("indent", "an indent of 2^40", "{{ 'a\nb' | indent(1099511627776) }}"),
        ("center", "a text in the middle of 2^40", "{{ 'a'.center(1099511627776) }}"),
        ("format", "a width of 10^12 in a format", "{{ '%1000000000000d' % 1 }}{{ '{:>1000000000000}'.format(1) }}"),
        ("strftime", "a format of time that is long", "{{ strftime_now('%c' * 100000) }}"),
        ("sort_many", "a sort of a million numbers", "{{ range(1000000) | sort | length }}"),
        ("count_pairs", "a million look-ups in a list of a million", "{% set x = range(1000000) | list %}{% for i in x %}{{ x.index(999999) }}{% endfor %}"),
        ("strip_set", "a strip with a set of a megabyte, in a loop", "{% set s = 'ab' * 500000 %}{% for i in range(100000) %}{{ (s.strip(s ~ 'c')) }}{% endfor %}"),
        ("not_utf8", "bytes that are not UTF-8", b"\xff\xfe{{ messages }}"),
        ("nul", "NULs", b"\0" * 1000),
        ("empty", "no byte", b""),
        ("ids_huge", "a variable with a name of 1 MB", "{{ " + "x" * 1000000 + " }}"),
    ):
        c.case(f"template_{name}", f"a template with {idea}", (SHOW,), {"in/t.jinja": text}, base)
    for name, idea, setup in (("device", "a device", "rm in/t.jinja;link in/t.jinja /dev/zero"), ("fifo", "a folder", "rm in/t.jinja;mkdir in/t.jinja"), ("hole", "10 GiB without content", "rm in/t.jinja;sparse in/t.jinja 10737418240")):
        c.case(f"template_file_{name}", f"the template is {idea}", (SHOW,), {}, base, setup)


# ---- kept tokens ----------------------------------------------------------------------------------


def caches(c, build):
    """A file of --token-cache that czero wrote, and then: each run is that of the sound file or leaves it out."""
    c.category = "cache"
    base = "hostile/bases/cache"
    c.put("bases/cache/t.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}")  # the model reads 8 tokens
    c.put("bases/cache/rows.jsonl", "".join(json.dumps({"messages": [{"role": "user", "content": "a" * i}, {"role": "assistant", "content": "bc"}]}) + "\n" for i in range(1, 6)))
    folder = c.out / "bases" / "cache" / "kept"
    command = SFT + " --token-cache in/kept"
    subprocess.run([build / "czero", *command.replace("in/", "bases/cache/").split()[1:]], cwd=c.out, check=True, stdout=subprocess.DEVNULL)
    (kept,) = folder.glob("*.tokens")
    data = kept.read_bytes()

    def put(name, idea, bytes_):
        c.case(name, f"kept tokens: {idea}", (command.replace("in/kept", "out/kept"),), {f"out/kept/{kept.name}": bytes_}, base)

    put("sound", "as they were written", data)
    put("empty", "no byte", b"")
    put("cut", "half of them", data[: len(data) // 2])
    put("more", "a byte behind them", data + b"x")
    put("mark", "another mark", b"CZTOKEN1" + data[8:])
    put("sum", "another sum", data[:8] + bytes([data[8] ^ 1]) + data[9:])
    for i in range(16, min(len(data), 16 + 24 * 4), 4):
        for name, value in (("huge", b"\xff\xff\xff\x7f"), ("all", b"\xff\xff\xff\xff"), ("zero", b"\0\0\0\0")):
            put(f"word_{i}_{name}", f"another number at byte {i}, with its sum made right", resummed(data[:i] + value + data[i + 4 :]))
    for name, idea, setup in (
        ("fifo", "a pipe", f"fifo out/kept/{kept.name}"),
        ("device", "a device", f"link out/kept/{kept.name} /dev/zero"),
        ("folder", "a folder", f"mkdir out/kept/{kept.name}"),
        ("link", "a link that leads out", f"link out/kept/{kept.name} ../../victim/secret.txt"),
        ("hole", "1 GiB without content", f"sparse out/kept/{kept.name} 1073741824"),
    ):
        c.case(f"file_{name}", f"kept tokens are {idea}", (command.replace("in/kept", "out/kept"),), {}, base, setup)
    shutil.rmtree(folder)


def rotated(x, n):
    return (x << n | x >> 64 - n) & (1 << 64) - 1


def sip(k0, k1, data):
    """SipHash-1-3, which base/hash.h has."""
    mask = (1 << 64) - 1
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rounds(n):
        for _ in range(n):
            v[0] = v[0] + v[1] & mask
            v[1] = rotated(v[1], 13) ^ v[0]
            v[0] = rotated(v[0], 32)
            v[2] = v[2] + v[3] & mask
            v[3] = rotated(v[3], 16) ^ v[2]
            v[0] = v[0] + v[3] & mask
            v[3] = rotated(v[3], 21) ^ v[0]
            v[2] = v[2] + v[1] & mask
            v[1] = rotated(v[1], 17) ^ v[2]
            v[2] = rotated(v[2], 32)

    whole = len(data) // 8 * 8
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, whole, 8)]
    for word in [*words, int.from_bytes(data[whole:], "little") | (len(data) & 255) << 56]:
        v[3] ^= word
        rounds(1)
        v[0] ^= word
    v[2] ^= 255
    rounds(3)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def resummed(data):
    return data[:8] + sip(0x746F6B656E730000, 0x73756D0000000000, data[16:]).to_bytes(8, "little") + data[16:]


# ---- recipes of embedding models, generation configs ----------------------------------------------

MODULES = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}, {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
POOLING = {"word_embedding_dimension": 4, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
LENGTH = {"max_seq_length": 8, "do_lower_case": False}


def recipes(c):
    c.category = "recipe"
    base = "hostile/bases/sentences"
    shutil.copytree(c.out / "bases/bert", c.out / "bases/sentences")
    files = {"modules.json": MODULES, "1_Pooling/config.json": POOLING, "sentence_bert_config.json": LENGTH}
    for name, value in files.items():
        c.put(f"bases/sentences/{name}", json.dumps(value))
    run = "czero embed --model in --text ab"

    def put(name, idea, text, file):
        c.case(name, idea, run, {f"in/{file}": text}, base)

    bend(c, "modules", "modules.json", MODULES, [[1, "path"], [1, "type"], [0, "path"], [0, "type"], [1]], lambda n, i, t: put(n, i, t, "modules.json"))
    bend(c, "pooling", "1_Pooling/config.json", POOLING, [["pooling_mode_mean_tokens"], ["pooling_mode_max_tokens"], ["word_embedding_dimension"]], lambda n, i, t: put(n, i, t, "1_Pooling/config.json"))
    bend(c, "length", "sentence_bert_config.json", LENGTH, [["max_seq_length"], ["do_lower_case"]], lambda n, i, t: put(n, i, t, "sentence_bert_config.json"))
    for file in files:
        for name, data in (("empty", b""), ("deep", b"[" * 200000), ("text", b'"a"'), ("nul", b"\0" * 100)):
            put(f"{file.split('/')[0].split('.')[0]}_file_{name}", f"{file} is {name}", data, file)
    for name, path in (("above", "../victim"), ("absolute", "/etc"), ("nul", "a\0b"), ("long", "p" * 5000), ("self", "."), ("escape", ESC)):
        put(f"path_{name}", f"a step in a folder that is {name}", bent(MODULES, [1, "path"], path), "modules.json")
    put("steps_many", "20,000 steps", json.dumps(MODULES + [MODULES[1]] * 20000), "modules.json")
    put("steps_code", "a step that is code", bent(MODULES, [1, "type"], "os.system"), "modules.json")
    put("pooling_two", "two ways of pooling", json.dumps(POOLING | {"pooling_mode_cls_token": True}), "1_Pooling/config.json")
    put("pooling_none", "no way of pooling", json.dumps(POOLING | {"pooling_mode_mean_tokens": False}), "1_Pooling/config.json")


GENERATION = {"eos_token_id": 3, "pad_token_id": 0, "do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.1, "max_new_tokens": 3}


def generations(c):
    c.category = "generation"

    def put(name, idea, text):
        c.case(name, idea, GEN, {"in/generation_config.json": text}, "hostile/bases/model")

    bend(c, "config", "generation_config.json", GENERATION, [[k] for k in GENERATION], put)
    for name, idea, key, value in (("eos_many", "20,000 end tokens", "eos_token_id", list(range(20000))), ("eos_huge", "an end token of 2^62", "eos_token_id", [1 << 62]), ("zero", "a temperature of 0", "temperature", 0), ("penalty_zero", "a penalty of 0", "repetition_penalty", 0), ("top_p_two", "a top_p of 2", "top_p", 2)):
        put(name, idea, bent(GENERATION, [key], value))


# ---- values of the caller's own in checkpoints ----------------------------------------------------


def clients(c):
    c.category = "client-state"
    S2, model = "checkpoints/expected/s2-align", "t3/mp_rank_00_model_states.pt"
    system = Call(Global("os", "system"), ("touch pwned",))
    for name, idea, value in (
        ("system", "what os.system returns", system),
        ("eval", "what eval returns", Call(Global("builtins", "eval"), ("__import__('os').system('touch pwned')",))),
        ("in_list", "a list with what os.system returns", [1, [system]]),
        ("in_key", "a dict with such a key", {("a", system): 1}),
        ("reduce_state", "an object with a state that calls", Call(Global("evil", "C"), (), state={"a": system})),
        ("class_escape", "an object of a class that colours the terminal", Call(Global(ESC, ESC), ())),
        ("class_newline", "an object of a class that forges a line", Call(Global("a", FORGED), ())),
        ("text_bidi", "a text that is shown backwards", BIDI),
        ("bytes", "bytes that colour the terminal", b"\x1b[31m" * 10),
        ("digits", "an integer of 250 bytes", 1 << 1990),
        ("nan", "a number that is none", float("nan")),
        ("infinite", "an infinite number", float("inf")),
        ("deep", "lists nested 900 deep", Raw(b"]" * 900 + b"a" * 899)),
        ("deeper", "lists nested 100,000 deep", Raw(b"]" * 100000 + b"a" * 99999)),
        ("wide", "200,000 values", Raw(b"](" + b"N" * 200000 + b"e")),
        ("cycle", "a list that holds itself", Raw(b"]q\xffh\xffa")),
        ("shared", "a list in itself, thirty times twice", Raw(b"]" + b"2\x86" * 30)),
        ("memo", "a value that the memo does not have", Raw(b"j\xff\xff\xff\x7f")),
        ("persistent", "a storage of the caller's own", Raw(b"X\x01\0\0\0aQ")),
        ("extension", "an extension of copyreg", Raw(b"\x82\x01")),
        ("lone", "half of a surrogate pair", Raw(b"X\x03\0\0\0\xed\xa0\x80")),
        ("not_utf8", "a text that is not UTF-8", Raw(b"X\x01\0\0\0\xff")),
        ("text_cut", "a text that is longer than the file", Raw(b"X\xff\xff\xff\x7fa")),
        ("stop", "an end in the middle", Raw(b".")),
        ("empty", "nothing", Raw(b"")),
        ("mark", "a mark without its end", Raw(b"(")),
    ):
        t = Torch(c.fixtures / S2 / model)
        t.tree["note"] = value
        c.case(name, f"a value of the caller's own: {idea}", (INSPECT + " --json", "zero_to_fp32 in out"), {f"in/{model}": t.bytes()}, S2)
