"""czero's template engine from Python, through libczero_internal.so."""

import ctypes
import json
import time


class Var(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("node", ctypes.c_void_p),
        ("text", ctypes.c_char_p),
        ("truth", ctypes.c_bool),
        ("is_none", ctypes.c_bool),
        ("is_cut", ctypes.c_bool),
        ("n_items", ctypes.c_size_t),
    ]


class Span(ctypes.Structure):
    _fields_ = [("begin", ctypes.c_size_t), ("end", ctypes.c_size_t)]


class Text(ctypes.Structure):
    _fields_ = [
        ("s", ctypes.c_void_p),
        ("n", ctypes.c_size_t),
        ("cap", ctypes.c_size_t),
        ("spans", ctypes.POINTER(Span)),
        ("n_spans", ctypes.c_size_t),
        ("spans_cap", ctypes.c_size_t),
        ("block", ctypes.c_void_p),
    ]


class Refused(Exception):
    """What czero refuses, with its sentence; unsupported: what only czero refuses."""

    def __init__(self, status, sentence):
        super().__init__(sentence)
        self.unsupported = status == -6


class Engine:
    def __init__(self, path):
        self.lib = lib = ctypes.CDLL(str(path))
        lib.cz_last_error.restype = ctypes.c_char_p
        lib.json_root.restype = ctypes.c_void_p
        lib.json_root.argtypes = [ctypes.c_void_p]
        lib.json_free.argtypes = [ctypes.c_void_p]
        lib.json_parse.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
        lib.jinja_parse.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p]
        lib.jinja_render.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_void_p]
        lib.jinja_free.argtypes = [ctypes.c_void_p]
        lib.jinja_text_free.argtypes = [ctypes.c_void_p]

    def check(self, status):
        if status != 0:
            raise Refused(status, self.lib.cz_last_error().decode())

    def parse(self, text, name="template"):
        return Template(self, text, name)


class Template:
    def __init__(self, engine, text, name):
        self.engine = engine
        self.template = ctypes.c_void_p()
        data = text.encode()
        engine.check(engine.lib.jinja_parse(data, len(data), name.encode(), ctypes.byref(self.template)))

    def __del__(self):
        self.engine.lib.jinja_free(self.template)

    def render(self, variables, now=None):
        """text and spans of {% generation %} in characters"""
        lib = self.engine.lib
        docs, array, out = [], (Var * len(variables))(), Text()
        try:
            for var, (name, value) in zip(array, variables.items()):
                doc, data = ctypes.c_void_p(), json.dumps(value).encode()
                self.engine.check(lib.json_parse(data, len(data), b"values", 0, ctypes.byref(doc)))
                docs.append(doc)
                var.name = name.encode()
                var.node = lib.json_root(doc)
            now = int(time.time()) if now is None else now
            self.engine.check(lib.jinja_render(self.template, array, len(array), now, ctypes.byref(out)))
            data = ctypes.string_at(out.s, out.n) if out.n else b""
            spans = [(out.spans[i].begin, out.spans[i].end) for i in range(out.n_spans)]
        finally:
            lib.jinja_text_free(ctypes.byref(out))
            for doc in docs:
                lib.json_free(doc)
        text = data.decode()
        if spans and len(text) != len(data):
            places = {}
            at = 0
            for i, c in enumerate(text):
                places[at] = i
                at += len(c.encode())
            places[at] = len(text)
            spans = [(places.get(a, -1), places.get(b, -1)) for a, b in spans]
        return text, spans
