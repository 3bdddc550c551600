"""tekken.json gives the tokens that merging by rank gives."""

import base64
import io
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers

from frontend.model.info import load_model
from frontend.text.tekken import make_tekken
from frontend.text.tokenizer import Tokenizer
from pagewire.config import FrontendConfig
from pagewire.errors import StartupError

PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTROL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"]
NUM_CONTROL = 8
TEXTS = [
    "",
    "the other weather: there!",
    "  two  spaces,\n\n\tand 2,024 tabs \r\n",
    "Grüße, 世界 🙂🏽 é \u0301",
    "\x00\x01\x7f",
    "</s> is written [INST] here",
]


def ranked() -> list[bytes]:
    """All bytes, in an odd order, then longer tokens, some of which only a merge of others reaches."""
    single = [bytes((byte,)) for byte in range(256)]
    random.Random(3).shuffle(single)
    words = [
        "th",
        "he",
        "the",
        " the",
        "er",
        "ere",
        "other",
        " w",
        "ea",
        "eat",
        "weather",
        "  ",
        "\n\n",
        "üß",
        "世",
    ]
    return single + [word.encode() for word in words]


def content(**changes: Any) -> dict[str, Any]:
    tokens = ranked()
    return {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(tokens) + 5,
            "default_vocab_size": NUM_CONTROL + len(tokens) - 1,
            "default_num_special_tokens": NUM_CONTROL,
            "version": "v3",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate(tokens)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(CONTROL)
        ],
    } | changes


def by_rank(text: str) -> list[int]:
    """The rule itself: of neighbours that join to a token, those of the lowest rank join first."""
    ranks = {token: rank for rank, token in enumerate(ranked()[:-1])}  # the last is beyond default_vocab_size
    splitter = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False)
    ids = []
    for piece, _ in splitter.pre_tokenize_str(text):
        parts = [bytes((byte,)) for byte in piece.encode()]
        if piece.encode() in ranks:
            parts = [piece.encode()]
        while True:
            joined = [ranks.get(left + right, 1 << 30) for left, right in zip(parts, parts[1:], strict=False)]
            if min(joined, default=1 << 30) == 1 << 30:
                break
            at = joined.index(min(joined))
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [NUM_CONTROL + ranks[part] for part in parts]
    return ids


@pytest.mark.parametrize("text", TEXTS[:-1])
def test_tokens_and_texts(text: str):
    tokenizer = Tokenizer(make_tekken(content(), "tekken.json"))
    tokens = list(tokenizer.encode(text, add_special_tokens=False).token_ids)
    assert tokens == by_rank(text)
    assert tokenizer.decode([tokens], skip_special_tokens=False) == [text]
    pieces = tokenizer.detokenizer(skip_special_tokens=False)
    assert "".join(pieces.push([token]) for token in tokens) + pieces.flush() == text
    assert list(tokenizer.encode(text, add_special_tokens=True).token_ids) == [1, *tokens]


def test_every_word_that_can_be_made():
    """Texts of many short words, where merges compete."""
    tokenizer, draw = Tokenizer(make_tekken(content(), "tekken.json")), random.Random(7)
    for _ in range(300):
        text = "".join(
            draw.choice(["th", "e", "re", " ", "w", "ather", "o", "\n", "ß", "ü"]) for _ in range(12)
        )
        assert list(tokenizer.encode(text, add_special_tokens=False).token_ids) == by_rank(text)


def test_control_tokens():
    tokenizer = Tokenizer(make_tekken(content(), "tekken.json"))
    assert tokenizer.vocab_size == NUM_CONTROL + len(ranked()) - 1
    assert list(tokenizer.encode(TEXTS[-1], add_special_tokens=False).token_ids)[0] == 2
    assert [tokenizer.token_id(text) for text in (*CONTROL, "<SPECIAL_7>")] == [0, 1, 2, 3, 4, 5, 7]
    assert tokenizer.decode([[1, 2, 8]], skip_special_tokens=True) == [
        tokenizer.decode([[8]], skip_special_tokens=False)[0]
    ]


def test_older_files_list_no_control_tokens():
    tokenizer = Tokenizer(make_tekken(content(special_tokens=None), "tekken.json"))
    names = ("</s>", "[/INST]", "[AVAILABLE_TOOLS]", "[TOOL_RESULTS]")
    assert [tokenizer.token_id(text) for text in names] == [2, 4, 5, 7]


def test_a_checkpoint_with_nothing_else(tmp_path: Path):
    """Ends and padding are named, and GetTokenizer sends the file."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tekken.json").write_text(json.dumps(content()))
    model = load_model(FrontendConfig(model=str(tmp_path)))
    assert (model.bos_token_id, model.pad_token_id, model.chat_template) == (1, 5, None)
    assert "tekken.json" in zipfile.ZipFile(io.BytesIO(model.archive.data)).namelist()


def without(name: str) -> dict[str, Any]:
    made = content()
    del made["config"][name]
    return made


def with_entry(place: int, **changes: Any) -> dict[str, Any]:
    made = content()
    made["vocab"][place] |= changes
    return made


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (content(config=None), "config.pattern must be a regular expression"),
        (without("default_vocab_size"), "config.default_vocab_size must be a number"),
        (content(special_tokens="<s>"), "special_tokens must be a list"),
        (content(special_tokens=[{"rank": 8, "token_str": "a"}]), "a rank below 8"),
        (content(special_tokens=[{"rank": 0, "token_str": "<SPECIAL_1>"}]), "two of them have one text"),
        (content(vocab=[]), "vocab must have 270 tokens"),
        (with_entry(3, token_bytes="%"), r"vocab\[3\].token_bytes must be bytes in base64"),
        (with_entry(3, rank=4), r"vocab\[3\] must have rank 3"),
        (
            with_entry(3, token_bytes=base64.b64encode(ranked()[4]).decode()),
            "must begin with all single bytes",
        ),
    ],
)
def test_wrong_files(made: dict[str, Any], why: str, tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tekken.json").write_text(json.dumps(made))
    with pytest.raises(StartupError, match=why) as refused:
        load_model(FrontendConfig(model=str(tmp_path)))
    assert "tekken.json" in refused.value.why
