"""czero's tokenizers from Python, through libczero.so (build/libczero.so, or $CZERO_LIB)."""
import ctypes
import os
import pathlib

LIB = os.environ.get(
    "CZERO_LIB", pathlib.Path(__file__).resolve().parents[3] / "build" / "libczero.so"
)


class Input(ctypes.Structure):
    _fields_ = [
        ("text", ctypes.c_char_p),
        ("nbytes", ctypes.c_size_t),
        ("pair", ctypes.c_char_p),
        ("pair_nbytes", ctypes.c_size_t),
    ]


def load():
    lib = ctypes.CDLL(str(LIB))
    lib.cz_last_error.restype = ctypes.c_char_p
    lib.cz_tokenizer_vocab_size.restype = ctypes.c_int64
    lib.cz_tokenizer_special_id.restype = ctypes.c_int64
    lib.cz_tokenizer_name.restype = ctypes.c_char_p
    return lib


class Tokenizer:
    def __init__(self, name):
        self.lib = load()
        self.tok = ctypes.c_void_p()
        self.free = self.lib.cz_free
        self.free.argtypes = [ctypes.c_void_p]
        self.check(self.lib.cz_tokenizer_open(str(name).encode(), ctypes.byref(self.tok)))
        self.kind = self.lib.cz_tokenizer_name(self.tok).decode()
        self.vocab_size = self.lib.cz_tokenizer_vocab_size(self.tok)

    def __del__(self):
        if getattr(self, "tok", None):
            self.lib.cz_tokenizer_close(self.tok)

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.cz_last_error().decode())

    def special(self, which):
        return self.lib.cz_tokenizer_special_id(self.tok, which)

    def encode(self, text):
        """ids of a str, or of bytes, without special tokens around them"""
        data = text if isinstance(text, bytes) else text.encode()
        ids, n = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        self.check(
            self.lib.cz_tokenizer_encode(
                self.tok, data, ctypes.c_size_t(len(data)), ctypes.byref(ids), ctypes.byref(n)
            )
        )
        out = ids[: n.value]
        self.free(ids)
        return out

    def encode_input(self, text, pair=None, max_len=512):
        """ids and segments of one or two texts with special tokens, cut to max_len"""
        a, b = text.encode(), None if pair is None else pair.encode()
        row = Input(a, len(a), b, 0 if b is None else len(b))
        ids, types = (ctypes.c_int32 * max_len)(), (ctypes.c_int32 * max_len)()
        n = ctypes.c_int64()
        self.check(
            self.lib.cz_tokenizer_encode_input(
                self.tok, ctypes.byref(row), ctypes.c_int64(max_len), ids, types, ctypes.byref(n),
                None,
            )
        )
        return ids[: n.value], types[: n.value]

    def decode(self, ids):
        dec, text, n = ctypes.c_void_p(), ctypes.c_char_p(), ctypes.c_size_t()
        self.check(self.lib.cz_tokenizer_decoder_create(self.tok, ctypes.byref(dec)))
        out = b""
        for i in ids:
            self.check(
                self.lib.cz_tokenizer_decode(
                    dec, ctypes.c_int64(i), ctypes.byref(text), ctypes.byref(n)
                )
            )
            out += ctypes.string_at(text, n.value)
        self.lib.cz_tokenizer_decoder_end(dec, ctypes.byref(text), ctypes.byref(n))
        out += ctypes.string_at(text, n.value)
        self.lib.cz_tokenizer_decoder_destroy(dec)
        return out.decode()
