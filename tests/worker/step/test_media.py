"""What is encoded, kept and forgotten, and rows whose items became no vectors."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pagewire.internal.v1 import worker_pb2
from pagewire.internal.v1.engine_pb2 import MEDIA_KIND_IMAGE, InputEmbeddings, MediaItem
from pagewire.ipc.columns import pack_u32
from tests.vision_models import make_vision_model
from tests.worker.fakes import Driver, resolved_params
from tests.worker.vision.images import item_of, make_image
from worker.step.embeddings import EmbeddingRows, tokens_of_prompt
from worker.step.media import EncodedItems
from worker.step.plan_reader import NO_TOKEN_COLUMN
from worker.step.rows import PlanError

IMAGE = make_image("llava")
WHOLE = item_of(IMAGE, range(2, 18))


def mean_of(pixels: torch.Tensor) -> torch.Tensor:
    """An encoder: one vector for each row of an image; those of black rows are not finite."""
    means = pixels.float().mean((1, 2))[:, None]
    return means.where(means > 0, torch.inf).expand(-1, 3)


def plan(*items: MediaItem, forgotten: bytes = b"") -> worker_pb2.StepPlan:
    encode = [
        MediaItem(kind=each.kind, shape=each.shape, data=each.data, digest=each.digest) for each in items
    ]
    return worker_pb2.StepPlan(encode=encode, forgotten_media=forgotten)


def test_items_are_kept_until_they_are_forgotten():
    kept, other = EncodedItems(mean_of), item_of(IMAGE[:28], [0])
    kept.follow(plan(WHOLE, other))
    assert len(kept) == 2 and kept[WHOLE.digest].shape == (56, 3)
    kept.follow(plan(WHOLE, forgotten=WHOLE.digest + other.digest))  # forgotten first
    assert len(kept) == 1
    with pytest.raises(PlanError, match="not encoded"):
        kept[other.digest]
    kept.forget_all()
    assert not len(kept)


def test_an_item_with_vectors_that_are_not_finite_has_none():
    black, kept = IMAGE.copy(), EncodedItems(mean_of)
    black[3] = 0
    item = item_of(black, range(56))
    kept.follow(plan(item))
    assert kept[item.digest].shape == (0, 3)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"), torch.OutOfMemoryError()],
)
def test_an_item_for_which_memory_does_not_suffice_has_no_vectors(
    error: Exception, caplog: pytest.LogCaptureFixture
):
    def encode(pixels: torch.Tensor) -> torch.Tensor:
        if len(pixels) == len(IMAGE):
            raise error
        return mean_of(pixels)

    kept, smaller = EncodedItems(encode), item_of(IMAGE[:28], [0])
    kept.follow(plan(WHOLE, smaller))
    assert kept[WHOLE.digest].shape == (0, 3) and kept[smaller.digest].shape == (28, 3)
    assert caplog.messages == ["memory does not suffice to encode an item of the shape 56 x 56 x 3"]


def test_other_errors_of_an_encoder_are_raised():
    def encode(pixels: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        EncodedItems(encode).follow(plan(WHOLE))


def changed(**changes: object) -> MediaItem:
    item = MediaItem()
    item.CopyFrom(WHOLE)
    for name, value in changes.items():
        item.ClearField(name)  # type: ignore[arg-type]
        item.MergeFrom(MediaItem(**{name: value}))  # type: ignore[arg-type]
    return item


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (changed(kind=0), "kind 0"),
        (changed(shape=[56, 56]), r"the shape \[56, 56\]"),
        (changed(shape=[56, 56, 4]), "the shape"),
        (changed(shape=[56, 0, 3]), "the shape"),
        (changed(shape=[56, 55, 3]), "other data"),
        (changed(digest=b"short"), "a digest has 5 bytes"),
    ],
)
def test_items_that_cannot_be_encoded_are_refused(item: MediaItem, problem: str):
    with pytest.raises(PlanError, match=problem):
        EncodedItems(mean_of).follow(plan(item))


def test_plans_that_do_not_fit_what_is_kept_are_refused():
    kept = EncodedItems(mean_of)
    kept.follow(plan(WHOLE))
    with pytest.raises(PlanError, match="kept is encoded"):
        kept.follow(plan(WHOLE))
    for forgotten, problem in ((bytes(32), "not kept"), (b"abc", "no list of digests")):
        with pytest.raises(PlanError, match=problem):
            kept.follow(plan(forgotten=forgotten))
    with pytest.raises(PlanError, match="no encoder"):
        EncodedItems(None).follow(plan(WHOLE))


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([changed(positions=b"")], "of no token"),
        ([changed(positions=pack_u32([4, 3]))], "out of order"),
        ([WHOLE, WHOLE], "out of order"),
        ([changed(positions=pack_u32([19, 20]))], "beyond its prompt"),
        ([changed(digest=b"")], "digest of 0 bytes"),
    ],
)
def test_rows_whose_items_do_not_fit_are_refused(items: list[MediaItem], problem: str):
    rows = EmbeddingRows(torch.float32, media=EncodedItems(mean_of))
    with pytest.raises(PlanError, match=problem):
        rows.add_row(0, worker_pb2.NewRow(media=items), [0] * 20, [])
    given = InputEmbeddings(dtype="float32", positions=pack_u32([0]), values=bytes(4))
    with pytest.raises(PlanError, match="embeddings and virtual tokens or media"):
        rows.add_row(0, worker_pb2.NewRow(media=[WHOLE], embeddings=given), [0] * 20, [])


def test_ids_in_place_of_which_items_stand_are_left_out():
    row = worker_pb2.NewRow(media=[changed(positions=pack_u32([1])), changed(positions=pack_u32([3]))])
    assert tokens_of_prompt(row, [7, 8, 9, 10]) == [7, 9]
    row.adapter.virtual_tokens = 1
    assert tokens_of_prompt(row, [7, 8, 9, 10]) == [9]


def test_items_follow_virtual_tokens():
    rows = EmbeddingRows(torch.float32, {b"d": torch.ones(2, 3)}.get, EncodedItems(mean_of))
    adapter = worker_pb2.RowAdapter(digest=b"d", virtual_tokens=2)
    rows.add_row(0, worker_pb2.NewRow(adapter=adapter, media=[WHOLE]), [0] * 20, [])
    with pytest.raises(PlanError, match="out of order"):
        overlapping = [changed(positions=pack_u32([1, 2]))]
        rows.add_row(1, worker_pb2.NewRow(adapter=adapter, media=overlapping), [0] * 20, [])


def test_what_is_computed_in_place_of_an_item_fails_its_readers():
    """Rows that share blocks with one whose item cannot be used are not known to be concerned."""
    black, kept = IMAGE.copy(), EncodedItems(mean_of)
    black[3] = 0
    rows, item = EmbeddingRows(torch.float32, media=kept), item_of(black, range(2, 58))
    kept.follow(plan(item))
    rows.add_row(1, worker_pb2.NewRow(media=[item]), [0] * 60, [])
    step = SimpleNamespace(rows=np.array([1]), starts=np.array([0]), counts=np.array([5]))
    found = rows.of_step(np.zeros(1, np.int64), step)  # type: ignore[arg-type]
    assert found is not None and rows.failed == {1}
    assert found.tokens.tolist() == [2, 3, 4] and found.deeper is None
    assert found.values.shape == (3, 3) and found.values.isnan().all()


def test_vectors_that_are_added_behind_layers_stand_beside_those_in_place_of_tokens():
    """A row whose values are a message's, in the same step, has none of them."""
    vectors = torch.arange(24.0).view(4, 6)  # of 4 positions: 2 in place of a token, 2 for each of two layers
    kept = EncodedItems(lambda pixels: vectors, vectors_per_position=3)
    rows, item = EmbeddingRows(torch.float32, media=kept), item_of(IMAGE, range(1, 5))
    kept.follow(plan(item))
    rows.add_row(1, worker_pb2.NewRow(media=[item]), [0] * 6, [])
    given = InputEmbeddings(dtype="float32", positions=pack_u32([0]), values=bytes(8))
    rows.add_row(2, worker_pb2.NewRow(embeddings=given), [0] * 6, [])
    step = SimpleNamespace(rows=np.array([2, 1]), starts=np.array([0, 2]), counts=np.array([2, 4]))
    found = rows.of_step(np.array([0, 2]), step)  # type: ignore[arg-type]
    assert found is not None and found.deeper is not None
    assert found.tokens.tolist() == [0, 2, 3, 4] and found.deeper[0].tolist() == [2, 3, 4]
    assert torch.equal(found.values[1:], vectors[1:, :2])
    assert torch.equal(found.deeper[1], vectors[1:, 2:].view(3, 2, 2))


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_model(tmp_path_factory.mktemp("llava"), "llava")


