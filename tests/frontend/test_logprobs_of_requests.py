"""Log-probabilities on their way to clients: aligned with tokens, whatever becomes of the stream."""

import asyncio
import math

import grpc
import pytest

from tests.frontend.fakes import (
    details_of,
    encode,
    fake_score,
    finishes_of,
    run_service,
    say,
    tokens_of,
)
from tests.frontend.scripted_answers import ANSWERS, steps_of
from tests.frontend.test_resume import has, next_of, play, restart, streaming
from tests.logprob_columns import Scored, listed, read_public, top
from tests.patience import soon

HELLO = encode("hello")


def scores_of(messages, index: int = 0) -> list[Scored]:
    """Joined log-probabilities of one sequence; each message's are aligned with its tokens."""
    found: list[Scored] = []
    for message in messages:
        for output in message.sequences:
            if output.index == index:
                scores = read_public(output.logprobs)
                assert len(scores) == output.token_count
                found = found[: output.position] + scores
    return found


def expected(tokens, options=top(0), start: int = 0) -> list[Scored]:  # noqa: B008 - not changed
    return [fake_score(start + place, token, options) for place, token in enumerate(tokens)]


def total(tokens) -> float:
    return sum(score.logprob for score in expected(tokens))


@pytest.mark.parametrize("options", [top(0), top(3), listed(7, 2)], ids=["none", "top", "listed"])
@pytest.mark.parametrize("mode", ["MODE_DELTA", "MODE_CUMULATIVE", "MODE_FINAL"])
async def test_aligned_with_tokens(checkpoint, model, mode, options):
    async with run_service(checkpoint, say(HELLO[:1], HELLO[1:3], HELLO[3:]), model=model) as service:
        messages = await service.generate(output={"mode": mode, "token_ids": True, "logprobs": options})
    if mode == "MODE_CUMULATIVE":
        messages = messages[-1:]
    assert tokens_of(messages) == HELLO
    assert scores_of(messages) == expected(HELLO, options)
    (finish,) = finishes_of(messages)
    assert finish.cumulative_logprob == pytest.approx(total(HELLO))


async def test_they_need_no_token_ids(checkpoint, model):
    """And a token without text is told for their sake."""
    half = encode("é")
    async with run_service(checkpoint, say(half[:1], half[1:]), model=model) as service:
        messages = await service.generate(output={"logprobs": {}})
        assert scores_of(messages) == expected(half)
        assert not tokens_of(messages)
        plain = await service.generate(output={"token_ids": True})
        assert not any(output.HasField("logprobs") for message in plain for output in message.sequences)
        assert not finishes_of(plain)[0].HasField("cumulative_logprob")


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_string_cuts_tokens_and_their_log_probabilities(checkpoint, model, include):
    """Three tokens come at once; the second one completes the stop string."""
    async with run_service(checkpoint, say(HELLO[:2], HELLO[2:]), model=model) as service:
        messages = await service.generate(
            stopping={"stop": ["ll"], "include_stop": include},
            output={"token_ids": True, "logprobs": {"top_n": 1}},
        )
    assert tokens_of(messages) == HELLO[:4]
    assert scores_of(messages) == expected(HELLO[:4], top(1))
    assert finishes_of(messages)[0].cumulative_logprob == pytest.approx(total(HELLO[:4]))


async def test_several_sequences_and_the_bytes_of_candidates(checkpoint, model):
    async with run_service(checkpoint, steps_of, model=model) as service:
        (message,) = await service.generate(
            sampling={"n": 2},
            output={"mode": "MODE_FINAL", "token_ids": True, "token_bytes": True, "logprobs": listed(7, 200)},
        )
    for index, tokens in enumerate(ANSWERS):
        assert scores_of([message], index) == expected(tokens, listed(7, 200))
    bytes_of = [model.tokenizer.token_bytes(token) for token in (7, 200)]
    assert list(message.sequences[0].logprobs.candidate_bytes) == bytes_of * len(ANSWERS[0])


@pytest.mark.parametrize("start", [None, 0, 1, 3])
async def test_those_of_the_prompt_come_first(checkpoint, model, start):
    prompt = encode("hello")
    async with run_service(checkpoint, say(HELLO[:1], HELLO[1:2]), model=model) as service:
        messages = await service.generate(
            prompt={"token_ids": {"ids": prompt}},
            output={"prompt_logprobs": {"top_n": 2}, "prompt_logprobs_start": start, "token_bytes": True},
        )
    first, logprobs = start or 0, messages[0].prompt.logprobs
    assert len(logprobs.logprobs) == 5 - first
    if not first:
        assert math.isnan(logprobs.logprobs[0]) and (logprobs.ranks[0], logprobs.candidate_counts[0]) == (
            0,
            0,
        )
    right = [fake_score(p, prompt[p], top(2)) for p in range(max(first, 1), 5)]
    assert read_public(logprobs)[max(first, 1) - first :] == right
    assert len(logprobs.candidate_bytes) == len(logprobs.candidate_token_ids)
    assert not any(message.HasField("prompt") for message in messages[1:])


