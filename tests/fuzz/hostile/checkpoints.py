"""Cases of checkpoint folders: trees inside shards, manifests, `latest`, universal folders, the state
of a run, links, and files that look like czero's own."""

import json
import pathlib
import struct
import zlib

from .containers import BIDI, ESC, FORGED
from .tools import escaped, Call, Global, Ordered, Raw, Storage, Torch, Zip, Record, changed, get, manifest, pickled, resealed, safetensors, seal, tensor

S2, S3, S0, U2 = (f"checkpoints/expected/{x}" for x in ("s2-align", "s3-swapped", "s0-fp16-fused", "u2"))
RUN = "hostile/bases/run"
INSPECT, SUMS, CHECK = "czero inspect in", "czero inspect in --sums", "czero fsck in"
BIN, SAFE = "zero_to_fp32 in out", "zero_to_fp32 in out --safe_serialization"
TRAIN = "czero train --config common/ds.json --model common/model --data common/text.txt --tokenizer bytes --seq-len 8 --steps 4 --quiet"
RESUME = TRAIN + " --resume in"


def trees(c):
    """Shards whose pickles are sound as pickles but contradict the model."""
    c.category = "checkpoint"
    model2, optim2 = "t3/mp_rank_00_model_states.pt", "t3/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
    model3, optim3 = "t3/zero_pp_rank_0_mp_rank_00_model_states.pt", optim2

    def put(name, idea, base, file, *changes, run=(SUMS, SAFE), setup=""):
        t = Torch(c.fixtures / base / file)
        for path, value in changes:
            t.tree = changed(t.tree, path, value)
        c.case(name, idea, run, {f"in/{file}": t.bytes()}, base, setup)

    debug = (SUMS, CHECK, SAFE, BIN + " -d")
    # names of tensors: shown, and written into the output
    for name, idea, odd in (
        ("escape", "colours the terminal", ESC + "w"),
        ("newline", "forges a line of the answer", FORGED),
        ("bidi", "is shown backwards", BIDI),
        ("nul", "holds a NUL", "a\0b"),
        ("above", "looks like a path that leads out", "../../victim/secret.txt"),
        ("empty", "is empty", ""),
        ("long", "has 100,000 characters", "n" * 100000),
        ("surrogate", "holds half of a surrogate pair", "a\ud800"),
        ("metadata", "is __metadata__, which safetensors reserves", "__metadata__"),
    ):

        def rename(old, odd=odd):
            new = Ordered((odd if k == "emb.weight" else k, v) for k, v in old.items())
            new.state = old.state
            return new

        put("name_" + name, f"a parameter whose name {idea}", S2, model2, (("module",), rename), (("param_shapes", 0), rename), (("shared_params",), {}), (("module",), lambda m: Ordered((k, v) for k, v in m.items() if k != "out.weight")), run=debug)
    put("name_number", "a parameter whose name is a number", S2, model2, (("module", 7), tensor()))
    put("name_of_two", "a tied name for a parameter that is missing", S2, model2, (("shared_params", "out.weight"), "nothing"))
    put("tied_cycle", "two names that are aliases of each other", S2, model2, (("shared_params",), {"emb.weight": "out.weight", "out.weight": "emb.weight"}))
    put("tied_to_itself", "a name that is an alias of itself", S2, model2, (("shared_params",), {"emb.weight": "emb.weight"}))
    put("tied_chain", "3000 aliases, each of the next", S2, model2, (("shared_params",), {f"a{i}": f"a{i + 1}" for i in range(3000)}))
    put("tied_other_shape", "an alias of a parameter of another shape", S2, model2, (("shared_params", "l1.bias"), "emb.weight"))
    put("tied_list", "aliases as a list", S2, model2, (("shared_params",), ["out.weight"]))
    put("buffers_many", "20,000 buffer names that are no buffers", S2, model2, (("buffer_names",), [f"b{i}" for i in range(20000)]))
    put("buffers_of_weights", "all weights are called buffers", S2, model2, (("buffer_names",), ["emb.weight", "l1.weight", "l1.bias", "l2.weight"]))
    put("buffers_text", "buffer names as text", S2, model2, (("buffer_names",), "bn.running_mean"))
    put("module_none", "no module", S2, model2, (("module",), None))
    put("module_list", "a module that is a list", S2, model2, (("module",), [1, 2]))
    put("module_object", "a module that is an instance of a class", S2, model2, (("module",), Call(Global("evil", "Module"))))
    put("module_system", "a module that os.system returns", S2, model2, (("module",), Call(Global("os", "system"), ("touch pwned",))))
    put("client_state_system", "a value of the caller's own that os.system returns: not a tensor, so only its class is shown", S2, model2, (("note",), Call(Global("os", "system"), ("touch pwned",))), run=(INSPECT, SAFE))
    put("client_state_escape", "a value of the caller's own that colours the terminal", S2, model2, ((ESC,), [ESC, {BIDI: FORGED}]), run=(INSPECT, INSPECT + " --all", INSPECT + " --json"))
    put("client_state_deep", "a value nested 900 deep", S2, model2, (("note",), Raw(b"]" * 900 + b"a" * 899)), run=(INSPECT + " --all", INSPECT + " --json"))
    put("client_state_wide", "200,000 values", S2, model2, (("note",), Raw(b"](" + b"N" * 200000 + b"e")), run=(INSPECT + " --all", INSPECT + " --json"))
    put("version_escape", "a version of DeepSpeed that colours the terminal", S2, model2, (("ds_version",), ESC + "0.19"), run=(INSPECT,))
    put("version_number", "a version of DeepSpeed that is a number", S2, model2, (("ds_version",), 19), run=(INSPECT,))
    put("config_object", "a ds_config that is an instance of a class", S2, model2, (("ds_config",), Call(Global("evil", "Config"), (ESC,))), run=(INSPECT,))
    for key in ("global_steps", "skipped_steps", "global_samples"):
        put(f"{key}_huge", f"{key} is 2^63 - 1", S2, model2, ((key,), (1 << 63) - 1), run=(INSPECT, SAFE))
        put(f"{key}_text", f"{key} is text", S2, model2, ((key,), ESC), run=(INSPECT, SAFE))
    # shapes
    for name, idea, shape in (
        ("negative", "a dimension of -7", (-7, -5)),
        ("huge", "2^62 × 5 elements", (1 << 62, 5)),
        ("wraps", "2^32 × 2^32 elements", (1 << 32, 1 << 32)),
        ("27", "2^27 × 5 elements", (1 << 27, 5)),
        ("zero", "no elements", (0, 5)),
        ("other", "the elements of another shape", (5, 7)),
        ("one_more", "one row more", (8, 5)),
        ("text", "text", ("7", "5")),
        ("ndim", "40 dimensions", (1,) * 40),
    ):
        put("shape_" + name, f"param_shapes give a parameter {idea}", S2, model2, (("param_shapes", 0, "emb.weight"), Call(Global("torch", "Size"), (shape,))))
    put("shapes_none", "no param_shapes", S2, model2, (("param_shapes",), None))
    put("shapes_empty", "param_shapes without groups", S2, model2, (("param_shapes",), []))
    put("shapes_more_groups", "3000 groups of no parameter", S2, model2, (("param_shapes",), lambda old: old + [Ordered() for _ in range(3000)]))
    put("shapes_twice", "a parameter in two groups", S2, model2, (("param_shapes",), lambda old: old + [Ordered({"emb.weight": old[0]["emb.weight"]})]))
    put("shapes_unknown", "a parameter that the module does not have", S2, model2, (("param_shapes", 0, "nothing"), Call(Global("torch", "Size"), ((3,),))))
    put("world_zero", "a checkpoint of 0 ranks", S2, model2, (("dp_world_size",), 0))
    put("world_huge", "a checkpoint of 2^31 ranks", S2, model2, (("dp_world_size",), 1 << 31))
    put("world_other", "a checkpoint of three ranks with the files of two", S2, model2, (("dp_world_size",), 3))
    put("tensor_parallel", "a checkpoint of two tensor-parallel ranks", S2, model2, (("mp_world_size",), 2))
    put("frozen_other_size", "a frozen fragment of another size than its shape", S2, model2, (("frozen_param_shapes", "fz.bias"), Call(Global("torch", "Size"), ((90,),))))
    put("frozen_unknown", "a frozen shape without a fragment", S2, model2, (("frozen_param_shapes", "nothing"), Call(Global("torch", "Size"), ((9,),))))
    # the optimizer's file, stages 1 and 2
    osd = ("optimizer_state_dict",)
    t12 = lambda shape, stride=(1,), numel=92, off=0: tensor("3", numel, off, shape, stride)  # noqa: E731
    put("stage_7", "ZeRO stage 7", S2, optim2, (osd + ("zero_stage",), 7))
    put("stage_negative", "ZeRO stage -1", S2, optim2, (osd + ("zero_stage",), -1))
    put("stage_other", "the files of stage 2 say stage 3", S2, optim2, (osd + ("zero_stage",), 3))
    put("stage_object", "a ZeRO stage that os.system returns", S2, optim2, (osd + ("zero_stage",), Call(Global("os", "system"), (2,))))
    put("partitions_zero", "split over 0 ranks", S2, optim2, (osd + ("partition_count",), [0]))
    put("partitions_huge", "split over 2^31 - 1 ranks", S2, optim2, (osd + ("partition_count",), [(1 << 31) - 1]))
    put("partitions_negative", "split over -2 ranks", S2, optim2, (osd + ("partition_count",), [-2]))
    put("partitions_text", "split over '2' ranks", S2, optim2, (osd + ("partition_count",), "2"))
    put("paddings_huge", "a padding of 2^62 elements", S2, optim2, (osd + ("group_paddings",), [1 << 62]))
    put("paddings_negative", "a padding of -5 elements", S2, optim2, (osd + ("group_paddings",), [-5]))
    put("alignments_negative", "a parameter's padding of -3 elements", S2, optim2, (osd + ("param_alignment_paddings",), [[5, -3, 7, 7, 7, 0]]))
    put("alignments_huge", "paddings whose sum wraps around in 64 bits", S2, optim2, (osd + ("param_alignment_paddings",), [[(1 << 63) - 1] * 6]))
    put("alignments_fewer", "paddings of five of six parameters", S2, optim2, (osd + ("param_alignment_paddings",), [[5, 3, 7, 7, 7]]))
    put("master_missing", "no masters", S2, optim2, (osd + ("single_partition_of_fp32_groups",), []))
    put("master_text", "a master that is text", S2, optim2, (osd + ("single_partition_of_fp32_groups",), ["x"]))
    put("master_longer", "a master one element too long", S2, optim2, (osd + ("single_partition_of_fp32_groups",), [t12((93,), (0,))]))
    put("master_stride_0", "a master that is one element 2^40 times", S2, optim2, (osd + ("single_partition_of_fp32_groups",), [t12((1 << 40,), (0,))]))
    put("master_ints", "a master of integers", S2, optim2, (osd + ("single_partition_of_fp32_groups",), [tensor("3", 92, 0, (92,), (1,), "IntStorage")]))
    put("master_2d", "a master of two dimensions", S2, optim2, (osd + ("single_partition_of_fp32_groups",), [t12((46, 2), (2, 1))]))
    state = osd + ("base_optimizer_state", "state")
    put("step_negative", "a step of -1", S2, optim2, (state + (0, "step"), -1))
    put("step_huge", "a step of 2^62", S2, optim2, (state + (0, "step"), 1 << 62))
    put("step_nan", "a step that is not a number", S2, optim2, (state + (0, "step"), float("nan")))
    put("step_half", "a step of 0.5", S2, optim2, (state + (0, "step"), 0.5))
    put("states_many", "40 states per weight", S2, optim2, (state + (0,), lambda old: old | {f"s{i}": old["exp_avg"] for i in range(40)}))
    put("state_name_escape", "a state whose name colours the terminal", S2, optim2, (state + (0,), lambda old: old | {ESC: old["exp_avg"]}), run=debug)
    put("state_name_above", "a state named ../../../victim/other", S2, optim2, (state + (0,), lambda old: old | {"../../../victim/other": old["exp_avg"]}))
    put("state_other_size", "a state with fewer elements than its weights", S2, optim2, (state + (0, "exp_avg"), t12((91,))))
    put("group_ids_wild", "parameter ids of 2^62", S2, optim2, (osd + ("base_optimizer_state", "param_groups", 0, "params"), [1 << 62]))
    put("groups_more", "two param_groups for one group of parameters", S2, optim2, (osd + ("base_optimizer_state", "param_groups"), lambda old: old * 2))
    put("lr_text", "a learning rate that colours the terminal", S2, optim2, (osd + ("base_optimizer_state", "param_groups", 0, "lr"), ESC), run=(INSPECT,))
    frag = lambda start, numel: Call(Global("deepspeed.utils.tensor_fragment", "fragment_address"), (), {"numel": numel, "start": start}, True)  # noqa: E731
    put("slices_huge", "slice mappings beyond the partition", S2, optim2, (osd + ("param_slice_mappings",), [Ordered({"emb.weight": frag(1 << 62, 1 << 62)})]))
    put("slices_negative", "slice mappings before the partition", S2, optim2, (osd + ("param_slice_mappings",), [Ordered({"emb.weight": frag(-40, 35)})]))
    put("slices_name", "slice mappings of a parameter that does not exist", S2, optim2, (osd + ("param_slice_mappings",), [Ordered({ESC: frag(0, 35)})]))
    # stage 3, with tensors in swap files
    groups = osd + ("fp32_flat_groups",)
    ds_id = groups + (1, "@args", 3, "ds_id")
    state3 = osd + ("optimizer_state_dict", "state")
    swap = "t3/offloaded_tensors/rank00"
    for name, idea, odd in (
        ("above", "leads to victim/other.tensor.swp", "../../../../victim/other"),
        ("above_twice", "leads out and in again", "../../offloaded_tensors/rank00/7_7"),
        ("absolute", "is an absolute path", "/etc/passwd"),
        ("cut", "is cut where the name of a private file ends", "./" * 108 + "../../../../victim/secret.txt"),
        ("long", "has 255 characters", "x" * 255),
        ("longer", "has 5000 characters", "7" * 5000),
        ("folder", "is a folder's", "sub/7_7"),
        ("dot", "is a dot", "."),
        ("empty", "is empty", ""),
        ("nul", "ends before its end", "7_7\0/../../x"),
        ("escape", "colours the terminal", ESC),
        ("newline", "forges a line", FORGED),
        ("number", "is a number", 77),
        ("list", "is a list", ["7_7"]),
        ("other", "is another group's", "exp_avg-7_7"),
    ):
        put("ds_id_" + name, f"a swapped master whose ds_id {idea}", S3, optim3, (ds_id, odd), run=(SUMS, CHECK, SAFE, "zero_to_fp32 in out --debug"))
    for name, idea, odd in (
        ("above", "leads to victim/other.tensor.swp", "../../../../victim/other"),
        ("cut", "is padded with ./ so that the ending is cut off", "x/" + "./" * 100 + "../../../../../victim/secret.txt"),
        ("escape", "colours the terminal", ESC),
    ):
        put("swapped_state_" + name, f"a swapped state whose name {idea}", S3, optim3, (state3 + (1,), lambda old, odd=odd: {(odd if k == "exp_avg" else k): v for k, v in old.items()}))
        put("swapped_state_id_" + name, f"a swapped state whose ds_id {idea}", S3, optim3, (state3 + (1, "exp_avg", "@args", 3, "ds_id"), odd))
    data = (c.fixtures / S3 / f"{swap}/7_7.tensor.swp").read_bytes()
    keep = lambda name, idea, files=None, setup="", run=(SUMS, CHECK, SAFE): c.case(name, idea, run, files, S3, setup)  # noqa: E731
    keep("swap_cut", "a swap file that is too short", {f"in/{swap}/7_7.tensor.swp": data[:20]})
    keep("swap_empty", "a swap file without bytes", {f"in/{swap}/7_7.tensor.swp": b""})
    keep("swap_missing", "a swap file that is missing", setup=f"rm in/{swap}/7_7.tensor.swp")
    keep("swap_folder_missing", "no swap files", setup="rm in/t3/offloaded_tensors")
    keep("swap_link", "a swap file that is a link to a file outside", setup=f"rm in/{swap}/7_7.tensor.swp;link in/{swap}/7_7.tensor.swp ../../../../victim/other.tensor.swp")
    keep("swap_link_inside", "a swap file that is a link to another one of the same folder, which is read as it is", setup=f"rm in/{swap}/7_7.tensor.swp;link in/{swap}/7_7.tensor.swp exp_avg-7_7.tensor.swp")
    keep("swap_folder_link", "a folder of swap files that is a link outside", setup=f"rm in/{swap};link in/{swap} ../../../victim")
    keep("swap_fifo", "a swap file that is a pipe", setup=f"rm in/{swap}/7_7.tensor.swp;fifo in/{swap}/7_7.tensor.swp")
    keep("swap_device", "a swap file that is a link to /dev/zero", setup=f"rm in/{swap}/7_7.tensor.swp;link in/{swap}/7_7.tensor.swp /dev/zero")
    keep("swap_is_folder", "a swap file that is a folder", setup=f"rm in/{swap}/7_7.tensor.swp;mkdir in/{swap}/7_7.tensor.swp")
    put("sub_groups_more", "20,000 sub-groups", S3, model3, (("param_shapes",), lambda old: old + [Ordered() for _ in range(20000)]))
    put("frozen_fragments_missing", "frozen shapes without fragments", S3, model3, (("frozen_param_fragments",), Ordered()))
    put("placeholders_with_elements", "a placeholder of stage 3 that has elements", S3, model3, (("module", "emb.weight"), tensor("7", 9, 0, (9,), (1,))))
    # stage 0: flat groups
    model0 = "t3/mp_rank_00_model_states.pt"
    flat = ("optimizer", "fp32_groups_flat")
    put("flat_stride_0", "a flat master of one element, 2^40 times", S0, model0, (flat + (0,), tensor("10", 125, 0, (1 << 40,), (0,))))
    put("flat_shorter", "a flat master with one element fewer than the weights", S0, model0, (flat + (0,), tensor("10", 125, 0, (124,), (1,))))
    put("flat_missing", "a flat master of one of two groups", S0, model0, (flat, lambda old: old[:1]))
    put("weight_stride_0", "a 1 kB file whose weight has 2^27 elements: half a gigabyte of output", S0, model0, (("module", "emb.weight"), tensor("6", 125, 0, (1 << 27,), (0,))), run=(CHECK, SUMS, SAFE))
    put("weight_stride_0_only", "the same without an optimizer", S0, model0, (("module", "emb.weight"), tensor("6", 125, 0, (1 << 27,), (0,))), (("optimizer",), None), run=(CHECK, SAFE, BIN))
    put("weight_2_50", "a weight of 2^50 elements in 4 bytes", S0, model0, (("module", "emb.weight"), tensor("6", 125, 0, (1 << 50,), (0,))), (("optimizer",), None), run=(CHECK, SUMS, SAFE))
    put("scale_infinite", "a loss scale that is infinite", S0, model0, (("optimizer", "cur_scale"), float("inf")), run=(INSPECT, SAFE))
    # files of a folder
    two = lambda name, idea, setup, base=S2, files=None, run=(INSPECT, CHECK, SAFE): c.case(name, idea, run, files, base, setup)  # noqa: E731
    two("rank_huge", "a file of rank 2^31 - 1", "copy in/t3/bf16_zero_pp_rank_2147483647_mp_rank_00_optim_states.pt in/" + optim2)
    two("rank_beyond_64_bits", "a file of rank 2^64 + 1", "copy in/t3/bf16_zero_pp_rank_18446744073709551617_mp_rank_00_optim_states.pt in/" + optim2)
    two("rank_leading_zero", "a second file of rank 0, written as 00", "copy in/t3/bf16_zero_pp_rank_00_mp_rank_00_optim_states.pt in/" + optim2)
    two("rank_twice", "rank 1's file is rank 0's", f"rm in/t3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt;copy in/t3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt in/{optim2}")
    two("rank_missing", "rank 1's file is missing", "rm in/t3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt")
    two("rank_stale", "a third rank's file", f"copy in/t3/bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt in/{optim2}")
    two("precision_mixed", "files of bf16 and of fp16", f"copy in/t3/zero_pp_rank_0_mp_rank_00_optim_states.pt in/{optim2}")
    two("model_missing", "no model file", "rm in/" + model2)
    two("stages_mixed", "model files of stages 2 and 3", "add in/t3/zero_pp_rank_0_mp_rank_00_model_states.pt " + S3 + "/" + model3)
    two("pipeline", "files of pipeline stages", "copy in/t3/layer_00-model_00-model_states.pt in/" + model2)
    two("experts", "files of experts", "copy in/t3/layer_0_expert_0_mp_rank_00_model_states.pt in/" + model2)
    two("names_hostile", "files whose names look like shards and colour the terminal", "", files={f"in/t3/{ESC}zero_pp_rank_0_mp_rank_00_optim_states.pt": b"x", "in/t3/a\nb_optim_states.pt": b"x"})
    two("names_not_utf8", "a file whose name is not UTF-8", "", files={"in/t3/\udcff\udcfe_optim_states.pt": b"x", "in/t3/\udc9b31m.pt": b"x"})
    two("shard_is_folder", "a shard that is a folder", f"rm in/{optim2};mkdir in/{optim2}")
    two("shard_fifo", "a shard that is a pipe", f"rm in/{optim2};fifo in/{optim2}")
    two("tag_is_file", "a tag that is a file", "rm in/t3", files={"in/t4/x": b"x"})


