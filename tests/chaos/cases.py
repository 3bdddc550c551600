"""80 requests of all kinds, each with a seed, so that each has one answer."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jsonschema

from pagewire import Image, SamplingParams

NUM_CASES = 80
PROMPTS = ("The capital of France is", "1, 2, 3, 4,", "a b c d", "Give me JSON for Italy.", "ä 😀 € once")
_COMMON = {"temperature": 1.0, "ignore_eos": True, "max_tokens": 140}
_CHANGED_LENGTHS = 7
"""So many tokens lie between the lengths of two cases of one kind."""


@dataclass(frozen=True)
class Case:
    """A request, and how it is made."""

    number: int
    kind: str
    prompt: str
    params: SamplingParams
    unary: bool = False
    needs_stop: bool = False
    """A stop string is to be found in its own text."""
    calls: bool = False
    """It is a conversation, whose answer is a call."""
    adapter: str = ""
    """The name of its adapter; "": the base model answers."""
    image: bytes = b""
    """A file that its prompt asks about, as a conversation; empty: there is none."""

    @property
    def request(self) -> dict[str, Any]:
        """The arguments of generate() and stream()."""
        model = {"model": self.adapter} if self.adapter else {}
        if self.image:
            parts = [Image(self.image), self.prompt]
            return {"prompt": [{"role": "user", "content": parts}], "params": self.params}
        if not self.calls:
            return {"prompt": self.prompt, "params": self.params, **model}
        asked = [{"role": "user", "content": self.prompt}]
        return {"prompt": asked, "params": self.params, "tools": [TOOL], "tool_choice": TOOL["name"], **model}

    @property
    def has_form(self) -> bool:
        """Whether its output has a form."""
        form = self.params
        return self.calls or any(each is not None for each in (form.schema, form.regex, form.lark))

    def problem(self, text: str) -> str | None:
        """What is wrong with a whole text, in the form that it has to have; None: nothing."""
        form = self.params
        try:
            if form.schema is not None:
                jsonschema.validate(json.loads(text), form.schema)
            elif self.calls:
                call_id, name, arguments = text.split("|", 2)
                assert call_id and name == TOOL["name"], text
                jsonschema.validate(json.loads(arguments), TOOL["parameters"])
            elif form.regex is not None:
                assert re.fullmatch(form.regex, text), text
            elif form.lark is not None:
                assert re.fullmatch(r"(?s).*</end>[a-z ]{60,120}[.]", text), text
        except (AssertionError, ValueError, jsonschema.ValidationError) as problem:
            return str(problem)
        return None

    @property
    def streams(self) -> bool:
        """Whether tokens come as they are made."""
        return not self.unary and self.params.best_of is None

    def with_stop(self, stop: str) -> "Case":
        """The same, which ends there."""
        return replace(self, params=replace(self.params, stop=[stop, "\x00 never"]), needs_stop=False)


_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 90},
        "codes": {"type": "array", "items": {"type": "integer"}, "minItems": 20, "maxItems": 30},
    },
    "required": ["name", "codes"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "name": "store",
    "description": "a record",
    "parameters": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 60, "maxLength": 90},
            "kinds": {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 12, "maxItems": 14},
        },
        "required": ["name", "kinds"],
        "additionalProperties": False,
    },
}
_BUDGET = 'start: free "</end>" /[a-z ]{60,120}[.]/\nfree[max_tokens=40]: /(.|\n)*/\n'
"""Free text of forty tokens at most, then a mark, as reasoning with a budget has it."""
TEMPLATE = (
    "{{ tools | tojson if tools else '' }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    "{# calls are <tool_call>{'name', 'arguments'}</tool_call> #}"
)
"""The chat template of the service."""
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.2},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    "filters": {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "min_p": 0.01},
    "n": {"temperature": 0.9, "n": 3, "max_tokens": 70},
    "stop string": {"temperature": 1.5, "needs_stop": True},
    "stop string of two": {"temperature": 1.4, "n": 2, "max_tokens": 90, "needs_stop": True},
    "stop string kept": {"temperature": 1.5, "needs_stop": True, "include_stop": True},
    "log-probabilities": {"temperature": 1.0, "logprobs": 2, "prompt_logprobs": 1},
    "log-probabilities of some": {"temperature": 1.1, "logprobs": [5, 9], "n": 2, "max_tokens": 80},
    "end by chance": {"allowed_token_ids": range(2, 150), "ignore_eos": False, "min_tokens": 30},
    "stop token by chance": {"allowed_token_ids": range(20, 140), "stop_token_ids": [77], "min_tokens": 20},
    "bad words and bias": {"bad_words": ["the", "a"], "logit_bias": {100: 3.0, 101: -3.0}, "echo": True},
    "unary": {"temperature": 1.3, "unary": True, "max_tokens": 50},
    "unary with log-probabilities": {"n": 2, "logprobs": 1, "unary": True, "max_tokens": 40},
    "best of": {"n": 2, "best_of": 4, "max_tokens": 30},
    "schema": {"schema": _SCHEMA, "ignore_eos": False, "temperature": 1.2, "max_tokens": 200},
    "calls": {"calls": True, "ignore_eos": False, "temperature": 1.2, "max_tokens": 220},
    "budget": {"lark": _BUDGET, "ignore_eos": False, "temperature": 1.3, "max_tokens": 160},
    "regular expression": {"regex": "[a-z ]{90,200}[.!]", "ignore_eos": False, "n": 2, "max_tokens": 120},
}


SEEN = ("greedy", "seeded", "penalties", "filters", "n", "log-probabilities of some", "unary", "best of")
"""Kinds that a small model with random weights can be asked for, beside images."""


def make_cases(adapters: Sequence[str] = (), images: Sequence[bytes] = ()) -> Iterator[Case]:
    """Four of each kind, with other prompts, seeds and lengths, and with each of these adapters and none. Or,
    where there are images, ten of each kind that can have them, all but every third with one."""
    kinds = SEEN if images else tuple(KINDS)
    for number in range(NUM_CASES):
        kind = kinds[number % len(kinds)]
        options = {"seed": 1000 + number, **_COMMON, **KINDS[kind]}
        ways = {name: options.pop(name, False) for name in ("unary", "needs_stop", "calls")}
        options["max_tokens"] += _CHANGED_LENGTHS * (number // len(kinds))
        prompt = PROMPTS[number % len(PROMPTS)]
        adapter = ("", *adapters)[number // len(kinds) % (1 + len(adapters))]
        image = images[number % len(images)] if images and number % 3 else b""
        params = SamplingParams(**options)
        yield Case(number, kind, prompt, params, **ways, adapter=adapter, image=image)


def choose_stop(texts: list[str]) -> str:
    """A string that lies across the border of two tokens, late in this text, and nowhere before.

    texts: of the messages of one sequence, in order.
    """
    whole, at = "".join(texts), 0
    for text in texts:
        at += len(text)
        stop = whole[max(at - 2, 0) : at + 2]
        if at > 0.6 * len(whole) and len(stop) == 4 and "\ufffd" not in stop and whole.find(stop) == at - 2:
            return stop
    raise ValueError("every string of four characters was there before")
