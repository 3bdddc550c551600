"""Grammars that have been judged."""

from frontend.prompts import prompt_reader as module
from frontend.prompts.prompt_reader import GrammarCache
from pagewire.internal.v1.reader_pb2 import AnswerForm


def form_of(**form: str) -> AnswerForm:
    return AnswerForm(structured_output=form)


def test_a_form_is_found_by_its_content() -> None:
    cache = GrammarCache()
    cache.put(form_of(regex="a"), "A")
    assert cache.get(form_of(regex="a")) == "A"
    assert cache.get(form_of(regex="b")) is None
    assert cache.get(form_of(structural_tag="a")) is None
    begun = form_of(regex="a")
    begun.reasoning = AnswerForm.REASONING_BEGUN
    assert cache.get(begun) is None


def test_what_was_not_used_for_longest_is_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_GRAMMARS", 2)
    cache, forms = GrammarCache(), [form_of(regex=letter) for letter in "abc"]
    cache.put(forms[0], "A")
    cache.put(forms[1], "B")
    assert cache.get(forms[0]) == "A"
    cache.put(forms[2], "C")
    assert [cache.get(form) for form in forms] == ["A", None, "C"]


def test_bytes_are_limited(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_GRAMMAR_BYTES", 10)
    cache = GrammarCache()
    cache.put(form_of(regex="a"), "x" * 6)
    cache.put(form_of(regex="a"), "x" * 6)
    cache.put(form_of(regex="b"), "x" * 6)
    assert cache.get(form_of(regex="a")) is None
    assert cache.get(form_of(regex="b")) == "x" * 6
