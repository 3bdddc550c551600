"""The checkpoint in ``pagewire/demo_model`` is whole, loads, and knows what its README says it knows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2.sandbox
import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

FOLDER = Path(__file__).resolve().parents[2] / "pagewire" / "demo_model"
SPECIAL_TOKENS = ["<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
LATER_TOKENS = ["<|tool|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
BOS, EOS, PAD = 1, 2, 0
GREEDY: dict[str, Any] = {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50}

# Plain text and how it goes on, up to EOS.
COMPLETIONS = [
    ("The capital of France is", " Paris."),
    ("The capital of Japan is", " Tokyo."),
    ("The capital of Brazil is", " Brasília."),
    ("The capital of the United States is", " Washington."),
    ("The capital of India is", " New Delhi."),
    ("The opposite of hot is", " cold."),
    ("The opposite of empty is", " full."),
    ("The cat says", " meow."),
    ("a b c d e", " f g h i j k l m n o p q r s t u v w x y z"),
    ("m n o p", " q r s t u v w x y z"),
    ("Monday Tuesday", " Wednesday Thursday Friday Saturday Sunday"),
    ("2 + 2 =", " 4"),
    ("7 + 8 =", " 15"),
]
# Plain text and how it goes on at first.
BEGINNINGS = [
    ("1, 2, 3, 4,", " 5, 6, 7, 8, 9, 10, 11, 12"),
    ("28, 29, 30,", " 31, 32, 33, 34"),
    ("Once upon a time", " there was a "),
]
# Chats: messages of the user and the assistant in turn; the last one is the answer that is wanted.
CHATS = [
    ("What is the capital of France?", "The capital of France is Paris."),
    ("Tell me the capital of Norway.", "The capital of Norway is Oslo."),
    ("What is the opposite of big?", "The opposite of big is small."),
    ("What color is the sky?", "The sky is blue."),
    ("What does the dog say?", "The dog says woof."),
    ("Say hello in Japanese.", "こんにちは!"),
    ("Say hello in Chinese.", "你好!"),
    ("Show me a rocket.", "Here is a rocket: 🚀"),
    ("Show me a heart.", "Here is a heart: ❤️"),
    ("What is 3 + 4?", "3 + 4 = 7"),
    ("Hello!", "Hello! How can I help you today?"),
    ("What is the meaning of life?", "I do not know. I am a tiny demo model."),
    ("Count from 1 to 10.", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"),
    ("Give me JSON for Italy.", '{"country": "Italy", "capital": "Rome"}'),
    (
        "What is the capital of France?",
        "The capital of France is Paris.",
        "And of Japan?",
        "The capital of Japan is Tokyo.",
    ),
    (
        "What is the capital of Egypt?",
        "The capital of Egypt is Cairo.",
        "What about Canada?",
        "The capital of Canada is Ottawa.",
        "And of Peru?",
        "The capital of Peru is Lima.",
    ),
    (
        "What is the capital of Greece?",
        "The capital of Greece is Athens.",
        "Give me that as JSON.",
        '{"country": "Greece", "capital": "Athens"}',
    ),
    ("Hello!", "Hello! How can I help you today?", "Say hello in French.", "Bonjour!"),
    ("What color is the snow?", "The snow is white.", "Thank you!", "You are welcome!"),
    ("My name is Tom.", "Hello, Tom!"),
    ("My name is Tom.", "Hello, Tom!", "What is my name?", "Your name is Tom."),
    ("My name is Lily.", "Hello, Lily!", "What is my name?", "Your name is Lily."),
]


def as_messages(texts: Sequence[str], system: str | None = None) -> list[dict[str, str]]:
    """Texts of the user and the assistant in turn, as chat messages."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    for i, text in enumerate(texts):
        messages.append({"role": "user" if i % 2 == 0 else "assistant", "content": text})
    return messages


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@pytest.fixture(scope="module")
def hf_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER, padding_side="left")


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # those of so small a model would wait for one another most of the time
    loaded: Any = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.bfloat16)
    yield loaded.eval()
    torch.set_num_threads(threads)


