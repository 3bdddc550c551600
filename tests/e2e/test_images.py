"""Images through gRPC and three processes, which are killed: the tokens that transformers gives."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("PIL")

from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

from pagewire import Client, Image, SamplingParams, Video
from pagewire.local_service import Service
from pagewire.v1.generation_pb2_grpc import GenerationServiceStub
from pagewire_client.params import generate_request
from pagewire_client.results import Generation
from tests.e2e import services
from tests.frontend.media.pictures import file_of, picture
from tests.vision_models import FAMILIES, make_vision_model
from tests.worker.vision.images import Judge

pytestmark = pytest.mark.usefixtures("patient")

PICTURES = [picture(100, 70), picture(33, 150, "L"), picture(7, 5)]
FILES = [file_of(each) for each in PICTURES]
SETS: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (0, 1), (0,), (1, 0, 2))
"""The images of prompts, some of which come twice."""
TOKENS = 12
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, text=False)
SAMPLED = SamplingParams(seed=5, n=2, max_tokens=60, ignore_eos=True, text=False, logprobs=1)


def conversation(*numbers: int) -> list[dict[str, Any]]:
    """A question about images."""
    parts = [*(Image(FILES[number]) for number in numbers), "What is this?"]
    return [{"role": "user", "content": parts}]


FRAMES = [PICTURES[0].rotate(9 * number) for number in range(3)]
ABOUT_A_VIDEO = [
    {"role": "user", "content": [Video(list(map(file_of, FRAMES)), [0, 0.5, 1]), "What happens?"]}
]


def prompt_ids(service: Service, messages: list[dict[str, Any]]) -> list[int]:
    """The tokens of a conversation."""
    request = generate_request(messages, SamplingParams(max_tokens=1), {}, "")
    request.output.prompt_token_ids = True
    with grpc.insecure_channel(service.address) as channel:
        return list(GenerationServiceStub(channel).GenerateUnary(request).prompt.token_ids)


def reference(folder: Path, family: str) -> Any:
    """The model of transformers."""
    made = getattr(transformers, f"{FAMILIES[family]['class']}ForConditionalGeneration")
    return made.from_pretrained(folder, dtype=torch.float32)


@torch.inference_mode()
def expected(model: Any, folder: Path, family: str, prompt: list[int], numbers: tuple[int, ...]) -> list[int]:
    """What transformers continues a prompt with."""
    made = FAMILIES[family]
    pixels: dict[str, Any] = {}
    if numbers:
        processor = getattr(transformers, f"{made['images']['image_processor_type']}Pil")
        images: list[Any] = [PICTURES[number].convert("RGB") for number in numbers]
        read = processor.from_pretrained(folder)
        pixels = dict(read([images] if family == "idefics3" else images, return_tensors="pt"))
        pixels.pop("num_patches", None)
    ids = torch.tensor([prompt])
    if "image_grid_thw" in pixels:
        pixels["mm_token_type_ids"] = (ids == model.config.image_token_id).int()
    if pixels.pop("num_crops", None) is not None:  # Gemma 3, whose images are seen whole
        pixels["token_type_ids"] = (ids == model.config.image_token_id).long()
    model.generation_config.eos_token_id = None
    limits = {"do_sample": False, "max_new_tokens": TOKENS}
    found = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **limits, **pixels)
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return tokens


@torch.inference_mode()
def expected_of_a_video(folder: Path, family: str, prompt: list[int]) -> list[int]:
    """What transformers continues a prompt about FRAMES with, of which it gets the last one twice."""
    judge, ids = Judge(folder, family), torch.tensor([prompt])
    size = FAMILIES[family]["videos"]["size"]
    limits = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    height, width = smart_resize(len(FRAMES), *FRAMES[0].size[::-1], factor=8, **limits)
    resized = [np.array(each.resize((width, height), resample=3)) for each in (*FRAMES, FRAMES[-1])]
    judge.model.generation_config.eos_token_id = None
    found = judge.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == judge.model.config.video_token_id).int() * 2,
        **judge.videos([np.stack(resized)]),
        do_sample=False,
        max_new_tokens=TOKENS,
    )
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return tokens


CHUNKS = {"max_num_batched_tokens": 16, "block_size": 8}
FEWER_ROWS = CHUNKS | {"max_num_seqs": 8}
"""Beside which an image that is seen whole has room in a step."""
ONE_BY_ONE = {"max_num_encoder_tokens": 4}
MODES: dict[str, tuple[dict[str, int], ...]] = {
    "llava": ({}, CHUNKS, ONE_BY_ONE),
    "pixtral": (CHUNKS,),
    "idefics3": (CHUNKS,),
    "qwen3_vl": (CHUNKS,),
    "gemma3": (FEWER_ROWS,),
}
"""Families that differ in what a service does; the other ones are like one of them."""


@pytest.mark.parametrize(
    ("family", "modes"),
    MODES.items(),
)
def test_transformers_tokens(tmp_path: Path, family: str, modes: tuple[dict[str, int], ...]) -> None:
    """Also in chunks that cut images, and where the encoder takes them one by one. tests/worker/vision and
    tests/frontend/media have all families."""
    folder = make_vision_model(tmp_path, family)
    found: list[list[list[int]]] = []
    for flags in modes:
        with services.start(folder, dtype="float32", **flags) as service, Client(service.address) as client:
            streams = [client.stream(conversation(*numbers), GREEDY) for numbers in SETS]
            results = [stream.result() for stream in streams]
            prompts = [prompt_ids(service, conversation(*numbers)) for numbers in SETS]
            if "videos" in FAMILIES[family]:
                result = client.generate(ABOUT_A_VIDEO, GREEDY)
                ids = prompt_ids(service, ABOUT_A_VIDEO)
                assert result.outputs[0].token_ids == expected_of_a_video(folder, family, ids)
                assert result.usage.image_tokens
        found.append([result.outputs[0].token_ids for result in results])
    assert all(each == found[0] for each in found)
    model = reference(folder, family)
    for numbers, prompt, result, tokens in zip(SETS, prompts, results, found[0], strict=True):
        assert expected(model, folder, family, prompt, numbers) == tokens
        assert result.usage.prompt_tokens == len(prompt)
        assert bool(result.usage.image_tokens) == bool(numbers)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A pool in which two requests have no room at the same time, prompts in chunks, an encoder for one
    image."""
    folder = make_vision_model(tmp_path_factory.mktemp("llava"), "llava")
    flags: dict[str, Any] = {"max_num_batched_tokens": 16, "num_blocks": 32, "block_size": 8}
    with services.start(folder, dtype="float32", frontends=2, max_deaths=99, **flags) as service:
        yield service


def outputs(result: Generation) -> list[tuple[list[int], list[float]]]:
    return [(each.token_ids, [score.logprob for score in each.logprobs]) for each in result.outputs]


@pytest.fixture(scope="module")
def alone(service: Service) -> Generation:
    with Client(service.address) as client:
        return client.generate(conversation(0, 1), SAMPLED)


@pytest.mark.parametrize("victim", ["worker", "engine", "frontend"])
def test_kills(service: Service, alone: Generation, victim: str) -> None:
    with Client(service.address) as client, client.stream(conversation(0, 1), SAMPLED) as stream:
        next(stream)
        for pid in services.processes(service.pid)[victim]:
            os.kill(pid, signal.SIGKILL)
        result = stream.result()
    assert outputs(result) == outputs(alone) and result.usage.image_tokens == 32


def test_preempted(service: Service, alone: Generation) -> None:
    with Client(service.address) as client, client.stream(conversation(0, 1), SAMPLED) as one:
        with client.stream(conversation(0, 1), SAMPLED) as other:
            assert outputs(other.result()) == outputs(alone)
        assert outputs(one.result()) == outputs(alone)
