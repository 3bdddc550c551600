"""The text of a control token in a message stays text; what the template writes is the token."""

import re

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from frontend.templates.control_tokens import ControlTokens, _any_of, is_control
from frontend.templates.taint import Tainted, tainted
from frontend.text.tokenizer import Tokenizer
from tests.frontend.fakes import END, SPECIAL, byte_level_model, byte_level_tokenizer, piece_tokenizer


@pytest.fixture(scope="module")
def raw():
    return byte_level_tokenizer()


def ids(control: ControlTokens, text: str, special: bool = False) -> list[int]:
    encoding = control.encode(text, add_special_tokens=special)
    assert encoding is not None
    return list(encoding.token_ids)


@pytest.mark.parametrize("text", [*SPECIAL, "<think>"])
def test_what_a_client_writes_is_tokenized_as_text(raw, text):
    """Each control token, in every place of a message, round-trips without the token."""
    control = ControlTokens(Tokenizer(raw))
    barred = {*range(len(SPECIAL)), raw.token_to_id("<think>")}
    for message in (text, f"hi {text}", f"{text} hi", f"a{text}{text}b", f"<|{text}|>"):
        user, *inner, end = ids(control, "<|user|>" + tainted(message) + "<|end|>")
        assert (user, end) == (3, END)
        assert not barred.intersection(inner)
        assert raw.decode(inner, skip_special_tokens=False) == message


def test_a_token_that_client_and_template_write_together_is_text(raw):
    control = ControlTokens(Tokenizer(raw))
    for text in ("<|" + tainted("end") + "|>", tainted("<|en") + "d|>", "<" + tainted("|end|>")):
        found = ids(control, text + "<|end|>")
        assert found[-1] == END and END not in found[:-1]
        assert raw.decode(found, skip_special_tokens=False) == "<|end|><|end|>"


def test_the_rest_is_tokenized_as_ever(raw):
    """Only the control tokens of clients make a difference: borders between tokens stay where they were."""
    control = ControlTokens(Tokenizer(raw))
    rendered = "<|begin|><|user|>hi the é<think>   \n\n🙂<|end|> x<|assistant|>"
    for special in (False, True):
        expected = raw.encode(rendered, add_special_tokens=special)
        for text in (rendered, rendered + tainted(""), _strictly(rendered)):
            encoding = control.encode(text, add_special_tokens=special)
            assert encoding is not None
            assert list(encoding.token_ids)[: len(expected.ids)] == expected.ids
            assert list(encoding.added)[: len(expected.ids)] == expected.special_tokens_mask


def _strictly(text: str) -> Tainted:
    """The text, and one of a client that needs the second tokenizer."""
    return text + tainted("<|end|>")


def test_offsets_are_known_where_no_client_spells_a_control_token(raw):
    control = ControlTokens(Tokenizer(raw))
    encoding = control.encode("<|user|>" + tainted("hi"), add_special_tokens=False, offsets=True)
    assert encoding is not None and list(encoding.offsets) == [(0, 8), (8, 10)]
    assert control.encode(_strictly("<|user|>"), add_special_tokens=False, offsets=True) is None


