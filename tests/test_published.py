"""What is published beside the packages: options of the contracts, their service config, the release."""

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from pagewire.v1 import admin_pb2, generation_pb2, model_pb2, pooling_pb2, prompt_pb2, tokenizer_pb2
from pagewire.v1 import tokenizer_pb2_grpc as tokenizer
from tests.pagewire import fakes
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
CONFIG = json.loads((ROOT / "protos" / "service_config.json").read_text(encoding="utf-8"))
MODULES = (admin_pb2, generation_pb2, model_pb2, pooling_pb2, prompt_pb2, tokenizer_pb2)
FILES = [each.DESCRIPTOR for each in MODULES]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_language_finds_its_package(file: Any):
    options = file.GetOptions()
    assert options.go_package == "pagewire/v1;pagewirev1"
    assert (options.java_package, options.java_multiple_files) == ("pagewire.v1", True)
    assert options.csharp_namespace == "Pagewire.V1"


def test_the_service_config_names_methods_that_may_be_sent_again():
    """Drain and its like are for their caller to repeat; a stream of many requests is no request."""
    services = {service.full_name: service for file in FILES for service in file.services_by_name.values()}
    (policy,) = CONFIG["methodConfig"]
    for name in policy["name"]:
        service = services[name["service"]]
        assert "method" not in name or name["method"] in service.methods_by_name
        assert service.name != "AdminService" and name.get("method") != "GenerateMultiplexed"


class Restarting(fakes.FakeService):
    """Refuses the first two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def Tokenize(self, request: Any, context: grpc.ServicerContext) -> tokenizer_pb2.TokenizeResponse:
        self.calls += 1
        if self.calls < 3:
            context.abort(grpc.StatusCode.UNAVAILABLE, "starting")
        return tokenizer_pb2.TokenizeResponse()


def test_grpc_retries_by_the_service_config():
    """As any gRPC library does that is given the file."""
    service = Restarting()
    options = [("grpc.service_config", json.dumps(CONFIG))]
    with fakes.running(service) as address, grpc.insecure_channel(address, options) as channel:
        tokenizer.TokenizerServiceStub(channel).Tokenize(tokenizer_pb2.TokenizeRequest(), timeout=PATIENCE_S)
    assert service.calls == 3


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/workflows/*.yml")), ids=lambda path: path.name)
def test_what_a_workflow_runs_is_there(path: Path):
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    scripts = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    named = {word for text in scripts for word in text.split() if word.startswith((".ci/", "scripts/"))}
    assert scripts and all((ROOT / name).exists() for name in named)
