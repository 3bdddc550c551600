"""Adapters that peft has written (LoRA, prompt tuning, P-tuning), through a whole service on a CPU."""

import os
import shutil
import signal
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pagewire import Client, SamplingParams
from pagewire.local_service import Service
from pagewire_client.errors import InvalidArgument, RpcError
from pagewire_client.results import Generation
from tests.checkpoints import make_checkpoint
from tests.e2e import services
from tests.worker.adapters.peft_files import read_with_peft, write_adapter, write_virtual_tokens

pytestmark = pytest.mark.usefixtures("patient")

SOFT = {"soft": (5, "PromptTuningConfig"), "encoded": (11, "PromptEncoderConfig")}
NAMES = "first", "soft", "second", "", "encoded"
"""Adapters that rows of one batch have; "": none."""
PROMPT = [3 + 7 * at % 50 for at in range(40)]
INVOCATION = [60, 61]
PARAMS = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, text=False, logprobs=1)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def folder(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parent of the adapters."""
    made = tmp_path_factory.mktemp("adapters")
    every = {"target_modules": "all-linear", "lora_alpha": 4, "std": 0.2}
    write_adapter(base, made / "first", r=4, **every)
    write_adapter(base, made / "second", r=12, use_rslora=True, **every)
    activated = {"alora_invocation_tokens": INVOCATION}  # which peft looks for in models of this task alone
    write_adapter(base, made / "invoked", merge=False, r=8, task_type="CAUSAL_LM", **activated, **every)
    for name, (count, config) in SOFT.items():
        write_virtual_tokens(base, made / name, count, config)
    return made


@pytest.fixture(scope="module")
def service(base: Path, folder: Path) -> Iterator[Service]:
    flags = {"max_num_batched_tokens": 16, "block_size": 8, "max_deaths": 99, "frontends": 2}
    with services.start(base, dtype="float32", lora_folder=str(folder), **flags) as service:
        yield service


def client_of(service: Service, name: str) -> Client:
    return Client(service.address, model=name)


def outputs(result: Generation) -> list[tuple[list[int], list[float]]]:
    return [(each.token_ids, [score.logprob for score in each.logprobs]) for each in result.outputs]


@pytest.fixture(scope="module")
def alone(service: Service) -> dict[str, list[tuple[list[int], list[float]]]]:
    """What each adapter generates, one after another."""
    found = {}
    for name in NAMES:
        with client_of(service, name) as client:
            found[name] = outputs(client.generate(PROMPT, PARAMS))
    return found


def test_as_peft_has_it(alone: dict[str, list[tuple[list[int], list[float]]]], base: Path, folder: Path):
    """Log-probabilities of all tokens, those of the model with merged weights, or behind virtual tokens."""
    for name in NAMES:
        if name in SOFT:
            model = read_with_peft(base, folder / name)
        else:
            model = AutoModelForCausalLM.from_pretrained(folder / name / "merged" if name else base)
        ((token_ids, logprobs),) = alone[name]
        with torch.no_grad():
            logits = model(torch.tensor([PROMPT + token_ids])).logits[0, -len(token_ids) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(token_ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(logprobs), expected, atol=2e-3), name
        assert logits.argmax(-1).tolist() == token_ids
    assert len({tuple(alone[name][0][0]) for name in NAMES}) == len(NAMES)


def test_activated_as_peft_has_it(service: Service, base: Path, folder: Path):
    """The greedy tokens of peft's generate(); what comes before the invocation is the base model's, in the
    cache too."""
    from peft import PeftModel  # takes seconds

    prompt, common = [*PROMPT[:24], *INVOCATION, *PROMPT[:5]], 24
    with client_of(service, "") as client, client_of(service, "invoked") as invoked:
        plain = client.generate([*PROMPT[:common], 5], PARAMS)
        answer = invoked.generate(prompt, PARAMS)
        bare = [one.generate(PROMPT[:common], PARAMS).token_ids for one in (client, invoked)]
        assert bare[0] == bare[1], "without an invocation"
        assert client.generate(prompt, PARAMS).token_ids != answer.token_ids
    assert answer.usage.cached_prompt_tokens == common and plain.token_ids
    with warnings.catch_warnings(action="ignore"):  # of peft's calls of transformers
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder / "invoked")
        settings = {"max_new_tokens": len(answer.token_ids), "do_sample": False, "eos_token_id": None}
        found = model.eval().generate(input_ids=torch.tensor([prompt]), pad_token_id=0, **settings)
    assert found[0, len(prompt) :].tolist() == answer.token_ids


def test_virtual_tokens_count_as_tokens_of_the_prompt(service: Service) -> None:
    """And have no ids; prefixes behind those of one adapter are found in the cache."""
    prompt = [*range(20, 50)]
    with client_of(service, "soft") as client:
        first, again = client.generate(prompt, PARAMS), client.generate(prompt, PARAMS)
        assert first.prompt_tokens == 35 and outputs(first) == outputs(again)
        assert (first.usage.cached_prompt_tokens, again.usage.cached_prompt_tokens) == (0, 32)
        (found,) = [each for each in client.adapters() if each.name == "soft"]
        assert (found.virtual_tokens, found.rank, found.modules) == (5, 0, [])
        room = client.model().max_model_len - 5
        assert client.generate([7] * room, max_tokens=0).prompt_tokens == room + 5
        with pytest.raises(InvalidArgument, match=f"{room + 6} tokens"):
            client.generate([7] * (room + 1), max_tokens=0)
        refused: list[dict[str, Any]] = [{"echo": True}, {"prompt_logprobs": 1}]
        for field in refused:
            with pytest.raises(InvalidArgument, match="virtual tokens"):
                client.generate(prompt, **field)
        with pytest.raises(RpcError, match="virtual tokens"):
            client.score_continuations("a", ["b"])


@pytest.mark.parametrize("victim", ["", "worker"])
def test_streams_of_several_survive_deaths(
    service: Service, alone: dict[str, list[tuple[list[int], list[float]]]], victim: str
):
    """Bit for bit, in one batch; whatever takes over loads what they need. In test_adapters.py each kind
    of process is killed."""
    with ExitStack() as stack:
        clients = [(name, stack.enter_context(client_of(service, name))) for name in NAMES * 2]
        streams = [(name, stack.enter_context(client.stream(PROMPT, PARAMS))) for name, client in clients]
        for _, stream in streams:
            next(stream)
        for pid in services.processes(service.pid).get(victim, []):
            os.kill(pid, signal.SIGKILL)
        for name, stream in streams:
            assert outputs(stream.result()) == alone[name], name


def test_another_adapter_is_loaded_beside_streams(
    service: Service, alone: dict[str, list[tuple[list[int], list[float]]]], folder: Path
):
    """It changes no bit of theirs, also where it comes under the name of one of them."""
    shutil.copytree(folder / "first", folder / "renewed")
    with client_of(service, "renewed") as client, client.stream(PROMPT, PARAMS) as stream:
        next(stream)
        shutil.rmtree(folder / "renewed")
        shutil.copytree(folder / "second", folder / "renewed")
        before = {each.name: each.digest for each in client.adapters()}
        assert client.load_adapter("renewed").digest == before["second"] != before["renewed"]
        assert outputs(client.generate(PROMPT, PARAMS)) == alone["second"]
        assert outputs(stream.result()) == alone["first"]
        client.unload_adapter("renewed")
        assert "renewed" not in {each.name for each in client.adapters()}
