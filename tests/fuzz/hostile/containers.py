"""Cases of single files: zip archives, pickles, views of storages, safetensors, indexes of shards."""

import copy
import io
import json
import struct
import tarfile
import zlib

from .tools import FLOATS, Call, Global, Ordered, Raw, Record, Storage, Zip, archive, emit, glob, pickled, safetensors, tensor, text, weights

SUMS = "czero inspect in/x.pt --sums"
CHECK = "czero fsck in/x.pt"
ESC = "\x1b[31m"
BIDI = "\u202egnp.\u2066x"
FORGED = "k\nczero: 1 file, 3 tensors: no damage\n"


def zips(c):
    c.category = "zip"

    def put(name, idea, data, run=(SUMS, CHECK)):
        c.case(name, idea, run, {"in/x.pt": data if isinstance(data, bytes) else data.bytes()})

    good = archive().bytes()
    end = good.rindex(b"PK\x05\x06")
    tail = good[end:]

    def patched(off, data, where=None):
        at = (end if where is None else where) + off
        return good[:at] + data + good[at + len(data) :]

    # the end of the directory
    put("empty", "no byte at all", b"")
    put("one_byte", "a single P", b"P")
    put("end_only", "an end record of an archive without files", b"PK\x05\x06" + b"\0" * 18)
    put("end_cut", "the last byte of the end record is missing", good[:-1])
    put("end_missing", "no end record", good[:end])
    put("half", "cut in the middle of a storage", good[: len(good) // 2])
    put("comment_too_long", "the comment ends, by its length, behind the file", archive(comment_n=100))
    put("comment_is_an_end", "the comment holds another end record", archive(comment=tail))
    put("comment_longest", "a comment of 65535 bytes, which hides the end from a short search", archive(comment=b"c" * 65535))
    put("two_archives", "one archive after another: offsets of the second are wrong by the length of the first", good + good)
    put("prefix", "bytes before the first header, as self-extracting programs have", archive(prefix=b"#!/bin/sh\n" * 6))
    put("suffix", "bytes after the end record", archive(suffix=b"\0" * 7))
    put("directory_beyond", "the directory begins behind the file's end", archive(dir_off=1 << 30))
    put("directory_at_end", "the directory begins at the end record", archive(dir_off=end))
    put("directory_one_late", "the directory's offset is one too high", patched(16, struct.pack("<I", struct.unpack("<I", tail[16:20])[0] + 1)))
    put("directory_one_early", "the directory's offset is one too low", patched(16, struct.pack("<I", struct.unpack("<I", tail[16:20])[0] - 1)))
    put("directory_empty", "the directory's size is 0, its count is not", archive(dir_size=0))
    put("directory_too_large", "the directory's size reaches over the end record", archive(dir_size=1 << 20))
    put("directory_too_small", "the directory's size is one byte short", patched(12, struct.pack("<I", struct.unpack("<I", tail[12:16])[0] - 1)))
    put("count_too_large", "one more file is promised than there is", archive(n=5))
    put("count_too_small", "one file fewer is promised than there is", archive(n=3))
    put("count_zero", "no file is promised", archive(n=0))
    put("count_64_without_64", "the count says that a 64-bit record follows; there is none", archive(n=65535))
    put("other_disk", "the end record is on disk 1 of several", archive(disk=1, dir_disk=1))
    put("counts_differ", "as many files on this disk as in all, but for one", archive(n_here=3))
    put("signature_of_end", "the end record's signature has one other bit", archive(signature=b"PK\x05\x07"))
    # 64-bit records
    z64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 4, 4, 1 << 62, 0)
    loc = struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    put("z64_sizes_wrap", "a 64-bit directory of 2^62 bytes", archive(zip64=z64 + loc, n=65535, dir_off=0xFFFFFFFF, dir_size=0xFFFFFFFF))
    put("z64_locator_beyond", "the 64-bit record is, by its locator, behind the file's end", archive(zip64=z64 + struct.pack("<4sIQI", b"PK\x06\x07", 0, 1 << 40, 1), dir_off=0xFFFFFFFF))
    put("z64_locator_wraps", "the 64-bit record is at 2^64 - 1", archive(zip64=z64 + struct.pack("<4sIQI", b"PK\x06\x07", 0, (1 << 64) - 1, 1), dir_off=0xFFFFFFFF))
    put("z64_locator_to_itself", "the locator names its own offset", archive(zip64=loc, dir_off=0xFFFFFFFF))
    many = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1 << 40, 1 << 40, 1, 0)
    put("z64_count_huge", "2^40 files in a directory of one byte", archive(zip64=many + struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1), n=65535, dir_off=0xFFFFFFFF))
    put("z64_record_length", "the 64-bit record says that it has 2^63 bytes", archive(zip64=struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 1 << 63, 45, 45, 0, 0, 4, 4, 100, 0) + loc, dir_off=0xFFFFFFFF))
    put("z64_disks", "the locator counts 2^32 - 1 disks", archive(zip64=z64 + struct.pack("<4sIQI", b"PK\x06\x07", 7, end, 0xFFFFFFFF), dir_off=0xFFFFFFFF))
    # one record
    for name, idea, key, fields in (
        ("size_beyond", "a storage larger than the file", "data/0", {"size": 1 << 30}),
        ("size_max", "a storage of 2^32 - 2 bytes", "data/0", {"size": 0xFFFFFFFE}),
        ("size_64_missing", "a size that a 64-bit field should give; there is none", "data/0", {"size": 0xFFFFFFFF}),
        ("sizes_differ", "stored without compression, but of two sizes", "data/0", {"stored": 40}),
        ("sizes_differ_up", "stored without compression, in more bytes than it has", "data/0", {"stored": 56}),
        ("deflated", "a compressed record", "data.pkl", {"method": 8}),
        ("method_unknown", "a compression method that does not exist", "data/0", {"method": 99}),
        ("encrypted", "an encrypted record", "data.pkl", {"flags": 1}),
        ("strongly_encrypted", "flags of an encrypted directory", "data.pkl", {"flags": 0x2041}),
        ("patched_data", "flag of a patch instead of data", "data.pkl", {"flags": 0x20}),
        ("crc_of_pickle", "the pickle's checksum is wrong", "data.pkl", {"crc": 1, "local_crc": 1}),
        ("crc_of_storage", "a storage's checksum is wrong", "data/0", {"crc": 1, "local_crc": 1}),
        ("crc_differs_locally", "the two headers of a record have two checksums", "data/0", {"local_crc": 7}),
        ("size_differs_locally", "the two headers of a record have two sizes", "data/0", {"local_size": 16, "local_stored": 16}),
        ("name_differs_locally", "the local header has another name", "data/0", {"local_name": b"x/data/1"}),
        ("name_longer_locally", "the local header has a longer name, so that the data would begin later", "data/0", {"local_name": b"x/data/0" + b"0" * 64}),
        ("extra_longer_locally", "a local extra field that reaches, by its length, into the next record", "data/0", {"local_extra_n": 60}),
        ("extra_beyond_locally", "a local extra field that ends, by its length, behind the file", "data/0", {"local_extra_n": 65535}),
        ("local_signature", "the local header has no signature", "data.pkl", {"local_signature": b"PK\x03\x05"}),
        ("central_signature", "the directory's entry has no signature", "data/0", {"signature": b"PK\x01\x03"}),
        ("name_beyond", "a name that reaches over the directory's end", "version", {"name_n": 60000}),
        ("name_without_end", "a name's length takes in the next entry", "data.pkl", {"name_n": 70}),
        ("extra_beyond", "an extra field that reaches over the directory's end", "version", {"extra_n": 60000}),
        ("comment_beyond", "an entry's comment that reaches over the directory's end", "version", {"comment_n": 60000}),
        ("record_on_other_disk", "an entry's data is on disk 3", "data/0", {"disk": 3}),
        ("off_beyond", "a local header behind the file's end", "data/0", {"off": 1 << 30}),
        ("off_in_directory", "a local header in the directory", "data/0", {"off": end - 60}),
        ("off_of_other", "two entries with one local header", "data/0", {"off": 0}),
        ("off_64_missing", "an offset that a 64-bit field should give; there is none", "data/0", {"off": 0xFFFFFFFF}),
        ("is_absent", "an entry whose local header is not there", "data/0", {"absent": True}),
        ("unix_link", "an entry with the mode of a symbolic link", "data/0", {"made_by": 0x314, "attributes": 0o120777 << 16}),
        ("version_needed", "a record that needs version 655.35 of the format", "data/0", {"need": 65535}),
        ("pickle_empty", "data.pkl has no bytes", "data.pkl", {"data": b""}),
        ("byteorder_big", "the storages are big endian", "byteorder", {"data": b"big"}),
        ("byteorder_other", "a byte order that does not exist", "byteorder", {"data": b"middle"}),
        ("byteorder_escape", "a byte order that clears the screen", "byteorder", {"data": b"\x1b[2J"}),
        ("version_new", "the container's version is 99", "version", {"data": b"99\n"}),
        ("version_text", "the container's version is not a number", "version", {"data": b"three"}),
        ("version_long", "the container's version has 40 digits", "version", {"data": b"3" * 40}),
        ("version_huge_record", "the version record has 1 MB", "version", {"data": b"3" * 1000000}),
    ):
        put(name, idea, archive(records={key: fields}))
    huge = struct.pack("<2H2Q", 1, 16, 1 << 63, 1 << 63)
    put("z64_extra_huge", "a 64-bit size of 2^63", archive(records={"data/0": {"size": 0xFFFFFFFF, "extra": huge}}))
    put("z64_extra_cut", "a 64-bit field with half a number", archive(records={"data/0": {"size": 0xFFFFFFFF, "extra": struct.pack("<2HI", 1, 4, 48)}}))
    put("z64_extra_length", "an extra field longer than the extra fields together", archive(records={"data/0": {"size": 0xFFFFFFFF, "extra": struct.pack("<2HQ", 1, 200, 48)}}))
    put("z64_off_huge", "a 64-bit offset of 2^64 - 31, where the header's end wraps around", archive(records={"data/0": {"off": 0xFFFFFFFF, "extra": struct.pack("<2HQ", 1, 8, (1 << 64) - 31)}}))
    # names
    for name, idea, odd in (
        ("name_empty", "an entry without a name", b""),
        ("name_absolute", "an entry named /etc/passwd", b"/etc/passwd"),
        ("name_above", "an entry named ../../victim/secret.txt", b"../../victim/secret.txt"),
        ("name_above_inside", "an entry whose name leads out of the archive's folder", b"x/../../victim/secret.txt"),
        ("name_backslash", "an entry named as on another system", b"x\\data\\0"),
        ("name_nul", "an entry whose name holds a NUL", b"x/data/0\0.txt"),
        ("name_not_utf8", "an entry whose name is not UTF-8", b"x/\xff\xfe"),
        ("name_escape", "an entry whose name colours the terminal", b"x/\x1b[31mred"),
        ("name_csi_8bit", "an entry whose name holds CSI as one character", "x/\u009b31m".encode()),
        ("name_newline", "an entry whose name forges a line of the answer", ("x/" + FORGED).encode()),
        ("name_bidi", "an entry whose name is shown backwards", ("x/" + BIDI).encode()),
        ("name_longest", "an entry with a name of 65535 bytes", b"x/" + b"n" * 65533),
        ("name_other_folder", "an entry in a second folder", b"y/data.pkl"),
        ("name_no_folder", "an entry without a folder", b"data.pkl"),
    ):
        put(name, idea, archive(more=[Record(odd, b"?")]), (SUMS + " --all", CHECK))
    put("twice_pickle", "two records data.pkl: readers that take the first and the last differ", archive(more=[Record("x/data.pkl", pickled({"evil": 1}))]))
    put("twice_storage", "two records of one storage", archive(more=[Record("x/data/0", b"\xff" * 48)]))
    put("name_case", "data.PKL beside data.pkl", archive(more=[Record("x/DATA.PKL", b"?")]))
    put("no_pickle", "an archive of storages without data.pkl", archive(records={"data.pkl": None}))
    put("no_storage", "the storage that the pickle names is missing", archive(records={"data/0": None}))
    put("script", "constants.pkl makes it a TorchScript archive, which is code", archive(more=[Record("x/constants.pkl", b"\x80\x02).")]))
    put("script_code", "a folder of Python code inside", archive(more=[Record("x/code/__torch__.py", b"import os\nos.system('touch pwned')\n")]))
    inner = Record("x/data/0", FLOATS)
    put("overlap", "a record inside another one's data", Zip([Record("x/data.pkl", pickled({"w": tensor()})), inner, Record("x/version", b"3\n"), Record("x/all", good, size=150), Record("x/part", b"", off=180, size=40, absent=True)]))
    put("same_data", "200 entries that share one megabyte of zeros: 200 MB from 1", Zip([Record("x/data.pkl", pickled({"w": tensor()})), inner, Record("x/version", b"3\n"), Record("x/0", b"\0" * 1000000)] + [Record("x/0", b"", off=0x1F3, size=1000000, absent=True, crc=zlib.crc32(b"\0" * 1000000)) for _ in range(200)]))
    put("many_entries", "3000 empty entries", archive(more=[Record(f"x/e{i}", b"") for i in range(3000)]), (CHECK, "czero inspect in/x.pt --all"))
    put("folders", "entries that are folders, one inside another, 400 deep", archive(more=[Record("x/" + "d/" * i, b"") for i in range(1, 400)]))
    buf = io.BytesIO()
    with tarfile.open(fileobj=buf, mode="w", format=tarfile.USTAR_FORMAT) as t:
        info = tarfile.TarInfo("../victim/secret.txt")
        info.size = 5
        t.addfile(info, io.BytesIO(b"hello"))
    put("tar", "a tar file whose member leads out", buf.getvalue())
    put("gzip", "a gzip file", b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\0" * 40)
    put("text_file", "a text file with the ending .pt", b"hello\n" * 20)
    put("elf", "a program with the ending .pt", b"\x7fELF\x02\x01\x01" + b"\0" * 57)
    c.case("hole", "a file of 1 TiB without content", [SUMS, CHECK], setup="sparse in/x.pt 1099511627776")
    c.case("hole_before_end", "an archive after a hole of 8 GiB", [SUMS, CHECK], {"in/y": good}, setup="sparse in/x.pt 8589934592")


# ---- pickles --------------------------------------------------------------------------------------

STOP = b"."


def stream(ops):
    return b"\x80\x02" + ops + STOP


def pickles(c):
    c.category = "pickle"

    def put(name, idea, ops, run=SUMS, whole=False):
        c.case(name, idea, run, {"in/x.pt": archive(root=ops if whole else stream(ops)).bytes()})

    cmd = text("touch ../pwned; touch pwned")

    def call(module, name, args):
        return glob(module, name) + b"(" + args + b"tR"

    # what a pickle may name and call; none of it may happen
    for name, idea, ops in (
        ("system", "os.system is called", call("os", "system", cmd)),
        ("posix_system", "posix.system is called", call("posix", "system", cmd)),
        ("eval", "eval is called", call("builtins", "eval", text("__import__('os').system('touch pwned')"))),
        ("exec", "exec is called under its older module", call("__builtin__", "exec", text("open('pwned','w')"))),
        ("popen", "subprocess.Popen is called", call("subprocess", "Popen", cmd)),
        ("open_for_writing", "open is called for writing", call("builtins", "open", text("pwned") + text("w"))),
        ("open_victim", "a file outside is opened", call("builtins", "open", text("../victim/secret.txt"))),
        ("import_module", "importlib.import_module is called", call("importlib", "import_module", text("antigravity"))),
        ("runpy", "runpy runs a file", call("runpy", "run_path", text("in/x.py"))),
        ("webbrowser", "a browser is opened", call("webbrowser", "open", text("http://localhost:1/"))),
        ("socket", "a connection is opened", call("socket", "create_connection", b"(" + text("127.0.0.1") + b"K\x01t")),
        ("torch_load", "torch.load reads another file", call("torch", "load", text("../victim/fp32.pt"))),
        ("load_from_bytes", "torch.storage._load_from_bytes holds a pickle in a pickle", call("torch.storage", "_load_from_bytes", b"B" + struct.pack("<I", 60) + stream(call("os", "system", cmd))[:60].ljust(60, b"."))),
        ("hub_load", "torch.hub.load fetches code", call("torch.hub", "load", text("owner/repo") + text("model"))),
        ("jit_load", "torch.jit.load reads code", call("torch.jit", "load", text("in/x.pt"))),
        ("numpy_load", "numpy.load reads another file", call("numpy", "load", text("../victim/secret.txt"))),
        ("numpy_scalar_object", "a numpy scalar of type object holds a pickle", call("numpy.core.multiarray", "scalar", call("numpy", "dtype", text("O8")) + b"C\x04\x80\x02N.")),
        ("getattr", "getattr reaches a function through a permitted class", call("builtins", "getattr", glob("collections", "OrderedDict") + text("__init__"))),
        ("operator_chain", "operator.attrgetter reaches os.system", call("operator", "attrgetter", text("system")) + b"(" + glob("builtins", "__import__") + text("os") + b"tR"),
        ("partial", "functools.partial wraps os.system", call("functools", "partial", glob("os", "system") + cmd)),
        ("map_reduce", "map calls os.system for each item", call("builtins", "map", glob("os", "system") + b"](" + cmd + b"e")),
        ("codecs_decode", "_codecs.decode unpacks a hidden text", call("_codecs", "decode", text("gbhpu cjarq") + text("rot13"))),
        ("reconstructor", "copyreg._reconstructor makes an object of any class", call("copyreg", "_reconstructor", glob("os", "_Environ") + glob("builtins", "object") + b"N")),
        ("look_alike", "a module whose name only looks like torch's", call("torch._utils ", "_rebuild_tensor_v2", b"N")),
        ("look_alike_letters", "a module in Cyrillic letters", call("t\u043erch._utils", "_rebuild_tensor_v2", b"N")),
        ("dotted_name", "a name with dots reaches out of a permitted module", glob("torch._utils", "os.system") + b"(" + cmd + b"tR"),
        ("module_of_torch", "a function of torch that is no constructor", call("torch._utils", "_import_dotted_name", text("os.system"))),
        ("wrapper_subclass", "torch._utils._rebuild_wrapper_subclass takes a class", call("torch._utils", "_rebuild_wrapper_subclass", glob("os", "_Environ") + b"NNNNNN")),
        ("type_with_command", "_rebuild_from_type_v2 is given os.system as the function", call("torch._tensor", "_rebuild_from_type_v2", glob("os", "system") + glob("torch", "Tensor") + b"(" + cmd + b"t}")),
        ("setstate_of_dict", "attributes with __class__ are set on a dict", b"}}(" + text("__class__") + glob("os", "_Environ") + b"ub"),
        ("setstate_slots", "attributes as (None, slots)", b")" + glob("os", "_Environ")[0:0] + glob("x", "Y") + b")\x81N}(" + text("__reduce__") + glob("os", "system") + b"u\x86b0" + b"0N"),
        ("class_name_escape", "a class whose name colours the terminal", call("m" + ESC, "n" + ESC, b"N")),
        ("class_name_bidi", "a class whose name is shown backwards", call(BIDI, BIDI, b"N")),
        ("class_name_long", "a class whose name has 100,000 characters", call("m" * 100000, "n", b"N")),
    ):
        put(name, idea, ops)
    put("inst", "INST calls os.system, as protocol 0 does", b"(" + cmd + b"ios\nsystem\n")
    put("obj", "OBJ calls os.system", b"(" + glob("os", "system") + cmd + b"o")
    put("stack_global", "STACK_GLOBAL finds os.system", b"\x80\x04\x8c\x02os\x8c\x06system\x93(" + cmd + b"tR.", whole=True)
    put("stack_global_number", "STACK_GLOBAL of two numbers", b"\x80\x04K\x01K\x02\x93.", whole=True)
    put("newobj_ex", "NEWOBJ_EX calls os.system with a keyword", b"\x80\x04" + glob("os", "system") + b")}(" + text("command") + cmd + b"u\x92.", whole=True)
    put("newobj_of_list", "NEWOBJ of a list", b"])\x81")
    put("build_on_function", "attributes are set on os.system itself", glob("os", "system") + b"}b")
    put("extension", "an extension code", b"\x82\x01")
    put("extension_4", "an extension code of 32 bits", b"\x84\xff\xff\xff\x7f")
    put("persid_text", "a persistent id as a line of text", b"P../victim/fp32.pt\n")
    put("persid_string", "a persistent id that is a string", text("../victim/fp32.pt") + b"Q")
    put("persid_short", "a persistent id of two values", b"(" + text("storage") + glob("torch", "FloatStorage") + b"tQ")
    put("buffer_out_of_band", "a buffer that is not in the file", b"\x80\x05\x97.", whole=True)
    # lengths
    for name, idea, ops in (
        ("text_beyond", "a string of 4 GiB", b"X\xff\xff\xff\xff"),
        ("text_8_wraps", "a string of 2^63 bytes", b"\x8d" + struct.pack("<Q", 1 << 63)),
        ("bytes_8_max", "bytes of 2^64 - 1", b"\x8e" + b"\xff" * 8),
        ("bytearray_beyond", "a bytearray of 2^40 bytes", b"\x96" + struct.pack("<Q", 1 << 40)),
        ("long_4_negative", "an integer of -1 bytes", b"\x8b\xff\xff\xff\xff"),
        ("long_4_beyond", "an integer of 2^31 - 1 bytes", b"\x8b\xff\xff\xff\x7f"),
        ("long_empty", "an integer of 0 bytes", b"\x8a\x00"),
        ("long_largest", "an integer of 255 bytes", b"\x8a\xff" + b"\x7f" * 255),
        ("text_not_utf8", "a string that is not UTF-8", b"X\x02\0\0\0\xc3\x28"),
        ("text_lone_surrogate", "a string with half of a surrogate pair", text("\ud800")),
        ("text_cut", "a string whose last character is cut", b"X\x03\0\0\0ab\xc3"),
        ("frame_beyond", "a frame of 2^62 bytes", b"\x95" + struct.pack("<Q", 1 << 62) + b"N"),
        ("frame_splits_opcode", "a frame that ends inside an opcode", b"\x95" + struct.pack("<Q", 3) + b"K\x01K\x01\x86"),
        ("line_without_end", "a class name that never ends", b"cos"),
        ("memo_unknown", "a memo entry that was never stored", b"h\x05"),
        ("memo_largest", "memo entry 2^32 - 1 is stored", b"Nr\xff\xff\xff\xff"),
        ("memo_largest_read", "memo entry 2^32 - 1 is read", b"j\xff\xff\xff\xff"),
        ("memo_empty_stack", "nothing is stored in the memo", b"q\0"),
        ("memo_of_mark", "a mark is stored in the memo", b"(q\0t"),
        ("memo_text_negative", "memo entry -1, as text", b"g-1\n"),
        ("stop_at_once", "STOP without a value", b""),
        ("two_values", "STOP with two values", b"NN"),
        ("mark_left", "STOP with a mark left", b"N("),
        ("no_mark", "a tuple without a mark", b"Nt"),
        ("pop_empty", "POP of nothing", b"0"),
        ("pop_mark_empty", "POP_MARK of nothing", b"1"),
        ("dup_empty", "DUP of nothing", b"2"),
        ("tuple_3_of_1", "three values are taken, there is one", b"N\x87"),
        ("odd_pairs", "a key without a value", b"}(NNNu"),
        ("setitem_on_list", "a key is set on a list", b"]NNs"),
        ("append_to_dict", "an item is added to a dict", b"}Na"),
        ("append_to_number", "an item is added to a number", b"K\x01Na"),
        ("call_number", "a number is called", b"K\x01)R"),
        ("call_without_tuple", "the arguments are a dict", glob("torch", "Size") + b"}R"),
        ("build_on_number", "attributes are set on a number", b"K\x01}b"),
        ("opcode_unknown", "an opcode that does not exist", b"\xff"),
        ("opcode_text_int", "an integer as a line of text", b"I12\n"),
        ("opcode_text_long", "a long as a line of 5000 digits", b"L" + b"9" * 5000 + b"L\n"),
        ("opcode_text_float", "a float as text", b"F1e999\n"),
        ("opcode_text_string", "a string in quotes", b"S'\\x1b[31m'\n"),
        ("proto_twice", "another protocol in the middle", b"N0\x80\x05N"),
    ):
        put(name, idea, ops)
    put("protocol_0", "protocol 0", b"(dp0\nS'a'\nI1\ns.", whole=True)
    put("protocol_6", "protocol 6, which does not exist", b"\x80\x06N.", whole=True)
    put("protocol_255", "protocol 255", b"\x80\xffN.", whole=True)
    put("no_stop", "no STOP", b"\x80\x02N", whole=True)
    put("bytes_after_stop", "a second pickle after the first", b"\x80\x02N.\x80\x02" + call("os", "system", cmd) + b".", whole=True)
    put("only_proto", "two bytes", b"\x80\x02", whole=True)
    # shapes of trees
    put("deep_lists", "300,000 lists inside each other", b"]" * 300000 + b"a" * 299999)
    put("deep_tuples", "100,000 tuples inside each other", b")" + b"\x85" * 100000)
    put("deep_dicts", "50,000 dicts inside each other", b"}" + b"NN0}" * 0 + b"".join(b"K\x01}" for _ in range(50000)) + b"s" * 50000)
    put("deep_calls", "20,000 calls inside each other", b"N" + b"".join(b"" for _ in ()) + glob("m", "n") * 20000 + b"N" + b"\x85R" * 20000 + b"0" * 0)
    put("marks", "500,000 marks", b"(" * 500000 + b"N")
    put("nones", "500,000 values on the stack", b"N" * 500000)
    put("closing_brackets", "500,000 empty lists on the stack", b"]" * 500000)
    put("empty_dicts", "500,000 empty dicts on the stack", b"}" * 500000)
    put("laughs", "a list of ten lists of ten lists …, 60 deep: 10^60 values", b"]q\0(" + b"N" * 10 + b"e" + b"".join(b"0](" + (b"h" + bytes([i])) * 10 + b"eq" + bytes([i + 1]) for i in range(60)))
    put("laughs_dicts", "the same of dicts", b"}q\0" + b"".join(b"0}(" + b"".join(b"K" + bytes([k]) + b"h" + bytes([i]) for k in range(10)) + b"uq" + bytes([i + 1]) for i in range(60)))
    put("laughs_tuples_as_keys", "a tuple of tuples … as a key: its hash would take 2^60 steps", b"}" + b")q\0" + b"".join(b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) + b"0h" + bytes([i + 1]) for i in range(60)) + b"Ns")
    put("cycle_list", "a list that contains itself", b"]q\0h\0a")
    put("cycle_dict", "a dict that contains itself", b"}q\0K\x01h\0s")
    put("cycle_dict_key", "a dict whose key is a tuple that contains the dict", b"}q\0h\0\x85Ns")
    put("cycle_ordered", "an OrderedDict that contains itself", glob("collections", "OrderedDict") + b")Rq\0K\x01h\0s")
    put("cycle_object", "an object whose state contains it", glob("m", "n") + b")Rq\0h\0b")
    put("cycle_long", "lists that contain each other, around 200 of them", b"".join(b"]q" + bytes([i]) for i in range(200)) + b"".join(b"h" + bytes([i]) + b"h" + bytes([(i + 1) % 200]) + b"a0" for i in range(200)) + b"0" * 199)
    nan = b"G" + struct.pack(">d", float("nan"))
    put("keys_nan", "20,000 keys NaN, each unlike all others", b"}(" + (nan + b"N") * 20000 + b"u")
    put("keys_equal", "20,000 times the same key", b"}(" + (text("k") + b"N") * 20000 + b"u")
    put("keys_numbers_equal", "1, True and 1.0: one key of three kinds", b"}(K\x01N\x88NG" + struct.pack(">d", 1.0) + b"Nu")
    put("keys_tuples_long", "keys that are tuples of 2000 shared values", b"}(" + b"(" + b"N" * 2000 + b"tq\0N" + (b"h\0N") * 2000 + b"u")
    put("keys_list", "a list as a key", b"}]Ns")
    put("keys_dict", "a dict as a key", b"}}Ns")
    put("keys_multiples", "20,000 keys that are multiples of 2^32, alike in their low bits", b"}(" + b"".join(b"\x8a\x08" + struct.pack("<Q", (i + 1) << 32) + b"N" for i in range(20000)) + b"u")
    put("set_of_lists", "a set of lists", b"\x80\x04\x8f(]]\x90.", whole=True)
    put("set_large", "a set of 50,000 numbers", b"\x80\x04\x8f(" + b"".join(b"J" + struct.pack("<i", i) for i in range(50000)) + b"\x90.", whole=True)
    put("set_added_to_list", "ADDITEMS on a list", b"\x80\x04](N\x90.", whole=True)
    put("counter_list", "Counter of a list", call("collections", "Counter", b"](" + b"N" * 100 + b"e"))
    put("ordered_of_list", "OrderedDict of 3000 copies of one list of 3000 pairs", b"](" + (text("a") + b"N\x86") * 3000 + b"eq\0](" + (glob("collections", "OrderedDict") + b"h\0\x85R") * 3000 + b"e")
    put("size_of_list", "torch.Size of a list, 3000 times", b"](" + b"K\x01" * 3000 + b"eq\0](" + (glob("torch", "Size") + b"h\0\x85R") * 3000 + b"e")
    put("size_of_text", "torch.Size of a string", call("torch", "Size", text("abc")))
    put("defaultdict_of_system", "defaultdict with os.system as its default", call("collections", "defaultdict", glob("os", "system")))
    for name, idea, key in (
        ("key_escape", "a key that colours the terminal", ESC + "red"),
        ("key_title", "a key that sets the window's title", "\x1b]0;pwned\x07"),
        ("key_csi_8bit", "a key with CSI as one character", "\u009b31m"),
        ("key_newline", "a key that forges a line of the answer", FORGED),
        ("key_return", "a key that overwrites its own line", "good\revil"),
        ("key_backspaces", "a key that erases what is before it", "evil" + "\b" * 4 + "good"),
        ("key_bidi", "a key that is shown backwards", BIDI),
        ("key_line_separators", "a key with U+2028 and U+2029", "a\u2028b\u2029c"),
        ("key_zero_width", "two keys that look alike", "we\u200bight"),
        ("key_nul", "a key with a NUL", "a\0b"),
        ("key_surrogate", "a key with half of a surrogate pair", "a\udc80b"),
        ("key_tag_characters", "a key of invisible tag characters", "".join(chr(0xE0000 + ord(x)) for x in "ignore")),
        ("key_del", "a key with DEL", "a\x7fb"),
        ("key_long", "a key of 300,000 characters", "k" * 300000),
        ("key_combining", "a key with 20,000 combining marks", "a" + "\u0301" * 20000),
    ):
        c.case(name, idea, (SUMS, "czero inspect in/x.pt --json"), {"in/x.pt": archive(root={key: tensor(), "s": key}).bytes()})


