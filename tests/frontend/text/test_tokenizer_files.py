"""Tokenizers of checkpoints, old and new, and the zip that clients get."""

import hashlib
import io
import json
import zipfile

import pytest
from tokenizers import Tokenizer as RawTokenizer

from frontend.text.tokenizer_files import TokenizerArchive, load_tokenizer, read_json, special_tokens
from pagewire.errors import StartupError
from tests.frontend.fakes import BEGIN, byte_level_model, byte_level_tokenizer, write_checkpoint

GPT2 = {"bos_token": "<|end|>", "eos_token": "<|end|>", "unk_token": "<|end|>"}
OPT = {
    "bos_token": {"content": "<|begin|>"},
    "eos_token": {"content": "<|end|>"},
    "pad_token": "<|pad|>",
    "add_bos_token": True,
    "errors": "replace",
}


@pytest.fixture
def old_folder(tmp_path):
    """vocab.json and merges.txt, as GPT-2 and OPT came."""
    byte_level_model().save(str(tmp_path))
    return tmp_path


def test_tokenizer_json(tmp_path):
    tokenizer = load_tokenizer(write_checkpoint(tmp_path), {})
    expected = byte_level_tokenizer().encode("hi the").ids
    assert list(tokenizer.encode("hi the", add_special_tokens=True).token_ids) == expected


def test_vocabulary_and_merges_without_bos(old_folder):
    """GPT-2: nothing is added."""
    tokenizer = load_tokenizer(old_folder, GPT2)
    expected = byte_level_tokenizer().encode("hi the é", add_special_tokens=False).ids
    assert list(tokenizer.encode("hi the é", add_special_tokens=True).token_ids) == expected
    assert tokenizer.decode([expected], skip_special_tokens=True) == ["hi the é"]
    offsets = tokenizer.encode(" hi", add_special_tokens=True, offsets=True).offsets
    assert list(offsets) == [(0, 3)]


def test_vocabulary_and_merges_with_bos(old_folder):
    """OPT: a text begins with BOS, and specials are skipped."""
    tokenizer = load_tokenizer(old_folder, OPT)
    ids = tokenizer.encode("hi", add_special_tokens=True).token_ids
    assert ids[0] == BEGIN and list(ids) == byte_level_tokenizer().encode("hi").ids
    assert tokenizer.decode([ids], skip_special_tokens=True) == ["hi"]
    assert list(tokenizer.encode("<|end|>", add_special_tokens=False).token_ids) == [2]


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(StartupError) as caught:
        load_tokenizer(tmp_path, {})
    assert "tokenizer.json" in caught.value.why and caught.value.todo


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "Nonsense"}}'])
def test_a_tokenizer_file_that_cannot_be_read(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(StartupError) as caught:
        load_tokenizer(tmp_path, {})
    assert "tokenizer.json" in caught.value.why


def test_merges_that_cannot_be_read(old_folder):
    (old_folder / "merges.txt").write_text("no pair\nhere either at all\n")
    with pytest.raises(StartupError, match="merges.txt"):
        load_tokenizer(old_folder, {})


def test_special_tokens_of_a_configuration():
    config = {**OPT, "model_max_length": 9, "add_bos_token": True, "image_token": "<img>", "x_token": None}
    assert special_tokens(config) == {
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "image_token": "<img>",
    }


@pytest.mark.parametrize("content", ["{", "[1]", "\xff"])
def test_json_that_cannot_be_read(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(StartupError, match="a.json"):
        read_json(path)
    assert read_json(tmp_path / "none.json") == {}


def test_the_archive_is_the_same_for_the_same_files(tmp_path):
    """Two frontends must agree, whenever and wherever their files were written."""
    archives = [TokenizerArchive(write_checkpoint(tmp_path / name), "{{ 1 }}") for name in "ab"]
    assert archives[0].data == archives[1].data
    assert archives[0].sha256 == hashlib.sha256(archives[0].data).hexdigest()


def test_the_archive_makes_a_tokenizer(tmp_path):
    """What is inside is what transformers needs, with the template that is in use."""
    folder = write_checkpoint(tmp_path / "model", vocab_bin="not of the tokenizer")
    archive = TokenizerArchive(folder, "{{ 'mine' }}")
    with zipfile.ZipFile(io.BytesIO(archive.data)) as files:
        assert files.namelist() == ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]
        assert files.read("chat_template.jinja") == b"{{ 'mine' }}"
        raw = RawTokenizer.from_str(files.read("tokenizer.json").decode())
        assert json.loads(files.read("tokenizer_config.json"))["bos_token"] == "<|begin|>"
    assert raw.encode("hi the").ids == byte_level_tokenizer().encode("hi the").ids
