"""Adapters through a whole service on a simulated device: a token is a function of the adapter's digest."""

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from pagewire import Client, cli
from pagewire.errors import PagewireError
from pagewire.ipc.columns import pack_u32
from pagewire.v1 import generation_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc, prompt_pb2
from pagewire_simulated.adapters import FILES, read_adapter
from pagewire_simulated.tokens import GAMMA, mix, prompt_hash
from tests.e2e import services
from tests.patience import PATIENCE_S

VOCAB_SIZE, EOS = 1024, 2
CANDIDATES = [token for token in range(VOCAB_SIZE) if token != EOS]
PROMPT = [16, 17, 18, 40, 41, 19, 40, 41, 20, 21]


def write_adapter(folder: Path, weights: bytes, **config: object) -> bytes:
    """Writes the files of an adapter; returns its digest."""
    folder.mkdir(exist_ok=True, parents=True)
    fields = {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"], "base_model_name_or_path": "demo"}
    (folder / FILES[0]).write_text(json.dumps(fields | config))
    (folder / FILES[1]).write_bytes(weights)
    return read_adapter(folder).digest


def expected(digest: bytes, count: int, start: int = 0, prompt: list[int] = PROMPT) -> list[int]:
    """The greedy tokens of a prompt; digest: b"": without an adapter."""
    row = mix(prompt_hash(pack_u32(prompt) + (digest and digest + pack_u32([start]))) + mix(0))
    return [CANDIDATES[mix(row + GAMMA * (at + 1)) % len(CANDIDATES)] for at in range(count)]


class Calls:
    """The RPCs of a service."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.generation = generation_pb2_grpc.GenerationServiceStub(self.channel)

    def request(self, count: int = 12, **fields: object) -> generation_pb2.GenerateRequest:
        return generation_pb2.GenerateRequest(
            prompt=prompt_pb2.Prompt(token_ids=prompt_pb2.TokenIds(ids=PROMPT)),
            sampling=generation_pb2.SamplingParams(temperature=0),
            stopping=generation_pb2.StoppingCriteria(max_tokens=count),
            output=generation_pb2.OutputOptions(token_ids=True),
            **fields,  # type: ignore[arg-type]
        )

    def generate(self, count: int = 12, **fields: object) -> generation_pb2.GenerateResponse:
        return self.generation.GenerateUnary(self.request(count, **fields), timeout=PATIENCE_S)

    def tokens(self, count: int = 12, **fields: object) -> list[int]:
        return list(self.generate(count, **fields).sequences[0].token_ids)

    def load(self, name: str, **fields: object) -> model_pb2.Model:
        return self.models.LoadAdapter(
            model_pb2.LoadAdapterRequest(name=name, **fields), timeout=PATIENCE_S
        ).adapter  # type: ignore[arg-type]

    def listed(self) -> dict[str, model_pb2.Adapter]:
        answer = self.models.ListAdapters(model_pb2.ListAdaptersRequest(), timeout=PATIENCE_S)
        return {adapter.name: adapter for adapter in answer.adapters}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("adapters")
    for name in ("first", "second"):
        write_adapter(made / name, name.encode() * 100)
    write_adapter(made / "invoked", b"i" * 64, alora_invocation_tokens=[40, 41])
    return made


@pytest.fixture(scope="module")
def calls(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    pinned = tmp_path_factory.mktemp("pinned") / "one"
    write_adapter(pinned, b"pinned")
    with services.start(
        device="simulated", lora=(f"own={pinned}",), lora_folder=str(folder), data_parallel_size=2
    ) as service:
        yield Calls(service.address)


def test_by_name_and_by_model(calls: Calls, folder: Path) -> None:
    """The first use of a subfolder loads it; the answer says what answered."""
    digest = read_adapter(folder / "first").digest
    base = calls.generate()
    assert list(base.sequences[0].token_ids) == expected(b"", 12) and not base.HasField("adapter")
    for field in ("adapter", "model"):
        answer = calls.generate(**{field: "first"})
        assert list(answer.sequences[0].token_ids) == expected(digest, 12)
        assert (answer.model, answer.adapter.name, answer.adapter.digest) == ("first", "first", digest)
    listed = calls.listed()
    assert listed["own"].pinned and listed["own"].loaded and listed["first"].rank == 8
    models = calls.models.ListModels(model_pb2.ListModelsRequest(), timeout=PATIENCE_S).models
    assert [(model.name, model.base) for model in models][:2] == [("demo", ""), ("first", "demo")]
    found = calls.models.GetModel(model_pb2.GetModelRequest(name="first"), timeout=PATIENCE_S).model
    assert found.adapter.digest == digest and not found.adapter.source
    assert model_pb2.CAPABILITY_ADAPTERS in found.capabilities


def test_activated(calls: Calls, folder: Path) -> None:
    """It begins at the last invocation; a prompt without one is answered by the base model, and the answer
    says so."""
    digest = read_adapter(folder / "invoked").digest
    answer = calls.generate(adapter="invoked")
    assert answer.adapter.start == 6
    assert list(answer.sequences[0].token_ids) == expected(digest, 12, start=6)
    request = calls.request(adapter="invoked")
    request.prompt.token_ids.ids[:] = [16, 17, 18]
    answer = calls.generation.GenerateUnary(request, timeout=PATIENCE_S)
    assert not answer.adapter.HasField("start") and answer.adapter.digest == digest
    assert list(answer.sequences[0].token_ids) == expected(b"", 12, prompt=[16, 17, 18])


def test_replaced_during_a_stream(calls: Calls, folder: Path) -> None:
    """A stream keeps its adapter, new requests get the new one, a continuation goes on with what it had."""
    old = write_adapter(folder / "changing", b"old")
    assert calls.load("changing").adapter.digest == old
    stream = calls.generation.Generate(calls.request(400, adapter="changing"), timeout=PATIENCE_S)
    received = list(next(stream).sequences[0].token_ids)
    new = write_adapter(folder / "changing", b"new")
    assert calls.load("changing").adapter.digest == new
    assert calls.tokens(adapter="changing") == expected(new, 12)
    received += [token for message in stream for each in message.sequences for token in each.token_ids]
    assert received == expected(old, 400)
    continuation = generation_pb2.Continuation(
        sequences=[generation_pb2.DeliveredSequence(token_ids=expected(new, 3))],
        adapter_digest=new,
    )
    assert calls.tokens(adapter="changing", continuation=continuation) == expected(new, 12)[3:]
    continuation.adapter_digest = bytes(32)
    with pytest.raises(grpc.RpcError) as caught:
        calls.tokens(adapter="changing", continuation=continuation)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_unloaded(calls: Calls, folder: Path) -> None:
    """A name outside the folder is not found again; an unload ends when its last stream does."""
    write_adapter(folder / "second", b"2")
    calls.load("other", source="second")
    stream = calls.generation.Generate(calls.request(200, adapter="other"), timeout=PATIENCE_S)
    next(stream)
    calls.models.UnloadAdapter(model_pb2.UnloadAdapterRequest(name="other"), timeout=PATIENCE_S)
    assert sum(len(each.token_ids) for message in stream for each in message.sequences) > 0
    assert "other" not in calls.listed()
    for name in ("other", "../first", "nothing", "first/"):
        with pytest.raises(grpc.RpcError) as caught:
            calls.tokens(adapter=name)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND, name


def test_refused(calls: Calls, folder: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path / "outside", b"o")
    (folder / "link").symlink_to(tmp_path / "outside")
    write_adapter(folder / "broken", b"b")
    (folder / "broken" / FILES[0]).write_text('{"r": 0}')
    cases = [
        ({"name": "../x"}, grpc.StatusCode.INVALID_ARGUMENT, "name"),
        ({"name": "x", "source": str(tmp_path / "outside")}, grpc.StatusCode.INVALID_ARGUMENT, "--lora"),
        ({"name": "x", "source": "../outside"}, grpc.StatusCode.INVALID_ARGUMENT, "--lora"),
        ({"name": "x", "source": "nothing"}, grpc.StatusCode.NOT_FOUND, "source"),
        ({"name": "link"}, grpc.StatusCode.INVALID_ARGUMENT, "--lora"),
        ({"name": "broken"}, grpc.StatusCode.INVALID_ARGUMENT, "r must be"),
        ({"name": "demo"}, grpc.StatusCode.INVALID_ARGUMENT, "name of the model"),
    ]
    for fields, code, text in cases:
        with pytest.raises(grpc.RpcError) as caught:
            calls.load(**fields)  # type: ignore[arg-type]
        assert caught.value.code() is code and text in caught.value.details(), fields
    with pytest.raises(grpc.RpcError) as caught:
        calls.tokens(model="first", adapter="own")
    assert "adapter" in caught.value.details()


def test_over_http(folder: Path, tmp_path: Path) -> None:
    """By `model`; listed with its parent; loaded and unloaded by a peer on this machine."""
    digest = write_adapter(tmp_path / "served", b"http")
    with services.start(device="simulated", lora_folder=str(tmp_path), openai_port=0) as service:
        base = str(service.facts["openai"]).removesuffix("/v1")

        def post(path: str, **body: object) -> tuple[int, dict[str, Any]]:
            data = json.dumps(body).encode()
            request = urllib.request.Request(base + path, data, {"content-type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)

        prompt = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "skip_special_tokens": False}
        assert post("/v1/completions", model="named", **prompt)[0] == 404
        status, _ = post("/v1/load_lora_adapter", lora_name="named", lora_path="served")
        assert status == 200
        status, answer = post("/v1/completions", model="named", **prompt)
        assert status == 200 and answer["model"] == "named"
        texts = [
            post("/detokenize", tokens=ids)[1]["prompt"] for ids in (PROMPT, PROMPT + expected(digest, 4))
        ]
        assert texts[0] + answer["choices"][0]["text"] == texts[1]
        with urllib.request.urlopen(f"{base}/v1/models", timeout=PATIENCE_S) as listed:
            cards = json.load(listed)["data"]
        assert [(card["id"], card.get("parent")) for card in cards] == [("demo", None), ("named", "demo")]
        assert post("/v1/unload_lora_adapter", lora_name="named")[0] == 200
        assert post("/v1/completions", model="named", **prompt)[0] == 404
        assert post("/v1/load_lora_adapter", lora_name="x")[0] == 400


def test_what_operators_see(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_adapter(folder / "large", 2000 * b"l")
    with services.start(
        device="simulated", lora_folder=str(folder), lora_memory=1e-6, metrics_names="vllm"
    ) as service:
        calls, address = Calls(service.address), f"--address={service.address}"

        def metric(name: str) -> float:
            with urllib.request.urlopen(
                f"http://{service.facts['http']}/metrics", timeout=PATIENCE_S
            ) as page:
                lines = page.read().decode().splitlines()
            (found,) = [line for line in lines if line.startswith(name)]
            return float(found.split()[-1])

        assert cli.run(["adapters", "load", "named", "first", address, "--pinned"]) == 0
        assert read_adapter(folder / "first").digest.hex() in capsys.readouterr().out
        calls.tokens(adapter="named")
        assert metric('pagewire_frontend_adapter_requests_total{adapter="named"') == 1
        labels = 'adapter="named",kind="generated"'
        assert metric(f"pagewire_frontend_adapter_tokens_total{{{labels}") == 12
        assert metric('pagewire_core_adapter_loads_total{outcome="loaded"') == 1
        assert metric('vllm:lora_requests_info{max_lora="') > 0
        with pytest.raises(PagewireError, match="memory"):
            cli.run(["adapters", "load", "large", address])
        assert metric('pagewire_core_adapter_loads_total{outcome="failed"') == 1
        assert cli.run(["adapters", address]) == 0
        _, row = capsys.readouterr().out.splitlines()
        assert row.split()[:2] == ["named", "all"] and row.split()[3:5] == ["yes", "yes"]
        assert cli.run(["top", "--once", address]) == 0 and row in capsys.readouterr().out
        assert cli.run(["adapters", "unload", "named", address]) == 0
        assert cli.run(["adapters", address]) == 0 and "no adapter has a name" in capsys.readouterr().out
        with pytest.raises(PagewireError, match="no model of that name"):
            cli.run(["adapters", "unload", "named", address])


@pytest.mark.parametrize("victim", ["engine", "worker"])
def test_a_stream_survives_deaths(folder: Path, victim: str) -> None:
    """Whatever takes over loads what the stream needs, and knows the names."""
    digest = write_adapter(folder / "kept", b"k")
    slowly = {"profile": "cpu", "worker_fault": ("slow-factor=20",)}  # it is not over before the kill
    with services.start(device="simulated", lora_folder=str(folder), **slowly) as service:
        calls = Calls(service.address)
        calls.load("named", source="kept")
        stream = calls.generation.Generate(calls.request(100, adapter="named"), timeout=PATIENCE_S)
        received: list[int] = []
        killed: list[int] = []
        for message in stream:
            received += [token for each in message.sequences for token in each.token_ids]
            if len(received) > 20 and not killed:
                killed = services.processes(service.pid)[victim]
                os.kill(killed[0], signal.SIGKILL)
        assert received == expected(digest, 100) and killed
        services.wait_until(lambda: services.are_back(service, victim, killed))
        with Client(service.address) as client:
            client.wait_ready(PATIENCE_S)
        assert calls.tokens(adapter="named") == expected(digest, 12)
