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
    def _raw(texts: Union[str, Iterable[str]], what: str) -> List[bytes]:
        texts = [texts] if isinstance(texts, str) else list(texts)
        for idx, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"{what} {idx}: a string is needed, not {type(text).__name__}")
        return [text.encode() for text in texts]

    def _row(self, raw: bytes, more: Optional[bytes], max_length: int) -> Any:
        ids, types = numpy.zeros((2, max_length), numpy.int32)
        given = lib.TokenizerInput(text=raw, nbytes=len(raw), pair=more,
                                   pair_nbytes=len(more or b""))
        n = ctypes.c_int64()
        as_int32 = ctypes.POINTER(ctypes.c_int32)
        self._call(C.cz_tokenizer_encode_input, ctypes.byref(given), max_length,
                   ids.ctypes.data_as(as_int32), types.ctypes.data_as(as_int32), ctypes.byref(n), None)
        return ids[:n.value], types[:n.value]

    def _rows(self, texts: Union[str, Sequence[str]], pairs: Union[str, Sequence[str], None],
              max_length: int) -> List[Any]:
        raw = self._raw(texts, "text")
        more = [None] * len(raw) if pairs is None else self._raw(pairs, "pair")
        if len(more) != len(raw):
            raise ValueError(f"{len(raw)} texts and {len(more)} pairs: one pair for each text is needed")
        max_length = lib.integer(max_length, "max_length", 1, 2**31 - 1)
        return [self._row(text, pair, max_length) for text, pair in zip(raw, more)]

    def __call__(self, texts: Union[str, Sequence[str]],
                 pairs: Union[str, Sequence[str], None] = None, *, max_length: int = 512,
                 padding: Any = True, truncation: Any = True,
                 return_tensors: Optional[str] = "np") -> Dict[str, numpy.ndarray]:
        """Rows with the tokenizer's special tokens, cut to max_length and padded to the longest:
        input_ids, attention_mask and token_type_ids, as engines take them. Other values of padding,
        truncation and return_tensors than transformers' for this are refused."""
        if padding not in (True, "longest") or truncation not in (True, "longest_first"):
            raise ValueError("rows are padded to the longest and cut to max_length: padding=True and "
                             "truncation=True are needed")
        if return_tensors not in (None, "np"):
            raise ValueError(f'return_tensors "{return_tensors}": arrays are numpy\'s, "np"')
        rows = self._rows(texts, pairs, max_length)
        if not rows:
            raise ValueError("texts: at least one is needed")
        shape = (len(rows), max(1, max(len(ids) for ids, _ in rows)))
        padding = self._call(C.cz_tokenizer_padding_id)
        batch = {"input_ids": numpy.full(shape, max(padding, 0), numpy.int32),
                 "attention_mask": numpy.zeros(shape, numpy.int32),
                 "token_type_ids": numpy.zeros(shape, numpy.int32)}
        for idx, (ids, types) in enumerate(rows):
            for name, values in (("input_ids", ids), ("attention_mask", 1), ("token_type_ids", types)):
                batch[name][idx, :len(ids)] = values
        return batch

    def encode(self, text: str, pair: Optional[str] = None, *, max_length: int = 512) -> List[int]:
        """The ids of one text, with the tokenizer's special tokens, cut to max_length."""
        if not isinstance(text, str):
            raise TypeError(f"encode() takes one text, not {type(text).__name__}: "
                            "tokenizer(texts) takes several")
        return self._rows(text, pair, max_length)[0][0].tolist()

    @property
    def pad_token_id(self) -> int:
        """What fills up rows: the padding token, without one the id that ends a text, else 0."""
        return self._call(C.cz_tokenizer_padding_id)

    @property
    def eos_token_id(self) -> Optional[int]:
        """The id that ends a text; None: the vocabulary has none."""
        token = self._call(C.cz_tokenizer_end_id)
        return token if token >= 0 else None

    def batch_decode(self, rows: Iterable[Iterable[int]]) -> List[str]:
        """decode() of each row."""
        return [self.decode(row) for row in rows]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD."""
        numbers = numpy.asarray(ids if isinstance(ids, numpy.ndarray) else list(ids))
        if numbers.ndim != 1 or (numbers.size > 0 and numbers.dtype.kind not in "iu"):
            raise TypeError("decode() takes the ids of one text: batch_decode() takes several rows")
        decoder = ctypes.c_void_p()
        self._call(C.cz_tokenizer_decoder_create, ctypes.byref(decoder))
        pieces: List[bytes] = []
        text, n = ctypes.c_char_p(), ctypes.c_size_t()

        def take() -> None:
            pieces.append(ctypes.string_at(text, n.value) if n.value else b"")

        try:
            for one in numbers.tolist():
                C.cz_tokenizer_decode(decoder, one, ctypes.byref(text), ctypes.byref(n))
                take()
            C.cz_tokenizer_decoder_end(decoder, ctypes.byref(text), ctypes.byref(n))
            take()
        finally:
            C.cz_tokenizer_decoder_destroy(decoder)
        return b"".join(pieces).decode("utf-8", "replace")
