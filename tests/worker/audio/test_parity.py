"""Models that hear sounds: the vectors and logits of transformers, and the same bits however work is cut."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers

from pagewire.internal.v1.engine_pb2 import MEDIA_KIND_AUDIO, MediaItem
from pagewire.ipc.columns import pack_u32
from pagewire.media import media_digest
from tests.audio_models import BINS, FAMILIES
from tests.worker.fakes import DrivenSequence, Driver

Spectrogram = npt.NDArray[np.float32]
LONGEST = 100
FRAMES = {"qwen2_audio": (37, LONGEST, 9), "voxtral": (LONGEST,)}
"""Of clips: each as the frontend sends it."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in FAMILIES},
    "qwen2_audio, another activation, Llama": (
        "qwen2_audio",
        {"audio": {"activation_function": "gelu_pytorch_tanh"}, "text": {"model_type": "llama"}},
    ),
    "voxtral, pairs of states, relu": (
        "voxtral",
        {"audio": {"intermediate_size": 48}, "projector_hidden_act": "relu"},
    ),
}
TEXT, MORE, PLACEHOLDER = [5, 100, 317, 210, 7, 3, 12], [9, 0, 160], 320


def make_clip(family: str, number: int = 0) -> Spectrogram:
    """Returns one of a family's clips, [frames, bins]."""
    frames = FRAMES[family][number % len(FRAMES[family])]
    return np.random.default_rng(number).normal(0, 0.5, (frames, BINS)).astype(np.float32)


def item_of(clip: Spectrogram, positions: Sequence[int]) -> MediaItem:
    data, shape = clip.tobytes(), clip.shape
    digest = media_digest(MEDIA_KIND_AUDIO, shape, data)
    return MediaItem(
        kind=MEDIA_KIND_AUDIO, shape=shape, data=data, digest=digest, positions=pack_u32(positions)
    )


def encoder_of(driver: Driver) -> Any:
    return driver.runner.backend.model.vision  # type: ignore[attr-defined]


def prompt_of(driver: Driver, parts: Sequence[list[int] | Spectrogram]) -> tuple[list[int], list[MediaItem]]:
    """Returns the ids of a prompt of token ids and clips, and its items."""
    ids, items = list[int](), list[MediaItem]()
    for part in parts:
        if isinstance(part, list):
            ids += part
            continue
        count = encoder_of(driver).config.num_vectors(*part.shape)
        items.append(item_of(part, range(len(ids), len(ids) + count)))
        ids += [PLACEHOLDER] * count
    return ids, items


def run(driver: Driver, *prompts: Sequence[Any], count: int = 4) -> list[DrivenSequence]:
    """Returns the sequences of prompts, each a list of token ids and clips."""
    made = [prompt_of(driver, parts) for parts in prompts]
    sequences = [driver.add(ids, count, media=items)[0] for ids, items in made]
    driver.run()
    return sequences


def assert_same(found: DrivenSequence, expected: DrivenSequence) -> None:
    assert len(found.logits) == len(expected.logits) > 0
    assert all(map(torch.equal, found.logits, expected.logits))


