"""With drafts and without: the same tokens and log-probabilities, whatever is drafted."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pagewire.v1 import generation_pb2
from pagewire.v1.prompt_pb2 import TokenIds
from tests.eagle_heads import write_agreeing_pair
from tests.logprob_columns import Scored
from tests.worker.fakes import DrivenSequence, Driver, resolved_params
from worker.speculation.sources import Sources

Checkpoints = Callable[..., Path]
Wanted = tuple[list[int], generation_pb2.SamplingParams, int]  # prompt, parameters, sequences
Made = list[tuple[list[int], list[Scored]]]

pytestmark = pytest.mark.cpu_kernels
RUNS = [5, 6, 7, 8, 9, 10, 11, 12]
STATEFUL: dict[str, dict[str, object]] = {
    "qwen3_5": {},
    "granite_hybrid": {"mamba_d_head": 64, "hidden_size": 128},
    "falcon_h1": {"hidden_size": 128},
}
SIZES = {"dtype": "bfloat16", "block_size": 16, "num_blocks": 400, "max_num_seqs": 16, "record": False}


class KnowingDrafter:
    """A worker.speculation.drafter.Drafter of what a run without drafts made, with errors."""

    is_free = True
    computed_prompts = False

    def __init__(self, driver: Driver, outputs: list[list[int]], errors: float) -> None:
        """outputs: of the driver's sequences. errors: share of drafted tokens that are wrong."""
        self._driver, self._outputs, self._errors = driver, outputs, errors
        self._random = random.Random(5)

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        return [self._draft_row(row, length) for row, length in zip(rows, most, strict=True)]

    def remove_row(self, row: int) -> None:
        """Nothing is kept."""

    def _draft_row(self, row: int, most: int) -> list[int]:
        by_row = {each.row: number for number, each in enumerate(self._driver.sequences)}  # type: ignore[attr-defined]
        number = by_row[row]
        done = len(self._driver.sequences[number].output)  # type: ignore[attr-defined]
        tokens = self._outputs[number][done : done + most]
        return [7 if self._random.random() < self._errors else token for token in tokens]


def make(
    folder: Path, wanted: list[Wanted], room: int, before: Made | None = None, **changes: object
) -> Made:
    """What the sequences become in one batch. before: what they are without drafts, for KnowingDrafter."""
    errors = changes.pop("errors", 0.3)
    draft_model, method = changes.pop("draft_model", None), changes.pop("method", "draft")
    method = f"{method}:{draft_model}," if draft_model else "lookup:"
    speculation = f"{method}tokens={room}" if room else ""
    driver = Driver(folder, room=room, speculation=speculation, **(SIZES | changes))  # type: ignore[arg-type]
    options = generation_pb2.LogprobOptions(top_n=2)
    sequences: list[DrivenSequence] = []
    for number, (prompt, params, n) in enumerate(wanted):
        wants = options if number % 2 else None
        sequences += driver.add(prompt, 30 + number, params, n=n, wants=wants)
    driver.sequences = sequences  # type: ignore[attr-defined]
    if before is not None:
        outputs = [tokens for tokens, _ in before]
        drafter = KnowingDrafter(driver, outputs, errors)  # type: ignore[arg-type]
        sources = Sources([(1, drafter)], room)
        sources._sources[0].lengths.length = lambda row, num_tokens: room  # type: ignore[method-assign]
        driver.runner._speculator._sources = sources  # type: ignore[attr-defined]
    driver.run()
    if room:
        assert 0 < driver.num_accepted < driver.num_drafted or errors in (0, 1)
    return [(sequence.output, sequence.scores) for sequence in sequences]


def some(**changes: float) -> list[Wanted]:
    """Requests with everything that depends on the position or on the history."""
    drawn = {"temperature": 0.9, "seed": 11}
    mixed: list[Wanted] = [
        ([3, 4, *RUNS, *RUNS], resolved_params(), 1),
        ([9, 9, 9], resolved_params(**drawn), 1),
        (RUNS * 3, resolved_params(**drawn, top_k=5), 4),
        ([40, 41], resolved_params(repetition_penalty=1.4, frequency_penalty=0.3, presence_penalty=0.2), 1),
        ([50], resolved_params(**drawn, top_p=0.8, min_p=0.01, typical_p=0.9, frequency_penalty=0.5), 2),
    ]
    biased = resolved_params(**drawn)
    biased.logit_bias[20] = 6.0
    biased.allowed_token_ids.extend(range(10, 30))
    biased.bad_token_ids.append(21)
    return [*mixed, (RUNS, biased, 1)]