def manifests(c):
    c.category = "manifest"
    folder = c.out / "bases/run/global_step2"
    good = json.loads((folder / "czero_manifest.json").read_text())
    path = "in/global_step2/czero_manifest.json"
    run = (CHECK, RESUME)

    def raw(name, idea, data, setup="", run=run):
        c.case(name, idea, run, {path: data}, RUN, setup)

    def put(name, idea, change, more=None, setup="", run=run):
        value = json.loads(json.dumps(good))
        change(value)
        c.case(name, idea, run, {path: manifest(value)} | (more or {}), RUN, setup)

    text = (folder / "czero_manifest.json").read_bytes()
    raw("empty", "no byte", b"")
    raw("cut", "the first half", text[: len(text) // 2])
    raw("no_last_line_feed", "without its last byte", text[:-1])
    raw("bytes_after", "a byte after its end", text + b"\n")
    raw("one_bit", "one bit of a size is another", text.replace(b'"nbytes": ', b'"nbytes": 1', 1))
    raw("checksum_upper", "the checksum in capitals", text[:-12] + text[-12:].upper() if text[-12:] != text[-12:].upper() else text[:-12] + b"ABCDEF01\"\n}\n")
    raw("checksum_zero", "a checksum of zeros", text[: text.rindex(b'": "') + 4] + b'00000000"\n}\n')
    raw("crlf", "line ends of another system", text.replace(b"\n", b"\r\n"))
    raw("utf16", "in UTF-16", text.decode().encode("utf-16"))
    raw("bom", "after a byte order mark", seal(b"\xef\xbb\xbf" + text[: text.rindex(b'"manifest_crc32')]))
    raw("not_json", "text with a right checksum", seal(b"hello\n  "))
    raw("array", "an array with a right checksum", seal(b"[\n  "))
    raw("deep", "arrays nested 200,000 deep, with a right checksum", seal(b'{"format": ' + b"[" * 200000 + b"]" * 200000 + b",\n  "))
    raw("nul", "a NUL in a string, with a right checksum", seal(text[: text.rindex(b'"manifest_crc32')].replace(b"czero manifest", b"czero\\u0000manifest")))
    raw("two_files_members", "two members `files`, with a right checksum", seal(text[: text.rindex(b'"manifest_crc32')] + b'"files": [],\n  '))
    c.case("hole", "a manifest of 5 GiB without content", run, base=RUN, setup=f"rm {path};sparse {path} 5368709120")
    c.case("missing", "no manifest: DeepSpeed's folders have none, so the shards alone are read", run, base=RUN, setup=f"rm {path}")
    c.case("fifo", "a manifest that is a pipe", run, base=RUN, setup=f"rm {path};fifo {path}")
    c.case("folder", "a manifest that is a folder", run, base=RUN, setup=f"rm {path};mkdir {path}")
    c.case("device", "a manifest that is a link to /dev/zero", run, base=RUN, setup=f"rm {path};link {path} /dev/zero")
    put("other_format", "the format of another program", lambda m: m.update(format="other"))
    put("version_newer", "version 2", lambda m: m.update(version=2))
    put("version_huge", "version 2^64 + 1", lambda m: m.update(version=(1 << 64) + 1))
    put("version_float", "version 1.0", lambda m: m.update(version=1.0))
    put("version_text", "version '1'", lambda m: m.update(version="1"))
    put("member_unknown", "a member __reduce__", lambda m: m.update(__reduce__=["os.system", "x"]))
    put("member_escape", "a member whose name colours the terminal", lambda m: m.update({ESC: 1}))
    put("world_zero", "0 ranks", lambda m: m.update(world_size=0))
    put("world_huge", "2^31 ranks", lambda m: m.update(world_size=1 << 31))
    put("world_other", "two ranks, with the files of one", lambda m: m.update(world_size=2), run=(CHECK, SAFE, RESUME))
    put("stage_4", "stage 4", lambda m: m.update(stage=4))
    put("stage_beyond_int", "stage 2^32 + 2", lambda m: m.update(stage=(1 << 32) + 2))
    put("stage_other", "stage 3, with the files of stage 2", lambda m: m.update(stage=3), run=(CHECK, SAFE, RESUME))
    put("files_none", "no file", lambda m: m.update(files=[]))
    put("files_object", "files as an object", lambda m: m.update(files={}))
    first = lambda m: m["files"][0]  # noqa: E731
    for name, idea, odd in (
        ("above", "../../victim/secret.txt", "../../victim/secret.txt"),
        ("above_only", "..", ".."),
        ("dot", ".", "."),
        ("absolute", "/etc/passwd", "/etc/passwd"),
        ("inside_folder", "sub/x.pt", "sub/x.pt"),
        ("empty", "without letters", ""),
        ("itself", "the manifest's own", "czero_manifest.json"),
        ("escape", "one that colours the terminal", ESC + "x.pt"),
        ("csi_8bit", "one with CSI as one character", "\u009b31mx.pt"),
        ("newline", "one that forges a line", FORGED),
        ("bidi", "one that is shown backwards", BIDI),
        ("long", "one of 5000 characters", "n" * 5000),
        ("missing", "that of a missing file", "nothing.pt"),
        ("backslash", "a path of another system", "..\\..\\victim\\secret.txt"),
        ("nul", "one that ends before its end", "mp_rank_00_model_states.pt\0x"),
        ("surrogate", "one with half of a surrogate pair", "\ud800.pt"),
        ("state", "that of the state, a second time", "czero_state.json"),
    ):
        if name == "surrogate":
            raw("name_" + name, "a file's name is " + idea, seal(text[: text.rindex(b'"manifest_crc32')].replace(b'"mp_rank_00', b'"\\ud800', 1)))
            continue
        put("name_" + name, "a file's name is " + idea, lambda m, odd=odd: first(m).update(name=odd))
    put("size_negative", "a file of -1 bytes", lambda m: first(m).update(nbytes=-1))
    put("size_2_63", "a file of 2^63 bytes", lambda m: first(m).update(nbytes=1 << 63))
    put("size_float", "a file of 1e4 bytes", lambda m: first(m).update(nbytes=1e4))
    put("size_one_less", "a file one byte shorter than the one that is there", lambda m: first(m).update(nbytes=first(m)["nbytes"] - 1))
    put("sum_other", "another checksum than the file's", lambda m: first(m).update(crc32="00000000"))
    put("sum_short", "a checksum of three digits", lambda m: first(m).update(crc32="abc"))
    put("sum_number", "a checksum that is a number", lambda m: first(m).update(crc32=12345678))
    put("tensors_beyond", "a tensor that ends one byte behind its file", lambda m: first(m)["tensors"][-1].update(nbytes=first(m)["nbytes"] - first(m)["tensors"][-1]["off"] + 1))
    put("tensors_wrap", "a tensor of 2^63 - 1 bytes", lambda m: first(m)["tensors"][-1].update(nbytes=(1 << 63) - 1))
    put("tensors_off_negative", "a tensor at byte -8", lambda m: first(m)["tensors"][0].update(off=-8))
    put("tensors_overlap", "two tensors share a byte", lambda m: first(m)["tensors"][1].update(off=first(m)["tensors"][0]["off"] + first(m)["tensors"][0]["nbytes"] - 1))
    put("tensors_disorder", "tensors in reverse", lambda m: first(m)["tensors"].reverse())
    put("tensors_empty_range", "a tensor of 0 bytes", lambda m: first(m)["tensors"][0].update(nbytes=0))
    put("tensor_name_escape", "a tensor whose name colours the terminal", lambda m: first(m)["tensors"][0].update(name=ESC))
    put("tensor_what_escape", "a state whose name colours the terminal", lambda m: first(m)["tensors"][0].update(what=ESC, crc32="00000000"))
    put("tensor_sum_other", "a tensor with another checksum than its bytes", lambda m: first(m)["tensors"][0].update(crc32="00000000"))
    put("tensor_unknown", "a tensor that the model does not have", lambda m: first(m)["tensors"][0].update(name="nothing"))
    put("file_left_out", "the optimizer's file is not listed", lambda m: m.update(files=[f for f in m["files"] if "optim" not in f["name"]]))
    put("state_left_out", "the state is not listed", lambda m: m.update(files=[f for f in m["files"] if "state.json" not in f["name"]]))
    put("files_many", "5000 files that are missing", lambda m: m["files"].extend({"name": f"f{i}", "nbytes": 0, "crc32": "00000000", "tensors": []} for i in range(5000)))
    put("tensors_many", "5000 tensors of one byte each", lambda m: first(m).update(tensors=[{"name": f"t{i}", "what": "param", "off": i, "nbytes": 1, "crc32": "00000000"} for i in range(5000)]))
    put("file_is_link", "a listed file that is a link outside", lambda m: first(m).update(name="x.pt"), setup="link in/global_step2/x.pt ../../victim/fp32.pt")
    put("file_is_fifo", "a listed file that is a pipe", lambda m: m["files"].append({"name": "x.pt", "nbytes": 0, "crc32": "00000000", "tensors": []}), setup="fifo in/global_step2/x.pt")
    put("file_is_device", "a listed file that is a link to /dev/zero", lambda m: m["files"].append({"name": "x.pt", "nbytes": 0, "crc32": "00000000", "tensors": []}), setup="link in/global_step2/x.pt /dev/zero")
    put("file_is_folder", "a listed file that is a folder", lambda m: m["files"].append({"name": "x.pt", "nbytes": 0, "crc32": "00000000", "tensors": []}), setup="mkdir in/global_step2/x.pt")
    extra = b"a user's own file\n"
    put("file_of_user", "a file of the user's own is listed as part of the checkpoint, with its true size and sum: it is checked like the others", lambda m: m["files"].append({"name": "notes.txt", "nbytes": len(extra), "crc32": f"{zlib.crc32(extra):08x}", "tensors": []}), {"in/global_step2/notes.txt": extra})


def latest(c):
    c.category = "latest"
    run = (INSPECT, CHECK, SAFE)

    def put(name, idea, data, base=S2, setup="", run=run, file="latest"):
        c.case(name, idea, run, {f"in/{file}": data}, base, setup)

    for name, idea, data in (
        ("empty", "nothing", b""),
        ("spaces", "spaces", b"   \n"),
        ("spaces_around", "a tag with white space around it, as editors leave it: the tag is meant", b" \t t3 \r\n"),
        ("above", "../victim/t3", b"../victim/t3"),
        ("above_only", "the folder above", b".."),
        ("dot", "the folder itself", b"."),
        ("absolute", "an absolute path", b"/etc"),
        ("slash", "a folder with a slash", b"t3/"),
        ("inside", "a folder in a folder", b"a/b"),
        ("dot_slash", "a tag behind ./", b"./t3"),
        ("hidden", "a hidden folder", b".t3.saving"),
        ("itself", "its own name", b"latest"),
        ("universal", "latest_universal", b"latest_universal"),
        ("missing", "a tag that is missing", b"t4"),
        ("two_lines", "two tags", b"t3\nt4\n"),
        ("nul", "a tag that ends before its end", b"t3\0/../../victim"),
        ("escape", "a tag that colours the terminal", b"\x1b[31mt3"),
        ("title", "a tag that sets the window's title", b"\x1b]0;x\x07t3"),
        ("csi_8bit", "a tag with CSI as one character", "\u009b31mt3".encode()),
        ("return", "a tag that overwrites its own line", b"t3\rt4"),
        ("bidi", "a tag that is shown backwards", BIDI.encode()),
        ("newline_forged", "a tag that forges a line", FORGED.encode()),
        ("not_utf8", "a tag that is not UTF-8", b"\xff\xfe\x80"),
        ("utf16", "a tag in UTF-16", "t3".encode("utf-16")),
        ("bom", "a tag after a byte order mark", b"\xef\xbb\xbft3"),
        ("200", "a tag of 200 bytes", b"t" * 200),
        ("201", "a tag of 201 bytes", b"t" * 201),
        ("long", "100,000 bytes", b"t" * 100000),
        ("percent", "format directives", b"%s%n%x%d"),
        ("shell", "a command", b"$(touch pwned);`touch pwned`"),
        ("option", "an option", b"--help"),
        ("star", "a pattern", b"t*"),
        ("tilde", "a folder of the user's", b"~root"),
        ("json", "JSON", b'{"tag": "t3"}'),
    ):
        put(name, f"`latest` holds {idea}", data)
    for name, idea, setup in (
        ("fifo", "a pipe", "rm in/latest;fifo in/latest"),
        ("folder", "a folder", "rm in/latest;mkdir in/latest"),
        ("device", "a link to /dev/zero", "rm in/latest;link in/latest /dev/zero"),
        ("link_out", "a link to a file outside", "rm in/latest;link in/latest ../victim/secret.txt"),
        ("link_loop", "a link to itself", "rm in/latest;link in/latest latest"),
        ("link_inside", "a link to a sound one in the same folder, which names a tag", "move in/newest in/latest;link in/latest newest"),
        ("hole", "1 TiB without content", "rm in/latest;sparse in/latest 1099511627776"),
        ("absent", "missing", "rm in/latest"),
    ):
        c.case(name, f"`latest` is {idea}", run, None, S2, setup)
    c.case("tag_link_out", "a tag that is a link to a folder outside", run, {"in/latest": "t4"}, S2, "link in/t4 ../victim/t3")
    c.case("tag_link_out_absolute", "a tag that is an absolute link", run, {"in/latest": "t4"}, S2, "link in/t4 /etc")
    c.case("tag_link_inside", "a tag that is a link to another tag of the same folder: that one is read", run, {"in/latest": "t4"}, S2, "link in/t4 t3")
    c.case("tag_link_loop", "a tag that is a link to itself", run, {"in/latest": "t4"}, S2, "link in/t4 t4")
    for name, data in (("resume_above", b"../../victim/t3"), ("resume_escape", b"\x1b[31m"), ("resume_missing", b"x"), ("resume_empty", b"")):
        put(name, "what `latest` holds leads a resumed run astray", data, RUN, run=(RESUME, "czero export in out --model common/model"))
    for name, tag in (("option_above", "../victim/t3"), ("option_absolute", "/etc"), ("option_dot", "."), ("option_slash", "t3/../t3")):
        c.case(name, f"--tag {tag}, given by the user: tags are names, not paths", (f"czero inspect in --tag {tag}", f"czero fsck in --tag {tag}", f"zero_to_fp32 in out --tag {tag}"), None, S2)


def universal(c):
    c.category = "universal"
    model = "t3/mp_rank_00_model_states.pt"
    run = (SUMS, SAFE)

    def put(name, idea, file, *changes, run=run, setup=""):
        t = Torch(c.fixtures / U2 / file)
        for path, value in changes:
            t.tree = changed(t.tree, path, value)
        c.case(name, idea, run, {f"in/{file}": t.bytes()}, U2, setup)

    def size(*dims):
        return Call(Global("torch", "Size"), (dims,))

    def renamed(odd):
        return (("param_shapes", 0), lambda old: Ordered((odd if k == "l2.weight" else k, v) for k, v in old.items()))

    for name, idea, odd in (
        ("above", "leads to the folder victim", "../../../victim"),
        ("above_inside", "leads out of zero/ and in again", "../zero/l2.weight"),
        ("absolute", "is an absolute path", "/etc"),
        ("folder", "is a folder in a folder", "a/b"),
        ("dot", "is a dot", "."),
        ("above_only", "is ..", ".."),
        ("empty", "is empty", ""),
        ("escape", "colours the terminal", ESC),
        ("newline", "forges a line", FORGED),
        ("long", "has 5000 characters", "n" * 5000),
        ("nul", "ends before its end", "l2.weight\0x"),
        ("number", "is a number", 5),
    ):
        put("name_" + name, f"a parameter, which names a folder, {idea}", model, renamed(odd))
    for name, idea, shape in (
        ("huge", "2^62 × 9 elements", (1 << 62, 9)),
        ("negative", "-5 × -9 elements", (-5, -9)),
        ("more", "one row more than its file", (6, 9)),
        ("zero", "no elements", (0, 9)),
    ):
        put("shape_" + name, f"param_shapes give a parameter {idea}", model, (("param_shapes", 0, "l2.weight"), size(*shape)))
    file = "t3/zero/l2.weight/fp32.pt"
    put("param_text", "a parameter's file holds text", file, ((), {"param": "x"}))
    put("param_list", "a parameter's file holds a list", file, ((), [1]))
    put("param_missing", "a parameter's file holds a dictionary without a tensor", file, ((), {"cat_dim": 0}))
    put("param_other_shape", "a parameter's file has other dimensions of as many elements", file, (("param",), tensor("0", 45, 0, (9, 5), (5, 1))))
    put("param_transposed", "a parameter's file is transposed by its strides", file, (("param",), tensor("0", 45, 0, (5, 9), (1, 5))))
    put("param_stride_0", "a parameter's file has one element 45 times", file, (("param",), tensor("0", 45, 0, (5, 9), (0, 0))))
    put("param_bomb", "a parameter's file has one element 2^50 times", file, (("param",), tensor("0", 45, 0, (1 << 50,), (0,))))
    put("param_system", "a parameter's file calls os.system", file, (("param",), Call(Global("os", "system"), ("touch pwned",))))
    put("param_ints", "a parameter of integers", file, (("param",), tensor("0", 45, 0, (5, 9), (9, 1), "IntStorage")))
    put("cat_dim_huge", "a concatenation along dimension 2^62", file, (("cat_dim",), 1 << 62))
    put("cat_dim_text", "a concatenation along a text", file, (("cat_dim",), ESC))
    put("vocab_huge", "a vocabulary of 2^62 rows", file, (("vocab_tensor",), True), (("original_vocab_size",), 1 << 62))
    step = "t3/zero/l2.weight/step.pt"
    put("step_negative", "a step of -1", step, ((), -1))
    put("step_text", "a step that is text", step, ((), "3"))
    put("step_other", "a step that differs from the other parameters'", step, ((), 5))
    state = "t3/zero/optimizer_state.pt"
    put("groups_missing", "an optimizer without param_groups", state, (("param_groups",), None))
    put("groups_more", "three param_groups for two groups", state, (("param_groups",), lambda old: old + [old[0]]))
    put("optimizer_system", "an optimizer state that os.system returns", state, ((), Call(Global("os", "system"), ("touch pwned",))))
    other = lambda name, idea, setup, files=None, run=(SUMS, CHECK, SAFE): c.case(name, idea, run, files, U2, setup)  # noqa: E731
    other("folder_missing", "a parameter's folder is missing", "rm in/t3/zero/l2.weight")
    other("fp32_missing", "a parameter's master is missing", "rm in/" + file)
    other("fp32_empty", "a parameter's master has no bytes", "", {f"in/{file}": b""})
    other("fp32_of_other", "a parameter's master is another one's", f"rm in/{file};copy in/{file} in/t3/zero/emb.weight/fp32.pt")
    other("exp_avg_missing", "a parameter's mean of gradients is missing", "rm in/t3/zero/l2.weight/exp_avg.pt")
    other("exp_avg_sq_missing", "a parameter's mean of squares is missing", "rm in/t3/zero/l2.weight/exp_avg_sq.pt")
    other("fp32_link_out", "a parameter's master is a link outside", f"rm in/{file};link in/{file} ../../../../victim/fp32.pt")
    other("folder_link_out", "a parameter's folder is a link outside", "rm in/t3/zero/l2.weight;link in/t3/zero/l2.weight ../../../victim")
    other("zero_link_out", "zero/ is a link outside", "rm in/t3/zero;link in/t3/zero ../../victim")
    other("fp32_fifo", "a parameter's master is a pipe", f"rm in/{file};fifo in/{file}")
    other("fp32_device", "a parameter's master is a link to /dev/zero", f"rm in/{file};link in/{file} /dev/zero")
    other("zero_is_file", "zero/ is a file", "rm in/t3/zero", {"in/t5/x": b"x"})
    other("states_many", "60 more states of one parameter", ";".join(f"copy in/t3/zero/l2.weight/s{i}.pt in/{file}" for i in range(30)))
    other("state_escape", "a state whose file's name colours the terminal", "", {f"in/t3/zero/l2.weight/{ESC}.pt": (c.fixtures / U2 / file).read_bytes()})
    other("latest_universal_above", "latest_universal leads outside", "", {"in/latest_universal": "../victim/t3"})
    other("latest_universal_escape", "latest_universal colours the terminal", "", {"in/latest_universal": ESC + "t3"})
    other("both_latest", "latest beside latest_universal names a missing tag", "", {"in/latest": "t9"})


def states(c):
    c.category = "state"
    folder = c.out / "bases/run/global_step2"
    good = json.loads((folder / "czero_state.json").read_text())
    state, sealed = "in/global_step2/czero_state.json", "in/global_step2/czero_manifest.json"

    def raw(name, idea, data, run=RESUME):
        data = data if isinstance(data, bytes) else data.encode()
        c.case(name, idea, run, {state: data, sealed: resealed(folder, "czero_state.json", data)}, RUN)

    def put(name, idea, change, run=RESUME):
        value = json.loads(json.dumps(good))
        change(value)
        raw(name, idea, json.dumps(value, indent=1), run)

    both = (RESUME, INSPECT)
    raw("empty", "no byte", b"", both)
    raw("not_json", "text", b"hello", both)
    raw("array", "an array", b"[]", both)
    raw("object_empty", "an empty object", b"{}", both)
    raw("twice", "global_steps twice", json.dumps(good).replace('"global_steps"', '"global_steps": 1, "global_steps"', 1))
    raw("deep", "arrays nested 200,000 deep", b'{"format":' + b"[" * 200000, both)
    raw("nan", "a loss scale NaN", json.dumps(good).replace('"scale": 1.0', '"scale": NaN', 1))
    raw("infinite", "a learning rate of 1e999", json.dumps(good).replace('"lr": 0.001', '"lr": 1e999', 1))
    raw("bom", "a byte order mark", b"\xef\xbb\xbf" + json.dumps(good).encode())
    put("format_other", "the format of another program", lambda s: s.update(format=ESC), both)
    put("version_2", "version 2", lambda s: s.update(version=2))
    put("version_0", "version 0", lambda s: s.update(version=0))
    for key in ("global_steps", "global_samples", "skipped_steps", "micro_steps", "n_updates", "n_scales", "n_skipped_in_a_row"):
        put(f"{key}_negative", f"{key} is -1", lambda s, key=key: s.update({key: -1}))
        put(f"{key}_beyond", f"{key} is 2^53 + 1", lambda s, key=key: s.update({key: (1 << 53) + 1}))
    put("global_steps_float", "global_steps is 2.5", lambda s: s.update(global_steps=2.5))
    put("global_steps_text", "global_steps is text", lambda s: s.update(global_steps="2"))
    put("global_steps_far", "global_steps is 2^53: the run is over before it resumes", lambda s: s.update(global_steps=1 << 53))
    put("global_steps_other", "global_steps differs from the shards'", lambda s: s.update(global_steps=3))
    put("skipped_more_than_steps", "more steps were skipped than taken", lambda s: s.update(skipped_steps=1000))
    put("updates_more_than_steps", "more updates than steps", lambda s: s.update(n_updates=1000))
    put("stage_4", "ZeRO stage 4", lambda s: s.update(zero_stage=4))
    put("stage_negative", "ZeRO stage -1", lambda s: s.update(zero_stage=-1))
    put("stage_beyond_int", "ZeRO stage 2^32 + 2", lambda s: s.update(zero_stage=(1 << 32) + 2))
    put("world_0", "0 ranks", lambda s: s.update(world_size=0))
    put("world_huge", "2^31 ranks", lambda s: s.update(world_size=1 << 31))
    put("dtype_unknown", "a type that does not exist", lambda s: s.update(dtype=ESC))
    put("dtype_other", "bf16, with weights of fp32", lambda s: s.update(dtype="bf16"))
    put("history_short", "a history of seven loss scales", lambda s: s.update(scale_history=[1.0] * 7))
    put("history_long", "a history of 100,000 loss scales", lambda s: s.update(scale_history=[1.0] * 100000))
    put("history_negative", "a loss scale of -1 in the history", lambda s: s.update(scale_history=[-1.0] * 8))
    put("history_text", "text in the history", lambda s: s.update(scale_history=["1"] * 8))
    sound = {"dynamic": True, "scale": 65536.0, "window": 1000, "min_scale": 1.0, "delayed_shift": 2, "hysteresis": 2}
    scale = lambda key, value: (lambda s: s["loss_scale"].update(sound | {key: value}))  # noqa: E731
    for key, value in (("scale", 0), ("scale", -65536), ("scale", 1e308), ("factor", 0), ("factor", 1), ("factor", -2), ("factor", 1e300), ("window", -1), ("window", 1 << 62), ("iter", -5), ("iter", 1 << 62), ("last_overflow_iter", -(1 << 62)), ("last_overflow_iter", 1 << 62), ("min_scale", -1), ("min_scale", 1e308), ("delayed_shift", -1), ("delayed_shift", 1 << 40), ("hysteresis", -1), ("hysteresis", 1 << 40)):
        word = {0: "0", 1: "1", -1: "minus_1"}.get(value, "minus_huge" if value < -100 else "huge" if value > 1000 else "negative")
        put(f"scale_{key}_{word}", f"the loss scale's {key} is {value:g}", scale(key, value))
    put("scale_dynamic_zero_window", "a dynamic loss scale with a window of 0", lambda s: s["loss_scale"].update(sound | {"window": 0}))
    put("scale_missing", "no loss scale", lambda s: s.pop("loss_scale"))
    put("scale_list", "a loss scale that is a list", lambda s: s.update(loss_scale=[]))
    for name, idea, seed in (("negative", "-1", "-1"), ("beyond", "2^64", str(1 << 64)), ("empty", "empty", ""), ("hex", "hexadecimal", "0x2a"), ("spaces", "after spaces", "  42"), ("escape", "an escape sequence", ESC), ("number", "a number", 42), ("long", "of 100,000 digits", "4" * 100000)):
        put("seed_" + name, f"a seed that is {idea}", lambda s, seed=seed: s.update(seed=seed), both)
    group = lambda **values: (lambda s: s["groups"][0].update(values))  # noqa: E731
    for name, idea, values in (
        ("lr_negative", "a learning rate of -1", {"lr": -1}),
        ("lr_huge", "a learning rate of 1e308", {"lr": 1e308}),
        ("lr_text", "a learning rate that is text", {"lr": "0.1"}),
        ("betas_outside", "betas of 2 and -1", {"betas": [2, -1]}),
        ("betas_one", "betas of 1 and 1", {"betas": [1, 1]}),
        ("betas_huge", "betas of 1e300", {"betas": [1e300, 1e300]}),
        ("betas_short", "one beta", {"betas": [0.9]}),
        ("betas_text", "betas that are text", {"betas": ["0.9", "0.999"]}),
        ("betas_null", "betas that are null", {"betas": None}),
    ):
        put(name, idea, group(**values))
    put("groups_none", "no group", lambda s: s.update(groups=[]))
    put("groups_more", "two groups, the run has one", lambda s: s.update(groups=s["groups"] * 2))
    put("groups_many", "20,000 groups", lambda s: s.update(groups=s["groups"] * 20000))
    put("groups_text", "a group that is text", lambda s: s.update(groups=["x"]))
    data = lambda **values: (lambda s: s["data"].update(values))  # noqa: E731
    for name, idea, values in (
        ("data_epoch_negative", "epoch -1", {"epoch": -1}),
        ("data_epoch_huge", "epoch 2^53", {"epoch": 1 << 53}),
        ("data_sample_negative", "sample -1", {"sample": -1}),
        ("data_sample_beyond", "a sample beyond the epoch", {"sample": 1 << 50}),
        ("data_rows_zero", "data of 0 rows", {"n_rows": 0}),
        ("data_rows_huge", "data of 2^53 rows", {"n_rows": 1 << 53}),
        ("data_rows_other", "data of one row more", {"n_rows": good["data"]["n_rows"] + 1}),
        ("data_seed_other", "data shuffled with another seed", {"seed": "43"}),
        ("data_shuffle_off", "data that was not shuffled", {"shuffle": False}),
        ("data_shuffle_text", "shuffling that is text", {"shuffle": "yes"}),
        ("data_list", "a position that is a list", None),
    ):
        put(name, f"the position in the data: {idea}", data(**values) if values else (lambda s: s.update(data=[])))
    put("schedule_negative", "a schedule at iteration -2", lambda s: s.update(last_batch_iteration=-2))
    put("schedule_huge", "a schedule at iteration 2^62, in a run without a schedule", lambda s: s.update(last_batch_iteration=1 << 62))
    put("onebit_zero_interval", "a 1-bit schedule with intervals of 0, in a run without one", lambda s: s.update(onebit={"optimizer": "ZeroOneAdam", "step": 1, "frozen": True, "var_interval": 0, "var_counter": 0, "local_step_interval": 0, "local_step_counter": 0, "rank_files": False}))
    put("onebit_long_name", "a 1-bit optimizer with a name of 100,000 characters", lambda s: s.update(onebit={"optimizer": "O" * 100000, "step": 1, "frozen": True, "var_interval": 1, "var_counter": 0, "local_step_interval": 1, "local_step_counter": 0, "rank_files": True}))
    put("onebit_files_missing", "1-bit files of every rank are promised and missing", lambda s: s.update(onebit={"optimizer": "OneBitAdam", "step": 1, "frozen": True, "var_interval": 1, "var_counter": 0, "local_step_interval": 1, "local_step_counter": 0, "rank_files": True}))
    put("member_unknown", "members that this version does not know, as a later one may add: they are ignored", lambda s: s.update({ESC: ESC, "__reduce__": 1}))
    c.case("fifo", "a state that is a pipe", (RESUME, INSPECT), None, RUN, f"rm {state};fifo {state}")
    c.case("device", "a state that is a link to /dev/zero", (RESUME, INSPECT), None, RUN, f"rm {state};link {state} /dev/zero")
    c.case("link_out", "a state that is a link outside", (RESUME, INSPECT), None, RUN, f"rm {state};link {state} ../../victim/state.json")
    c.case("hole", "a state of 100 GiB without content", (RESUME, INSPECT), None, RUN, f"rm {state};sparse {state} 107374182400")
    # machine profiles are bounded the same way
    rates = "gemm_fp32_operations gemm_bf16_operations gemm_fp16_operations triad_bytes adam_fp32_parameters adam_bf16_parameters comm_bytes host_to_device_bytes device_to_host_bytes device_gemm_fp32_operations device_gemm_bf16_operations device_gemm_fp16_operations device_copy_bytes nvme_read_bytes nvme_write_bytes"
    profile = {"format": "czero machine", "version": 1, "cpu": "a CPU", "isa": "avx2", "device": "", "threads": 2} | {f"{r}_per_second": 1.5e9 for r in rates.split()}
    profile |= {"device_memory_bytes": 0, "nvme_path": "/mnt", "nvme_read_and_write_bytes_per_second": 3e9, "nvme_block_bytes": 1 << 20, "nvme_queue_depth": 8, "nvme_how": "io_uring"}
    plan = "czero plan --config common/ds.json --model common/model --seq-len 8 --profile in/machine.json"
    for name, idea, values in (
        ("threads_0", "0 threads", {"threads": 0}),
        ("threads_huge", "2^40 threads", {"threads": 1 << 40}),
        ("rate_negative", "-1 bytes per second", {"triad_bytes_per_second": -1}),
        ("rate_huge", "1e308 operations per second", {"gemm_fp32_operations_per_second": 1e308}),
        ("cpu_escape", "a processor whose name colours the terminal", {"cpu": ESC + BIDI}),
        ("cpu_long", "a processor with a name of 100,000 characters", {"cpu": "c" * 100000}),
        ("path_escape", "a folder that colours the terminal", {"nvme_path": ESC}),
        ("queue_huge", "a queue of 2^40 requests", {"nvme_queue_depth": 1 << 40}),
        ("memory_negative", "a device with -1 bytes", {"device_memory_bytes": -1}),
        ("member", "a member that does not exist", {"typo": 1}),
    ):
        c.case("machine_" + name, f"a machine profile with {idea}", plan, {"in/machine.json": json.dumps(profile | values)})
    c.case("machine_device", "a machine profile that is /dev/zero", plan, setup="link in/machine.json /dev/zero")


def links(c):
    c.category = "links"
    gen = "czero generate --model in --prompt a --max-new-tokens 2"
    export = TRAIN.replace("--model common/model", "--model in").replace("--tokenizer bytes ", "") + " --export out/hf --save out/run"
    base = "hostile/bases/model"

    def put(name, idea, setup, run, base=base, files=None):
        c.case(name, idea, run, files, base, setup)

    st, key = "in/model.safetensors", "../victim/secret.txt"
    put("weights_out", "model.safetensors is a link outside", f"rm {st};link {st} ../victim/model.safetensors", (gen, "czero inspect in", "czero fsck in"))
    put("weights_out_absolute", "model.safetensors is an absolute link", f"rm {st};link {st} /etc/passwd", (gen, "czero inspect in"))
    put("weights_device", "model.safetensors is a link to /dev/zero", f"rm {st};link {st} /dev/zero", (gen, "czero inspect in", "czero fsck in"))
    put("weights_urandom", "model.safetensors is a link to /dev/urandom", f"rm {st};link {st} /dev/urandom", (gen, "czero inspect in"))
    put("weights_fifo", "model.safetensors is a pipe", f"rm {st};fifo {st}", (gen, "czero inspect in", "czero fsck in"))
    put("weights_folder", "model.safetensors is a folder", f"rm {st};mkdir {st}", (gen, "czero inspect in"))
    put("weights_loop", "model.safetensors is a link to itself", f"rm {st};link {st} model.safetensors", (gen, "czero inspect in"))
    put("weights_chain", "model.safetensors is the first of 30 links, all inside: the system's limit decides", "move in/l30 in/model.safetensors;" + ";".join(f"link in/l{i} l{i + 1}" for i in range(1, 30)) + f";link {st} l1", (gen,))
    put("weights_chain_50", "model.safetensors is the first of 50 links, more than the system follows", "move in/l38 in/model.safetensors;" + ";".join(f"link in/l{i} l{i + 1}" for i in range(1, 38)) + f";link in/x y;link in/y z;link in/z l1;link in/w x;link {st} w", (gen,))
    put("weights_proc", "model.safetensors is a link to /proc/self/environ", f"rm {st};link {st} /proc/self/environ", (gen, "czero inspect in"))
    put("weights_stdin", "model.safetensors is a link to /dev/stdin", f"rm {st};link {st} /dev/stdin", (gen, "czero inspect in"))
    put("weights_out_and_in", "a link that leaves the folder and comes back", f"move in/w {st};link {st} ../in/w", (gen,))
    put("weights_inside", "a link to a file of the same folder, as some tools leave them: it is read", f"move in/w {st};link {st} w", (gen, "czero inspect in"))
    put("weights_hard", "a hard link to a file of the same folder: an ordinary file", f"move in/w {st};hard {st} in/w", (gen,))
    put("config_out", "config.json is a link outside", "rm in/config.json;link in/config.json ../victim/config.json", (gen, "czero plan --config common/ds.json --model in --seq-len 8"))
    put("config_device", "config.json is a link to /dev/zero", "rm in/config.json;link in/config.json /dev/zero", (gen, "czero plan --config common/ds.json --model in --seq-len 8"))
    put("config_fifo", "config.json is a pipe", "rm in/config.json;fifo in/config.json", (gen, "czero plan --config common/ds.json --model in --seq-len 8"))
    put("generation_config_out", "generation_config.json is a link outside", f"link in/generation_config.json {key}", (gen,))
    put("generation_config_fifo", "generation_config.json is a pipe", "fifo in/generation_config.json", (gen,))
    put("index_fifo", "the index of shards is a pipe", f"rm {st};fifo in/model.safetensors.index.json", (gen, "czero inspect in", "czero fsck in"))
    put("index_device", "the index of shards is a link to /dev/zero", f"rm {st};link in/model.safetensors.index.json /dev/zero", (gen, "czero inspect in", "czero fsck in"))
    # what is copied beside an exported model
    bert = "hostile/bases/bpe"
    for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        put(f"companion_{name[:-5]}", f"{name} beside a tokenizer is a link to a private key", f"rm in/{name};link in/{name} {key}", (export,), bert)
        put(f"companion_{name[:-5]}_json", f"{name} beside a tokenizer is a link to a private JSON file", f"rm in/{name};link in/{name} ../victim/token.json", (export,), bert)
    put("companion_text", "a companion that is not JSON", "", (export,), bert, {"in/added_tokens.json": "not JSON"})
    put("companion_fifo", "a companion that is a pipe", "rm in/added_tokens.json;fifo in/added_tokens.json", (export,), bert)
    put("companion_device", "a companion that is /dev/zero", "rm in/added_tokens.json;link in/added_tokens.json /dev/zero", (export,), bert)
    put("tokenizer_out", "tokenizer.json is a link outside", "rm in/tokenizer.json;link in/tokenizer.json ../victim/token.json", (export,), bert)
    put("tokenizer_device", "tokenizer.json is /dev/zero", "rm in/tokenizer.json;link in/tokenizer.json /dev/zero", (export,), bert)
    put("tokenizer_fifo", "tokenizer.json is a pipe", "rm in/tokenizer.json;fifo in/tokenizer.json", (export,), bert)
    put("secrets_beside", "files with private names beside a model are not copied: the export has the model and the tokenizer only", "", (export,), bert, {"in/.env": "KEY=mark-of-the-victim-7Qx", "in/id_rsa": "mark-of-the-victim-7Qx", "in/tokenizer.model.key": "mark-of-the-victim-7Qx"})
    put("traces", "auto_map, _name_or_path and code beside a model: the export has none of it", "", (export,), bert, {"in/config.json": json.dumps(c.config | {"auto_map": {"AutoModel": "evil--mark-of-the-victim-7Qx"}, "_name_or_path": "/home/mark-of-the-victim-7Qx"}), "in/modeling.py": "mark-of-the-victim-7Qx"})
    # a Hugging Face cache: links from snapshots to blobs are sound
    cache = "models--a--b"
    hub = f"mkdir in/{cache};move in/{cache}/blobs/w {st};move in/{cache}/blobs/c in/config.json;link in/{cache}/snapshots/1/model.safetensors ../../blobs/w;link in/{cache}/snapshots/1/config.json ../../blobs/c"
    cached = f"czero generate --model in/{cache}/snapshots/1 --prompt a --max-new-tokens 2"
    put("hub_sound", "snapshots that link to blobs of the same model, as in Hugging Face's cache: they are read", hub, (cached,))
    put("hub_out", "a snapshot that links out of its model's cache", hub.replace("../../blobs/w", "../../../../victim/model.safetensors"), (cached,))
    put("hub_other_model", "a snapshot that links to another model's blobs", hub.replace("../../blobs/w", "../../../models--c--d/blobs/w") + f";copy in/models--c--d/blobs/w in/{cache}/blobs/w", (cached,))
    put("hub_blob_link", "a blob that is a link outside", hub.replace(f"move in/{cache}/blobs/w {st}", f"link in/{cache}/blobs/w ../../../victim/model.safetensors"), (cached,))
    put("hub_look_alike", "a folder that only looks like a cache, two levels too deep", hub.replace("snapshots/1", "snapshots"), (cached.replace("snapshots/1", "snapshots"),))
    # checkpoints
    tag = "in/global_step2"
    for name, file in (("model", "mp_rank_00_model_states.pt"), ("optim", "zero_pp_rank_0_mp_rank_00_optim_states.pt")):
        put(f"shard_{name}_out", f"the {name} file is a link outside", f"rm {tag}/{file};link {tag}/{file} ../../victim/fp32.pt", (INSPECT, CHECK, SAFE, RESUME), RUN)
        put(f"shard_{name}_device", f"the {name} file is a link to /dev/zero", f"rm {tag}/{file};link {tag}/{file} /dev/zero", (INSPECT, CHECK, SAFE, RESUME), RUN)
    put("shard_inside", "a shard that is a link to a file of the same folder: it is read", f"move {tag}/x {tag}/mp_rank_00_model_states.pt;link {tag}/mp_rank_00_model_states.pt x", (INSPECT, SAFE), RUN)
    put("stored_model_out", "the stored model, which an export reads, is a link outside", "rm in/model/config.json;link in/model/config.json ../../victim/config.json", ("czero export in out",), RUN)
    put("stored_model_folder_out", "the stored model's folder is a link outside", "rm in/model;link in/model ../victim", ("czero export in out",), RUN)
    # output folders
    put("output_link", "an output file that is a link to a private file: the link is replaced, not followed", "link out/model.safetensors ../victim/secret.txt", (SAFE,), S2)
    put("output_link_index", "the same of an index", "link out/model.safetensors.index.json ../victim/secret.txt", (SAFE + " --max_shard_size 0.001MB",), S2)
    put("output_fifo", "an output file that is a pipe", "fifo out/model.safetensors", (SAFE,), S2)
    put("output_folder_is_file", "an output folder that is a file", "copy out/x in/latest", (SAFE.replace("in out", "in out/x"),), S2)
    put("dangling_output", "an output file that is a link to a file that would be new", "link out/model.safetensors ../victim/new", (SAFE,), S2)
    put("save_link", "a save whose tag is a link to a folder outside", "link out/run/global_step4 ../../victim", (TRAIN + " --save out/run",), "-")
    put("save_latest_link", "a save whose `latest` is a link to a private file: the link is replaced", "link out/run/latest ../../victim/secret.txt", (TRAIN + " --save out/run",), "-")


def look_alikes(c):
    c.category = "look-alikes"
    ds = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "bf16": {"enabled": True}}
    ds["zero_optimization"] = {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "out/swap"}, "offload_param": {"device": "nvme", "nvme_path": "out/swap"}}
    run = TRAIN.replace("common/ds.json", "in/ds.json")

    def swap(name, idea, setup, files=None, run=run):
        c.case("swap_" + name, idea, run, {"in/ds.json": json.dumps(ds)} | (files or {}), "-", setup)

    for name, idea, file in (
        ("user_file", "a file of the user's", "thesis.txt"),
        ("nearly_prefix", "a name that begins almost like a swap file", "czero_swap_x"),
        ("no_number", "a name like a swap file without its number", "czero-swap-rank0-"),
        ("upper", "a name like a swap file in capitals", "CZERO-SWAP-RANK0-0123456789ABCDEF"),
        ("longer", "a name like a swap file with more digits", "czero-swap-rank0-0123456789abcdef0"),
        ("ending", "a name like a swap file with an ending", "czero-swap-rank0-0123456789abcdef.bak"),
        ("umlaut", "a name outside of ASCII", "\u00fcbung.txt"),
        ("tensor", "a swap file of DeepSpeed", "0_param.tensor.swp"),
        ("hidden", "a hidden file of the user's", ".bashrc"),
    ):
        swap(name, f"in the swap folder {idea}: it stays", f"keep out/swap/{escaped(file)}", {f"out/swap/{file}": "the user's own\n"})
    swap("folder", "a folder of the user's in the swap folder: it stays", "keep out/swap/photos", {"out/swap/photos/a.jpg": "x"})
    swap("folder_named_so", "a folder with the name of a swap file: it stays", "mkdir out/swap/czero-swap-rank0-0123456789abcdef;keep out/swap/czero-swap-rank0-0123456789abcdef")
    swap("link_named_so", "a link with the name of a swap file to a private file: neither goes", "link out/swap/czero-swap-rank0-0123456789abcdef ../../victim/secret.txt;keep out/swap/czero-swap-rank0-0123456789abcdef")
    swap("fifo_named_so", "a pipe with the name of a swap file: it stays", "fifo out/swap/czero-swap-rank0-0123456789abcdef;keep out/swap/czero-swap-rank0-0123456789abcdef")
    swap("is_file", "nvme_path is a file", "keep out/swap", {"out/swap": "the user's own\n"})
    swap("is_fifo", "nvme_path is a pipe", "fifo out/swap;keep out/swap")
    swap("is_link", "nvme_path is a link of the user's to a folder of the user's: it is followed, as every path in a config", "mkdir out/disk;link out/swap disk;keep out/swap")
    swap("mark_link", "the mark in the swap folder is a link to a private file", "link out/swap/.czero-swap-made ../../victim/secret.txt")
    # what --save-keep may remove
    save = TRAIN + " --save out/run --save-interval 1 --save-keep 1"
    folder = c.out / "bases/run/global_step2"
    sealed = (folder / "czero_manifest.json").read_bytes()
    state = json.loads((folder / "czero_state.json").read_text())
    far = json.dumps(state | {"global_steps": 10**15}).encode()

    def keep(name, idea, setup, files=None, run=save):
        c.case("keep_" + name, idea, run, files, "-", setup)

    keep("user_folder", "a folder of the user's among the tags: it stays", "keep out/run/notes", {"out/run/notes/a.txt": "x"})
    keep("deepspeed_tag", "a tag of DeepSpeed: it stays", "keep out/run/t3;add out/run/t3 checkpoints/expected/s2-align/t3")
    keep("manifest_only", "a folder of the user's with a copied manifest: the user's file stays", "keep out/run/user_data_0/thesis.txt", {"out/run/user_data_0/thesis.txt": "x", "out/run/user_data_0/czero_manifest.json": sealed})
    keep("manifest_far", "the same with a state that says step 10^15, three times", "keep out/run/user_data_0/thesis.txt;keep out/run/user_data_1/thesis.txt", {f"out/run/user_data_{i}/{n}": d for i in range(3) for n, d in (("thesis.txt", b"x"), ("czero_manifest.json", sealed), ("czero_state.json", far))})
    keep("copied_tag", "a tag that the user copied to keep it (best500): it stays", "keep out/run/best500;add out/run/best500 hostile/bases/run/global_step2")
    keep("copied_tag_with_notes", "a copied tag with a file of the user's", "keep out/run/best/notes.txt;add out/run/best hostile/bases/run/global_step2", {"out/run/best/notes.txt": "x"})
    keep("link_to_tag", "a link to a tag elsewhere: neither goes", "copy out/elsewhere common;link out/run/old ../elsewhere;keep out/run/old;keep out/elsewhere")
    keep("manifest_broken", "a folder with a broken manifest: it stays", "keep out/run/x", {"out/run/x/czero_manifest.json": "{"})
    keep("manifest_fifo", "a folder whose manifest is a pipe: it stays, and the run ends", "fifo out/run/x/czero_manifest.json;keep out/run/x")
    keep("state_fifo", "a folder with a manifest whose state is a pipe: the run ends", "fifo out/run/x/czero_state.json;keep out/run/x/czero_state.json", {"out/run/x/czero_manifest.json": sealed})
    keep("state_device", "a folder with a manifest whose state is /dev/zero", "link out/run/x/czero_state.json /dev/zero;keep out/run/x/czero_state.json", {"out/run/x/czero_manifest.json": sealed})
    keep("saving_of_user", "a hidden folder of the user's with the ending of a save: only czero's own may go", "keep out/run/.thesis", {"out/run/.thesis/a.txt": "x"})
    keep("latest_tmp_of_user", "a file of the user's that begins like a temporary `latest`", "keep out/run/latest.tmpl", {"out/run/latest.tmpl": "x"})
    keep("tag_is_file", "a file with the name of the tag: it stays", "keep out/run/global_step4", {"out/run/global_step4": "x"})
    keep("latest_is_folder", "a folder named latest: it stays", "keep out/run/latest", {"out/run/latest/a": "x"})
    keep("saving_is_link", "the folder of a save in progress is a link to a folder outside", "link out/run/.global_step4.saving ../../victim")
    keep("saving_is_file", "a file with the name of a save in progress", "", {"out/run/.global_step4.saving": "x"})
    keep("hostile_names", "folders whose names colour the terminal, with manifests", f"keep out/run/{escaped(ESC)}x/a", {f"out/run/{ESC}x/a": "x", f"out/run/{ESC}x/czero_manifest.json": sealed})
