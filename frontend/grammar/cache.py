"""Grammars that have been judged, by the form that was requested: a service has few schemas."""

from collections import OrderedDict
from hashlib import blake2b

from pagewire.internal.v1 import reader_pb2

MAX_ENTRIES = 256
MAX_BYTES = 8 << 20
"""Bytes of the grammars."""


class GrammarCache:
    """The grammars that were used last."""

    def __init__(self) -> None:
        self._grammars: OrderedDict[bytes, str] = OrderedDict()
        self._num_bytes = 0

    def get(self, form: reader_pb2.AnswerForm) -> str | None:
        """Returns the grammar of a form; None: it is not known."""
        key = _key(form)
        if key not in self._grammars:
            return None
        self._grammars.move_to_end(key)
        return self._grammars[key]

    def put(self, form: reader_pb2.AnswerForm, grammar: str) -> None:
        """Keeps a grammar, and forgets those that were not used for the longest time."""
        key = _key(form)
        if key in self._grammars:
            return
        self._grammars[key] = grammar
        self._num_bytes += len(grammar)
        while len(self._grammars) > MAX_ENTRIES or self._num_bytes > MAX_BYTES:
            self._num_bytes -= len(self._grammars.popitem(last=False)[1])


def _key(form: reader_pb2.AnswerForm) -> bytes:
    return blake2b(form.SerializeToString(deterministic=True), digest_size=16).digest()
