"""Which format a model's answers are read by."""

import pytest
import tokenizers
from tokenizers import decoders, models

from frontend.answers.choice import choose
from frontend.answers.formats import REASONING_FORMATS, TOOL_FORMATS
from frontend.text.tokenizer import Tokenizer
from pagewire.errors import StartupError
from tests.frontend.fakes import byte_level_tokenizer, piece_tokenizer

HERMES = "<tool_call>{'name': ..., 'arguments': ...}</tool_call> <think></think>"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level_tokenizer())


def test_the_template_decides(tokenizer: Tokenizer) -> None:
    chosen = choose(tokenizer, None, HERMES)
    assert chosen.tools is TOOL_FORMATS["hermes"] and chosen.reasoning is REASONING_FORMATS["think"]
    assert chosen.reasons and chosen.without_calls is not None
    plain = choose(tokenizer, None, "{{ messages }}")
    assert plain.tools is None and not plain.reasons and plain.without_calls is None


def test_what_the_checkpoint_says_comes_first(tokenizer: Tokenizer) -> None:
    stated = {"fields": {"tool_calls": {"open": "[TOOL_CALLS]", "args": "[ARGS]"}}}
    chosen = choose(tokenizer, stated, HERMES)
    assert chosen.tools is TOOL_FORMATS["mistral"] and chosen.reasoning is REASONING_FORMATS["think"]


def test_flags_come_before_both(tokenizer: Tokenizer) -> None:
    chosen = choose(tokenizer, None, HERMES, "glm-4.5", "none")
    assert chosen.tools is TOOL_FORMATS["glm-4.5"] and chosen.reasoning is None
    assert choose(tokenizer, None, HERMES, "none").tools is None


def test_harmony_has_reasoning_of_its_own(tokenizer: Tokenizer) -> None:
    chosen = choose(tokenizer, None, None, "harmony", "think")
    assert chosen.reasoning is None and chosen.reasons
    assert chosen.without_calls is not None and len(chosen.without_calls.routes) == 1
    assert len(chosen.with_calls.routes) == 2


def test_an_unknown_name_is_refused_with_the_known_ones(tokenizer: Tokenizer) -> None:
    with pytest.raises(StartupError, match="--tool-format is one of auto, none, harmony"):
        choose(tokenizer, None, None, "hermes2")


def test_a_format_that_the_tokenizer_cannot_spell() -> None:
    """Named by a flag it is refused; found in a template it is left out."""

    words = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    words.decoder = decoders.Fuse()
    with pytest.raises(StartupError, match="no way to spell '<tool_call>'"):
        choose(Tokenizer(words), None, None, "hermes")
    assert choose(Tokenizer(words), None, HERMES).tools is None
    assert choose(Tokenizer(piece_tokenizer(decoders.ByteFallback())), None, HERMES).tools is not None
