"""A service that drafts gives what one without drafts gives, in fewer messages."""

import pytest

from pagewire import Client, SamplingParams
from pagewire_client.errors import InvalidArgument
from tests.e2e import services

pytestmark = pytest.mark.cpu_kernels

LIST = "1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2,"
WANTED = [
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.7, seed=3, n=4, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=1, seed=4, max_tokens=24, repetition_penalty=1.1, bad_words=[" 4"]),
    SamplingParams(temperature=0, max_tokens=40, stop=["3, 1"], ignore_eos=True),
]


def texts(client: Client, **options: int) -> list[object]:
    """What each request becomes: tokens, text, ends, log-probabilities."""
    return [client.generate(LIST, params, **options).outputs for params in WANTED]


def test_the_same_with_drafts_and_without(client: Client) -> None:
    expected = texts(client)
    with services.start(speculate="lookup:tokens=6") as service, Client(service.address) as drafting:
        assert drafting.model().limits.max_draft_tokens == 6
        usage = drafting.generate(LIST, WANTED[0]).usage  # the first draft is made before any time is known
        assert 0 < usage.accepted_draft_tokens <= usage.draft_tokens
        (drafter,) = usage.drafters
        counts = drafter.draft_tokens, drafter.accepted_draft_tokens
        assert drafter.drafter == "lookup" and counts == (usage.draft_tokens, usage.accepted_draft_tokens)
        assert texts(drafting) == expected
        assert texts(drafting, max_draft_tokens=1) == expected
        assert drafting.generate(LIST, WANTED[0], max_draft_tokens=0).usage.draft_tokens == 0

        with pytest.raises(InvalidArgument) as refused:
            drafting.generate(LIST, WANTED[0], max_draft_tokens=7)
        assert refused.value.field == "speculation.max_draft_tokens"
    assert client.generate(LIST, WANTED[0]).usage.draft_tokens == 0
