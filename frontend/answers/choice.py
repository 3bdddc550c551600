"""Chooses how a model's answers are read: by flags, by what the checkpoint says, or by its chat template."""

import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import Any, TypeVar

from frontend.answers.binding import BoundFormat
from frontend.answers.formats import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    reasoning_format_of,
    tool_format_of,
)
from frontend.answers.tables import ReasoningFormat, ToolFormat
from frontend.text.tokenizer import Tokenizer
from pagewire.errors import StartupError

AUTO, NONE = "auto", "none"

F = TypeVar("F", ToolFormat, ReasoningFormat)


class AnswerFormats:
    """The tables for a model's answers, bound to its tokenizer."""

    def __init__(
        self, tokenizer: Tokenizer, tools: ToolFormat | None, reasoning: ReasoningFormat | None
    ) -> None:
        self.tokenizer = tokenizer
        self.tools = tools
        self.reasoning = reasoning if tools is None or not tools.always else None
        self._special = {token: added.content for token, added in tokenizer.special_tokens.items()}

    @property
    def reasons(self) -> bool:
        """True when reasoning is told apart."""
        return self.reasoning is not None or (self.tools is not None and self.tools.always)

    @cached_property
    def with_calls(self) -> BoundFormat:
        """The table for requests with tools."""
        return BoundFormat(self.tools, self.reasoning, self._special)

    @cached_property
    def without_calls(self) -> BoundFormat | None:
        """The table for requests without tools; None: their answers are text."""
        tools = self.tools if self.tools is not None and self.tools.always else None
        if tools is not None:
            routes = tuple(route for route in tools.routes if "(?P<name>" not in route[0])
            tools = dataclasses.replace(tools, routes=routes)
        if tools is None and self.reasoning is None:
            return None
        return BoundFormat(tools, self.reasoning, self._special)


def choose(
    tokenizer: Tokenizer,
    response_template: Any,
    chat_template: str | None,
    tool_format: str = AUTO,
    reasoning_format: str = AUTO,
) -> AnswerFormats:
    """Returns the formats of a model. Raises StartupError.

    response_template: of the checkpoint's tokenizer configuration; None: it has none. tool_format,
    reasoning_format: a name, "none", or "auto": the format whose marks the checkpoint's
    response_template has, else the one whose marks its chat template has.
    """
    stated = isinstance(response_template, dict)
    sources = [json.dumps(response_template, ensure_ascii=False)] if stated else []
    if chat_template is not None:
        sources.append(chat_template)
    tools = _named("--tool-format", tool_format, TOOL_FORMATS, tokenizer)
    if tool_format == AUTO:
        tools = _detected(sources, tool_format_of, tokenizer)
    reasoning = _named("--reasoning-format", reasoning_format, REASONING_FORMATS, tokenizer)
    if reasoning_format == AUTO:
        reasoning = _detected(sources, reasoning_format_of, tokenizer)
    return AnswerFormats(tokenizer, tools, reasoning)


def _detected(sources: Iterable[str], format_of: Callable[[str], F | None], tokenizer: Tokenizer) -> F | None:
    """Returns the format that the first source with one has; None where the tokenizer cannot spell it."""
    found = next((each for source in sources if (each := format_of(source)) is not None), None)
    return found if found is not None and _unspelled(tokenizer, found) is None else None


def _named(flag: str, name: str, formats: Mapping[str, F], tokenizer: Tokenizer) -> F | None:
    if name in (AUTO, NONE):
        return None
    check_format_name(flag, name, formats)
    marker = _unspelled(tokenizer, formats[name])
    if marker is not None:
        raise StartupError(
            f"the model cannot write {name}",
            f"its tokenizer has no way to spell {marker!r}",
            f"choose another {flag}, or 'none'",
        )
    return formats[name]


def check_format_name(flag: str, name: str, formats: Collection[str]) -> None:
    """Raises StartupError for a value of --tool-format or --reasoning-format that no format has."""
    known = (AUTO, NONE, *formats)
    if name not in known:
        raise StartupError(f"there is no format {name!r}", f"{flag} is one of {', '.join(known)}")


def _unspelled(tokenizer: Tokenizer, format: ToolFormat | ReasoningFormat) -> str | None:
    """Returns a marker that the tokenizer cannot spell; None: it can spell all of them."""
    if isinstance(format, ReasoningFormat):
        markers = [format.open, format.close]
    else:
        markers = [*format.opens, *(text for state in format.states.values() for text in state.markers)]
    encodings = [tokenizer.encode(marker, add_special_tokens=False).token_ids for marker in markers]
    texts = tokenizer.decode(encodings, skip_special_tokens=False)
    return next((marker for marker, text in zip(markers, texts, strict=True) if marker not in text), None)
