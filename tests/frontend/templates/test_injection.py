"""Over the chat templates of real checkpoints: only the template writes control tokens.

Whatever a client spells, the control tokens of its prompt are those of the same conversation with a text that
resembles no token.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from frontend.errors import ServiceError
from frontend.prompts.prompt_encoding import PromptEncoder
from frontend.templates.chat_template import ChatTemplate
from frontend.text.tokenizer import Tokenizer
from pagewire.v1 import prompt_pb2
from tests.frontend.answers.real_templates import PACKAGE, VERSION, folder_of_templates
from tests.frontend.fakes import byte_level_tokenizer

FOLDER = folder_of_templates()
_CONTROL = re.compile(r"</?[\w|｜▁:.\-]{2,40}>|\[/?[A-Z_]{3,30}\]|<\|\"\|>")
SPELLINGS = ("{0}", "x{0}y", "{0}{0}", "{1}/think{2}", "{1}</think>{2}", "a\n{0}\n", "'{0}'", '"{0}\\')
"""How a text spells a token; 1 and 2 are its halves."""
SEARCHED = {
    *("<think>", "</think>", "</mm:think>", "<tool_response>", "</tool_response>"),
    *("<|channel>", "<channel|>", "<tool_sep>"),
}
"""Marks that templates look for in messages, and go another way where they find them."""
REFUSING = {"fireworks-ai-llama-3-firefunction-v2"}
"""Templates that need variables, and refuse all of these conversations."""


def tokenizer_of(source: str) -> tuple[Tokenizer, dict[str, int]]:
    """A tokenizer with the marks of a template, every other one of which is not called special."""
    marks = sorted({*_CONTROL.findall(source), "<|im_end|>", "<s>", "</s>"})
    raw = byte_level_tokenizer()
    raw.add_tokens(
        [AddedToken(mark, special=place % 2 == 0, normalized=False) for place, mark in enumerate(marks)]
    )
    return Tokenizer(raw), {mark: raw.token_to_id(mark) for mark in marks}


def conversations(text: str) -> Iterator[dict[str, Any]]:
    """With the text wherever a client can put it; some templates refuse some of them."""
    call = {"id": f"c{text}", "name": f"f{text}", "arguments": json.dumps({f"k{text}": [text]})}
    schema = {"type": "object", "properties": {f"k{text}": {"type": "string", "description": text}}}
    tools = [{"name": f"f{text}", "description": text, "parameters": json.dumps(schema)}]
    user = {"role": "user", "name": f"n{text}", "content": [{"text": f"u{text}"}]}
    said = {"role": "assistant", "content": [{"text": f"s{text}"}]}
    called = {"role": "assistant", "content": [{"text": text}], "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": f"c{text}", "name": f"f{text}", "content": [{"text": text}]}
    system = {"role": "system", "content": [{"text": f"i{text}"}]}
    variables = {name: text for name in ("reasoning_effort", "model_identity", "thinking_budget")}
    yield {"messages": [system, user, said, user], "template_kwargs": variables}
    yield {"messages": [{**user, "role": f"r{text}"}]}
    yield {"messages": [user, called, result], "tools": tools}
    yield {"messages": [user, {**said, "reasoning": text}, user]}
    yield {"messages": [user, said], "continue_final_message": True}


@pytest.mark.skipif(FOLDER is None, reason=f"{PACKAGE} {VERSION} cannot be downloaded")
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.jinja")) if FOLDER else [], ids=lambda path: path.stem)
def test_no_client_writes_a_control_token(path: Path) -> None:
    source = path.read_text()
    tokenizer, marks = tokenizer_of(source)
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, max_bytes=1 << 20)
    encoder = PromptEncoder(tokenizer, template)
    control = set(marks.values())

    def read(chat: dict[str, Any]) -> tuple[str, list[int]] | None:
        prompt = prompt_pb2.Prompt(chat=prompt_pb2.Chat(**chat))
        try:
            found = encoder.read(prompt, "prompt", vocab_size=1 << 20)
        except ServiceError:
            return None
        return found.text, [token for token in found.token_ids if token in control]

    num_compared = 0
    for place, mark in enumerate(marks):
        spelling = SPELLINGS[place % len(SPELLINGS)]
        for part in (spelling, "{0}"):
            # The last character but one makes the difference: the same text, but for that.
            harmless = mark[:-2] + "~" + mark[-1]
            texts = [part.format(each, each[:3], each[3:]) for each in (mark, harmless)]
            for spelled, other in zip(*map(conversations, texts), strict=True):
                hostile, right = read(spelled), read(other)
                if hostile is None or right is None:
                    assert (hostile is None) == (right is None) or mark in SEARCHED
                    continue
                if hostile[1] == right[1]:
                    num_compared += 1
                else:
                    assert mark in SEARCHED or "think" in part, (mark, hostile[0], right[0])
    assert num_compared >= len(marks) or path.stem in REFUSING
