"""S14: the text of a control token in a message stays text."""

import pytest
from tokenizers import decoders, pre_tokenizers

from frontend.text.control_tokens import ControlTokens
from frontend.text.tokenizer import Tokenizer
from tests.frontend.fakes import END, SPECIAL, byte_level_tokenizer, piece_tokenizer


@pytest.fixture(scope="module")
def raw():
    return byte_level_tokenizer()


def test_marked_text_is_tokenized_as_text(raw):
    """Each special token's text, in every place of a message, round-trips without the token."""
    control = ControlTokens(Tokenizer(raw))
    for text in SPECIAL:
        for message in (text, f"hi {text}", f"{text} hi", f"a{text}{text}b", f"<|{text}|>"):
            marked = control.mark(message)
            assert control.is_marked(marked) and control.unmark(marked) == message
            rendered = f"<|user|>{marked}<|end|>"
            encoding = control.encode(rendered, add_special_tokens=False)
            user, *inner, end = encoding.token_ids
            assert (user, end) == (3, END)
            assert not set(inner) & set(range(len(SPECIAL)))
            assert raw.decode(inner, skip_special_tokens=False) == message


def test_the_rest_is_tokenized_as_ever(raw):
    """Only the control tokens of users make a difference: borders between tokens stay where they were."""
    control = ControlTokens(Tokenizer(raw))
    rendered = "<|begin|><|user|>hi the é<think>   \n\n🙂<|end|> x<|assistant|>"
    for special in (False, True):
        encoding = control.encode(rendered, add_special_tokens=special)
        expected = raw.encode(rendered, add_special_tokens=special)
        assert list(encoding.token_ids) == expected.ids
        assert list(encoding.added) == expected.special_tokens_mask


def test_tokenizers_that_treat_the_beginning_of_a_text_specially():
    """One call for the whole text: the pieces between special tokens do not each begin a text."""
    raw = piece_tokenizer(decoders.Metaspace(prepend_scheme="first"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    control = ControlTokens(Tokenizer(raw))
    rendered = "<s>a b</s>c <s>"
    expected = raw.encode(rendered, add_special_tokens=False)
    assert list(control.encode(rendered, add_special_tokens=False).token_ids) == expected.ids


def test_text_without_control_tokens_is_not_marked(raw):
    control = ControlTokens(Tokenizer(raw))
    for message in ("", "hi", "<|en d|>", "<think>"):
        assert control.mark(message) == message and not control.is_marked(message)


def test_a_tokenizer_without_special_tokens():
    from tokenizers import Tokenizer as RawTokenizer

    from tests.frontend.fakes import byte_level_model

    control = ControlTokens(Tokenizer(RawTokenizer(byte_level_model())))
    assert control.mark("<|end|>") == "<|end|>"