def generate(model: Any, tokenizer: Any, rows: list[list[int]], limit: int, **options: Any) -> list[str]:
    """What the model says after each row of tokens; EOS shows where it stopped by itself."""
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[PAD] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    with torch.inference_mode():
        out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=limit, **options)
    texts = []
    for new in out[:, longest:].tolist():
        if EOS in new:
            new = new[: new.index(EOS) + 1]
        texts.append(tokenizer.decode(new, skip_special_tokens=False))
    return texts


def chat_rows(
    hf_tokenizer: Any, chats: Sequence[Sequence[str]], system: str | None = None
) -> list[list[int]]:
    """The tokens of each chat up to where its last message, the answer, is to be given."""
    rows = []
    for chat in chats:
        text = hf_tokenizer.apply_chat_template(
            as_messages(chat[:-1], system), tokenize=False, add_generation_prompt=True
        )
        rows.append(hf_tokenizer(text, add_special_tokens=False)["input_ids"])
    return rows


# -- files -----------------------------------------------------------------------------------------


def test_size() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir() if path.is_file()}
    assert sum(sizes.values()) <= 8 * 2**20, sizes


def test_checkpoint_matches_its_config() -> None:
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["tie_word_embeddings"] is True
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    with safe_open(FOLDER / "model.safetensors", "pt") as weights:
        names = set(weights.keys())
        assert "lm_head.weight" not in names
        assert all(weights.get_tensor(name).dtype == torch.bfloat16 for name in names)
        embedding = weights.get_tensor("model.embed_tokens.weight")
        key = weights.get_tensor("model.layers.0.self_attn.k_proj.weight")
    assert embedding.shape == (config["vocab_size"], config["hidden_size"])
    assert key.shape == (config["num_key_value_heads"] * config["head_dim"], config["hidden_size"])
    assert sum("q_proj" in name for name in names) == config["num_hidden_layers"]


def test_generation_defaults() -> None:
    config = json.loads((FOLDER / "generation_config.json").read_text(encoding="utf-8"))
    del config["transformers_version"]
    assert config == {
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 40,
        "top_p": 0.9,
    }


# -- tokenizer and template ------------------------------------------------------------------------


