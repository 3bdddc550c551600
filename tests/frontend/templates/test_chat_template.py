"""Rendering conversations: equal to transformers for ordinary templates, bounded for hostile ones."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from frontend.errors import InvalidRequest, Unsupported
from frontend.templates.chat_template import ChatTemplate
from pagewire.checkpoints.paths import checkpoint_folder
from pagewire.errors import StartupError
from pagewire.v1 import prompt_pb2
from tests.frontend.fakes import TEMPLATE

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
PATH = "prompt.chat"

TEMPLATES = {
    "fake": TEMPLATE,
    "demo": (checkpoint_folder("demo") / "chat_template.jinja").read_text(encoding="utf-8"),
    "chat-ml": (
        "{%- if messages[0].role == 'system' %}\n    {{- '<|im_start|>system\\n' + messages[0].content }}\n"
        "{%- else %}\n    {{- '<|im_start|>system\\nYou are helpful.' }}\n{%- endif %}\n"
        "{{- '<|im_end|>\\n' }}\n"
        "{%- for message in messages if message.role != 'system' or not loop.first %}\n"
        "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n"
        "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
        "        {{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}\n{%- endif %}\n"
    ),
    "headers": (
        "{{ bos_token }}\n{% for message in messages %}\n"
        "    {% set content = '<|start|>' + message['role'] + '<|stop|>\n\n' + message['content'] | trim %}\n"
        "{{ content ~ '<|turn|>' }}\n{% endfor %}\n"
        "{% if add_generation_prompt %}{{ '<|start|>assistant<|stop|>\n\n' }}{% endif %}\n"
    ),
    "instructions": (
        "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
        "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{{ bos_token }}"
        "{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}"
        "{% if m['role'] == 'user' %}{{ '[INST] ' }}"
        "{% if loop.first and system is defined %}{{ system + '\\n\\n' }}{% endif %}"
        "{{ m['content'].strip() + ' [/INST]' }}"
        "{% else %}{{ ' ' ~ m['content'] | trim ~ eos_token }}{% endif %}{% endfor %}"
    ),
    "thinking": (
        "{%- set ns = namespace(last=-1) -%}{%- for m in messages -%}"
        "{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
        "{%- for m in messages -%}{%- set text = m.content -%}{%- set thought = '' -%}"
        "{%- if m.reasoning_content is defined -%}{%- set thought = m.reasoning_content -%}"
        "{%- elif '</think>' in text -%}"
        "{%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}"
        "{%- set text = text.split('</think>')[-1].lstrip('\\n') -%}{%- endif -%}"
        "[{{ m.role }}]{% if thought and loop.index0 > ns.last %}<{{ thought }}>{% endif %}{{ text }}\n"
        "{%- endfor -%}{%- if add_generation_prompt -%}[assistant]{%- endif -%}"
    ),
    "generation-tags": (
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}{% set x = 1 %}{{ eos_token }}{% endgeneration %}"
        "{% else %}{{ m.content }}{{ x is defined }}{% endif %}{% endfor %}"
    ),
    "json": (
        "{% for m in messages %}{{ m | tojson }}{{ m | tojson(indent=2) }}{% endfor %}"
        "{% for name, value in (options or {}) | items %}{{ name }}={{ value }};{% endfor %}{{ number }}"
        "{{ tools is none }}{{ documents is none }}{{ missing }}"
    ),
    "loops": (
        "{% for m in messages %}{% if loop.index > 3 %}{% break %}{% endif %}{{ loop.index }}{{ m.name }}"
        "{{ '%s|%s' % (m.role, m.content | length) }}{% endfor %}"
        "{{ messages | map(attribute='role') | join(',') }}"
    ),
}

CONVERSATIONS = [
    [("user", "Hello <b>&</b> é🙂")],
    [("system", "Be brief."), ("user", " Hi \n")],
    [("user", "1"), ("assistant", "<think>\nhm\n</think>\n\ntwo "), ("user", "3")],
    [("user", "1"), ("assistant", "<think>\nhm\n</think>\n\n two  ")],
    [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d "), ("user", "")],
]


def make_chat(messages, **fields) -> prompt_pb2.Chat:
    parts = [{"role": role, "content": [{"text": text}]} for role, text in messages]
    return prompt_pb2.Chat(messages=parts, **fields)


def ours(source: str, chat: prompt_pb2.Chat, **options) -> str:
    template = ChatTemplate(source, SPECIAL, **{"max_bytes": 1 << 20, **options})
    return template.render(template.read(chat, PATH), PATH)


def theirs(source: str, messages, **options) -> str:
    conversation = [{"role": role, "content": text} for role, text in messages]
    rendered, _ = render_jinja_template([conversation], chat_template=source, **SPECIAL, **options)
    return rendered[0]


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_equal_to_transformers(name, messages):
    """With and without the assistant's header, with variables, and with an open final message."""
    source = TEMPLATES[name]
    for fields, variables in (
        ({"add_generation_prompt": True}, {}),
        ({"add_generation_prompt": False}, {}),
        ({"add_generation_prompt": True}, {"enable_thinking": False}),
        ({"add_generation_prompt": False}, {"options": {"a": 1, "b": [True, None, 1.5]}, "number": 3}),
        ({"add_generation_prompt": False, "continue_final_message": "content" in source}, {}),
    ):
        chat = make_chat(messages, template_kwargs=variables, **fields)
        try:
            expected = theirs(source, messages, **fields, **variables)
        except Exception:  # the template's own, or an open message that it does not show as it is
            with pytest.raises(InvalidRequest):
                ours(source, chat)
        else:
            found = ours(source, chat)
            if chat.continue_final_message and not messages[-1][1].strip():
                # transformers drops the line breaks that the template writes before a blank message.
                expected, found = expected.rstrip(), found.rstrip()
            assert found == expected


