"""Grammars that have been judged."""

from frontend.grammar import cache as module
from frontend.grammar.cache import GrammarCache
from pagewire.v1.generation_pb2 import StructuredOutput


def test_a_form_is_found_by_its_content() -> None:
    cache = GrammarCache()
    cache.put(StructuredOutput(regex="a"), "A")
    assert cache.get(StructuredOutput(regex="a")) == "A"
    assert cache.get(StructuredOutput(regex="b")) is None
    assert cache.get(StructuredOutput(structural_tag="a")) is None


def test_what_was_not_used_for_longest_is_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    cache, forms = GrammarCache(), [StructuredOutput(regex=letter) for letter in "abc"]
    cache.put(forms[0], "A")
    cache.put(forms[1], "B")
    assert cache.get(forms[0]) == "A"
    cache.put(forms[2], "C")
    assert [cache.get(form) for form in forms] == ["A", None, "C"]


def test_bytes_are_limited(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    cache = GrammarCache()
    cache.put(StructuredOutput(regex="a"), "x" * 6)
    cache.put(StructuredOutput(regex="a"), "x" * 6)
    cache.put(StructuredOutput(regex="b"), "x" * 6)
    assert cache.get(StructuredOutput(regex="a")) is None
    assert cache.get(StructuredOutput(regex="b")) == "x" * 6
