"""The formats of all families of models."""

from collections.abc import Iterable
from typing import TypeVar

from frontend.answers.formats import json_arguments, single_arguments
from frontend.answers.tables import ReasoningFormat, ToolFormat

F = TypeVar("F", ToolFormat, ReasoningFormat)

_TOOLS = (
    json_arguments.HARMONY,
    single_arguments.DEEPSEEK_V32,
    json_arguments.DEEPSEEK_V3,
    json_arguments.DEEPSEEK_V31,
    json_arguments.KIMI,
    json_arguments.MISTRAL,
    json_arguments.MISTRAL_LIST,
    single_arguments.GEMMA_4,
    single_arguments.LFM_2,
    single_arguments.LLAMA_4,
    single_arguments.MINIMAX,
    single_arguments.SEED,
    single_arguments.GLM,
    single_arguments.QWEN_CODER,
    json_arguments.COHERE,
    json_arguments.APERTUS,
    json_arguments.NEMOTRON,
    json_arguments.PHI_4,
    json_arguments.GRANITE,
    json_arguments.TOOL_CALLS_LIST,
    json_arguments.HERMES,
    json_arguments.FUNCTIONARY,
    json_arguments.LLAMA_3,
)
"""In the order in which a chat template is compared with them: the more special ones first."""
_REASONING = (
    ReasoningFormat("seed", "<seed:think>", "</seed:think>", (("<seed:think>",),)),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]", (("[THINK]",),)),
    ReasoningFormat(
        "cohere",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        (("<|START_THINKING|>",),),
        around_text=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    ReasoningFormat("gemma-4", "<|channel>thought", "<channel|>", (("<|channel>thought",),)),
    ReasoningFormat("apertus", "<|inner_prefix|>", "<|inner_suffix|>", (("<|inner_prefix|>",),)),
    ReasoningFormat(
        "apriel",
        "Here are my reasoning steps:",
        "[BEGIN FINAL RESPONSE]",
        (("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),),
    ),
    ReasoningFormat("think", "<think>", "</think>", (("<think>",), ("</think>",))),
)

_OTHERS = ("]<]minimax[>[",)
"""Marks of formats that are not read, in templates that resemble those of another one."""

TOOL_FORMATS: dict[str, ToolFormat] = {each.name: each for each in _TOOLS}
REASONING_FORMATS: dict[str, ReasoningFormat] = {each.name: each for each in _REASONING}


def tool_format_of(source: str) -> ToolFormat | None:
    """Returns the format that a chat template was written for; None: unknown."""
    return None if any(text in source for text in _OTHERS) else _detected(source, _TOOLS)


def reasoning_format_of(source: str) -> ReasoningFormat | None:
    """Returns the marks that a chat template puts around reasoning; None: none that are known."""
    return _detected(source, _REASONING)


def _detected(source: str, formats: Iterable[F]) -> F | None:
    """Returns the first format of which a chat template has all texts of a group."""
    groups = ((each, group) for each in formats for group in each.detect)
    return next((each for each, group in groups if all(text in source for text in group)), None)
