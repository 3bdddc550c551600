"""The OpenAI API with real processes and the openai package, in its synchronous form."""

from collections.abc import Iterator

import openai
import pytest

from pagewire import Client
from pagewire.local_service import Service
from tests.e2e import services

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Two frontends that share the HTTP port."""
    with services.start(openai_port=0, frontends=2) as service:
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


def test_a_closed_connection_frees_the_engine(service: Service, api: openai.OpenAI):
    stream = api.completions.create(
        model="demo", prompt=PROMPT, max_tokens=100_000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
