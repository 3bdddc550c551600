"""Sounds through gRPC and three processes: the tokens that transformers gives."""

from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from transformers import AutoFeatureExtractor, Qwen2AudioForConditionalGeneration

from pagewire import Audio, Client, SamplingParams
from pagewire.local_service import Service
from pagewire.v1.generation_pb2_grpc import GenerationServiceStub
from pagewire_client.params import generate_request
from tests.audio_models import RATE, make_audio_model
from tests.e2e import services
from tests.frontend.audio.sounds import sound, wav

pytestmark = pytest.mark.usefixtures("patient")

SOUNDS = [sound(0.7), sound(1, 1), sound(0.1, 2)]
PROMPTS: tuple[tuple[int, ...], ...] = ((0,), (1, 0), (2, 0, 1))
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, text=False)


def conversation(*numbers: int) -> list[dict[str, Any]]:
    """A question about sounds."""
    parts = [*(Audio(wav(SOUNDS[number])) for number in numbers), "What is this?"]
    return [{"role": "user", "content": parts}]


def prompt_ids(service: Service, prompt: list[dict[str, Any]]) -> list[int]:
    """The tokens of a conversation."""
    request = generate_request(prompt, SamplingParams(max_tokens=1), {}, "")
    request.output.prompt_token_ids = True
    with grpc.insecure_channel(service.address) as channel:
        return list(GenerationServiceStub(channel).GenerateUnary(request).prompt.token_ids)


@torch.inference_mode()
def expected(folder: Path, prompt: list[int], numbers: tuple[int, ...], count: int) -> list[int]:
    """What transformers continues a prompt with."""
    model: Any = Qwen2AudioForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    extractor = AutoFeatureExtractor.from_pretrained(folder)
    clips = [SOUNDS[number] for number in numbers]
    heard = extractor(clips, sampling_rate=RATE, return_attention_mask=True, return_tensors="pt")
    found = model.generate(
        input_ids=torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        input_features=heard["input_features"],
        feature_attention_mask=heard["attention_mask"],
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=[],
    )
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return tokens


def test_transformers_tokens(tmp_path: Path) -> None:
    """In chunks that cut clips, with an encoder for one of them at a time."""
    folder = make_audio_model(tmp_path, "qwen2_audio")
    flags: dict[str, Any] = {"max_num_batched_tokens": 16, "encoder_cache_tokens": 25}
    with services.start(folder, dtype="float32", **flags) as service, Client(service.address) as client:
        streams = [client.stream(conversation(*numbers), GREEDY) for numbers in PROMPTS]
        results = [stream.result() for stream in streams]
        prompts = [prompt_ids(service, conversation(*numbers)) for numbers in PROMPTS]
    for numbers, prompt, result in zip(PROMPTS, prompts, results, strict=True):
        assert expected(folder, prompt, numbers, 12) == result.outputs[0].token_ids
