"""Doors beside our own API, with real processes and clients that others wrote: the OpenAI API with the openai
package in its synchronous form, the Open Inference Protocol with tritonclient."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pydantic
import pytest

from pagewire import Client
from pagewire.local_service import Service
from tests.e2e import services

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Two frontends that share the HTTP port."""
    names = {"served_model_name": ("demo", "other"), "metrics_names": "vllm"}
    with services.start(openai_port=0, open_inference=True, frontends=2, **names) as service:
        yield service


@pytest.fixture
def api(service: Service) -> Iterator[openai.OpenAI]:
    """A client; the service must be idle again after the test."""
    with openai.OpenAI(base_url=service.facts["openai"], api_key="none") as api:
        yield api
    with Client(service.address) as client:
        services.wait_until(lambda: services.is_idle(client))


def test_both_ports_give_the_same_text(service: Service, api: openai.OpenAI):
    with Client(service.address) as client:
        expected = client.generate(PROMPT, max_tokens=40, seed=7, temperature=1.0).text
    fields = {"model": "demo", "prompt": PROMPT, "max_tokens": 40, "seed": 7, "temperature": 1.0}
    assert api.completions.create(**fields).choices[0].text == expected
    chunks = api.completions.create(**fields, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected


def test_a_chat_is_streamed(api: openai.OpenAI):
    fields = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "seed": 1}
    whole = api.chat.completions.create(**fields, max_tokens=20)
    chunks = list(api.chat.completions.create(**fields, max_completion_tokens=20, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[0].system_fingerprint == whole.system_fingerprint


def test_metrics_are_those_of_all_processes_under_vllms_names(service: Service, api: openai.OpenAI):
    """Whichever frontend answers; the engine core knows the served name, too."""
    url = service.facts["openai"].removesuffix("/v1")
    assert api.completions.create(model="demo", prompt=PROMPT, max_tokens=4).usage.completion_tokens == 4
    lines = httpx2.get(f"{url}/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if line.startswith("vllm:"))
    cores = [name for name in values if 'process="engine-core"' in name]
    assert 'vllm:num_requests_waiting{model_name="demo",process="engine-core"}' in cores
    assert 'vllm:kv_cache_usage_perc{model_name="demo",process="engine-core"}' in cores
    sent = [
        float(values[f'vllm:generation_tokens_total{{model_name="demo",process="frontend-{number}"}}'])
        for number in (1, 2)
    ]
    assert sum(sent) >= 4
    built = [line for line in lines if line.startswith("pagewire_build_info{")]
    assert len(built) == 3 and f'version="{httpx2.get(f"{url}/version").json()["version"]}"' in built[0]


def test_a_closed_connection_frees_the_engine(service: Service, api: openai.OpenAI):
    stream = api.completions.create(
        model="demo", prompt=PROMPT, max_tokens=100_000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()


def test_responses_are_the_answers_of_chat(api: openai.OpenAI):
    question = [{"role": "user", "content": "What is the capital of Japan?"}]
    chat = api.chat.completions.create(model="demo", messages=question, temperature=0, max_tokens=30)
    answer = api.responses.create(model="demo", input=question, temperature=0, max_output_tokens=30)
    assert answer.output_text == chat.choices[0].message.content and "Tokyo" in answer.output_text
    with api.responses.stream(model="demo", input=question, temperature=0, max_output_tokens=30) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == answer.output_text
    again = [*question, *answer.output, {"role": "user", "content": "Hello!"}]
    assert api.responses.create(model="demo", input=again, max_output_tokens=5).output


class City(pydantic.BaseModel):
    """A form of an answer."""

    name: str
    capital: bool


def test_forms_are_parsed_by_the_package(api: openai.OpenAI):
    question = [{"role": "user", "content": "Paris?"}]
    parsed = api.chat.completions.parse(
        model="demo", messages=question, response_format=City, max_tokens=100, temperature=0
    )
    assert isinstance(parsed.choices[0].message.parsed, City)
    answer = api.responses.parse(
        model="demo", input=question, text_format=City, max_output_tokens=100, temperature=0
    )
    assert answer.output_parsed == parsed.choices[0].message.parsed


def test_an_answer_goes_back_as_a_message(api: openai.OpenAI):
    """With what the package's streams and parsers put into it."""
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    parameters["additionalProperties"] = False
    function = {"name": "get_weather", "parameters": parameters, "strict": True}
    tools = [{"type": "function", "function": function}]
    fields = {"model": "demo", "tools": tools, "max_tokens": 100, "temperature": 0}
    with api.chat.completions.stream(messages=question, tool_choice="required", **fields) as stream:
        said = stream.get_final_completion().choices[0].message
    (call,) = said.tool_calls
    assert call.index == 0 and call.function.parsed_arguments == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    assert api.chat.completions.create(messages=[*question, said, result], **fields).choices
    form = api.chat.completions.parse(
        model="demo", messages=question, response_format=City, max_tokens=100, temperature=0
    )
    again = [*question, form.choices[0].message.model_dump(warnings=False), *question]
    assert again[1]["parsed"] and api.chat.completions.create(messages=again, **fields).choices


@pytest.mark.skipif(
    importlib.util.find_spec("tritonclient") is None,
    reason="tritonclient is not installed: it has no wheel for here",
)
def test_tritonclient_has_the_same_text(service: Service):
    script = Path(__file__).with_name("triton_client.py")
    command = [sys.executable, str(script), service.address, "demo", PROMPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=services.PATIENCE_S)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    with Client(service.address) as client:
        expected = client.generate(PROMPT, max_tokens=24, temperature=0).text
    assert found["text"] == expected == "".join(found["parts"])
    assert (found["live"], found["server"], found["platform"]) == (True, "pagewire", "pagewire")
    assert found["error"].startswith("max_tokens: ")


def test_the_console_shows_what_the_engine_does(service: Service, api: openai.OpenAI):
    """What a page follows comes from the cores: a request that runs, and the blocks that it holds."""
    found: dict[str, Any] = {}

    def see() -> bool:
        """Whether the request still ran when the page had both, and no other one."""
        with Client(service.address) as client:
            services.wait_until(lambda: services.is_idle(client))
        stream = api.completions.create(
            model="demo", prompt=PROMPT, max_tokens=100_000, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        url = f"{service.facts['console']}data/live"
        with httpx2.stream("GET", url, timeout=services.PATIENCE_S) as answer:
            events = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
            found["now"] = next(each for each in events if each["kind"] == "now")
            found["pool"] = next(each for each in events if each["kind"] == "pool")
        stream.close()
        return bool(found["now"]["requests"]["rows"] and found["pool"]["pools"][0]["held"])

    services.wait_until(see)
    requests, (pool,) = found["now"]["requests"], found["pool"]["pools"]
    (row,) = (dict(zip(requests["columns"], row, strict=True)) for row in requests["rows"])
    assert (row["phase"], row["tenant"], row["rank"]) == ("decode", "", 0) and row["blocks"] > 0
    assert pool["held"] == sum(pool["cells"][0]) > 0 and pool["holders"][0][0] == row["id"]
    assert found["now"]["engines"][0]["state"] == "serving" and found["now"]["log"]