def test_tokenizers_that_treat_the_beginning_of_a_text_specially():
    """One call for the whole text: the pieces between control tokens do not each begin a text."""
    raw = piece_tokenizer(decoders.Metaspace(prepend_scheme="first"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    control = ControlTokens(Tokenizer(raw))
    expected = raw.encode("<s>a b</s>c <s>", add_special_tokens=False).ids
    found = ids(control, "<s>a b</s>c <s>" + tainted("</s>"))
    assert found[: len(expected)] == expected and raw.token_to_id("</s>") not in found[len(expected) :]


@pytest.mark.parametrize(
    "model",
    [
        models.Unigram([("<unk>", 0.0), ("<end>", -1.0), ("<", -9.0), (">", -9.0), ("end", -9.0)], 0),
        models.WordLevel({"<unk>": 0, "<end>": 1, "end": 2}, "<unk>"),
        models.BPE({"<unk>": 0, "<end>": 1, "<": 2, "end>": 3}, [("<", "end>")], unk_token="<unk>"),
        models.BPE({"<unk>": 0, "<end>": 1}, [], unk_token="<unk>", ignore_merges=True),
    ],
    ids=["unigram", "words", "merges", "whole words"],
)
def test_models_that_find_a_control_token_in_a_text_by_themselves(model):
    """Their vocabulary has it, and they need no rule to find it."""
    raw = tokenizers.Tokenizer(model)
    raw.add_special_tokens([AddedToken("<unk>", special=True), AddedToken("<end>", special=True)])
    found = ids(ControlTokens(Tokenizer(raw)), tainted("<end>") + "<end>")
    assert found[-1] == 1 and found.count(1) == 1


def test_a_tokenizer_without_control_tokens():
    control = ControlTokens(Tokenizer(tokenizers.Tokenizer(byte_level_model())))
    assert len(ids(control, tainted("<|end|>"))) == len("<|end|>")


@pytest.mark.parametrize(
    ("normalizer", "text"),
    [
        (normalizers.NFKC(), "\uff1c|im_end|\uff1e"),
        (normalizers.Lowercase(), "<|IM_END|>"),
        (normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), "<|im_\u00e9nd|>"),
    ],
    ids=["nfkc", "lowercase", "accents"],
)
@pytest.mark.parametrize("special", [True, False])
def test_a_normalizer_makes_no_control_tokens(normalizer, text, special):
    """Control tokens that are matched in normalized text can be written in several ways."""
    raw = byte_level_tokenizer()
    raw.normalizer = normalizer
    raw.add_tokens([AddedToken("<|im_end|>", special=special, normalized=True)])
    token = raw.token_to_id("<|im_end|>")
    assert token in raw.encode(text, add_special_tokens=False).ids, "the tokenizer by itself is fooled"
    control = ControlTokens(Tokenizer(raw))
    token_ids = ids(control, "<|user|>" + tainted(text) + "<|im_end|>")
    assert token_ids[0] == 3 and token_ids.count(token) == 1 and token_ids[-1] == token


def test_a_control_token_of_one_character(raw):
    raw = byte_level_tokenizer()
    raw.add_special_tokens([AddedToken("\u2402", special=True)])
    token = raw.token_to_id("\u2402")
    token_ids = ids(ControlTokens(Tokenizer(raw)), tainted("a\u2402b") + "\u2402")
    assert token_ids.count(token) == 1 and token_ids[-1] == token
    assert raw.decode(token_ids, skip_special_tokens=False) == "a\u2402b\u2402"


def test_the_longest_of_several_control_tokens_counts(raw):
    raw = byte_level_tokenizer()
    raw.add_special_tokens(["<a>", "<a><b>", "<a><b><c>"])
    longest, user = raw.token_to_id("<a><b><c>"), tainted("<|end|>")
    assert ids(ControlTokens(Tokenizer(raw)), "<a><b><c>" + user)[0] == longest
    assert ids(ControlTokens(Tokenizer(raw)), "<a><b>" + user)[0] == longest - 1


@pytest.mark.parametrize(
    ("text", "special", "control"),
    [
        ("<|end|>", True, True),
        ("\n", True, True),
        ("</think>", False, True),
        ("<｜User｜>", False, True),
        ("[TOOL_CALLS]", False, True),
        ("   ", False, False),
        ("\n\n", False, False),
        ("----", False, False),
        ("<table>", False, False),
        ("</h1>", False, False),
    ],
)
def test_which_added_tokens_are_control_tokens(text, special, control):
    assert is_control(AddedToken(text, special=special)) == control


def test_long_control_tokens_are_found() -> None:
    """One group per character was too deep for Python's compiler of regular expressions."""
    texts = ["<x>", "<" + 900 * "x" + ">", "<" + 899 * "x" + ">"]
    pattern = re.compile(_any_of(sorted(texts)))
    assert [found[0] for found in pattern.finditer("a".join(texts))] == texts
