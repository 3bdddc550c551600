"""The benchmarks of structured output: what they count is right, whatever the times are."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import structured, structured_serving
from pagewire_bench.workloads import Request


def test_a_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Schemas that are refused, documents that fit and that do not, and random documents."""
    entries = [
        *structured.OWN_CORPUS,
        {
            "schema": {"enum": ["a", "b"]},
            "tests": [{"valid": False, "data": "c"}, {"valid": True, "data": "b"}],
        },
        {"schema": {"contains": {}}, "tests": [{"valid": False, "data": 1}]},
    ]
    for place, entry in enumerate(entries):
        (tmp_path / f"{place}.json").write_text(json.dumps(entry))
    figures = structured.main(["--corpus", str(tmp_path)])
    assert figures.schemas == 4 and sum(figures.refused.values()) == 2
    assert len(figures.compiling) == len(figures.judging) == 2
    assert (figures.valid, figures.valid_refused) == (2, 0)
    assert (figures.invalid, figures.invalid_accepted) == (2, 0)
    assert figures.documents + figures.documents_cut == 2 and not figures.documents_invalid
    assert len(figures.first_masks) == 4 and len(figures.steps) > 20 < len(figures.random_steps)
    printed = capsys.readouterr().out
    assert "schemas: 4, refused: 2" in printed and "| compile, ms | 2 |" in printed


async def test_rounds_with_a_schema_and_without() -> None:
    """All requests at once, with as many tokens as the workload says."""
    asked: list[Mapping[str, Any]] = []

    class Client:
        async def generate(self, prompt: list[int], max_tokens: int, **how: Any) -> SimpleNamespace:
            asked.append(how)
            return SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1] * min(max_tokens, 9))])

    rounds = structured_serving.forms(200)
    assert rounds["schema"]["schema"]["minItems"] == 200
    requests = [Request([1, 2], 9), Request([3], 9)]
    for how in rounds.values():
        assert await structured_serving.run(Client(), requests, how) > 0  # type: ignore[arg-type]
    assert asked == [rounds["plain"]] * 2 + [rounds["schema"]] * 2
    with pytest.raises(AssertionError, match="ended early"):
        await structured_serving.run(Client(), [Request([1], 10)], {})  # type: ignore[arg-type]