# ---- views of storages ----------------------------------------------------------------------------


def views(c):
    c.category = "tensor"

    def put(name, idea, value, data=FLOATS, run=SUMS, **more):
        c.case(name, idea, run, {"in/x.pt": archive(root=value if isinstance(value, (bytes, dict)) else {"w": value}, data=data, **more).bytes()})

    big, wrap = 1 << 62, 1 << 64
    for name, idea, fields in (
        ("shape_negative", "a dimension of -1", {"shape": (-3, -4)}),
        ("shape_one_negative", "a dimension of -4 with a stride of -1", {"shape": (3, -4), "stride": (4, -1)}),
        ("shape_huge", "2^62 rows", {"shape": (big, 4)}),
        ("shape_product_wraps", "2^32 × 2^32 elements, which is 0 in 64 bits", {"shape": (1 << 32, 1 << 32), "stride": (0, 0)}),
        ("shape_product_wraps_to_12", "dimensions whose product is 12 in 64 bits", {"shape": ((1 << 63) + 6, 2), "stride": (0, 0)}),
        ("shape_beyond_64_bits", "a dimension of 2^64", {"shape": (wrap, 1), "stride": (0, 0)}),
        ("shape_beyond_64_bits_low", "a dimension of 2^64 + 3", {"shape": (wrap + 3, 4)}),
        ("shape_float", "a dimension of 3.0", {"shape": (3.0, 4)}),
        ("shape_text", "a dimension of '3'", {"shape": ("3", "4")}),
        ("shape_bool", "a dimension of True", {"shape": (True, 4)}),
        ("shape_none", "no shape", {"shape": None}),
        ("shape_list", "a list as shape", {"shape": [3, 4]}),
        ("shape_zero_times_huge", "0 × 2^62 elements", {"shape": (0, big), "stride": (big, 1)}),
        ("shape_huge_times_zero", "2^62 × 2^62 × 0 elements", {"shape": (big, big, 0), "stride": (1, 1, 1)}),
        ("stride_0_bomb", "2^50 times the same element", {"shape": (1 << 50,), "stride": (0,)}),
        ("stride_0_27", "2^27 times the same element", {"shape": (1 << 27,), "stride": (0,)}),
        ("stride_0_of_many", "sixteen dimensions of 8 with strides of 0", {"shape": (8,) * 16, "stride": (0,) * 16}),
        ("stride_overlapping", "windows of 6 over 12 elements", {"shape": (7, 6), "stride": (1, 1)}),
        ("stride_negative", "a stride of -1", {"stride": (4, -1)}),
        ("stride_negative_from_end", "from the end of the storage backwards", {"off": 11, "shape": (12,), "stride": (-1,)}),
        ("stride_huge", "a stride of 2^62", {"stride": (big, 1)}),
        ("stride_wraps", "4 × a stride of 2^62, which is 0 in 64 bits", {"shape": (5, 4), "stride": (big, 1)}),
        ("stride_wraps_inside", "a last element that is inside the storage only in 64 bits", {"shape": (3, 4), "stride": (1 << 63, 1)}),
        ("strides_fewer", "two dimensions, one stride", {"stride": (4,)}),
        ("strides_more", "two dimensions, three strides", {"stride": (4, 1, 1)}),
        ("stride_float", "a stride of 1.0", {"stride": (4.0, 1.0)}),
        ("off_negative", "an offset of -1", {"off": -1}),
        ("off_one", "an offset of 1: the last element is outside", {"off": 1}),
        ("off_end", "an empty view at the storage's end", {"off": 12, "shape": (0,), "stride": (1,)}),
        ("off_behind_end", "an empty view behind the storage's end", {"off": 13, "shape": (0,), "stride": (1,)}),
        ("off_huge", "an offset of 2^62", {"off": big}),
        ("off_wraps", "offset and extent wrap around in 64 bits", {"off": (1 << 63) - 1}),
        ("off_text", "an offset that is text", {"off": "0"}),
        ("off_float", "an offset of 0.5", {"off": 0.5}),
        ("ndim_17", "17 dimensions of 1", {"shape": (1,) * 17, "stride": (1,) * 17}),
        ("ndim_1000", "1000 dimensions of 1", {"shape": (1,) * 1000, "stride": (1,) * 1000}),
        ("numel_negative", "a storage of -12 elements", {"numel": -12}),
        ("numel_huge", "a storage of 2^62 elements, whose bytes wrap around", {"numel": big}),
        ("numel_more", "a storage that the pickle makes one element longer than its record", {"numel": 13}),
        ("numel_fewer", "a storage that the pickle makes one element shorter than its record", {"numel": 11}),
        ("numel_float", "a storage of 12.0 elements", {"numel": 12.0}),
        ("numel_zero", "a storage of no element, of which 12 are seen", {"numel": 0}),
        ("type_unknown", "a storage class that does not exist", {"kind": "VoidStorage"}),
        ("type_wider", "doubles where the record has floats", {"kind": "DoubleStorage"}),
        ("type_narrower", "bytes where the record has floats", {"kind": "ByteStorage"}),
        ("type_quantized", "a quantised storage", {"kind": "QInt8Storage"}),
        ("type_function", "torch.load as the storage's class", {"kind": "load"}),
        ("type_escape", "a storage class whose name colours the terminal", {"kind": "Float" + ESC}),
        ("key_above", "the record data/../../../victim/fp32.pt", {"key": "../../../victim/fp32.pt"}),
        ("key_absolute", "the record data//etc/passwd", {"key": "/etc/passwd"}),
        ("key_empty", "the record data/", {"key": ""}),
        ("key_escape", "a record whose name colours the terminal", {"key": ESC}),
        ("key_number", "a record that a number names", {"key": 0}),
        ("key_of_pickle", "the record data/../data.pkl", {"key": "../data.pkl"}),
        ("key_leading_zero", "record data/00 beside data/0", {"key": "00"}),
        ("key_long", "a record with a name of 70,000 characters", {"key": "0" * 70000}),
        ("hooks_function", "os.system among the backward hooks", {"hooks": Ordered({0: Global("os", "system")})}),
        ("hooks_list", "a list instead of backward hooks", {"hooks": [1]}),
    ):
        put(name, idea, tensor(**fields))
    t = tensor()
    rebuild = Global("torch._utils", "_rebuild_tensor_v2")
    put("arguments_missing", "a tensor rebuilt from two arguments", Call(rebuild, t.args[:2]))
    put("arguments_more", "a tensor rebuilt from nine arguments", Call(rebuild, t.args + (1, 2, 3)))
    put("storage_is_text", "a tensor rebuilt from a string", Call(rebuild, ("0",) + t.args[1:]))
    put("storage_is_tensor", "a tensor rebuilt from a tensor", Call(rebuild, (t,) + t.args[1:]))
    put("grad_text", "requires_grad is text", Call(rebuild, t.args[:4] + ("yes", Ordered())))
    put("metadata_object", "a seventh argument that is an object", Call(rebuild, t.args + (Call(Global("os", "getcwd")),)))
    put("sparse", "a sparse tensor", Call(Global("torch._utils", "_rebuild_sparse_tensor"), (Global("torch", "sparse_coo"), (t, t, (3, 4)))))
    put("quantized", "a quantised tensor", Call(Global("torch._utils", "_rebuild_qtensor"), t.args[:4] + ((Global("torch", "per_tensor_affine"), 1.0, 0), False, Ordered())))
    put("meta", "a tensor on no device", Call(Global("torch._utils", "_rebuild_meta_tensor_no_storage"), (Global("torch", "float32"), (1 << 50,), (1,), False)))
    put("nested", "a nested tensor", Call(Global("torch._utils", "_rebuild_nested_tensor"), (t, t, t, t)))
    put("parameter_of_text", "a parameter made of text", Call(Global("torch._utils", "_rebuild_parameter"), ("x", True, Ordered())))
    put("from_numpy", "a tensor from a numpy array", Call(Global("torch._utils", "_rebuild_device_tensor_from_numpy"), (b"\0" * 48, Global("torch", "float32"), "cpu", False)))
    put("device_odd", "a storage on a device with an escape sequence", Call(rebuild, (Storage(("storage", Global("torch", "FloatStorage"), "0", "cuda:" + ESC, 12)),) + t.args[1:]))
    put("storage_twice_two_sizes", "one storage, of 12 elements here and 6 there", {"a": tensor(), "b": tensor(numel=6, shape=(6,), stride=(1,))})
    put("storage_twice_two_types", "one storage, of floats here and of bytes there", {"a": tensor(), "b": tensor(numel=48, shape=(48,), stride=(1,), kind="ByteStorage")})
    put("views_many", "2000 views of one storage", {"l": [tensor() for _ in range(2000)]})
    put("views_of_all_permutations", "1000 views with strides in the other order", {"l": [tensor(shape=(4, 3), stride=(1, 4)) for _ in range(1000)]})
    put("float_nan_payload", "values NaN with payloads, infinities, denormals", t, struct.pack("<12I", *([0x7F800001, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 1, 0x80000000] * 2)))
    put("bool_not_0_or_1", "a bool tensor of bytes 2 and 255", tensor(numel=48, shape=(48,), stride=(1,), kind="BoolStorage"), b"\x02\xff" * 24)
    put("wrong_crc_kept", "a storage of another length than its checksum's", t, FLOATS, records={"data/0": {"crc": zlib.crc32(FLOATS[:-1])}})


