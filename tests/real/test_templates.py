"""The chat templates of 70 models render conversations as transformers renders them."""

from pathlib import Path

import pytest
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from frontend.errors import InvalidRequest
from frontend.templates.chat_template import ChatTemplate
from pagewire.v1 import prompt_pb2

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
CONVERSATIONS = [
    [("user", " Hi there\n")],
    [("system", "Be brief."), ("user", "2 + 2?"), ("assistant", "4"), ("user", "And 3 + 3? é🙂")],
]
COUNT = 70
SECONDS = 30.0
"""Per rendering: this machine may be busy."""


def ours(template: ChatTemplate, conversation: list[tuple[str, str]], generates: bool) -> str | None:
    """The text; None where the template refuses the conversation."""
    chat = prompt_pb2.Chat(
        messages=[
            prompt_pb2.ChatMessage(role=role, content=[prompt_pb2.ContentPart(text=text)])
            for role, text in conversation
        ],
        add_generation_prompt=generates,
    )
    try:
        return template.render(template.read(chat, "chat"), "chat")
    except InvalidRequest:
        return None


def theirs(source: str, conversation: list[tuple[str, str]], generates: bool) -> str | None:
    messages = [{"role": role, "content": text} for role, text in conversation]
    try:
        texts, _ = render_jinja_template(
            [messages], chat_template=source, add_generation_prompt=generates, **SPECIAL
        )
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError):
        return None
    return str(texts[0])


@pytest.mark.parametrize("generates", [False, True])
def test_as_transformers_renders_them(generates: bool, llama_cpp: Path):
    paths = sorted(llama_cpp.glob("*.jinja"))
    assert len(paths) == COUNT
    rendered = 0
    for path in paths:
        source = path.read_text(encoding="utf-8")
        template = ChatTemplate(source, SPECIAL, max_bytes=1 << 20, origin=path.name, time_limit=SECONDS)
        for conversation in CONVERSATIONS:
            text = ours(template, conversation, generates)
            assert text == theirs(source, conversation, generates), path.name
            rendered += text is not None
    assert rendered > 1.8 * COUNT
