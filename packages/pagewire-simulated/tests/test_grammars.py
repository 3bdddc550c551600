"""Grammars on the simulated device, behind the real scheduler: the same tokens however they are scheduled."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from frontend.grammar.notation import json_grammar
from pagewire.checkpoints.paths import checkpoint_folder
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u32
from simulated_fakes import InProcess
from tests.engine_core.fakes import add_request

EOS = 2
SCHEMA = json_grammar('{"type":"array","items":{"enum":["a","bc",1]},"minItems":3,"maxItems":9}')
GRAMMARS = (SCHEMA, "start: /[a-z]{3,12}x/", "", 'start: "yes" | "no"')


def make_core(folder: Callable[..., Path], **limits: int) -> InProcess:
    demo = checkpoint_folder("demo")
    made = folder(vocab_size=1024, eos_token_id=EOS)
    (made / "tokenizer.json").write_bytes((demo / "tokenizer.json").read_bytes())
    core = InProcess(made, **limits)
    core.limits = replace(core.limits, has_grammars=True)
    assert core.ready.model.grammar_engine.startswith("llguidance")
    return core


def requests() -> list[engine_pb2.AddRequest]:
    made = []
    for handle in range(1, 9):
        message = add_request(
            handle, [3 + handle * i for i in range(9 + handle)], n=1 + handle % 3, max_tokens=40
        )
        message.grammar = GRAMMARS[handle % len(GRAMMARS)]
        made.append(message)
    return made


@pytest.mark.parametrize(
    ("limits", "preempts"),
    [
        ({"budget": 7, "rows": 7}, False),
        ({"num_blocks": 34, "budget": 9, "rows": 9}, True),
        ({"rows": 3}, False),
    ],
    ids=["chunked", "chunked and preempted", "few rows"],
)
def test_however_it_is_scheduled(folder: Callable[..., Path], limits: dict[str, int], preempts: bool) -> None:
    expected = make_core(folder).outputs(*requests())
    core = make_core(folder, **limits)
    assert core.outputs(*requests()) == expected
    assert (core.scheduler.num_preemptions > 0) == preempts
    assert all(tokens[-1] == EOS for (handle, _), tokens in expected.items() if GRAMMARS[handle % 4])


def test_output_that_was_delivered_is_the_beginning(folder: Callable[..., Path]) -> None:
    """A request that comes from a core that died, with any part of its output."""

    def request() -> engine_pb2.AddRequest:
        message = add_request(4, [3, 4, 5], max_tokens=60)
        message.grammar = SCHEMA
        return message

    (whole,) = make_core(folder).outputs(request()).values()
    for length in (1, len(whole) // 2, len(whole) - 1):
        again = request()
        again.delivered.add(index=0, token_ids=pack_u32(whole[:length]))
        assert make_core(folder).outputs(again) == {(4, 0): whole}


def test_without_a_tokenizer_there_are_none(in_process: Callable[..., InProcess]) -> None:
    assert in_process().ready.model.grammar_engine == ""
