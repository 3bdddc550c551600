"""What the files of sentence-transformers say about texts to embed.

config_sentence_transformers.json     prompts by name, default_prompt_name
sentence_bert_config.json             max_seq_length; in the folder of the Transformer module
tokenizer_config.json, config.json    model_max_length, max_position_embeddings: the smaller one, where
                                      sentence-transformers finds none above (from 5.4 on)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from frontend.errors import InvalidRequest
from frontend.validation.rules import MAX_COUNT
from pagewire.checkpoints.files import read_object
from pagewire.checkpoints.heads import REMEDY, WHAT, read_modules
from pagewire.errors import StartupError
from pagewire.v1 import model_pb2, prompt_pb2

PROMPTS_FILE = "config_sentence_transformers.json"
LENGTH_FILE = "sentence_bert_config.json"


@dataclass(frozen=True, slots=True)
class TextDefaults:
    """How texts are prepared before they are tokenized.

    prompts: texts that may precede, by name. default: name of the one of requests that name none; "": none.
    max_length: tokens of a text, of which others are cut; 0: those of the context, and nothing is cut.
    """

    prompts: Mapping[str, str] = field(default_factory=dict)
    default: str = ""
    max_length: int = 0

    def longest(self, max_model_len: int) -> int:
        """Returns the tokens that a text may have."""
        return min(self.max_length or max_model_len, max_model_len)

    def prompt(self, name: str | None) -> str:
        """Returns the text of a prompt; name: "": none, None: the default. Raises InvalidRequest."""
        name = self.default if name is None else name
        if name and name not in self.prompts:
            known = ", ".join(self.prompts) or "the checkpoint has none"
            raise InvalidRequest({"prompt_name": f"must be one of: {known}"})
        return self.prompts.get(name, "")

    def apply(
        self,
        inputs: Iterable[tuple[str, prompt_pb2.Prompt]],
        name: str | None,
        max_model_len: int,
        *,
        cuts: bool = True,
    ) -> None:
        """Puts a prompt before each text of a request, and has it cut, unless it says where or `cuts` is
        false. inputs: with their paths. name: see prompt(). Raises InvalidRequest."""
        before = self.prompt(name)
        for path, each in inputs:
            if not each.HasField("text"):
                if name:
                    raise InvalidRequest({"prompt_name": f"is for texts, and {path} is none"})
                continue
            if before:
                each.text = before + each.text
            if cuts and self.max_length and not each.HasField("truncate_to"):
                each.truncate_to = self.longest(max_model_len)
                each.truncation_side = prompt_pb2.TRUNCATION_SIDE_RIGHT

    def message(self) -> model_pb2.EmbeddingTexts:
        """Returns what clients are told."""
        return model_pb2.EmbeddingTexts(
            prompts=self.prompts, default_prompt_name=self.default, max_seq_length=self.max_length
        )


def read_text_defaults(folder: Path, transformer: str) -> TextDefaults:
    """Returns what a checkpoint says. transformer: folder of the module in it; "": the same one. Raises
    StartupError."""
    if not folder.is_dir():
        return TextDefaults()
    fields = read_object(folder, PROMPTS_FILE, WHAT) or {}
    prompts, default = fields.get("prompts") or {}, fields.get("default_prompt_name") or ""
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise StartupError(WHAT, f"{PROMPTS_FILE}: prompts must be texts by name", REMEDY)
    if default and default not in prompts:
        raise StartupError(WHAT, f"{PROMPTS_FILE}: there is no prompt {default!r}", REMEDY)
    name = f"{transformer}/{LENGTH_FILE}" if transformer else LENGTH_FILE
    length = (read_object(folder, name, WHAT) or {}).get("max_seq_length") or 0
    if isinstance(length, bool) or not isinstance(length, int) or length < 0:
        raise StartupError(WHAT, f"{name}: max_seq_length must be a number of tokens, not {length!r}", REMEDY)
    if not length and read_modules(folder):
        length = _length_of_tokenizer(folder / transformer)
    return TextDefaults(prompts, default, length)


def _length_of_tokenizer(folder: Path) -> int:
    """Returns the tokens of a text, by the files of the Transformer module in its folder; 0: these do not say
    it."""
    stated = (read_object(folder, "tokenizer_config.json", WHAT) or {}).get("model_max_length")
    positions = (read_object(folder, "config.json", WHAT) or {}).get("max_position_embeddings")
    # A tokenizer without a limit has the number 10^30 there, as an integer or a float.
    found = [each for each in (stated, positions) if isinstance(each, int | float) and each is not True]
    return int(min((each for each in found if 0 < each < MAX_COUNT), default=0))
