"""Renders chat templates: a conversation becomes the text that the model was trained on.

Variables and filters are those of transformers' apply_chat_template, for which templates are written.
Rendering is bounded in time and size, because it runs in a tokenizer thread, which an endless template would
take away from all other requests.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.exceptions import TemplateSyntaxError

from frontend.errors import InvalidRequest
from frontend.templates.conversation import (
    Conversation,
    TemplateFeatures,
    features_of,
    media_part,
    read_conversation,
)
from frontend.templates.jinja_sandbox import Sandbox
from frontend.templates.taint import taint_of, tainted
from frontend.templates.watchdog import Watchdog
from pagewire.errors import StartupError
from pagewire.v1 import prompt_pb2

TIME_LIMIT = 1.0
"""Seconds per rendering. A real template takes well under a millisecond per message."""
MAX_SOURCE_BYTES = 128 << 10
"""Of a template, which takes about 3 seconds to compile; those of real models have 30 KiB at most."""
MAX_ERROR = 500
"""Characters of a template's own error message that a client sees."""
_UNSAFE = re.compile(r"access to attribute '(\w+)' of '\w+' object is unsafe\.")
"""Of a method that changes its object, such as a list's `append`: transformers refuses it, too."""
MIN_WORDS = 8
"""Characters; a shorter excerpt of an error message is not shown."""

_OPEN_END = "\N{OBJECT REPLACEMENT CHARACTER}pagewire-continues-here "
"""Appended to the message that stays open; the prompt ends where it appears in the output. The space tells
whether the template trims messages."""

_PROBE = "pagewire-reads-this"
"""Content of a message by which a template shows what it takes."""
_TEXT_PART = {"type": "text", "text": _PROBE}


