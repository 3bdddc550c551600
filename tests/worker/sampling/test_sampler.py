"""The sampler against its definition, alone and in company."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.ops.sampling.choose import candidates_of
from kernels.ops.sampling.columns import SamplingColumns
from kernels.sampling_ops import SamplingOps
from tests.worker.sampling_reference import Case, reference_probabilities, reference_token
from worker.sampling.sampler import Sampler
from worker.sampling.sequence import NewSequence
from worker.sampling.token_bans import TokenBans
from worker.step.beams import NO_TOKEN

V = 40
CPU = torch.device("cpu")
TOKEN = st.integers(0, V - 1)
MANY_SEEDS = settings(max_examples=400, deadline=None, derandomize=True)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any combination of parameters, each absent half of the time."""
    scalars = {
        "temperature": st.sampled_from([0.0, 1e-45, 0.3, 0.8, 1.0, 3.0]),
        "top_k": st.sampled_from([0, 1, 2, 7, V - 1, V, 10**9]),
        "top_p": st.sampled_from([1e-6, 0.3, 0.9, 0.999, 1.0]),
        "min_p": st.sampled_from([0.0, 0.05, 0.5, 1.0]),
        "typical_p": st.sampled_from([1e-6, 0.3, 0.9, 1.0]),
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.2]),
        "frequency_penalty": st.sampled_from([-1.0, 0.0, 0.7]),
        "presence_penalty": st.sampled_from([-1.0, 0.0, 0.7]),
        "seed": st.integers(0, 2**64 - 1),
        "logit_bias": st.dictionaries(TOKEN, st.sampled_from([-100.0, 1.5, 5.0]), max_size=4),
        "allowed_token_ids": st.lists(TOKEN, max_size=9),
        "bad_token_ids": st.lists(TOKEN, max_size=9),
    }
    sampling = {name: draw(values) for name, values in scalars.items() if draw(st.booleans())}
    few = st.integers(0, 3)  # So that bad words come true.
    return Case(
        sampling=sampling,
        prompt=draw(st.lists(TOKEN, min_size=1, max_size=9)),
        output=draw(st.lists(few, max_size=9)),
        bad_words=draw(st.lists(st.lists(few, min_size=1, max_size=3), max_size=5)),
        stop_token_ids=draw(st.lists(TOKEN, max_size=3)),
        min_tokens=draw(st.integers(0, 9)),
        sequence_index=draw(st.integers(0, 3)),
    )


def logits_for(count: int, seed: int, vocab_size: int = V) -> torch.Tensor:
    """[count, V] float32: smooth for even seeds, with many equals for odd ones."""
    logits = torch.randn(count, vocab_size, generator=torch.Generator().manual_seed(seed)) * 2
    return logits if seed % 2 == 0 else (logits * 2).round() / 2


def add(sampler: Sampler, row: int, case: Case) -> None:
    """The case gets the row."""
    sampler.add_row(row, case.new_row(row), case.prompt, case.output)


