"""The worked examples of docs/tools.md and docs/reasoning.md, run against the demo model."""

import asyncio
import json
import re
import textwrap
from typing import Any

import pytest

import pagewire
from pagewire.local_service import Service
from tests.e2e import services


def examples(page: str) -> list[str]:
    """The Python blocks of a page."""
    text = (services.ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


async def run(example: str, service: Service) -> dict[str, Any]:
    """Runs a block, which may await, and returns its variables."""
    code = textwrap.indent(example.replace("127.0.0.1:50051", service.address), "    ")
    names: dict[str, Any] = {"pagewire": pagewire}
    exec(compile(f"async def example():\n{code}\n    return locals()", "example", "exec"), names)
    return dict(await names["example"]())


def test_tools(demo: Service, capsys: pytest.CaptureFixture[str]):
    loop, enforced = examples("tools.md")
    answer = asyncio.run(run(loop, demo))["answer"]
    assert not answer.tool_calls and "Paris" in answer.text
    assert capsys.readouterr().out.startswith('get_weather {"city": "Paris"')
    (call,) = asyncio.run(run(enforced, demo))["answer"].tool_calls  # sampled, and always a call
    assert call.name == "get_weather" and json.loads(call.arguments)["city"] in ("Paris", "Rome")


def test_reasoning(demo: Service):
    thinking, budget = examples("reasoning.md")
    answer = asyncio.run(run(thinking, demo))["answer"]
    assert answer.reasoning and answer.text and "<think>" not in answer.text
    assert 0 < answer.usage.reasoning_tokens < answer.usage.completion_tokens
    assert asyncio.run(run(budget, demo))["answer"].text
