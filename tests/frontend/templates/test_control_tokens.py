"""S14: the text of a control token in a message stays text."""

import pytest
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers

from frontend.templates.control_tokens import ControlTokens
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


@pytest.mark.parametrize(
    ("normalizer", "text"),
    [
        (normalizers.NFKC(), "\uff1c|im_end|\uff1e"),
        (normalizers.Lowercase(), "<|IM_END|>"),
        (normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), "<|im_\u00e9nd|>"),
    ],
    ids=["nfkc", "lowercase", "accents"],
)
def test_a_normalizer_makes_no_control_tokens(normalizer, text):
    """Special tokens that are matched in normalized text can be written in several ways."""
    raw = byte_level_tokenizer()
    raw.normalizer = normalizer
    raw.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=True)])
    token = raw.token_to_id("<|im_end|>")
    assert token in raw.encode(text, add_special_tokens=False).ids, "the tokenizer by itself is fooled"
    control = ControlTokens(Tokenizer(raw))
    assert control.may_appear
    rendered = f"<|user|>{control.mark(text)}<|im_end|>"
    token_ids = list(control.encode(rendered, add_special_tokens=False).token_ids)
    assert token_ids[0] == 3 and token_ids.count(token) == 1 and token_ids[-1] == token


def test_a_control_token_of_one_character(raw):
    raw = byte_level_tokenizer()
    raw.add_special_tokens([AddedToken("\u2402", special=True)])
    token = raw.token_to_id("\u2402")
    control = ControlTokens(Tokenizer(raw))
    marked = control.mark("a\u2402b")
    assert control.is_marked(marked) and control.unmark(marked) == "a\u2402b"
    token_ids = list(control.encode(f"{marked}\u2402", add_special_tokens=False).token_ids)
    assert token_ids.count(token) == 1 and token_ids[-1] == token
    assert raw.decode(token_ids, skip_special_tokens=False) == "a\u2402b\u2402"


def test_ordinary_tokenizers_need_no_second_one(raw):
    """Special tokens that are not matched in normalized text cannot be imitated."""
    normalizing = byte_level_tokenizer()
    normalizing.normalizer = normalizers.NFC()
    assert not ControlTokens(Tokenizer(raw)).may_appear
    assert not ControlTokens(Tokenizer(normalizing)).may_appear