# ---- safetensors ----------------------------------------------------------------------------------

ST = "czero inspect in/model.safetensors --sums"


def entry(dtype="F32", shape=(3, 4), a=0, b=48, **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [a, b], **more}


def tensors(c):
    c.category = "safetensors"

    def put(name, idea, header, data=FLOATS, run=ST, **more):
        c.case(name, idea, run, {"in/model.safetensors": safetensors(header, data, **more)})

    raw = lambda name, idea, data, run=ST: c.case(name, idea, run, {"in/model.safetensors": data})  # noqa: E731
    one = {"w": entry()}
    raw("empty", "no byte", b"")
    raw("seven_bytes", "too short for a length", b"\x02\0\0\0\0\0\0")
    raw("length_only", "a length and nothing else", struct.pack("<Q", 2))
    raw("length_zero", "a header of no byte", struct.pack("<Q", 0) + FLOATS)
    raw("length_one", "a header of one byte", struct.pack("<Q", 1) + b"{")
    put("length_beyond", "a header longer than the file", one, length=1 << 20)
    put("length_max", "a header of 2^64 - 1 bytes", one, length=(1 << 64) - 1)
    put("length_wraps", "8 plus the length is 0 in 64 bits", one, length=(1 << 64) - 8)
    put("length_over_limit", "a header of 100 MB + 1", one, length=100_000_001)
    put("length_short", "the header ends inside its JSON", one, length=20)
    put("length_takes_data", "the header takes in the first tensor", one, length=80)
    put("hole", "a header of 90 MB without content", one, length=90_000_000)
    c.case("hole_header", "a file of 100 GB without content: a header of no byte", (ST, "czero fsck in/model.safetensors"), setup="sparse in/model.safetensors 100000000000")
    put("bom", "a byte order mark before the brace", b"\xef\xbb\xbf" + json.dumps(one).encode())
    put("space_first", "a space before the brace", b" " + json.dumps(one).encode())
    put("newline_first", "a line end before the brace", b"\n" + json.dumps(one).encode())
    put("array", "an array instead of an object", b"[]", b"")
    put("number", "a number instead of an object", b"12", b"")
    put("null", "null", b"null", b"")
    put("nul_after", "NULs after the object", json.dumps(one).encode() + b"\0" * 8)
    put("text_after", "text after the object", json.dumps(one).encode() + b" x")
    put("two_objects", "a second object after the first", json.dumps(one).encode() + b"{}")
    put("comment", "a comment in the JSON", b'{/* x */"w":' + json.dumps(entry()).encode() + b"}")
    put("trailing_comma", "a comma after the last member", b'{"w":' + json.dumps(entry()).encode() + b",}")
    put("single_quotes", "single quotes", json.dumps(one).replace('"', "'").encode())
    put("nan", "NaN as an offset", b'{"w":{"dtype":"F32","shape":[3,4],"data_offsets":[NaN,48]}}')
    put("exponent", "offsets with exponents", b'{"w":{"dtype":"F32","shape":[3,4],"data_offsets":[0,4.8e1]}}')
    put("minus_zero", "an offset of -0", b'{"w":{"dtype":"F32","shape":[3,4],"data_offsets":[-0,48]}}')
    put("leading_zero", "an offset of 048", b'{"w":{"dtype":"F32","shape":[3,4],"data_offsets":[0,048]}}')
    put("not_utf8", "a name that is not UTF-8", b'{"\xff\xfe":' + json.dumps(entry()).encode() + b"}")
    put("surrogate", "a name with half of a surrogate pair", b'{"\\ud800":' + json.dumps(entry()).encode() + b"}")
    put("name_nul", "a name with a NUL", b'{"a\\u0000b":' + json.dumps(entry()).encode() + b"}")
    put("control_raw", "a raw control character in a name", b'{"a\x01b":' + json.dumps(entry()).encode() + b"}")
    put("same_name", "one name twice", b'{"w":' + json.dumps(entry()).encode() + b',"w":' + json.dumps(entry(b=96, a=48)).encode() + b"}", FLOATS * 2)
    put("same_member", "dtype twice", b'{"w":{"dtype":"F32","dtype":"I8","shape":[3,4],"data_offsets":[0,48]}}')
    put("name_empty", "a tensor without a name", {"": entry()})
    put("name_path", "a tensor named ../../victim/secret.txt", {"../../victim/secret.txt": entry()})
    put("name_escape", "a name that colours the terminal", {ESC + "red": entry()}, run=(ST, "czero inspect in/model.safetensors --json"))
    put("name_newline", "a name that forges a line of the answer", {FORGED: entry()})
    put("name_bidi", "a name that is shown backwards", {BIDI: entry()})
    put("name_long", "a name of 200,000 characters", {"n" * 200000: entry()})
    put("metadata_tensor", "a tensor called __metadata__", {"__metadata__": entry(), "w": entry()})
    put("metadata_number", "metadata whose value is a number", {"__metadata__": {"a": 1}, "w": entry()})
    put("metadata_nested", "metadata inside metadata", {"__metadata__": {"a": {"b": "c"}}, "w": entry()})
    put("metadata_list", "metadata that is a list", {"__metadata__": ["a"], "w": entry()})
    put("metadata_escape", "metadata that colours the terminal", {"__metadata__": {ESC: ESC + "\u009b1m" + BIDI}, "w": entry()})
    put("metadata_alias_missing", "metadata that calls a missing tensor an alias", {"__metadata__": {"lm_head.weight": "nothing"}, "w": entry()})
    put("metadata_alias_cycle", "two aliases of each other", {"__metadata__": {"a": "b", "b": "a"}, "w": entry()})
    put("metadata_large", "metadata of 20,000 members", {"__metadata__": {f"k{i}": "v" for i in range(20000)}, "w": entry()})
    for name, idea, value in (
        ("entry_null", "a tensor that is null", None),
        ("entry_list", "a tensor that is a list", ["F32", [3, 4], [0, 48]]),
        ("entry_text", "a tensor that is text", "F32"),
        ("entry_empty", "a tensor without members", {}),
        ("entry_more", "a tensor with one member more", entry(x=1)),
        ("entry_code", "a tensor with a member __reduce__", entry(__reduce__="os.system")),
        ("dtype_unknown", "a type F31", entry("F31")),
        ("dtype_number", "a type 32", entry(32)),
        ("dtype_lower", "a type f32", entry("f32")),
        ("dtype_escape", "a type that colours the terminal", entry(ESC)),
        ("dtype_half_bytes", "13 elements of 4 bits: no whole bytes", entry("F4", (13,), 0, 7)),
        ("dtype_wider", "doubles in half of their bytes", entry("F64")),
        ("dtype_complex", "complex numbers", entry("C64", (3, 2))),
        ("shape_negative", "a dimension of -3", entry(shape=(-3, -4))),
        ("shape_float", "a dimension of 3.5", entry(shape=(3.5, 4))),
        ("shape_text", "a dimension '3'", entry(shape=("3", 4))),
        ("shape_wraps", "2^32 × 2^32 × 12 elements", entry(shape=(1 << 32, 1 << 32, 12))),
        ("shape_beyond_64", "a dimension of 2^64 + 12", entry(shape=((1 << 64) + 12,))),
        ("shape_zero_times_huge", "0 × 2^63 elements", entry(shape=(0, (1 << 63) - 1), b=0)),
        ("shape_scalar", "no dimension, but 48 bytes", entry(shape=())),
        ("shape_1000", "1000 dimensions of 1", entry(shape=(1,) * 1000, b=4)),
        ("shape_object", "a shape that is an object", {"dtype": "F32", "shape": {"0": 3}, "data_offsets": [0, 48]}),
        ("offsets_reversed", "the end is before the beginning", entry(a=48, b=0)),
        ("offsets_negative", "a beginning of -48", entry(a=-48, b=0)),
        ("offsets_beyond", "one byte behind the file", entry(shape=(49,), dtype="U8", b=49)),
        ("offsets_wrap", "a beginning of 2^64 - 48", entry(a=(1 << 64) - 48, b=1 << 64)),
        ("offsets_one", "one offset", {"dtype": "F32", "shape": [3, 4], "data_offsets": [48]}),
        ("offsets_three", "three offsets", {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 24, 48]}),
        ("offsets_text", "offsets that are text", entry(a="0", b="48")),
        ("size_mismatch", "12 elements in 44 bytes", entry(b=44)),
        ("gap_first", "four bytes before the first tensor", entry(shape=(11,), a=4, b=48)),
        ("rest", "four bytes after the last tensor", entry(shape=(11,), a=0, b=44)),
    ):
        put(name, idea, {"w": value})
    half = entry(shape=(6,), b=24)
    put("overlap", "two tensors share bytes", {"a": entry(shape=(8,), b=32), "b": entry(shape=(6,), a=24, b=48)})
    put("overlap_all", "two tensors are one", {"a": entry(), "b": entry()})
    put("gap", "four bytes between two tensors", {"a": entry(shape=(5,), b=20), "b": half | {"data_offsets": [24, 48]}})
    put("empty_inside", "an empty tensor in the middle of another one", {"a": entry(), "b": entry(shape=(0,), a=20, b=20)})
    put("none", "no tensor, but data", {})
    put("nothing", "an empty object and no data", {}, b"")
    put("many_empty", "10,000 empty tensors", {f"t{i}": entry(shape=(0,), b=0) for i in range(10000)}, b"")
    put("deep", "arrays nested 100,000 deep", b'{"w":' + b"[" * 100000 + b"]" * 100000 + b"}", b"")
    put("braces", "500,000 closing brackets", b"]" * 500000, b"")
    put("commas", "500,000 zeros in one array", b'{"w":[' + b"0," * 500000 + b"0]}", b"")
    put("colliding_names", "2048 names with one hash under 32-bit FNV-1a", {k: entry(shape=(0,), b=0) for k in c.colliding}, b"")
    put("digits", "an offset of 100,000 digits", b'{"w":{"dtype":"F32","shape":[3,4],"data_offsets":[0,' + b"4" * 100000 + b"]}}")