def distributions(sampler: Sampler, logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """[A, V] float64 weights that the sampler would draw from, for rows of one kind."""
    scores = logits.clone()
    sampler._process(scores, rows)
    candidates = candidates_of(scores, rows, sampler.columns)
    if candidates.ids is None:
        return candidates.weights
    return torch.zeros(logits.shape, dtype=torch.float64).scatter_(1, candidates.ids, candidates.weights)


@MANY_SEEDS
@given(cases(), st.integers(0, 10**6))
def test_distribution_equals_the_definition(case: Case, seed: int) -> None:
    """Support and probabilities, for any combination of parameters."""
    logits = logits_for(1, seed)
    sampler = Sampler(1, V, CPU)
    add(sampler, 0, case)
    if case.sampling.get("temperature", 1) == 0:
        assert sampler.sample(logits.clone(), [0]).tolist() == [reference_token(logits[0].numpy(), case)]
        return
    weights = distributions(sampler, logits, [0])[0].numpy()
    expected = reference_probabilities(logits[0].numpy(), case)
    np.testing.assert_allclose(weights / weights.sum(), expected, rtol=1e-12, atol=0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(cases(), min_size=1, max_size=12), st.integers(0, 10**6))
def test_mixed_batches_equal_the_definition(batch: list[Case], seed: int) -> None:
    """Token by token: rows with different features in one call, for several steps, with their histories."""
    sampler = Sampler(len(batch), V, CPU)
    for row, case in enumerate(batch):
        add(sampler, row, case)
    for step in range(4):
        logits = logits_for(len(batch), seed + step)
        tokens = sampler.sample(logits.clone(), list(range(len(batch)))).tolist()
        assert tokens == [reference_token(logits[row].numpy(), case) for row, case in enumerate(batch)]
        for case, token in zip(batch, tokens, strict=True):
            case.output = [*case.output, token]


def many_cases(count: int, vocab_size: int) -> list[Case]:
    """Different rows: some greedy, some plain, some with everything."""
    features = [
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"temperature": 0.9},
        {"temperature": 1.1, "top_p": 0.8, "logit_bias": {3: 2.0}},
        {"temperature": 0.7, "top_k": 5, "frequency_penalty": 0.5},
        {"temperature": 1.0, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "bad_token_ids": [1, 2]},
        {"temperature": 2.0, "typical_p": 0.6, "presence_penalty": 0.4},
        {"temperature": 1.5, "top_p": 0.999, "allowed_token_ids": list(range(0, vocab_size, 2))},
    ]
    return [
        Case(
            sampling={**features[i % len(features)], "seed": i * 0x9E3779B97F4A7C15 % 2**64},
            prompt=[(7 * i + j) % vocab_size for j in range(1 + i % 5)],
            bad_words=[[1, 2], [4]] if i % 3 == 0 else [],
            stop_token_ids=[6, 7],
            min_tokens=i % 4,
            sequence_index=i % 2,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("vocab_size", [50, 1024, 5003])
def test_same_tokens_alone_and_among_others(vocab_size: int) -> None:
    """32 rows at once; each alone; and in another order with other row numbers and a row between."""
    cases = many_cases(32, vocab_size)
    steps = 5 if vocab_size < 5000 else 2
    logits = [logits_for(32, step, vocab_size) for step in range(steps)]
    together = Sampler(32, vocab_size, CPU)
    for row, case in enumerate(cases):
        add(together, row, case)
    expected = torch.stack([together.sample(x.clone(), list(range(32))) for x in logits])

    for row, case in enumerate(cases):
        alone = Sampler(1, vocab_size, CPU)
        add(alone, 0, case)
        tokens = [int(alone.sample(x[row : row + 1].clone(), [0])) for x in logits]
        assert tokens == expected[:, row].tolist()

    order = torch.randperm(32, generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = Sampler(64, vocab_size, CPU)
    for row in order:
        add(shuffled, 63 - row, cases[row])
    for x, tokens in zip(logits, expected, strict=True):
        # In two calls per step, so that groups are of other sizes too.
        parts = [order[:5], order[5:]]
        got = [shuffled.sample(x[part].clone(), [63 - row for row in part]) for part in parts]
        assert torch.equal(torch.cat(got), tokens[order])


@pytest.mark.parametrize("vocab_size", [50, 4097, 33_333])
def test_distribution_is_bitwise_independent_of_the_batch(vocab_size: int) -> None:
    """Equal tokens could be luck; equal bits are not. Rows of one kind, with filters on some of them."""
    logits = logits_for(8, 3, vocab_size)
    for k in (0, 5):
        cases = [Case(sampling={"temperature": 0.5 + i / 8, "top_k": k + k * i}) for i in range(8)]
        for i, name in ((1, "top_p"), (2, "typical_p"), (3, "min_p"), (5, "top_p")):
            cases[i].sampling[name] = 0.07 if name == "min_p" else 0.8
        sampler = Sampler(8, vocab_size, CPU)
        for row, case in enumerate(cases):
            add(sampler, row, case)
        together = distributions(sampler, logits, list(range(8)))
        for row in range(8):
            assert torch.equal(distributions(sampler, logits[row : row + 1], [row])[0], together[row])
        torch.set_num_threads(2)
        assert torch.equal(distributions(sampler, logits, list(range(8))), together)
        torch.set_num_threads(1)


def test_pieces_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of a large vocabulary is worked on in pieces."""
    cases, logits = many_cases(21, 64), logits_for(21, 5, 64)
    tokens = []
    for piece in (1, 64 * 4, 1 << 19):
        monkeypatch.setattr("worker.sampling.sampler.PIECE", piece)
        sampler = Sampler(21, 64, CPU)
        for row, case in enumerate(cases):
            add(sampler, row, case)
        tokens.append([sampler.sample(logits.clone(), list(range(21))).tolist() for _ in range(3)])
    assert tokens[0] == tokens[1] == tokens[2]


def test_no_rows() -> None:
    """A step in which no sequence is ready to sample."""
    assert Sampler(4, V, CPU).sample(torch.empty(0, V), []).tolist() == []


def test_absent_parameters_are_neutral() -> None:
    """SamplingParams without anything is temperature 1 and no filter."""
    sampler = Sampler(1, V, CPU)
    add(sampler, 0, Case())
    logits = logits_for(1, 0)
    weights = distributions(sampler, logits, [0])[0]
    torch.testing.assert_close(weights / weights.sum(), logits[0].double().softmax(-1))


def test_fork_continues_the_history_with_its_own_numbers() -> None:
    """The sibling equals a row that was begun with the source's output and the sibling's index."""
    for i, case in enumerate(many_cases(14, V)):
        sampler = Sampler(8, V, CPU)
        case.min_tokens = 6
        add(sampler, 5, case)
        for step in range(3):
            case.output = [*case.output, int(sampler.sample(logits_for(1, 100 * i + step), [5]))]
        sampler.fork_row(2, source_row=5, sequence_index=9)
        sibling = Case(**{**vars(case), "sequence_index": 9})
        for step in range(3, 8):
            logits = logits_for(2, 100 * i + step)
            tokens = sampler.sample(logits.clone(), [2, 5]).tolist()
            assert tokens == [
                reference_token(logits[0].numpy(), sibling),
                reference_token(logits[1].numpy(), case),
            ]
            sibling.output, case.output = [*sibling.output, tokens[0]], [*case.output, tokens[1]]


def test_a_row_is_given_out_again_clean() -> None:
    """Nothing of the sequence that had the row before: neither parameters nor history."""
    for case in many_cases(7, V):
        sampler = Sampler(2, V, CPU)
        add(sampler, 1, case)
        sampler.sample(logits_for(1, 1), [1])
        sampler.remove_row(1)
        successor = Case(sampling={"temperature": 1.0, "seed": 4})
        add(sampler, 1, successor)
        logits = logits_for(1, 2)
        assert sampler.sample(logits.clone(), [1]).tolist() == [reference_token(logits[0].numpy(), successor)]


def test_a_row_can_be_overwritten_by_a_fork_of_another() -> None:
    """Without being removed in between."""
    loud, quiet = many_cases(5, V)[4], Case(sampling={"temperature": 0.0})
    sampler = Sampler(2, V, CPU)
    add(sampler, 0, loud)
    add(sampler, 1, quiet)
    sampler.fork_row(0, source_row=1, sequence_index=1)
    logits = logits_for(1, 2)
    assert sampler.sample(logits.clone(), [0]).tolist() == [int(logits[0].argmax())]


def test_resuming_equals_never_having_stopped() -> None:
    """A preempted row comes back with its output: the same tokens as without the break."""
    for case in many_cases(14, V):
        whole = Sampler(1, V, CPU)
        add(whole, 0, case)
        tokens = [int(whole.sample(logits_for(1, step), [0])) for step in range(8)]
        resumed = Sampler(1, V, CPU)
        resumed.add_row(0, case.new_row(0), case.prompt, tokens[:5])
        assert [int(resumed.sample(logits_for(1, step), [0])) for step in range(5, 8)] == tokens[5:]


def test_tiny_temperature_is_greedy() -> None:
    """No overflow on the way: the smallest float32 above 0, and logits as large as they come."""
    huge = torch.finfo(torch.float32).max
    logits = torch.tensor([[-huge, 3.0, huge, -torch.inf], [1.0, 3.0, 2.999, 0.0]])
    sampler = Sampler(2, 4, CPU)
    for row in range(2):
        add(sampler, row, Case(sampling={"temperature": 1e-45, "seed": row}))
    assert sampler.sample(logits, [0, 1]).tolist() == [2, 1]


def test_contradictions_give_way() -> None:
    """A prohibition that leaves nothing is not applied: bad tokens yield to allowed ones, and stop
    tokens to both. The result is the most probable of what is left.
    """
    contradictions = [
        Case({"temperature": 0.0, "allowed_token_ids": [2, 3], "bad_token_ids": [3, 2]}),
        Case({"temperature": 0.0, "allowed_token_ids": [2, 3]}, stop_token_ids=[2, 3], min_tokens=5),
        Case(
            {"temperature": 0.0, "allowed_token_ids": [2, 3, 4], "bad_token_ids": [4]}, [0], [], [], [2, 3], 1
        ),
        Case({"temperature": 1.0, "bad_token_ids": list(range(V))}, [0], [], [], list(range(V)), 1),
    ]
    logits = logits_for(4, 8)
    sampler = Sampler(4, V, CPU)
    for row, case in enumerate(contradictions):
        add(sampler, row, case)
    tokens = sampler.sample(logits.clone(), [0, 1, 2, 3]).tolist()
    best = (
        2 + int(logits[0, 2:4].argmax()),
        2 + int(logits[1, 2:4].argmax()),
        2 + int(logits[2, 2:4].argmax()),
    )
    assert tokens[:3] == list(best)
    assert tokens == [reference_token(logits[row].numpy(), case) for row, case in enumerate(contradictions)]


@pytest.mark.parametrize("sampling", [c.sampling for c in many_cases(7, V)])
@pytest.mark.parametrize("poison", [math.nan, -math.nan, math.inf, "masked"])
def test_broken_logits_give_no_token(sampling: dict[str, object], poison: float | str) -> None:
    """NaN, +inf or nothing but -inf: NO_TOKEN, for this row alone, and the sampler goes on."""
    logits = logits_for(2, 4)
    clean = logits.clone()
    if poison == "masked":
        logits[0] = -math.inf
    else:
        logits[0, 20] = float(poison)
    sampler = Sampler(2, V, CPU)
    neighbour = Case(sampling={"temperature": 0.0})
    add(sampler, 0, Case(sampling=sampling))
    add(sampler, 1, neighbour)
    assert sampler.sample(logits, [0, 1]).tolist() == [NO_TOKEN, int(clean[1].argmax())]
    assert sampler.sample(clean[1:].clone(), [1]).tolist() == [int(clean[1].argmax())]


def test_ids_beyond_the_vocabulary() -> None:
    """Tokens that the model does not have cannot be chosen anyway; only allowing nothing else is an error."""
    case = Case(
        {"temperature": 0.0, "logit_bias": {V: 9.0}, "bad_token_ids": [V + 1], "allowed_token_ids": [1, V]},
        bad_words=[[1, V], [V, 1]],
        stop_token_ids=[V],
        min_tokens=3,
    )
    sampler = Sampler(1, V, CPU)
    add(sampler, 0, case)
    assert sampler.sample(logits_for(1, 0), [0]).tolist() == [1]
    with pytest.raises(ValueError, match="allowed_token_ids"):
        add(sampler, 0, Case({"allowed_token_ids": [V, V + 1]}))


def test_bad_ids_take_no_room_of_bad_words():
    """A vocabulary of them beside one long bad word once took their product: 77 MB of each row."""
    bans = TokenBans(SamplingColumns(2), 151_936, CPU, SamplingOps())
    many = Case({"bad_token_ids": list(range(100_000))}, bad_words=[[7] * 128])
    bans.add_row(0, NewSequence(many.new_row(0), [0], []))
    bans.add_row(1, NewSequence(Case(bad_words=[[8] * 3] * 9).new_row(1), [0], []))
    assert sum(table.data.numel() for table in bans._tables) < 5 * 100_000