@pytest.fixture
def folder(checkpoint: Checkpoints) -> Path:
    return checkpoint("llama", head_dim=32, max_position_embeddings=256)


@pytest.mark.parametrize(("room", "errors"), [(1, 0.3), (3, 0.5), (5, 0.2), (4, 0), (4, 1)])
def test_everything_at_once(folder: Path, room: int, errors: float) -> None:
    expected = make(folder, some(), 0)
    assert make(folder, some(), room, expected, errors=errors) == expected


@pytest.mark.parametrize("shape", [{"budget": 19}, {"shuffle": 3, "budget": 50}])
def test_beside_prompts_in_chunks(folder: Path, shape: dict[str, int]) -> None:
    """Rows with drafts sample from several positions, a prompt from its last one, or from none."""
    expected = make(folder, some(), 0)
    assert make(folder, some(), 4, expected, **shape) == expected


@pytest.mark.parametrize("shape", [{}, {"shuffle": 3, "budget": 50}])
@pytest.mark.parametrize("family", STATEFUL)
def test_layers_that_keep_a_state(family: str, shape: dict[str, int], checkpoint: Checkpoints) -> None:
    """Refused tokens never enter it, accepted ones do as in plain decoding; rows fork and take their state
    along."""
    folder = checkpoint(family, max_position_embeddings=256, **STATEFUL[family])
    expected = make(folder, some(), 0)
    assert make(folder, some(), 4, expected, errors=0.4, **shape) == expected


def test_greedy_rows_alone(folder: Path) -> None:
    """The model's program chooses the tokens of all positions."""
    wanted: list[Wanted] = [([3 + number, *RUNS], resolved_params(), 1) for number in range(5)]
    expected = make(folder, wanted, 0)
    assert make(folder, wanted, 5, expected) == expected


@pytest.mark.parametrize("quantization", ["", "int8"])
def test_looked_up_drafts(folder: Path, quantization: str) -> None:
    """Few tokens are allowed, so that runs of two occur again, and go on in another way."""
    wanted = some()
    for _, params, _ in wanted:
        params.allowed_token_ids[:] = [10, 11, 12]
        del params.bad_token_ids[:]
    expected = make(folder, wanted, 0, quantization=quantization)
    assert make(folder, wanted, 4, quantization=quantization) == expected


@pytest.mark.parametrize("shape", [{}, {"shuffle": 3, "budget": 50}])
def test_drafts_of_a_model(folder: Path, checkpoint: Checkpoints, shape: dict[str, int]) -> None:
    """It is the target with one layer less; rows end and begin, and prompts are computed in chunks."""
    draft = checkpoint("llama", head_dim=32, max_position_embeddings=256, num_hidden_layers=2)
    wanted: list[Wanted] = [*some(), *some()[:2]]
    expected = make(folder, wanted, 0)
    assert make(folder, wanted, 3, draft_model=draft, **shape) == expected


def test_drafts_of_a_head(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """It knows most tokens of the vocabulary, and what follows most of them."""
    plain = checkpoint("llama", head_dim=32, hidden_size=64, max_position_embeddings=256)
    target, head = write_agreeing_pair(tmp_path, plain, noise=0.03, tokens=range(3, 300))
    wanted: list[Wanted] = [*some(), *some()[:2]]
    expected = make(target, wanted, 0)
    shape = {"draft_model": head, "method": "heads", "shuffle": 3, "budget": 50}
    assert make(target, wanted, 3, **shape) == expected


def test_stop_tokens_and_bad_words(folder: Path) -> None:
    """min_tokens masks stop tokens up to a position within a draft; a bad word begins in one step, and its
    end is refused in the same."""
    prompt, params = [3, 4, *RUNS], resolved_params()
    plain = make(folder, [(prompt, params, 1)], 0)[0][0]
    words = [TokenIds(ids=plain[at : at + 2]) for at in (3, 9)]

    def outputs(room: int, before: Made | None) -> Made:
        original = Driver._plan

        def planned(self: Driver) -> object:
            plan, sampled = original(self)
            for new in plan.new_rows:
                new.min_tokens, new.stop_token_ids[:] = 6, plain[4:8]
                new.bad_words.extend(words)
            return plan, sampled

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Driver, "_plan", planned)
            return make(folder, [(prompt, params, 1)], room, before)

    expected = outputs(0, None)
    assert expected[0][0] != plain
    assert outputs(5, expected) == expected
