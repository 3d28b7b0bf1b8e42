#!/usr/bin/env python3
"""Manifests in tests/fixtures/manifests, good and broken, written from docs/checkpoint-format.md alone.

Usage: manifest_golden.py tests/fixtures/manifests      (Python's own library is enough)
The status that each must give stands in expected.tsv, which tests/unit/checkpoint/test_manifest.c walks.
"""
import json
import pathlib
import sys
import zlib


def crc(data):
    return f"{zlib.crc32(data):08x}"


def body(manifest):
    """The text up to the last member; a tensor takes one line."""
    lines = ["{"]
    for key in ("format", "version", "world_size", "stage", "extra"):
        if key in manifest:
            lines.append(f'  "{key}": {json.dumps(manifest[key])},')
    lines.append('  "files": [')
    for i, file in enumerate(manifest["files"]):
        lines.append("    {")
        for key in ("name", "nbytes", "crc32"):
            lines.append(f'      "{key}": {json.dumps(file[key], ensure_ascii=False)},')
        tensors = [json.dumps(t, ensure_ascii=False) for t in file["tensors"]]
        if tensors:
            lines.append('      "tensors": [')
            lines.append(",\n".join("        " + t for t in tensors))
            lines.append("      ]")
        else:
            lines.append('      "tensors": []')
        lines.append("    }" + ("," if i + 1 < len(manifest["files"]) else ""))
    lines.append("  ],")
    return "\n".join(lines) + "\n  "


def text(manifest):
    head = body(manifest).encode()
    return head + f'"manifest_crc32": "{crc(head)}"\n}}\n'.encode()


def tensor(name, what, off, nbytes):
    return {"name": name, "what": what, "off": off, "nbytes": nbytes, "crc32": crc(name.encode())}


def good():
    return {
        "format": "czero manifest", "version": 1, "world_size": 2, "stage": 2,
        "files": [
            {"name": "mp_rank_00_model_states.pt", "nbytes": 265924, "crc32": crc(b"model"),
             "tensors": [tensor("transformer.wte.weight", "param", 4096, 32768),
                         tensor("gewicht.\u00e4 \"zwei\"", "frozen", 36864, 2)]},
            {"name": "zero_pp_rank_1_mp_rank_00_optim_states.pt", "nbytes": 5 * 2**32,
             "crc32": "00000000",
             "tensors": [tensor("transformer.wte.weight", "master", 2**33, 2**32),
                         tensor("transformer.wte.weight", "exp_avg", 2**33 + 2**32, 4)]},
            {"name": "czero_state.json", "nbytes": 0, "crc32": "00000000", "tensors": []},
        ],
    }


def changed(change):
    manifest = good()
    change(manifest)
    return text(manifest)


def without_tail(m):
    head = body(m).rstrip().rstrip(",")
    return (head + "\n}\n").encode()


def cases():
    first = lambda m: m["files"][0]
    yield "whole/good", "CZ_OK", text(good())
    whole = text(good())
    yield "whole/truncated", "CZ_CORRUPT", whole[: len(whole) // 2]
    yield "whole/no_last_line_feed", "CZ_CORRUPT", whole[:-1]
    yield "whole/bytes_after_end", "CZ_CORRUPT", whole + b"\n"
    yield "whole/empty", "CZ_CORRUPT", b""
    yield "whole/bad_sum", "CZ_CORRUPT", whole.replace(b'"world_size": 2', b'"world_size": 3')
    yield "whole/upper_case_sum", "CZ_CORRUPT", whole[:-12] + whole[-12:].upper()
    yield "whole/no_sum", "CZ_CORRUPT", without_tail(good())
    yield "whole/not_json", "CZ_CORRUPT", _resum(b'{"format" "x",\n  ')
    yield "whole/other_format", "CZ_CORRUPT", changed(lambda m: m.update(format="some manifest"))
    yield "whole/newer_version", "CZ_VERSION", changed(lambda m: m.update(version=2))
    yield "whole/newer_version_other_members", "CZ_VERSION", changed(
        lambda m: m.update(version=3, extra=1))
    yield "whole/version_zero", "CZ_CORRUPT", changed(lambda m: m.update(version=0))
    yield "whole/unknown_member", "CZ_CORRUPT", changed(lambda m: m.update(extra=1))
    yield "members/no_world_size", "CZ_CORRUPT", changed(lambda m: m.pop("world_size"))
    yield "members/world_size_zero", "CZ_CORRUPT", changed(lambda m: m.update(world_size=0))
    yield "members/world_size_text", "CZ_CORRUPT", changed(lambda m: m.update(world_size="2"))
    yield "members/stage_four", "CZ_CORRUPT", changed(lambda m: m.update(stage=4))
    yield "members/same_file_twice", "CZ_CORRUPT", changed(lambda m: m["files"].append(m["files"][0]))
    yield "members/name_leaves_folder", "CZ_CORRUPT", changed(
        lambda m: first(m).update(name="../model_states.pt"))
    yield "members/name_empty", "CZ_CORRUPT", changed(lambda m: first(m).update(name=""))
    yield "members/lists_itself", "CZ_CORRUPT", changed(
        lambda m: first(m).update(name="czero_manifest.json"))
    yield "members/size_negative", "CZ_CORRUPT", changed(lambda m: first(m).update(nbytes=-1))
    yield "members/size_beyond_64_bits", "CZ_CORRUPT", changed(lambda m: first(m).update(nbytes=2**63))
    yield "members/sum_too_short", "CZ_CORRUPT", changed(lambda m: first(m).update(crc32="abc"))
    yield "members/sum_not_hex", "CZ_CORRUPT", changed(lambda m: first(m).update(crc32="abcdefgh"))
    yield "members/sum_number", "CZ_CORRUPT", changed(lambda m: first(m).update(crc32=12345678))
    yield "tensors/tensor_outside_file", "CZ_CORRUPT", changed(
        lambda m: first(m)["tensors"][1].update(off=265923))
    yield "tensors/tensor_wraps_around", "CZ_CORRUPT", changed(
        lambda m: first(m)["tensors"][1].update(nbytes=2**63 - 1))
    yield "tensors/tensors_overlap", "CZ_CORRUPT", changed(
        lambda m: first(m)["tensors"][1].update(off=36863))
    yield "tensors/tensors_out_of_order", "CZ_CORRUPT", changed(lambda m: first(m)["tensors"].reverse())
    yield "tensors/tensor_empty", "CZ_CORRUPT", changed(lambda m: first(m)["tensors"][1].update(nbytes=0))
    yield "tensors/tensor_without_sum", "CZ_CORRUPT", changed(
        lambda m: first(m)["tensors"][1].pop("crc32"))
    yield "tensors/tensor_with_more", "CZ_CORRUPT", changed(lambda m: first(m)["tensors"][1].update(x=1))


def _resum(head):
    return head + f'"manifest_crc32": "{crc(head)}"\n}}\n'.encode()


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, status, data in cases():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        rows.append(f"{name}.json\t{status}\n")
    (folder / "expected.tsv").write_text("".join(rows))


main()
