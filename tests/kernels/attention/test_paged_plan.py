"""What attention on CUDA launches for a layer: one kernel norms, rotates and stores where it can."""

from typing import Any

import pytest
import torch

from kernels.attention.kv_cache_spec import AttentionSpec
from kernels.attention.paged_plan import DeviceStep, PagedAttentionPlan
from kernels.attention.plan import HeadNorms, Rotation, Scoring, normed_heads
from kernels.ops.attention.e4m3 import E4M3
from kernels.triton.attention.paged_kernels import PagedKernels
from tests.kernels.attention.norms import norm
from tests.kernels.tolerances import random

TOKENS, HEADS, KV_HEADS, HEAD_DIM = 3, 4, 2, 8
BATCH: Any = object()
SCALES: Any = object()
RESULT = torch.zeros(1)


class Launches:
    """Kernels that keep what they were called with."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.of: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def kernel(self, name: str, result: Any = None) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.names.append(name)
            kept = tuple(each.clone() if isinstance(each, torch.Tensor) else each for each in arguments)
            self.of[name] = kept, options
            return result

        return call

    def kernels(self) -> PagedKernels:
        names = (
            "store_kv",
            "rotary_store_kv",
            "head_norms",
            "attend",
            "unit_scales",
            "store",
            "attend_latents",
        )
        results = {"attend": RESULT, "head_norms": "norms"}
        return PagedKernels(*(self.kernel(name, results.get(name)) for name in names))


def rotation(queries_only: bool = False) -> Rotation:
    cos, sin = (random(TOKENS, HEAD_DIM, dtype=torch.float32, seed=seed) for seed in (3, 4))
    return Rotation(cos, sin, queries_only=queries_only)


QKV = random(TOKENS, HEADS + 2 * KV_HEADS, HEAD_DIM, dtype=torch.float32)
QUERY, KEY, VALUE = QKV.split((HEADS, KV_HEADS, KV_HEADS), 1)
SLOTS = torch.tensor([4, 1, 9])


def launch(
    rotation: Rotation | None, norms: HeadNorms | None, dtype: torch.dtype = torch.float32, **plan: Any
) -> Launches:
    launches = Launches()
    cache = tuple(torch.zeros(2, KV_HEADS, 16, HEAD_DIM).to(dtype) for _ in range(2))
    step = DeviceStep(launches.kernels(), BATCH, SLOTS, SCALES)
    scoring = Scoring(0.3, 5.0, torch.ones(HEADS))
    made = PagedAttentionPlan(step, **{"window": None, **plan})
    with torch.inference_mode():
        assert made.store_and_attend(QKV.clone(), cache, scoring, rotation, norms) is RESULT
    return launches


def stored(launches: Launches, name: str) -> tuple[torch.Tensor, ...]:
    """Query, key and value that a kernel was given; the query of attend() where it is not rotated."""
    arguments = launches.of[name][0]
    if name == "rotary_store_kv":
        return arguments[:3]
    return launches.of["attend"][0][0], *arguments[:2]


def test_keys_and_values_are_stored_as_they_are():
    launches = launch(None, None)
    assert launches.names == ["store_kv", "attend"]
    for found, expected in zip(stored(launches, "store_kv"), (QUERY, KEY, VALUE), strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(launches.of["store_kv"][0][2], SLOTS) and launches.of["store_kv"][0][5] is None


def test_heads_are_rotated_while_they_are_stored():
    angles = rotation()
    launches = launch(angles, None)
    assert launches.names == ["rotary_store_kv", "attend"]
    arguments = launches.of["rotary_store_kv"][0]
    assert torch.equal(arguments[3], angles.cos) and torch.equal(arguments[4], angles.sin)
    assert arguments[8] is None and torch.equal(arguments[1], KEY)


def test_a_rotation_of_queries_alone_is_done_before():
    """Keys are stored as they are."""
    angles = rotation(queries_only=True)
    launches = launch(angles, None)
    assert launches.names == ["store_kv", "attend"]
    query, key, value = stored(launches, "store_kv")
    assert torch.equal(query, angles(QUERY.clone())) and torch.equal(key, KEY) and torch.equal(value, VALUE)


def test_norms_of_single_heads_are_part_of_the_rotation():
    norms = norm(HEAD_DIM, 1), norm(HEAD_DIM, 2)
    launches = launch(rotation(), norms)
    assert launches.names == ["head_norms", "rotary_store_kv", "attend"]
    weights = launches.of["head_norms"][0]
    assert torch.equal(weights[0], norms[0].weight) and torch.equal(weights[1], norms[1].weight)
    assert weights[2] == 1e-5 and launches.of["rotary_store_kv"][0][8] == "norms"
    assert torch.equal(stored(launches, "rotary_store_kv")[0], QUERY), "they are not normed twice"


@pytest.mark.parametrize(
    ("angles", "norms"),
    [
        (None, (norm(HEAD_DIM, 1), norm(HEAD_DIM, 2))),
        (rotation(queries_only=True), (norm(HEAD_DIM, 1), norm(HEAD_DIM, 2))),
        (rotation(), (norm(HEAD_DIM * HEADS, 1), norm(HEAD_DIM * KV_HEADS, 2))),
        (rotation(), (norm(HEAD_DIM, 1), norm(HEAD_DIM * KV_HEADS, 2))),
        (rotation(), (norm(HEAD_DIM, 1, offset=1.0), norm(HEAD_DIM, 2, offset=1.0))),
        (rotation(), (norm(HEAD_DIM, 1), norm(HEAD_DIM, 2, offset=1.0))),
    ],
    ids=[
        "no rotation",
        "queries alone",
        "all heads together",
        "all keys together",
        "offsets",
        "an offset of keys",
    ],
)
def test_other_norms_come_before(angles: Rotation | None, norms: HeadNorms):
    """And the kernel that stores does none."""
    launches = launch(angles, norms)
    name = launches.names[0]
    assert len(launches.names) == 2 and name in ("store_kv", "rotary_store_kv")
    with torch.inference_mode():
        query, key = normed_heads(norms[0], QUERY), normed_heads(norms[1], KEY)
        if angles is not None and angles.queries_only:
            query = angles(query)
    found = stored(launches, name)
    assert torch.equal(found[0], query) and torch.equal(found[1], key) and torch.equal(found[2], VALUE)
    assert name == "store_kv" or launches.of[name][0][8] is None


@pytest.mark.parametrize("angles", [None, rotation()])
def test_a_cache_in_8_bits_has_scales(angles: Rotation | None):
    """For the kernel that stores and for the one that attends."""
    launches = launch(angles, None, E4M3)
    assert launches.of[launches.names[0]][0][-1] is SCALES and launches.of["attend"][1]["scales"] is SCALES
    assert launch(angles, None).of["attend"][1]["scales"] is None


SEEN = [(None, False, False), (7, False, False), (7, True, False), (None, False, True), (7, False, True)]


@pytest.mark.parametrize(("window", "chunked", "bidirectional"), SEEN)
def test_what_attention_is_told(window: int | None, chunked: bool, bidirectional: bool):
    seen: dict[str, Any] = {"window": window, "chunked": chunked, "bidirectional": bidirectional}
    arguments, options = launch(None, None, **seen).of["attend"]
    assert arguments[3:] == (BATCH, 0.3, window, 5.0)
    assert options["chunked"] is chunked and options["bidirectional"] is bidirectional
    assert torch.equal(options["sinks"], torch.ones(HEADS))
    step: Any = object()
    assert AttentionSpec(KV_HEADS, HEAD_DIM, **seen).paged_plan(step) == PagedAttentionPlan(step, **seen)