# ---- indexes of shards ----------------------------------------------------------------------------


def indexes(c):
    c.category = "index"
    base = "hostile/bases/sharded"
    run = ("czero inspect in", "czero fsck in", "czero generate --model in --prompt a --max-new-tokens 2")
    names = c.sharded  # {tensor: file}
    first = next(iter(names))

    def put(name, idea, value, more=None, setup="", run=run):
        data = value if isinstance(value, (bytes, str)) else json.dumps(value)
        c.case(name, idea, run, {"in/model.safetensors.index.json": data} | (more or {}), base, setup)

    def with_map(change):
        value = {"metadata": {"total_size": 1}, "weight_map": dict(names)}
        change(value["weight_map"])
        return value

    put("empty_file", "no byte", b"")
    put("not_json", "text", "model-00001-of-00002.safetensors\n")
    put("array", "an array", "[]")
    put("no_map", "no weight_map", {"metadata": {}})
    put("map_null", "a weight_map that is null", {"weight_map": None})
    put("map_list", "a weight_map that is a list", {"weight_map": ["model-00001-of-00002.safetensors"]})
    put("map_empty", "a weight_map without tensors", {"weight_map": {}})
    put("map_twice", "two weight_maps", '{"weight_map":%s,"weight_map":{"a":"../victim/secret.txt"}}' % json.dumps(names))
    put("metadata_odd", "metadata of another kind", {"metadata": [1, None], "weight_map": names})
    put("total_size_wrong", "a total_size of 2^63", {"metadata": {"total_size": 1 << 63}, "weight_map": names})
    put("total_size_text", "a total_size that is text", {"metadata": {"total_size": "../x"}, "weight_map": names})
    for name, idea, target in (
        ("above", "a shard outside: ../victim/model.safetensors", "../victim/model.safetensors"),
        ("above_pt", "a shard outside of another kind: ../victim/fp32.pt", "../victim/fp32.pt"),
        ("above_missing", "a shard outside that does not exist", "../victim/nothing.safetensors"),
        ("above_inside", "a shard named ./../in/model-00001-of-00002.safetensors", "./../in/model-00001-of-00002.safetensors"),
        ("absolute", "a shard named /etc/passwd", "/etc/passwd"),
        ("absolute_device", "a shard named /dev/zero", "/dev/zero"),
        ("folder_itself", "a shard named .", "."),
        ("folder_above", "a shard named ..", ".."),
        ("empty_name", "a shard without a name", ""),
        ("slash_end", "a shard with a slash at the end", "model-00001-of-00002.safetensors/"),
        ("backslash", "a shard named as on another system", "..\\victim\\model.safetensors"),
        ("nul", "a name that ends before its end", "model-00001-of-00002.safetensors\0/../../victim/secret.txt"),
        ("escape", "a name that colours the terminal", ESC + ".safetensors"),
        ("newline", "a name that forges a line", FORGED),
        ("bidi", "a name that is shown backwards", BIDI),
        ("long", "a name of 5000 characters", "n" * 5000),
        ("deep", "a name of 1500 folders", "d/" * 1500 + "x"),
        ("missing", "a shard that does not exist", "model-00003-of-00002.safetensors"),
        ("itself", "the index as its own shard", "model.safetensors.index.json"),
        ("config", "config.json as a shard", "config.json"),
        ("url", "an address as a shard", "https://localhost:1/model.safetensors"),
        ("number", "a number as a shard", 1),
        ("null", "null as a shard", None),
        ("list", "a list as a shard", ["model-00001-of-00002.safetensors"]),
        ("other_case", "a shard in capitals", "MODEL-00001-OF-00002.SAFETENSORS"),
        ("other_shard", "the other shard", "model-00002-of-00002.safetensors"),
    ):
        put("shard_" + name, "one tensor's shard: " + idea, with_map(lambda m, t=target: m.update({first: t})))
    put("tensor_missing", "a tensor that no shard has", with_map(lambda m: m.update({"nothing.weight": "model-00001-of-00002.safetensors"})))
    put("tensor_left_out", "a tensor of a shard that the map does not name", with_map(lambda m: m.pop(first)))
    put("tensor_escape", "a tensor whose name colours the terminal", with_map(lambda m: m.update({ESC: "model-00001-of-00002.safetensors"})))
    put("shards_many", "20,000 shards that do not exist", {"weight_map": {f"t{i}": f"s{i}.safetensors" for i in range(20000)}})
    put("tensors_many", "20,000 tensors of one shard", {"weight_map": {f"t{i}": "model-00001-of-00002.safetensors" for i in range(20000)}})
    put("deep_json", "arrays nested 100,000 deep", '{"weight_map":' + "[" * 100000)
    put("shard_not_safetensors", "a shard that is text", {"weight_map": names}, {"in/model-00002-of-00002.safetensors": "hello"})
    put("shard_cut", "a shard that is cut", {"weight_map": names}, {"in/model-00002-of-00002.safetensors": (c.out / "bases/sharded/model-00002-of-00002.safetensors").read_bytes()[:300]})
    put("shard_fifo", "a shard that is a pipe", {"weight_map": names}, setup="rm in/model-00002-of-00002.safetensors;fifo in/model-00002-of-00002.safetensors")
    put("shard_folder", "a shard that is a folder", {"weight_map": names}, setup="rm in/model-00002-of-00002.safetensors;mkdir in/model-00002-of-00002.safetensors")
    both = (c.out / "bases/sharded/model-00001-of-00002.safetensors").read_bytes()
    put("shards_same_tensors", "two shards with the same tensors", {"weight_map": names}, {"in/model-00002-of-00002.safetensors": both})
    # the older kind: pytorch_model.bin.index.json beside pickles
    old = "models/bert-old"
    for name, idea, target in (
        ("bin_above", "a .bin shard outside", "../victim/fp32.pt"),
        ("bin_absolute", "a .bin shard named /dev/zero", "/dev/zero"),
        ("bin_pipe", "a .bin shard that is a pipe", "pipe"),
        ("bin_link", "a .bin shard that is a link outside", "link"),
    ):
        c.case(name, idea, ("czero inspect in", "czero verify in"), {"in/pytorch_model.bin.index.json": json.dumps({"weight_map": {"bert.embeddings.word_embeddings.weight": target}})}, old, "fifo in/pipe;link in/link ../victim/fp32.pt")