@pytest.mark.parametrize("blank", ["", " ", "\n", " \n\n"])
def test_a_blank_message_that_goes_on_leaves_what_the_template_wrote(blank):
    chat = make_chat([("user", "a"), ("assistant", blank)], continue_final_message=True)
    header = "<s>\n<|start|>user<|stop|>\n\na<|turn|>\n<|start|>assistant<|stop|>\n\n"
    assert ours(TEMPLATES["headers"], chat) == header
    kept = make_chat([("user", "a"), ("assistant", f"so{blank}")], continue_final_message=True)
    assert ours(TEMPLATES["headers"], kept) == f"{header}so"
    assert ours(TEMPLATE, chat) == f"<s><|user|>a</s><|assistant|>{blank}"


def test_the_generation_prompt_is_the_default_unless_a_message_stays_open():
    chat = make_chat([("user", "a")])
    assert ours(TEMPLATE, chat) == "<s><|user|>a</s><|assistant|>"
    chat = make_chat([("user", "a"), ("assistant", "so ")], continue_final_message=True)
    assert ours(TEMPLATE, chat) == "<s><|user|>a</s><|assistant|>so "


def test_parts_of_a_message_are_joined():
    chat = prompt_pb2.Chat(
        messages=[{"role": "user", "content": [{"text": "a"}, {"text": "b"}]}, {"role": "x"}]
    )
    assert ours("{% for m in messages %}{{ m.content }};{% endfor %}", chat) == "ab;;"


def test_names_and_reasoning():
    message = {"role": "assistant", "name": "Bo", "reasoning": "hm", "content": [{"text": "x"}]}
    chat = prompt_pb2.Chat(messages=[message])
    assert ours("{{ messages[0].name }}{{ messages[0].reasoning_content }}", chat) == "Bohm"
    assert ours("{{ messages[0].thinking }}", chat) == "hm"
    with pytest.raises(Unsupported) as caught:
        ours("{{ messages[0].content }}", chat)
    assert list(caught.value.violations) == ["prompt.chat.messages[0].reasoning"]


@pytest.mark.parametrize(
    "name", ["messages", "bos_token", "tools", "add_generation_prompt", "raise_exception", "range"]
)
def test_variables_do_not_replace_what_the_server_sets(name):
    with pytest.raises(InvalidRequest) as caught:
        ours(TEMPLATE, make_chat([("user", "a")], template_kwargs={name: "x"}))
    assert list(caught.value.violations) == [f"prompt.chat.template_kwargs.{name}"]


