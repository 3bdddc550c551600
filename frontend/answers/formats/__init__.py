"""The formats of all families of models."""

from frontend.answers.formats import json_calls, named_calls, paired_calls, reasoning, tagged_calls
from frontend.answers.tables import ReasoningFormat, ToolFormat

_IN_ORDER = (
    named_calls.HARMONY,
    tagged_calls.DEEPSEEK_V32,
    named_calls.DEEPSEEK_V3,
    named_calls.DEEPSEEK_V31,
    named_calls.KIMI,
    named_calls.MISTRAL,
    json_calls.MISTRAL_LIST,
    paired_calls.GEMMA_4,
    paired_calls.LFM_2,
    paired_calls.LLAMA_4,
    tagged_calls.MINIMAX,
    tagged_calls.SEED,
    tagged_calls.GLM,
    tagged_calls.QWEN_CODER,
    json_calls.COHERE,
    json_calls.APERTUS,
    json_calls.NEMOTRON,
    json_calls.PHI_4,
    json_calls.GRANITE,
    json_calls.TOOL_CALLS_LIST,
    json_calls.HERMES,
    named_calls.FUNCTIONARY,
    json_calls.LLAMA_3,
)
"""In the order in which a chat template is compared with them: the more special ones first."""

_OTHERS = ("]<]minimax[>[",)
"""Marks of formats that are not read, in templates that resemble those of another one."""

TOOL_FORMATS: dict[str, ToolFormat] = {each.name: each for each in _IN_ORDER}
REASONING_FORMATS: dict[str, ReasoningFormat] = {each.name: each for each in reasoning.FORMATS}


def tool_format_of(source: str) -> ToolFormat | None:
    """Returns the format that a chat template was written for; None: unknown."""
    if any(text in source for text in _OTHERS):
        return None
    for each in TOOL_FORMATS.values():
        if any(all(text in source for text in group) for group in each.detect):
            return each
    return None


def reasoning_format_of(source: str) -> ReasoningFormat | None:
    """Returns the marks that a chat template puts around reasoning; None: none that are known."""
    for each in REASONING_FORMATS.values():
        if any(all(text in source for text in group) for group in each.detect):
            return each
    return None
