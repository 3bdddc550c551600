"""A frontend's view of a GGUF file: what a folder with the same tokenizer and template would give it."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

from frontend.model.info import load_model
from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
from pagewire.v1 import prompt_pb2
from tests.checkpoints import make_checkpoint
from tests.gguf_files import write_gguf

TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("gguf") / "llama", num_hidden_layers=1)


@pytest.fixture
def write(folder: Path, tmp_path: Path) -> Callable[..., FrontendConfig]:
    def to(**metadata: str) -> FrontendConfig:
        return FrontendConfig(model=str(write_gguf(folder, tmp_path / "tiny.Q8_0.gguf", **metadata)))

    return to


def test_as_from_a_folder(folder: Path, write: Callable[..., FrontendConfig]):
    ours, theirs = load_model(write()), load_model(FrontendConfig(model=str(folder)))
    text = "Hello <|end|> wörld"
    encoded = [each.tokenizer.encode(text, add_special_tokens=True).token_ids for each in (ours, theirs)]
    assert encoded[0] == encoded[1]
    assert (ours.bos_token_id, ours.pad_token_id) == (theirs.bos_token_id, theirs.pad_token_id) == (1, 0)
    assert ours.chat_template is None
    assert ours.name == "tiny.Q8_0"
    assert ours.default_sampling.temperature == 1.0


def test_the_template_of_the_file(write: Callable[..., FrontendConfig], tmp_path: Path):
    config = write(tokenizer__chat_template=TEMPLATE)
    template = load_model(config).chat_template
    assert template is not None
    chat = prompt_pb2.Chat(
        messages=[prompt_pb2.ChatMessage(role="user", content=[prompt_pb2.ContentPart(text="Hi")])]
    )
    assert template.render(template.read(chat, "chat"), "chat") == "<|begin|>[user] Hi\n"
    (tmp_path / "other.jinja").write_text("other")
    chosen = FrontendConfig(model=config.model, chat_template=str(tmp_path / "other.jinja"))
    replaced = load_model(chosen).chat_template
    assert replaced is not None
    assert replaced.render(replaced.read(chat, "chat"), "chat") == "other"


def test_the_archive_has_the_files_of_a_checkpoint(write: Callable[..., FrontendConfig]):
    model = load_model(write(tokenizer__chat_template=TEMPLATE))
    with zipfile.ZipFile(io.BytesIO(model.archive.data)) as archive:
        assert archive.namelist() == ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]
        assert archive.read("chat_template.jinja").decode() == TEMPLATE
        copy = tokenizers.Tokenizer.from_str(archive.read("tokenizer.json").decode())
    assert copy.encode("Hello").ids == list(
        model.tokenizer.encode("Hello", add_special_tokens=True).token_ids
    )


def test_a_template_that_does_not_parse(write: Callable[..., FrontendConfig]):
    with pytest.raises(StartupError, match=r"tiny.Q8_0.gguf, tokenizer.chat_template, line 1"):
        load_model(write(tokenizer__chat_template="{% if %}"))


def test_a_file_that_is_no_gguf(tmp_path: Path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(StartupError, match="does not begin with GGUF"):
        load_model(FrontendConfig(model=str(path)))
