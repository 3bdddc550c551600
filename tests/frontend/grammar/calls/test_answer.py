"""Whole answers: reasoning with and without a budget, then a form, calls or anything."""

import json
import random

import pytest

from frontend.errors import Unsupported
from pagewire.internal.v1 import reader_pb2
from tests.frontend.grammar.calls.random_answers import RandomModel

Form = reader_pb2.AnswerForm
BEGUN, POSSIBLE = Form.REASONING_BEGUN, Form.REASONING_POSSIBLE
SCHEMA = (
    '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}'
)


def spelled(model: RandomModel, text: str) -> list[int]:
    """Tokens of a text, with the model's marks as tokens."""
    return list(model.tokenizer.tokenize_str(text, parse_special=True))


def fits(model: RandomModel, grammar: str, text: str) -> bool:
    """Whether a text is a whole answer."""
    matcher = model.matcher(grammar)
    return matcher.consume_tokens(spelled(model, text)) and matcher.is_accepting()


def forced(model: RandomModel, grammar: str, text: str) -> str | None:
    """The only mark that may follow a text; None: there is a choice."""
    matcher = model.matcher(grammar)
    assert matcher.consume_tokens(spelled(model, text)), text
    allowed = model.allowed(matcher)
    return model.text(allowed) if len(allowed) == 1 else None


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_budget_ends_the_reasoning_at_its_token(budget: int) -> None:
    model = RandomModel("hermes", reasoning="think")
    grammar = model.grammar(Form(reasoning=BEGUN, reasoning_budget=budget))
    for spent in range(budget):
        assert forced(model, grammar, "x" * spent) is None
        assert fits(model, grammar, "x" * spent + "</think>\n\nYes <tool_call>")
    assert forced(model, grammar, "x" * budget) == "</think>"
    assert forced(model, grammar, "x" * budget + "</think>") is None
    assert not fits(model, grammar, "</think><think>")


def test_reasoning_that_the_prompt_has_not_begun_has_a_budget_too() -> None:
    model = RandomModel("hermes", reasoning="think")
    grammar = model.grammar(Form(reasoning=POSSIBLE, reasoning_budget=2))
    assert fits(model, grammar, "No thoughts") and fits(model, grammar, "")
    assert forced(model, grammar, "<think>ab") == "</think>"
    assert fits(model, grammar, "<think>a</think>Yes") and not fits(model, grammar, "a<think>")


def test_a_budget_cuts_a_character() -> None:
    """Where a token is a part of one, the count is exact all the same."""
    model = RandomModel("hermes", reasoning="think")
    matcher = model.matcher(model.grammar(Form(reasoning=BEGUN, reasoning_budget=2)))
    assert matcher.consume_tokens(list("é€".encode()[:2]))
    assert model.text(model.allowed(matcher)) == "</think>"
    matcher = model.matcher(model.grammar(Form(reasoning=BEGUN, reasoning_budget=3)))
    assert matcher.consume_tokens(list("é€".encode()[:3]))
    assert model.text(model.allowed(matcher)) == "</think>"


def test_a_form_begins_behind_the_reasoning() -> None:
    model = RandomModel("hermes", reasoning="think")
    for form, bare in (({"json_schema": SCHEMA}, '{"a":1}'), ({"regex": "[ab]+"}, "ab")):
        for reasoning, begin in ((BEGUN, "hm {"), (POSSIBLE, "<think>hm {")):
            asked = Form(structured_output=form, reasoning=reasoning)
            grammar = model.grammar(asked)
            assert fits(model, grammar, f"{begin}</think>\n\n{bare}") and fits(
                model, grammar, f"{begin}</think>{bare}"
            )
            assert fits(model, grammar, bare) == (reasoning == POSSIBLE)
            assert not fits(model, grammar, f"{begin}</think>{bare}x") and not fits(model, grammar, begin)
            asked.reasoning_budget = 4
            assert forced(model, model.grammar(asked), begin) == "</think>"


def test_without_reasoning_a_form_is_what_it_was() -> None:
    model = RandomModel("hermes", reasoning="think")
    asked = Form(structured_output={"json_schema": SCHEMA})
    assert fits(model, model.grammar(asked), '{"a":1}') and not fits(model, model.grammar(asked), "<think>")


def test_marks_of_text() -> None:
    """A form may follow them; no mark of text can be forced at a token."""
    model = RandomModel("hermes", special=False, reasoning="apriel")
    asked = Form(structured_output={"json_schema": SCHEMA}, reasoning=POSSIBLE)
    text = 'Here are my reasoning steps: {[BEGIN[BEGIN FINAL RESPONSE]\n{"a":1}'
    assert fits(model, model.grammar(asked), text) and fits(model, model.grammar(asked), '{"a":1}')
    asked.reasoning_budget = 5
    with pytest.raises(Unsupported) as refusal:
        model.grammar(asked)
    assert list(refusal.value.violations) == ["reasoning.budget"]


def test_calls_follow_the_reasoning() -> None:
    model = RandomModel("qwen3-coder", reasoning="think")
    asked = Form(calls_required=True, reasoning=POSSIBLE, reasoning_budget=4)
    asked.tools.add(name="now", parameters="")
    call = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
    grammar = model.grammar(asked)
    assert fits(model, grammar, f"<think>hm</think>\n\n{call}") and fits(model, grammar, call)
    assert (
        not fits(model, grammar, "<think>hm</think>Yes")
        and forced(model, grammar, "<think>abcd") == "</think>"
    )


def test_messages_of_harmony_have_their_frames() -> None:
    model = RandomModel("harmony")
    thoughts = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    asked = Form(structured_output={"json_schema": SCHEMA}, reasoning=POSSIBLE)
    answer = '<|channel|>final<|message|>{"a":1}'
    for text in (answer, thoughts + answer):
        assert fits(model, model.grammar(asked), text)
    assert not fits(model, model.grammar(asked), '{"a":1}')
    free = Form(reasoning=POSSIBLE, reasoning_budget=2)
    free.tools.add(name="now")
    grammar = model.grammar(free)
    call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
    aside = "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant"
    for text in (thoughts + aside + call, call, aside + "<|channel|>final<|message|>Yes."):
        assert fits(model, grammar, text), text
    assert forced(model, grammar, "<|channel|>analysis<|message|>hm") == "<|end|>"
    assert not fits(model, grammar, thoughts + thoughts + call)


@pytest.mark.parametrize("name", ["hermes", "harmony", "glm-4.5"])
def test_an_answer_goes_on_alike_behind_any_cut(name: str) -> None:
    """What is allowed is a function of the tokens: read again, or in a copy."""
    model, dice = RandomModel(name, reasoning=None if name == "harmony" else "think"), random.Random(name)
    asked = Form(calls_required=True, reasoning=POSSIBLE, reasoning_budget=9)
    asked.tools.add(
        name="f", parameters=json.dumps({"properties": {"a": {"type": "string", "maxLength": 8}}})
    )
    grammar = model.grammar(asked)
    tokens = next(filter(None, (model.answer(grammar, dice) for _ in range(20))))
    whole = model.matcher(grammar)
    for place, token in enumerate(tokens):
        again = model.matcher(grammar)
        assert again.consume_tokens(tokens[:place])
        copy = whole.deep_copy()
        assert model.allowed(again) == model.allowed(whole) == model.allowed(copy)
        assert whole.consume_token(token)
    assert whole.is_accepting()
