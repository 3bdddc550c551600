"""The flag --speculate."""

import pytest

from engine_core.speculation import parse_speculation
from pagewire.internal.v1 import engine_pb2
from pagewire.internal.v1.worker_pb2 import Speculation

LOOKUP, DRAFT = engine_pb2.DRAFT_METHOD_LOOKUP, engine_pb2.DRAFT_METHOD_DRAFT
HEADS, SIMULATED = engine_pb2.DRAFT_METHOD_HEADS, engine_pb2.DRAFT_METHOD_SIMULATED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lookup", Speculation(method=LOOKUP, tokens=7)),
        ("lookup:tokens=3", Speculation(method=LOOKUP, tokens=3)),
        ("lookup:batch=32,tokens=12", Speculation(method=LOOKUP, tokens=12, batch=32)),
        ("lookup:shared=5000", Speculation(method=LOOKUP, tokens=7, shared=5000)),
        ("draft:/data/small", Speculation(method=DRAFT, model_path="/data/small", tokens=4)),
        ("draft:small,tokens=3,batch=8", Speculation(method=DRAFT, model_path="small", tokens=3, batch=8)),
        ("heads:/data/head", Speculation(method=HEADS, model_path="/data/head", tokens=4)),
        ("simulated:acceptance=5", Speculation(method=SIMULATED, tokens=7, acceptance=5)),
    ],
)
def test_methods_and_options(text: str, expected: Speculation) -> None:
    expected.flag, expected.acceptance = text, expected.acceptance or 70
    assert parse_speculation(text) == expected
    assert parse_speculation("") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("guess", "guess is not a method; there are lookup"),
        ("lookup:depth=3", "lookup has no option depth; it has tokens, batch, shared"),
        ("lookup:acceptance=3", "lookup has no option acceptance"),
        ("lookup:tokens=65", "tokens is 65; use 1 to 64"),
        ("lookup:tokens", "tokens is missing"),
        ("lookup:batch=-2", "batch is -2; use 2 to 4096"),
        ("draft", "draft needs a checkpoint: draft:MODEL"),
        ("heads:,tokens=3", "heads needs a checkpoint: heads:HEAD"),
        ("grammar:shared=3", "grammar has no option shared"),
        ("draft:small,acceptance=3", "draft has no option acceptance"),
        (":tokens=2", " is not a method"),
    ],
)
def test_what_is_wrong_is_named(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_speculation(text)