PROMPT = [5, 6, *[320] * 16, 7, 8]


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("item", [item_of(IMAGE, range(2, 17)), item_of(IMAGE[:42], range(2, 18))])
def test_a_row_whose_item_became_other_vectors_gets_no_token(item: MediaItem, llava: Path):
    """A position less than vectors, and an image of a size that the encoder does not take. Rows beside it,
    and those behind it in its slot, are not concerned."""
    driver = Driver(llava, dtype="float32", block_size=16, record=False)
    [expected] = driver.add(PROMPT, 3, media=[WHOLE])
    driver.run()
    [beside] = driver.add(PROMPT, 3, media=[WHOLE])
    params = resolved_params(temperature=1.0, seed=3)
    [failing] = driver.add(PROMPT, 1, params, media=[item])
    driver.run()
    assert failing.output == [NO_TOKEN_COLUMN]
    assert beside.output == expected.output
    while driver.free_rows[-1] != failing.row:
        driver.free_rows.insert(0, driver.free_rows.pop())
    [behind] = driver.add(PROMPT, 3, media=[WHOLE])
    driver.run()
    assert behind.row == failing.row and behind.output == expected.output


def test_a_model_without_an_encoder_takes_no_items(checkpoint: Callable[..., Path]):
    driver = Driver(checkpoint("llama"), record=False)
    assert not driver.ready.model.media_kinds
    with pytest.raises(PlanError, match="no encoder"):
        driver.runner.execute(plan(WHOLE))


def test_positions_of_an_item_that_is_not_encoded_are_refused(llava: Path):
    driver = Driver(llava, record=False)
    assert list(driver.ready.model.media_kinds) == [MEDIA_KIND_IMAGE]
    driver.add(PROMPT, 1, media=[WHOLE])
    driver.encoded.add(WHOLE.digest)  # the driver believes so
    with pytest.raises(PlanError, match="not encoded"):
        driver.step()


def test_computed_positions_need_no_item(llava: Path):
    """As where the prefix cache has them: an item behind the row's first step is forgotten."""
    driver = Driver(llava, dtype="float32", budget=18)
    [sequence] = driver.add(PROMPT, 2, media=[WHOLE])
    driver.step()
    driver.runner.execute(plan(forgotten=WHOLE.digest))
    driver.run()
    assert len(sequence.output) == 2


def test_a_core_that_adopts_the_worker_finds_nothing_encoded(llava: Path):
    driver = Driver(llava, record=False)
    driver.add(PROMPT, 5, media=[WHOLE])
    driver.step()
    driver.runner.abandon()  # type: ignore[attr-defined]
    driver.runner.execute(plan(WHOLE))
