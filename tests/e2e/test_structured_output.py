"""Structured output by a whole service: every format, and the deaths of its processes."""

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import re
import signal
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from pagewire import AsyncClient, BeamSearch, Client, SamplingParams
from pagewire.local_service import Service
from pagewire.v1 import model_pb2
from pagewire_client.errors import InvalidArgument
from pagewire_client.results import FinishReason, Generation, Output
from tests.e2e import services

PROMPT = "Give me JSON for Italy."


@dataclasses.dataclass
class Continent:
    name: Literal["Europe", "Asia"]


@dataclasses.dataclass
class Country:
    name: Literal["Italy", "France"]
    large: bool
    continent: Continent | None


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 60},
        "codes": {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 30, "maxItems": 40},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["name", "codes", "kind"],
    "additionalProperties": False,
}  # fmt: skip
TAG = {
    "triggers": ["<f="],
    "structures": [{"begin": "<f=x>", "schema": {"type": "integer", "maximum": 999}, "end": "</f>"}],
}


TEMPLATE = (
    "{{ tools | tojson if tools else '' }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    "{# calls are <tool_call>{'name', 'arguments'}</tool_call> #}"
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text(TEMPLATE)
    with services.start(frontends=2, max_deaths=99, chat_template=str(template)) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Client]:
    with Client(service.address) as client:
        client.wait_ready()
        yield client


def test_the_model_says_that_it_has_it(client: Client):
    assert model_pb2.CAPABILITY_STRUCTURED_OUTPUT in client.model().capabilities


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_every_format(client: Client, temperature: float):
    def text(**options: Any) -> str:
        result = client.generate(PROMPT, temperature=temperature, seed=3, max_tokens=400, **options)
        assert result.finish_reason is FinishReason.EOS
        return result.text

    assert json.loads(text(schema=SCHEMA)).keys() == SCHEMA["properties"].keys()
    assert re.fullmatch("[0-9]{3}-[a-z]{1,40}", text(regex="[0-9]{3}-[a-z]{1,40}"))
    assert text(choice=["yes", "no", "perhaps é"]) in ("yes", "no", "perhaps é")
    assert re.fullmatch("b{0,9}a", text(grammar='root ::= "b"{0,9} "a"'))
    assert re.fullmatch("x[0-9]{1,9}", text(lark='start: "x" /[0-9]{1,9}/'))


def test_a_class_comes_back_as_its_object(client: Client):
    country = client.generate(PROMPT, schema=Country, seed=1, temperature=0).parsed
    assert isinstance(country, Country) and isinstance(country.large, bool)
    result = client.generate(PROMPT, json_object=True, max_tokens=1)
    assert result.finish_reason is FinishReason.MAX_TOKENS
    with pytest.raises(ValueError, match="max_tokens"):
        _ = result.parsed


def test_with_everything_else(client: Client):
    """n, penalties, bias, bad words, min_tokens, log-probabilities, stop strings, beams."""
    regex = "[a-z ]{1,200}[0-9]"
    mixed = SamplingParams(
        regex=regex, n=3, seed=8, temperature=1.2, top_p=0.95, repetition_penalty=1.2, min_tokens=20,
        bad_words=["the"], logprobs=2, max_tokens=300,
    )  # fmt: skip
    outputs = client.generate(PROMPT, mixed).outputs
    assert len({output.text for output in outputs}) == 3
    for output in outputs:
        assert re.fullmatch(regex, output.text)
        assert len(output.token_ids) >= 20 and len(output.logprobs) == len(output.token_ids)
        assert any(score.rank > 3 for score in output.logprobs)  # of the model, before the mask
    cut = client.generate(PROMPT, regex="ab{5}c", stop="bb")
    assert (cut.text, cut.finish_reason) == ("a", FinishReason.STOP)
    short = client.generate(PROMPT, regex="ab", min_tokens=50, max_tokens=60)
    assert (short.text, short.finish_reason) == ("ab", FinishReason.EOS)
    banned = client.generate(PROMPT, regex="ab", bad_words=["b"], bad_token_ids=short.token_ids)
    assert banned.text == "ab"
    beams = client.generate(PROMPT, regex="[a-c]{3}x", n=3, beam_search=BeamSearch(4))
    texts = [output.text for output in beams.outputs]
    assert len(set(texts)) == 3 and all(re.fullmatch("[a-c]{3}x", text) for text in texts)


def test_required_calls(client: Client):
    """A model that was never trained to call writes calls that fit the schemas."""
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "name": {"const": "x"}}}
    tools = [{"name": "store", "parameters": schema}, {"name": "now"}]
    question = [{"role": "user", "content": PROMPT}]
    params = SamplingParams(seed=4, temperature=1.2, max_tokens=400)
    for choice in ("required", "store"):
        answer = client.chat(question, params, tools=tools, tool_choice=choice, parallel_tool_calls=False)
        (call,) = answer.tool_calls
        assert (answer.finish_reason, answer.text) == (FinishReason.TOOL_CALLS, "")
        assert call.name == choice or choice == "required"
        arguments = json.loads(call.arguments)
        assert arguments == {} if call.name == "now" else arguments["kind"] in "ab"
    with pytest.raises(InvalidArgument) as caught:
        client.chat(question, tools=[{"name": "f", "parameters": {"not": {}}}], tool_choice="required")
    assert caught.value.field == "prompt.chat.tools[0].parameters"