@pytest.mark.parametrize(
    ("output", "path"),
    [
        ({"prompt_logprobs": {}, "prompt_logprobs_start": 2}, "output.prompt_logprobs_start"),
        ({"prompt_logprobs": {"all": True}}, "output.prompt_logprobs.all"),
        ({"logprobs": {"top_n": 21}}, "output.logprobs.top_n"),
    ],
)
async def test_what_is_refused(checkpoint, model, output, path):
    async with run_service(checkpoint, say(HELLO), model=model) as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.generate(prompt={"token_ids": {"ids": [5, 6]}}, output=output)
        assert [v.field for v in details_of(caught.value)["BadRequest"].field_violations] == [path]
        assert service.engine.requests.empty()


async def test_a_prompt_with_too_many_candidates_is_refused(checkpoint, model, monkeypatch):
    monkeypatch.setattr("frontend.engine.logprobs.MAX_PROMPT_CANDIDATES", 15)
    async with run_service(checkpoint, say(HELLO), model=model, max_logprobs=-1) as service:
        fields = {"prompt": {"token_ids": {"ids": HELLO}}}
        await service.generate(**fields, output={"prompt_logprobs": {"top_n": 3}})
        with pytest.raises(grpc.aio.AioRpcError, match=r"output\.prompt_logprobs: would be 20 candidates"):
            await service.generate(**fields, output={"prompt_logprobs": {"top_n": 4}})


@pytest.mark.parametrize("cut", [1, 4])
async def test_a_stream_outlives_its_core(checkpoint, model, cut):
    """What was delivered keeps its values, what comes later has its own, and the sum is of all."""
    async with (
        run_service(checkpoint, model=model) as service,
        streaming(
            service,
            sampling={"n": 2},
            output={"token_ids": True, "logprobs": {"top_n": 2}, "prompt_logprobs": {}},
        ) as (messages, task),
    ):
        await play(service, cut)
        await has(messages, 2 * cut)
        await restart(service)
        resumed = await play(service)
        await soon(task)
    assert not resumed.HasField("prompt_logprobs") and resumed.HasField("logprobs")
    for index, tokens in enumerate(ANSWERS):
        assert scores_of(messages, index) == expected(tokens, top(2))
        (finish,) = (
            output.finish
            for message in messages
            for output in message.sequences
            if output.index == index and output.HasField("finish")
        )
        assert finish.cumulative_logprob == pytest.approx(total(tokens))


async def test_a_core_that_dies_within_the_prompt(checkpoint, model):
    """The next one is asked for the rest."""
    async with (
        run_service(checkpoint, model=model) as service,
        streaming(service, prompt={"token_ids": {"ids": HELLO}}, output={"prompt_logprobs": {}}) as (
            messages,
            task,
        ),
    ):
        request = await next_of(service.engine.requests)
        assert request.prompt_logprobs_start == 1
        await service.engine.score_prompt(request.handle, 1, 3)
        while service.frontend.engine._journal.in_flight()[0].sink.missing_prompt_logprobs != 3:
            await asyncio.sleep(0.002)
        await restart(service)
        again = await play(service)
        assert again.prompt_logprobs_start == 3
        await soon(task)
    assert read_public(messages[0].prompt.logprobs)[1:] == [
        fake_score(p, HELLO[p], top(0)) for p in range(1, 5)
    ]


@pytest.mark.parametrize("mode", ["MODE_DELTA", "MODE_CUMULATIVE"])
async def test_a_continued_stream(checkpoint, model, mode):
    """What the client holds is not computed again: it has its values already, and the sum is the client's to
    make. Where messages repeat everything, they repeat that nothing is known of it."""
    held = ANSWERS[0][:3]
    async with run_service(checkpoint, steps_of, model=model) as service:
        messages = await service.generate(
            sampling={"temperature": 0},
            output={"mode": mode, "token_ids": True, "logprobs": {}, "prompt_logprobs": {}},
            continuation={"sequences": [{"index": 0, "token_ids": held}]},
        )
        request = await next_of(service.engine.requests)
    assert not request.HasField("prompt_logprobs") and not messages[0].prompt.HasField("logprobs")
    assert not finishes_of(messages)[0].HasField("cumulative_logprob")
    rest = expected(ANSWERS[0][3:], start=3)
    if mode == "MODE_DELTA":
        assert [s for message in messages for s in read_public(message.sequences[0].logprobs)] == rest
    else:
        found = scores_of(messages[-1:])
        assert all(math.isnan(score.logprob) and score.rank == 0 for score in found[:3])
        assert found[3:] == rest


@pytest.mark.parametrize("ask", ["logprobs", "prompt_logprobs"])
async def test_an_engine_that_says_something_else_is_asked_again(checkpoint, model, ask):
    """Tokens without requested log-probabilities, and parts that were not requested."""
    async with (
        run_service(checkpoint, model=model) as service,
        streaming(service, output={"logprobs": {}} if ask == "logprobs" else {}) as (_, task),
    ):
        request = await next_of(service.engine.requests)
        if ask == "logprobs":
            service.engine._in_flight[request.handle].message.ClearField("logprobs")
            await service.engine.output(request.handle, *steps_of(request)[0])
        else:
            await service.engine.score_prompt(request.handle, 1, 2)
        again = await play(service)
        assert again.handle != request.handle
        await soon(task)
        assert service.frontend.engine.protocol_errors == 1
