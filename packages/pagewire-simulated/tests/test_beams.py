"""Beams of the simulated worker: the formula, and whole searches over it."""

from collections.abc import Callable
from math import inf

from engine_core.beam_search import BeamParameters, BeamSearch
from pagewire.ipc.columns import pack_u32
from pagewire_simulated.beams import first_history, next_history, top_candidates
from pagewire_simulated.tokens import GAMMA, mix, prompt_hash
from simulated_fakes import InProcess
from tests.engine_core.fake_beams import beam_search
from tests.engine_core.fakes import add_request

PROMPT = [5, 100, 33, 210, 7, 8, 9]


def searched(prompt: list[int], width: int, candidates: list[int], max_tokens: int) -> list[list[int]]:
    """The search over the formula, without a worker."""
    parameters = BeamParameters(width, width, 1.0, False, frozenset({2, 7}), 0, max_tokens, vocab_size=320)
    search = BeamSearch(parameters)
    while not search.done:
        offers = []
        for beam in search.beams:
            history = first_history(pack_u32(prompt))
            for token in beam.output:
                history = next_history(history, token)
            count = min(parameters.num_candidates, len(candidates))
            missing = [(0, -inf)] * (parameters.num_candidates - count)
            offers.append(top_candidates(history, candidates, count) + missing)
        search.advance(offers)
    return [list(result.output) for result in search.results()]


def test_the_formula():
    """docs/simulated.md, word for word."""
    history = mix(prompt_hash(pack_u32(PROMPT)))
    assert first_history(pack_u32(PROMPT)) == history
    longer = mix(history + GAMMA * (42 + 1))
    assert next_history(history, 42) == longer
    steps = [1 + mix(longer + GAMMA * (i + 1)) % 1024 for i in range(3)]
    assert top_candidates(longer, [10, 20, 30, 40], 3) == [
        ([10, 20, 30, 40][(longer + j) % 4], -sum(steps[: j + 1]) / 1024) for j in range(3)
    ]


def test_searches_give_what_the_formula_gives(in_process: Callable[..., InProcess]):
    """Also in a pool where they are preempted, and where EOS is allowed."""
    usual = [token for token in range(320) if token not in (2, 7)]
    ending = [2, *range(50, 60)]
    messages, expected = [], {}
    for handle in range(1, 7):
        prompt = [*PROMPT, handle]
        message = add_request(handle, prompt, n=3, beams=beam_search(3), max_tokens=9)
        if handle % 2:
            message.sampling.allowed_token_ids.extend(ending)
        messages.append(message)
        for index, output in enumerate(searched(prompt, 3, ending if handle % 2 else usual, 9)):
            expected[handle, index] = output
    assert in_process().outputs(*messages) == expected
    assert in_process(num_blocks=16, rows=8, budget=9).outputs(*messages) == expected
