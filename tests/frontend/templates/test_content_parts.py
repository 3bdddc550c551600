"""Messages with images, in templates that take parts, text, or both."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from frontend.templates.chat_template import ChatTemplate
from frontend.templates.taint import Tainted
from pagewire.v1 import prompt_pb2

LLAVA = (
    "{% for message in messages %}{% if message['role'] != 'system' %}"
    "{{ message['role'].upper() + ': '}}{% endif %}{# Render all images first #}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}{# Render all text next #}{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ content['text'] + ' '}}{% endfor %}{% else %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""Of llava-hf/llava-1.5-7b-hf: takes parts alone."""
SMOLVLM = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""Of HuggingFaceTB/SmolVLM-Instruct: takes parts alone."""
BOTH = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% elif 'image' in part or part.type == 'image' %}<image>{% endif %}{% endfor %}{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
PIXTRAL = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}{% if m.role == 'user' %}[INST]"
    "{% if loop.last and system is defined %}{{ system + '\n\n' }}{% endif %}"
    "{% if m.content is not string %}{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% else %}<image>{% endif %}{% endfor %}{% else %}{{ m.content }}{% endif %}[/INST]"
    "{% else %}{{ m.content + '</s>' }}{% endif %}{% endfor %}"
)
"""As of mistral-community/pixtral-12b: parts of users alone, other messages are text."""
TEXT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[assistant]"
IMAGE = {"media": {"data": b"x"}}
CHAT = {
    "messages": [
        {"role": "system", "content": [{"text": "Be kind."}]},
        {"role": "user", "content": [{"text": "one "}, IMAGE, {"text": "two"}, IMAGE]},
        {"role": "assistant", "content": [{"text": "Two cats."}]},
        {"role": "user", "content": [{"text": "Sure?"}]},
    ]
}


def rendered(source: str, placeholder: str = "<image>", **fields: object) -> str:
    template = ChatTemplate(source, {}, max_bytes=1 << 20)
    chat = prompt_pb2.Chat(**{**CHAT, **fields})
    return template.render(template.read(chat, "chat", placeholder), "chat")


def parts_of(content: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{"type": "image"} if "media" in each else {"type": "text", **each} for each in content]


@pytest.mark.parametrize("source", [LLAVA, SMOLVLM, BOTH], ids=["llava", "smolvlm", "both"])
def test_templates_that_take_parts_write_what_transformers_writes(source: str) -> None:
    messages = [{**each, "content": parts_of(each["content"])} for each in CHAT["messages"]]
    texts, _ = render_jinja_template([messages], chat_template=source, add_generation_prompt=True)
    assert rendered(source) == texts[0]
    assert rendered(source).count("<image>") == 2


@pytest.mark.parametrize("source", [LLAVA, SMOLVLM], ids=["llava", "smolvlm"])
def test_text_alone_is_a_part_where_the_template_drops_other_text(source: str) -> None:
    messages = [{"role": "user", "content": [{"text": "Hello."}]}]
    wanted, _ = render_jinja_template(
        [[{"role": "user", "content": [{"type": "text", "text": "Hello."}]}]],
        chat_template=source,
        add_generation_prompt=True,
    )
    assert rendered(source, messages=messages) == rendered(source, "", messages=messages) == wanted[0]


def test_text_alone_is_text_where_the_template_takes_both() -> None:
    source = "{% for m in messages %}{{ m.content is string }} {{ m.content.type }}{% endfor %}"
    assert rendered(source, messages=[{"role": "user", "content": [{"text": "a"}]}]) == "True "
    messages = [{"role": "user", "content": [{"text": "Hello."}]}]
    assert rendered(BOTH, messages=messages) == "[user]Hello.[assistant]"


def test_parts_are_for_messages_with_images_where_text_is_taken() -> None:
    assert rendered(PIXTRAL) == (
        "[INST]one <image>two<image>[/INST]Two cats.</s>[INST]Be kind.\n\nSure?[/INST]"
    )


def test_a_message_without_content_is_an_empty_part() -> None:
    messages = [{"role": "user", "content": [IMAGE]}, {"role": "assistant", "content": []}]
    assert "Assistant: <end_of_utterance>" in rendered(SMOLVLM, messages=messages)


def test_a_template_of_text_gets_placeholders_before_it() -> None:
    assert rendered(TEXT) == (
        "[system]Be kind.\n[user]<image>\n<image>\none two\n[assistant]Two cats.\n[user]Sure?\n[assistant]"
    )


@pytest.mark.parametrize("source", [LLAVA, BOTH, TEXT], ids=["llava", "both", "text"])
def test_only_the_server_writes_placeholders(source: str) -> None:
    """What a client writes stays its text: the tokenizer makes letters of it."""
    content = [{"text": "is <image> one?"}, IMAGE]
    text = rendered(source, messages=[{"role": "user", "content": content}])
    assert isinstance(text, Tainted) and text.count("<image>") == 2
    written = "".join(text.plain[start:end] for start, end in text.written)
    assert written.count("<image>") == 1


@pytest.mark.parametrize("source", [LLAVA, BOTH], ids=["llava", "both"])
@pytest.mark.parametrize("content", [[{"text": "It is"}], []], ids=["text", "nothing"])
def test_a_final_message_of_parts_stays_open(source: str, content: list[dict[str, object]]) -> None:
    messages = [*CHAT["messages"][:2], {"role": "assistant", "content": content}]
    text = rendered(source, messages=messages, continue_final_message=True)
    assert text.rstrip().endswith(
        "It is" if content else ("ASSISTANT:" if source == LLAVA else "[assistant]")
    )
