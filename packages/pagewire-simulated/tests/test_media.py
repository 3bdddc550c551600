"""Images without an encoder: tokens are a function of them, plans are checked, steps take longer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_core.scheduler.scheduler import Scheduler
from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from pagewire.internal.v1.engine_pb2 import MEDIA_KIND_IMAGE, MediaItem
from pagewire.ipc.columns import pack_u32, unpack_u32
from pagewire.media import media_digest
from pagewire.v1 import generation_pb2
from pagewire_simulated.backend import SimulatedBackend
from pagewire_simulated.media import seen
from pagewire_simulated.platform import SimulatedPlatform
from pagewire_simulated.profiles import H200
from pagewire_simulated.roofline import Roofline
from pagewire_simulated.tokens import token_reference
from pagewire_simulated.weights import count_weights
from simulated_fakes import SMALL
from tests.engine_core.fakes import LIMITS as OTHERS
from tests.engine_core.fakes import FakeWorker, Ledger, add_item, add_request, make, run
from worker.executor.executor import StepExecutor
from worker.families.registry import read_model_config
from worker.load import load
from worker.step.rows import PlanError

VISION = {
    "model_type": "pixtral",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 64,
    "patch_size": 2,
}
SEEING = {
    "architectures": ["LlavaForConditionalGeneration"],
    "text_config": {"model_type": "llama", **SMALL},
    "vision_config": VISION,
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "image_token_index": 9,
}


def image(color: int, vectors: int = 2) -> MediaItem:
    """An image, of which each square of two pixels is a vector."""
    shape, data = (2, 2 * vectors, 3), bytes([color]) * 12 * vectors
    return MediaItem(
        kind=MEDIA_KIND_IMAGE, shape=shape, data=data, digest=media_digest(MEDIA_KIND_IMAGE, shape, data)
    )


def placed(item: MediaItem, *positions: int) -> MediaItem:
    return MediaItem(kind=item.kind, digest=item.digest, positions=pack_u32(positions))


def new_row(*media: MediaItem) -> worker_pb2.NewRow:
    return worker_pb2.NewRow(
        row=0,
        token_ids=pack_u32([5, 9, 9, 6]),
        prompt_len=4,
        blocks=pack_u32([0, 1]),
        sampling=generation_pb2.SamplingParams(temperature=1, seed=3),
        media=media,
    )


def plan(*new_rows: worker_pb2.NewRow, start: int = 0, count: int = 4, **fields: Any) -> worker_pb2.StepPlan:
    """Computes so many tokens of row 0, and samples behind the last."""
    samples = [0] if start + count >= 4 else []
    columns = {"rows": [0], "starts": [start], "counts": [count]}
    columns |= {"sample_rows": samples, "sample_sources": samples}
    packed = {name: pack_u32(column) for name, column in columns.items()}
    return worker_pb2.StepPlan(new_rows=new_rows, **packed, **fields)


@pytest.fixture
def executor(folder: Any, initialize: Any) -> StepExecutor[SimulatedBackend]:
    return make_executor(folder, initialize)


def make_executor(folder: Any, initialize: Any, **changes: Any) -> StepExecutor[SimulatedBackend]:
    command = initialize(**changes)
    write_seeing(folder)
    runner, ready = load(command, SimulatedPlatform(WorkerConfig()))
    assert list(ready.model.media_kinds) == [MEDIA_KIND_IMAGE]
    return runner


def write_seeing(folder: Any, **changes: Any) -> Path:
    path: Path = folder()
    (path / "config.json").write_text(json.dumps(SEEING | changes))
    (path / "preprocessor_config.json").write_text('{"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}')
    return path


def test_tokens_are_a_function_of_the_images(executor: StepExecutor[SimulatedBackend]) -> None:
    tokens = []
    for color in (1, 2):
        row = new_row(placed(image(color), 1, 2))
        result = executor.execute(plan(row, encode=[image(color)]))
        tokens += unpack_u32(result.token_ids)
        candidates = [token for token in range(320) if token not in (2, 7)]
        assert tokens[-1] == token_reference([5, 9, 9, 6], 3, 0, 0, candidates, seen(row.media))
        executor.execute(worker_pb2.StepPlan(removed_rows=pack_u32([0])))
    assert tokens[0] != tokens[1]


def test_vectors_stay_until_they_are_forgotten(executor: StepExecutor[SimulatedBackend]) -> None:
    item = image(1)
    executor.execute(plan(new_row(placed(item, 1, 2)), count=2, encode=[item]))
    executor.execute(plan(start=2, count=1))
    executor.execute(plan(start=3, count=1, forgotten_media=item.digest))
    executor.execute(plan(start=4, count=1))
    executor.abandon()
    assert not executor.backend.images.kept


BAD_PLANS = {
    "of an item without vectors": plan(new_row(placed(image(1), 1, 2))),
    "an item that is not kept is forgotten": plan(new_row(), forgotten_media=bytes(32)),
    "no list of digests": plan(new_row(), forgotten_media=bytes(31)),
    "an item that is kept is encoded": plan(new_row(), encode=[image(1), image(1)]),
    "an item is another one": plan(new_row(), encode=[MediaItem(kind=1, shape=[2, 2, 3], digest=bytes(32))]),
    "has 1 positions for 2 vectors": plan(new_row(placed(image(1), 1)), encode=[image(1)]),
    "media out of order": plan(new_row(placed(image(1), 2, 1)), encode=[image(1)]),
    "an item of no token": plan(new_row(placed(image(1)), placed(image(1), 1, 2)), encode=[image(1)]),
    "beyond its prompt": plan(new_row(placed(image(1), 3, 4)), encode=[image(1)]),
}


@pytest.mark.parametrize("message", BAD_PLANS)
def test_plans_that_do_not_fit(message: str, executor: StepExecutor[SimulatedBackend]) -> None:
    with pytest.raises(PlanError, match=message):
        executor.execute(BAD_PLANS[message])


def test_a_model_without_an_encoder_has_no_vectors(initialize: Any) -> None:
    runner, ready = load(initialize(), SimulatedPlatform(WorkerConfig()))
    assert not ready.model.media_kinds
    with pytest.raises(PlanError, match="2 positions for 0 vectors"):
        runner.execute(plan(new_row(placed(image(1), 1, 2)), encode=[image(1)]))


def llava(folder: Any) -> Roofline:
    """LLaVA 1.5 7B on an H200."""
    text = {
        "model_type": "llama",
        "vocab_size": 32064,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 4096,
    }
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 336,
        "patch_size": 14,
    }
    path = write_seeing(
        folder,
        text_config=text,
        vision_config=vision,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    )
    config = read_model_config(path)
    return Roofline(config, count_weights(config), 2, H200)


def test_a_vector_costs_the_products_of_its_patch(folder: Any) -> None:
    """23 of 24 blocks of 12.6 million weights each: 0.42 ms for an image of 576 vectors."""
    weights = 23 * (4 * 1024**2 + 2 * 1024 * 4096)
    assert llava(folder).encoding_seconds(576) == pytest.approx(2 * 576 * weights / H200.peak)
    assert llava(folder).encoding_seconds(576) == pytest.approx(0.42e-3, rel=0.01)


class TimedWorker(FakeWorker):
    """Adds up the virtual time of steps."""

    def __init__(self, roofline: Roofline, num_blocks: int) -> None:
        super().__init__(num_blocks, 16)
        self.seconds: list[float] = []
        self._roofline = roofline

    def execute(self, plan: Any) -> list[int]:
        """See FakeWorker."""
        columns = (np.array(column, np.int64) for column in (plan.starts, plan.counts))
        seconds = self._roofline.seconds(*columns, len(plan.sample_rows))
        vectors = sum(len(item.positions) for item in plan.encode)
        self.seconds.append(seconds + self._roofline.encoding_seconds(vectors))
        return super().execute(plan)


@pytest.mark.parametrize("budget", [576, 1152, 4096])
def test_the_largest_gap_of_rows_that_decode_is_bounded_by_the_budget(budget: int, folder: Any) -> None:
    """Eight rows decode in each step; a prompt of six images arrives."""
    roofline, num_blocks = llava(folder), 600
    scheduler = Scheduler(
        num_blocks=num_blocks,
        block_size=16,
        max_num_seqs=16,
        max_num_batched_tokens=4096,
        encoder_cache_tokens=4096,
        max_num_encoder_tokens=budget,
    )
    worker, ledger = TimedWorker(roofline, num_blocks), Ledger()
    worker.encoder_capacity, worker.encoder_budget = 4096, budget
    limits = replace(OTHERS, max_model_len=4096, num_blocks=num_blocks, block_size=16, max_item_vectors=576)
    for handle in range(1, 9):
        scheduler.add(make(add_request(handle, 16, max_tokens=40, ignore_eos=True), limits))
    run(scheduler, worker, ledger, steps=10)
    usual = max(worker.seconds[1:])
    message = add_request(9, 6 * 600, max_tokens=4, ignore_eos=True)
    for number in range(6):
        add_item(message, range(600 * number, 600 * number + 576), bytes([number]))
    scheduler.add(make(message, limits))
    worker.seconds.clear()
    run(scheduler, worker, ledger)
    starts, counts = np.array([0]), np.array([budget + 24])
    bound = usual + roofline.encoding_seconds(budget) + roofline.seconds(starts, counts, 9)
    assert usual < max(worker.seconds) < bound
    assert scheduler.encoder.num_encoded == 6 and ledger.ends.keys() == {(h, 0) for h in range(1, 10)}