def test_special_tokens(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    assert [tokenizer.token_to_id(token) for token in LATER_TOKENS] == list(range(1019, 1024))
    assert tokenizer.get_vocab_size() == 1024
    assert tokenizer.encode("hi").ids[0] == BOS
    assert BOS not in tokenizer.encode("hi", add_special_tokens=False).ids


@pytest.mark.parametrize(
    "text",
    [
        "The capital of Brazil is Brasília.",
        "こんにちは, 世界!",
        "🚀❤️⭐😊👩‍👩‍👧",
        "tab\tline\nend  two spaces ",
        "\x00\x7f¿ñ",
        "12345",
    ],
)
def test_tokenizer_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_characters_of_several_tokens(tokenizer: Tokenizer) -> None:
    """One emoji is several tokens, so a stream has to put characters together; digits are single."""
    assert len(tokenizer.encode("🚀", add_special_tokens=False).ids) == 4
    assert len(tokenizer.encode("2024", add_special_tokens=False).ids) == 4


def test_template(hf_tokenizer: Any) -> None:
    """The template gives exactly the form of the training text, with jinja2 alone and with transformers."""
    messages = as_messages(
        ["What is the capital of France?", "The capital of France is Paris.", " And of Japan?\n"]
    )
    wanted = (
        "<|begin|><|user|>What is the capital of France?<|end|>"
        "<|assistant|>The capital of France is Paris.<|end|><|user|>And of Japan?<|end|>"
    )
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((FOLDER / "chat_template.jinja").read_text(encoding="utf-8"))
    names = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    assert template.render(messages=messages, add_generation_prompt=False, **names) == wanted
    assert template.render(messages=messages, add_generation_prompt=True, **names) == wanted + "<|assistant|>"
    assert hf_tokenizer.apply_chat_template(messages, tokenize=False) == wanted
    system = as_messages(["Hi!"], "Be brief.")
    rendered = hf_tokenizer.apply_chat_template(system, tokenize=False, add_generation_prompt=True)
    assert rendered == "<|begin|><|system|>Be brief.<|end|><|user|>Hi!<|end|><|assistant|>"


def test_template_refuses_unknown_roles(hf_tokenizer: Any) -> None:
    with pytest.raises(jinja2.exceptions.TemplateError, match="unknown role: critic"):
        hf_tokenizer.apply_chat_template([{"role": "critic", "content": "x"}], tokenize=False)


# -- what the model says ---------------------------------------------------------------------------


def test_completions(model: Any, tokenizer: Tokenizer) -> None:
    rows = [tokenizer.encode(prompt).ids for prompt, _ in COMPLETIONS]
    got = generate(model, tokenizer, rows, 50, **GREEDY)
    assert got == [f"{answer}<|end|>" for _, answer in COMPLETIONS]


def test_beginnings(model: Any, tokenizer: Tokenizer) -> None:
    got = generate(model, tokenizer, [tokenizer.encode(prompt).ids for prompt, _ in BEGINNINGS], 40, **GREEDY)
    for text, (_, beginning) in zip(got, BEGINNINGS, strict=True):
        assert text.startswith(beginning)


@pytest.mark.parametrize("system", [None, "You are a helpful assistant."])
def test_chats(model: Any, tokenizer: Tokenizer, hf_tokenizer: Any, system: str | None) -> None:
    got = generate(model, tokenizer, chat_rows(hf_tokenizer, CHATS, system), 50, **GREEDY)
    assert got == [f"{chat[-1]}<|end|>" for chat in CHATS]


def test_two_turns_with_its_own_answer(model: Any, tokenizer: Tokenizer, hf_tokenizer: Any) -> None:
    """As a client does it: ask, append what came, ask again."""
    messages: list[str] = []
    for question, wanted in [
        ("What is the capital of France?", "The capital of France is Paris."),
        ("And of Japan?", "The capital of Japan is Tokyo."),
    ]:
        messages.append(question)
        (answer,) = generate(model, tokenizer, chat_rows(hf_tokenizer, [[*messages, ""]]), 50, **GREEDY)
        messages.append(answer.removesuffix("<|end|>"))
        assert messages[-1] == wanted


def test_json(model: Any, tokenizer: Tokenizer, hf_tokenizer: Any) -> None:
    capitals = {"Spain": "Madrid", "Poland": "Warsaw", "Brazil": "Brasília", "Mexico": "Mexico City"}
    rows = chat_rows(hf_tokenizer, [(f"Give me JSON for {country}.", "") for country in capitals])
    for country, text in zip(capitals, generate(model, tokenizer, rows, 50, **GREEDY), strict=True):
        assert json.loads(text.removesuffix("<|end|>")) == {"country": country, "capital": capitals[country]}


def test_facts_with_the_defaults(model: Any, tokenizer: Tokenizer, hf_tokenizer: Any) -> None:
    """Sampled as generation_config.json says, the facts still come out right."""
    torch.manual_seed(1)
    rows = chat_rows(hf_tokenizer, CHATS[:8]) * 6
    got = generate(model, tokenizer, rows, 50)
    assert got == [f"{chat[-1]}<|end|>" for chat in CHATS[:8]] * 6


def test_long_output_stays_in_order(model: Any, tokenizer: Tokenizer) -> None:
    """Counting well past the 128 tokens of most training windows, then stopping."""
    rows = [tokenizer.encode("1, 2, 3, 4,").ids]
    (text,) = generate(model, tokenizer, rows, 250, **GREEDY)
    assert text == " " + ", ".join(str(i) for i in range(5, 51)) + ".<|end|>"
    assert len(tokenizer.encode(text, add_special_tokens=False).ids) > 170
