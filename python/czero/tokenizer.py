"""Texts to ids and back, by the tokenizer of a model's folder."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, Iterable, List, Optional, Sequence, Union

import numpy

from . import _library as lib
from ._library import C, PathLike


class Tokenizer(lib.Uncopied):
    """The tokenizer of a Hugging Face folder, of a tokenizer's folder, or "bytes". Threads may share
    one.

        tokenizer = czero.Tokenizer("path/to/bert")
        batch = tokenizer(["a good day", "no"], max_length=128)
        logits = engine.predict(**batch)
    """

    _instead = "open it again where it is needed"
    _handle: Optional[lib.Handle] = None

    def __init__(self, name: PathLike) -> None:
        opened = ctypes.c_void_p()
        C.cz_tokenizer_open(lib.path(name), ctypes.byref(opened))
        self._handle = lib.Handle(opened.value, C.cz_tokenizer_close, "tokenizer")

    def _call(self, call: Any, *arguments: Any) -> Any:
        if self._handle is None:
            raise TypeError("czero.Tokenizer(folder) opens tokenizers; this object has none")
        return self._handle.read(call, *arguments)

    def __len__(self) -> int:
        return self._call(C.cz_tokenizer_vocab_size)

    @staticmethod
    def _raw(text: Optional[str], what: str) -> Optional[bytes]:
        if text is None:
            return None
        if not isinstance(text, str):
            raise TypeError(f"{what}: a string is needed, not {type(text).__name__}")
        return text.encode()

    def _row(self, text: str, pair: Optional[str], max_length: int) -> Any:
        ids, types = numpy.zeros((2, max_length), numpy.int32)
        raw, more = self._raw(text, "a text"), self._raw(pair, "a pair")
        given = lib.TokenizerInput(text=raw, nbytes=len(raw or b""), pair=more,
                                   pair_nbytes=len(more or b""))
        n = ctypes.c_int64()
        as_int32 = ctypes.POINTER(ctypes.c_int32)
        self._call(C.cz_tokenizer_encode_input, ctypes.byref(given), max_length,
                   ids.ctypes.data_as(as_int32), types.ctypes.data_as(as_int32), ctypes.byref(n), None)
        return ids[:n.value], types[:n.value]

    def __call__(self, texts: Union[str, Sequence[str]], pairs: Optional[Sequence[str]] = None, *,
                 max_length: int = 512) -> Dict[str, numpy.ndarray]:
        """Rows with the tokenizer's special tokens, cut to max_length and padded to the longest:
        input_ids, attention_mask and token_type_ids, as engines take them."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        pairs = [None] * len(texts) if pairs is None else (  # type: ignore[list-item]
            [pairs] if isinstance(pairs, str) else list(pairs))
        if not texts or len(pairs) != len(texts):
            raise ValueError(f"{len(texts)} texts and {len(pairs)} pairs: one pair for each text is needed")
        if max_length < 1:
            raise ValueError(f"max_length {max_length}: at least 1 is needed")
        rows = [self._row(text, pair, max_length) for text, pair in zip(texts, pairs)]
        shape = (len(rows), max(1, max(len(ids) for ids, _ in rows)))
        padding = self._call(C.cz_tokenizer_padding_id)
        batch = {"input_ids": numpy.full(shape, max(padding, 0), numpy.int32),
                 "attention_mask": numpy.zeros(shape, numpy.int32),
                 "token_type_ids": numpy.zeros(shape, numpy.int32)}
        for idx, (ids, types) in enumerate(rows):
            for name, values in (("input_ids", ids), ("attention_mask", 1), ("token_type_ids", types)):
                batch[name][idx, :len(ids)] = values
        return batch

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD."""
        decoder = ctypes.c_void_p()
        self._call(C.cz_tokenizer_decoder_create, ctypes.byref(decoder))
        pieces: List[bytes] = []
        text, n = ctypes.c_char_p(), ctypes.c_size_t()

        def take() -> None:
            pieces.append(ctypes.string_at(text, n.value) if n.value else b"")

        try:
            for one in ids:
                C.cz_tokenizer_decode(decoder, int(one), ctypes.byref(text), ctypes.byref(n))
                take()
            C.cz_tokenizer_decoder_end(decoder, ctypes.byref(text), ctypes.byref(n))
            take()
        finally:
            C.cz_tokenizer_decoder_destroy(decoder)
        return b"".join(pieces).decode("utf-8", "replace")