def test_a_refusal_comes_before_anything_starts(client: Client):
    for options, field in (
        ({"schema": {"not": {}}}, "structured_output.json_schema"),
        ({"regex": "a(b"}, "structured_output.regex"),
        ({"regex": "a", "ignore_eos": True}, "stopping.ignore_eos"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            client.generate(PROMPT, **options)  # type: ignore[arg-type]
        assert caught.value.field == field
    with pytest.raises(InvalidArgument) as caught:  # which only the worker's tokenizer can tell
        client.generate(PROMPT, lark="start: <[5000]>")
    assert caught.value.reason == "GRAMMAR_FAILED"
    assert client.generate(PROMPT, regex="ab").text == "ab"


CASES = [
    SamplingParams(seed=1, temperature=1.2, schema=SCHEMA, max_tokens=400),
    SamplingParams(seed=2, temperature=0.0, schema=SCHEMA, max_tokens=400),
    SamplingParams(seed=3, temperature=1.1, regex="[a-z ]{100,300}\\.", n=2, max_tokens=300),
    SamplingParams(seed=4, temperature=1.0, structural_tag=TAG, max_tokens=150, repetition_penalty=1.2),
    SamplingParams(seed=5, temperature=1.4, grammar="root ::= [0-9,]{90,150}", max_tokens=200),
    SamplingParams(seed=6, temperature=1.0, ignore_eos=True, max_tokens=900),  # kills come before its end
]


async def run(service: Service, victims: list[str]) -> list[list[Generation]]:
    """All cases at once, with a kill after some tokens for each victim. Streams that are over before the last
    kill, as a slow client may find them, are run again."""
    dice, num_tokens, begun, left = random.Random(7), 0, 0, [*victims]
    rounds: list[list[Generation]] = []

    async def one(params: SamplingParams) -> Generation:
        nonlocal num_tokens, begun
        async with client.stream(PROMPT, params) as stream:
            async for delta in stream:
                begun += delta.position == 0 and delta.index == 0
                num_tokens += len(delta.token_ids)
            return stream.generation

    def find(victim: str) -> list[int]:
        """None while it is replaced."""
        return services.processes(service.pid).get(victim, [])

    async with AsyncClient(service.address) as client:
        while left or not rounds:
            begun = 0
            streams = asyncio.gather(*map(one, CASES))
            while begun < len(CASES) and not streams.done():  # a request that no server has accepted may fail
                await asyncio.sleep(0.001)
            while left and not streams.done():
                enough = num_tokens + dice.randrange(20, 80)
                while not streams.done() and (num_tokens < enough or not (pids := find(left[0]))):
                    await asyncio.sleep(0.001)
                if not streams.done():
                    with contextlib.suppress(ProcessLookupError):  # the last kill has ended it just now
                        os.kill(pids[0], signal.SIGKILL)  # not a standby
                    left.pop(0)
            rounds.append(await streams)
    return rounds


def texts_of(results: list[Generation]) -> list[list[tuple[str, list[int], object]]]:
    def told(output: Output) -> tuple[str, list[int], object]:
        return output.text, output.token_ids, output.finish_reason

    return [list(map(told, result.outputs)) for result in results]


@pytest.mark.usefixtures("patient")
def test_deaths_change_no_token(service: Service, client: Client):
    """Worker, core and frontend are killed in the middle of structured outputs: the same tokens, valid."""
    (expected,) = asyncio.run(run(service, []))
    assert all(json.loads(result.text)["kind"] in "ab" for result in expected[:2])
    for results in asyncio.run(run(service, ["worker", "engine", "frontend"])):
        assert texts_of(results) == texts_of(expected)


def test_the_examples_of_the_page(service: Service):
    """docs/structured-output.md, run against this service."""
    page = (services.ROOT / "docs/structured-output.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(
        compile(example.replace("127.0.0.1:50051", service.address), "example", "exec"),
        {"__name__": "__main__"},
    )
