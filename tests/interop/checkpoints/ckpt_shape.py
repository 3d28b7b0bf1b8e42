#!/usr/bin/env python3
"""What stands in a tag's folder: every key, type, class, shape, storage and plain value, a line each.

  ckpt_shape.py TAG_DIR          print it
  ckpt_shape.py TAG_DIR OTHER    print where two folders differ; exit 1 when they do

Run with the python that scripts/peers.sh prints (it needs DeepSpeed's classes). Elements are not compared,
and in a comparison neither is what may differ: ds_config (ours holds every default) and module._metadata.
"""
import difflib
import os
import pathlib
import sys
import types

sys.dont_write_bytecode = True
os.environ["DS_ACCELERATOR"] = "cpu"


def name_of(kind):
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def lines_of(value, path, storages):
    import torch
    kind = name_of(type(value))
    attributes = getattr(value, "__dict__", {})
    if isinstance(value, torch.Tensor):
        memory = value.untyped_storage()
        number = storages.setdefault(memory._cdata, len(storages))
        yield (f"{path}: {kind} {value.dtype} {tuple(value.shape)} stride {value.stride()} at {value.storage_offset()} of "
               f"storage {number} with {memory.nbytes() // value.element_size()}, requires_grad {value.requires_grad} "
               f"{attributes or ''}")
    elif isinstance(value, dict):
        yield f"{path}: {kind} of {len(value)}"
        for key, each in value.items():
            yield from lines_of(each, f"{path}.{key}", storages)
        for key, each in attributes.items():
            yield from lines_of(each, f"{path}@{key}", storages)
    elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        yield f"{path}: {kind} of {len(value)}"
        for i, each in enumerate(value):
            yield from lines_of(each, f"{path}[{i}]", storages)
    elif attributes and not isinstance(value, (type, types.FunctionType)) and not hasattr(type(value), "__members__"):
        yield f"{path}: {kind}"
        for key, each in attributes.items():
            yield from lines_of(each, f"{path}@{key}", storages)
    else:
        yield f"{path}: {kind} {value!r}"


def folder_lines(folder):
    import torch
    for path in sorted(pathlib.Path(folder).glob("*.pt")):
        value = torch.load(path, map_location="cpu", weights_only=False)
        yield from lines_of(value, path.name + " ", {})


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    if len(sys.argv) == 2:
        print(*folder_lines(sys.argv[1]), sep="\n")
        return
    both = [[line for line in folder_lines(folder) if ".ds_config" not in line and "@_metadata" not in line]
            for folder in sys.argv[1:]]
    changed = list(difflib.unified_diff(*both, *sys.argv[1:], n=0, lineterm=""))
    for line in changed:
        print(line)
    sys.exit(1 if changed else 0)


if __name__ == "__main__":
    main()
