"""Torch files of a few hundred bytes whose views repeat one element, for test_repeated_elements.sh.

    repeated_elements.py        writes x.pt, many.pt, small.pt and the checkpoint ck into the current folder"""
import os
import struct
import zipfile


def text(s):
    return b"X" + struct.pack("<I", len(s)) + s.encode()


def number(n):
    return b"\x8a\x08" + struct.pack("<q", n)


def tensor(key, storage_numel, shape, stride):
    """torch._utils._rebuild_tensor_v2(storage, 0, shape, stride, False, OrderedDict())"""
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + number(storage_numel) + b"tQ"
    dims = b"".join(b"(" + b"".join(map(number, d)) + b"t" for d in (shape, stride))
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\0" + dims + b"\x89ccollections\nOrderedDict\n)RtR"


def pairs(items):
    return b"}(" + b"".join(text(k) + v for k, v in items) + b"u"


def write(path, value, storages):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        z.writestr("archive/data.pkl", b"\x80\x02" + value + b".")
        z.writestr("archive/byteorder", "little")
        for key, numel in storages.items():
            z.writestr(f"archive/data/{key}", struct.pack("<f", 1.0) * numel)
        z.writestr("archive/version", "3\n")


def checkpoint(numel):
    tag = "ck/tag/"
    os.makedirs(tag, exist_ok=True)
    open("ck/latest", "w").write("tag")
    write(tag + "mp_rank_00_model_states.pt", pairs([
        ("module", pairs([("w", tensor("0", 4, (4,), (1,))), ("mask", tensor("1", 1, (numel,), (0,)))])),
        ("param_shapes", pairs([("w", b"ctorch\nSize\n((K\4ttR")])), ("buffer_names", b"](" + text("mask") + b"e"),
        ("shared_params", b"}"), ("ds_version", text("0.19.8")), ("dp_world_size", b"K\1"), ("mp_world_size", b"K\1"),
        ("global_steps", b"K\1")]), {"0": 4, "1": 1})
    write(tag + "zero_pp_rank_0_mp_rank_00_optim_states.pt", pairs([
        ("optimizer_state_dict", pairs([
            ("base_optimizer_state", pairs([("state", b"}"), ("param_groups", b"]" + pairs([("lr", b"K\1"), ("params", b"]K\0a")]) + b"a")])),
            ("single_partition_of_fp32_groups", b"]" + tensor("0", 4, (4,), (1,)) + b"a"), ("zero_stage", b"K\1"),
            ("partition_count", b"K\1"), ("group_paddings", b"]K\0a")])), ("ds_version", text("0.19.8"))]), {"0": 4})


if __name__ == "__main__":
    write("x.pt", pairs([("bomb", tensor("0", 1, (2**25, 2**25), (0, 0)))]), {"0": 1})
    write("many.pt", pairs([(f"t{i}", tensor("0", 1, (2**20,), (0,))) for i in range(100)]), {"0": 1})
    write("small.pt", pairs([("ids", tensor("0", 4, (1000, 4), (0, 1)))]), {"0": 4})
    checkpoint(2**27)
    os.rename("ck", "ck_large")
    checkpoint(2**20)