class Judge:
    """A model of transformers."""

    def __init__(self, folder: Path, family: str) -> None:
        kind = getattr(transformers, f"{FAMILIES[family]['class']}ForConditionalGeneration")
        self.model: Any = kind.from_pretrained(folder, dtype=torch.float32).eval()
        self._masks = family == "qwen2_audio"

    def inputs(self, clips: Sequence[Spectrogram]) -> dict[str, torch.Tensor]:
        """What the model takes of clips, behind which there is noise that they must not hear."""
        padded = np.random.default_rng(99).normal(0, 1, (len(clips), LONGEST, BINS)).astype(np.float32)
        mask = np.zeros((len(clips), LONGEST), np.int64)
        for number, clip in enumerate(clips):
            padded[number, : len(clip)] = clip
            mask[number, : len(clip) - len(clip) % 2] = 1
        found = {"input_features": torch.from_numpy(padded.transpose(0, 2, 1).copy())}
        return found | ({"feature_attention_mask": torch.from_numpy(mask)} if self._masks else {})

    @torch.inference_mode()
    def vectors(self, clip: Spectrogram) -> torch.Tensor:
        """[n, E] of one clip."""
        inner, features = self.model.model, self.inputs([clip])["input_features"]
        if not self._masks:
            return inner.get_audio_features(features).pooler_output
        count = len(clip) // 2
        mask = torch.zeros(1, 1, LONGEST // 2, LONGEST // 2)
        mask[..., count:] = -torch.inf
        states = inner.audio_tower(features, attention_mask=mask).last_hidden_state
        found: torch.Tensor = inner.multi_modal_projector(states)[0, : count // 2]
        return found

    @torch.inference_mode()
    def logits(self, ids: list[int], clips: Sequence[Spectrogram]) -> torch.Tensor:
        """[T, V]."""
        found: torch.Tensor = self.model(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            **self.inputs(clips),
        ).logits[0]
        return found

    @torch.inference_mode()
    def greedy(self, ids: list[int], clips: Sequence[Spectrogram], count: int) -> list[int]:
        found = self.model.generate(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            **self.inputs(clips),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=[],
        )
        tokens: list[int] = found[0, len(ids) :].tolist()
        return tokens


@pytest.mark.parametrize("variant", VARIANTS)
def test_as_transformers(variant: str, audio_model: Callable[..., Path]):
    """Vectors, logits of a prompt with two clips, one at its end, and greedy tokens."""
    family, changes = VARIANTS[variant]
    folder = audio_model(family, **changes)
    judge, driver = Judge(folder, family), Driver(folder, dtype="float32", budget=11)
    clips = [make_clip(family, number) for number in range(3)]
    for clip in clips:
        expected = judge.vectors(clip)
        with torch.inference_mode():
            found = encoder_of(driver)(torch.from_numpy(clip))
        assert found.shape == expected.shape
        assert (found - expected).abs().max() < 1e-4 * (expected.max() - expected.min())
    parts = [TEXT, clips[0], MORE, clips[1]]
    ids, _ = prompt_of(driver, parts)
    [sequence] = run(driver, parts, count=6)
    expected = judge.logits(ids, clips[:2])[-1]
    assert (sequence.logits[0] - expected).abs().max() < 1e-4 * (expected.max() - expected.min())
    assert sequence.output == judge.greedy(ids, clips[:2], 6)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_bits_do_not_depend_on_the_step(family: str, dtype: str, audio_model: Callable[..., Path]):
    """Alone, in chunks that cut clips, beside other prompts, encoded before, preempted and forked."""
    folder, clips = audio_model(family), [make_clip(family, number) for number in range(3)]
    settings = {"dtype": dtype, "block_size": 16}
    prompt = [TEXT, clips[0], MORE, clips[1], MORE]
    others: list[list[Any]] = [[clips[2], TEXT], [TEXT], [TEXT, clips[0]]]
    [alone] = run(Driver(folder, **settings), prompt)
    for budget in (1, 5, 13):
        assert_same(run(Driver(folder, budget=budget, **settings), prompt)[0], alone)
    driver = Driver(folder, budget=17, **settings)
    _, text, _, beside = run(driver, *others, prompt)
    assert_same(beside, alone)
    assert_same(run(driver, prompt)[0], alone)  # all is encoded
    assert_same(run(driver, [TEXT])[0], text)
    driver = Driver(folder, budget=9, **settings)
    ids, items = prompt_of(driver, prompt)
    [sequence] = driver.add(ids, 4, media=items)
    driver.step()
    driver.preempt(sequence)
    driver.run()
    assert_same(sequence, alone)
    driver = Driver(folder, **settings)
    forks = driver.add(ids, 4, n=3, media=items)
    driver.run()
    for fork in forks:
        assert_same(fork, alone)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("family", FAMILIES)
def test_bits_do_not_depend_on_threads(family: str, audio_model: Callable[..., Path]):
    driver = Driver(audio_model(family), dtype="bfloat16", block_size=16)
    clip = torch.from_numpy(make_clip(family))
    with torch.inference_mode():
        expected = encoder_of(driver)(clip)
        torch.set_num_threads(3)
        assert torch.equal(encoder_of(driver)(clip), expected)


def test_sizes_that_the_encoder_does_not_take(audio_model: Callable[..., Path]):
    encoder = encoder_of(Driver(audio_model("qwen2_audio"), dtype="float32"))
    for shape in ((36, BINS), (LONGEST + 1, BINS), (37, BINS + 1), (3, BINS)):
        with torch.inference_mode():
            assert encoder(torch.zeros(shape)).shape == (0, 48)