class ChatTemplate:
    """A compiled template. `render` may be called from several threads."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        max_bytes: int,
        origin: str = "the chat template",
        time_limit: float = TIME_LIMIT,
        for_tools: "ChatTemplate | None" = None,
    ) -> None:
        """special_tokens: variables such as bos_token. for_tools: renders conversations with tools in place
        of this one. Raises StartupError, naming the origin."""
        if (size := len(source.encode("utf-8", "surrogatepass"))) > MAX_SOURCE_BYTES:
            why = f"{origin} has {size} bytes, and at most {MAX_SOURCE_BYTES} are compiled"
            raise StartupError("cannot read the chat template", why, "use another --chat-template")
        self._for_tools = for_tools
        self._environment = Sandbox()
        self._source = source
        reserved = special_tokens.keys() | self._environment.globals.keys()
        self._special_tokens = dict(special_tokens)
        self._max_bytes = max_bytes
        self._time_limit = time_limit
        self._watchdog = Watchdog()
        try:
            self._template: Template = self._environment.from_string(source)
            tree = self._environment.parse(source)
            if tree.find(nodes.EvalContextModifier) is not None:  # escaped text has no taint
                raise TemplateError("autoescape is not supported: a prompt is no HTML")
            variables = meta.find_undeclared_variables(tree)
            self._features = features_of(source, variables, reserved)
        except TemplateSyntaxError as error:
            why = f"{origin}, line {error.lineno}: {error.message}"
            raise StartupError("cannot read the chat template", why) from error
        except (TemplateError, RecursionError) as error:
            raise StartupError("cannot read the chat template", f"{origin}: {error}") from error

    def features(self, *, with_tools: bool) -> TemplateFeatures:
        """Returns what the template does with a conversation. with_tools: of one that has tools."""
        if self._for_tools is not None and with_tools:
            return self._for_tools.features(with_tools=True)
        return self._features

    def read(
        self, chat: prompt_pb2.Chat, path: str, placeholder: str = "", part_type: str = "image"
    ) -> Conversation:
        """Returns the conversation of a validated Chat. placeholder: what stands for a medium in a prompt;
        empty: the model takes none. part_type: of a part that is one. Raises InvalidRequest and Unsupported,
        below `path`."""
        if self._for_tools is not None and chat.tools:
            return self._for_tools.read(chat, path, placeholder, part_type)
        as_text = self.arguments_are_text if any(each.tool_calls for each in chat.messages) else False
        has_media = any(part.HasField("media") for each in chat.messages for part in each.content)
        return read_conversation(
            chat,
            path,
            self._features,
            arguments_are_text=as_text,
            as_parts=self._takes_parts_alone,
            media_as_parts=part_type if has_media and self._writes_media(placeholder, part_type) else "",
            placeholder=placeholder,
        )

    @cached_property
    def _takes_parts_alone(self) -> bool:
        """True for a template that drops content which is text, as those of some models that see images do.
        Found by rendering a message."""
        if "type" not in self._source or _PROBE in self._trial(_PROBE):
            return False
        return _is_rendered(self._trial([_TEXT_PART]))

    def _writes_media(self, placeholder: str, part_type: str) -> bool:
        """True for a template that writes a placeholder for a part that is an image or a sound. Others get it
        as text."""
        text = self._trial([media_part(part_type), _TEXT_PART])
        return placeholder in text and _is_rendered(text)

    def _trial(self, content: Any) -> str:
        """Returns the prompt of a message of a user; empty: the template takes none like it."""
        try:
            return self.render(Conversation([{"role": "user", "content": content}], False, False, {}), "")
        except InvalidRequest:
            return ""

    @cached_property
    def arguments_are_text(self) -> bool:
        """True for a template that puts a call's arguments into the prompt as they are, as JSON text; most of
        them take an object and write it themselves. Found by rendering a call."""
        return not self._takes({"pagewire": 1}) and self._takes('{"pagewire": 1}')

    def _takes(self, arguments: Any) -> bool:
        """True when a call with such arguments is rendered, and not as Python would write them."""
        call = {"id": "a1b2c3d4e", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "f"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        try:
            text = self.render(Conversation(messages, False, False, {}), "")
        except InvalidRequest:
            return False
        return "{'pagewire'" not in text

    def render(self, conversation: Conversation, path: str) -> str:
        """Returns the prompt's text, which knows what in it a client wrote (frontend.templates.taint). Raises
        InvalidRequest, naming `path`."""
        if self._for_tools is not None and conversation.tools:
            return self._for_tools.render(conversation, path)
        try:
            return self._watchdog.call(lambda: self._render(conversation), self._time_limit)
        except TimeoutError:
            text = f"the model's chat template took longer than {self._time_limit:g} s"
        except _TooLong as error:
            text = f"the model's chat template refused it: {error}"
        except TemplateError as error:
            text = f"the model's chat template refused it: {self._words_of(error)}"
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            text = f"the model's chat template fails on it ({type(error).__name__})"
        except (RecursionError, MemoryError):
            text = "the model's chat template takes too much memory"
        raise InvalidRequest({path: text})

    def _variables(
        self, conversation: Conversation, messages: Sequence[dict[str, Any]] = ()
    ) -> dict[str, Any]:
        return {
            **self._special_tokens,
            **conversation.variables,
            "messages": messages or conversation.messages,
            "tools": conversation.tools,
            "documents": None,
            "add_generation_prompt": conversation.add_generation_prompt,
        }

    def _words_of(self, error: TemplateError) -> str:
        """Returns the error's text as far as it, or the attribute that it names, stands in the template: the
        rest may quote a message."""
        text = str(error)[:MAX_ERROR]
        unsafe = _UNSAFE.fullmatch(text)
        if text in self._source or (unsafe is not None and unsafe[1] in self._source):
            return text
        known = bisect_left(range(len(text)), True, key=lambda end: text[: end + 1] not in self._source)
        return f"{text[:known]}..." if known >= MIN_WORDS else type(error).__name__

    def _render(self, conversation: Conversation) -> str:
        messages: Sequence[dict[str, Any]] = conversation.messages
        if conversation.continue_final_message:
            last = messages[-1]
            messages = [*messages[:-1], {**last, "content": _opened(last["content"])}]
        pieces, size = [], 0
        with self._environment.budget():
            for piece in self._template.generate(self._variables(conversation, messages)):
                pieces.append(piece)
                size += len(piece)
                if size > self._max_bytes:
                    raise _TooLong(f"its text exceeds {self._max_bytes} bytes")
        text: str = tainted("").join(pieces)
        if conversation.continue_final_message:
            text = _cut_open_end(text, _last_text(conversation.messages[-1]["content"]))
        if not text.isascii() and len(text.encode()) > self._max_bytes:
            raise _TooLong(f"its text exceeds {self._max_bytes} bytes")
        return text


class _TooLong(Exception):
    """The rendered text exceeds its limit."""


def _is_rendered(text: str) -> bool:
    """Returns whether a template has taken the parts of a message, and not printed their list."""
    return _PROBE in text and "'type'" not in text


def _opened(content: Any) -> Any:
    """Returns the content of a message with its open end."""
    if isinstance(content, str):
        return content + _OPEN_END
    *parts, last = content or [{"type": "text", "text": ""}]
    if last["type"] == "text":
        return [*parts, {**last, "text": last["text"] + _OPEN_END}]
    return [*parts, last, {"type": "text", "text": _OPEN_END}]


def _last_text(content: Any) -> str:
    """Returns the text at the end of a message."""
    if isinstance(content, str):
        return content
    return content[-1]["text"] if content and content[-1]["type"] == "text" else ""


def _cut_open_end(text: str, message: str) -> str:
    place = text.rfind(_OPEN_END.strip())
    if place < 0 or message.strip() not in text:
        raise TemplateError("continue_final_message: the final message does not come out as it is")
    head = text[:place]
    if not text.startswith(_OPEN_END, place):
        # The template trims messages; it would have trimmed the real end of this one too.
        end = taint_of(head[len(head.rstrip()) :])
        head = head[: len(head) - (len(end) - len(end.rstrip(b"\1")))]
    return head