def test_variables_keep_their_types():
    values = {"i": 3, "f": 0.5, "s": "x", "b": True, "n": None, "l": [1, "a"], "d": {"k": 2}, "big": 1e300}
    source = "{{ i }} {{ f }} {{ s }} {{ b }} {{ n }} {{ l }} {{ d.k }} {{ big }}"
    text = ours(source, make_chat([("user", "a")], template_kwargs=values))
    assert text == "3 0.5 x True None [1, 'a'] 2 1e+300"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('Roles must alternate.') }}", "Roles must alternate."),
        ("{{ raise_exception('x' * 100000) }}", "TemplateError"),
        ("{{ messages[3].content }}", "UndefinedError"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ 'a' | int | first }}", "TypeError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "memory"),
        ("{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}", "exceeds"),
        ("{{ 'é' * 600000 }}", "exceeds"),
        ("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "longer than"),
        (
            "{% for i in range(100000) %}{{ messages | tojson | length }}{% endfor %}"
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
            "longer than",
        ),
    ],
)
def test_failures_name_the_chat_and_are_short(source, words):
    limit = 0.1 if words == "longer than" else 60
    with pytest.raises(InvalidRequest) as caught:
        ours(source, make_chat([("user", "a")]), time_limit=limit)
    assert list(caught.value.violations) == [PATH]
    assert words in str(caught.value) and len(str(caught.value)) < 700


def test_a_method_that_changes_its_object_is_named():
    """transformers refuses it, too; templates for llama.cpp have some."""
    source = "{% set found = [] %}{% set _ = found.append(1) %}x"
    with pytest.raises(InvalidRequest, match="'append' of 'list' object is unsafe"):
        ours(source, make_chat([("user", "a")]))


def test_a_refused_template_can_be_used_again():
    """Budgets and limits belong to one rendering."""
    source = (
        "{% if messages | length > 1 %}{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}{% endif %}ok"
    )
    template = ChatTemplate(source, SPECIAL, max_bytes=1 << 20)
    bad = template.read(make_chat([("user", "a")] * 2), PATH)
    good = template.read(make_chat([("user", "a")]), PATH)
    for _ in range(3):
        with pytest.raises(InvalidRequest):
            template.render(bad, PATH)
        assert template.render(good, PATH) == "ok"


@pytest.mark.parametrize("source", ["{% if %}", "{{ x | nofilter }}", "{% endfor %}", "{{" + "(" * 5000])
def test_a_template_that_cannot_be_read_ends_the_start(source):
    with pytest.raises(StartupError) as caught:
        ChatTemplate(source, SPECIAL, max_bytes=100, origin="/m/chat_template.jinja")
    assert "/m/chat_template.jinja" in caught.value.why


def test_a_template_that_would_take_long_to_compile_is_refused():
    with pytest.raises(StartupError) as caught:
        ChatTemplate("{{ 1 }}\n" * (20 << 10), SPECIAL, max_bytes=100, origin="/m/chat_template.jinja")
    assert caught.value.why == "/m/chat_template.jinja has 163840 bytes, and at most 131072 are compiled"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('unknown word: ' + messages[0].content) }}", "refused it: unknown word: ..."),
        ("{{ raise_exception(messages[0].content) }}", "refused it: TemplateError"),
        ("{{ messages[messages[0].content].x }}", "refused it: UndefinedError"),
        ("{{ (messages[0].content | upper | list).x.y }}", "refused it: UndefinedError"),
        ("{{ messages[0].content | int + 'b' }}", "TypeError"),
    ],
)
def test_a_failure_does_not_quote_the_conversation(source, words):
    """What a template says of a message stands in logs of proxies, too: only its own words are passed on."""
    with pytest.raises(InvalidRequest) as caught:
        ours(source, make_chat([("user", "my secret")]))
    assert words in str(caught.value) and "secret" not in str(caught.value).lower()


@pytest.mark.parametrize("tag", ["{% autoescape true %}", "{%- autoescape false -%}"])
def test_escaped_text_would_not_say_what_a_client_wrote(tag: str) -> None:
    with pytest.raises(StartupError, match="a prompt is no HTML"):
        ChatTemplate(tag + "{{ messages[0].content }}{% endautoescape %}", SPECIAL, max_bytes=100)
