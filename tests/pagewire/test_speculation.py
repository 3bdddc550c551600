"""The flag --speculate."""

import pytest

from pagewire.speculation import Speculation, parse_speculation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("lookup", Speculation("lookup")),
        ("lookup:tokens=3", Speculation("lookup", tokens=3)),
        ("lookup:batch=32,tokens=12", Speculation("lookup", tokens=12, batch=32)),
        ("lookup:shared=5000", Speculation("lookup", shared=5000)),
        ("draft:/data/small", Speculation("draft", "/data/small", tokens=4)),
        ("draft:small,tokens=3,batch=8", Speculation("draft", "small", tokens=3, batch=8)),
        ("heads:/data/head", Speculation("heads", "/data/head", tokens=4)),
        ("simulated:acceptance=5", Speculation("simulated", acceptance=5)),
    ],
)
def test_methods_and_options(text: str, expected: Speculation | None) -> None:
    assert parse_speculation(text) == expected


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


@pytest.mark.parametrize(
    ("text", "device", "batch"),
    [
        ("lookup", "cpu", 8),
        ("draft:small", "cpu", 8),
        ("lookup:tokens=12", "cpu", 13),
        ("lookup:batch=5", "cpu", 5),
        ("lookup", "cuda", 16),
        ("simulated", "simulated", 16),
        ("lookup:tokens=12,batch=9", "cuda", 9),
    ],
)
def test_the_batch_suits_the_device_unless_it_is_named(text: str, device: str, batch: int) -> None:
    options = parse_speculation(text)
    assert options is not None and options.on(device).batch == batch