def sharded_model(c):
    """bases/sharded: a model of two shards; bases/model: the same in one."""
    H, V, T = 4, 256, 8
    shapes = {"wte.weight": (V, H), "wpe.weight": (T, H), "h.0.ln_1.weight": (H,), "h.0.ln_1.bias": (H,)}
    shapes |= {"h.0.attn.c_attn.weight": (H, 3 * H), "h.0.attn.c_attn.bias": (3 * H,), "h.0.attn.c_proj.weight": (H, H)}
    shapes |= {"h.0.attn.c_proj.bias": (H,), "h.0.ln_2.weight": (H,), "h.0.ln_2.bias": (H,)}
    shapes |= {"h.0.mlp.c_fc.weight": (H, 4 * H), "h.0.mlp.c_fc.bias": (4 * H,), "h.0.mlp.c_proj.weight": (4 * H, H)}
    shapes |= {"h.0.mlp.c_proj.bias": (H,), "ln_f.weight": (H,), "ln_f.bias": (H,)}
    shapes = {f"transformer.{k}": v for k, v in shapes.items()}
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": V, "n_positions": T, "n_embd": H, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    header, data = weights(shapes)
    c.put("common/model/model.safetensors", safetensors(header, data))
    c.put("common/model/config.json", json.dumps(config))
    c.sharded = {}
    for i, part in enumerate((list(shapes)[:1], list(shapes)[1:])):
        file = f"model-0000{i + 1}-of-00002.safetensors"
        header, data = weights({k: shapes[k] for k in part})
        c.put(f"bases/sharded/{file}", safetensors(header, data))
        c.sharded |= {k: file for k in part}
    c.put("bases/sharded/config.json", json.dumps(config))
    c.put("bases/sharded/model.safetensors.index.json", json.dumps({"metadata": {"total_size": 1}, "weight_map": c.sharded}))
    c.put("bases/model/config.json", json.dumps(config))
    header, data = weights(shapes)
    c.put("bases/model/model.safetensors", safetensors(header, data))
    c.config = config
