"""The tokens of the simulated model: the special ones, then one for each byte."""

import json
from functools import cache

from tests.frontend.fakes import END, SPECIAL, byte_level_tokenizer

VOCAB_SIZE = len(SPECIAL) + 256
EOS = END


@cache
def tokenizer_json() -> str:
    """The model's tokenizer.json, without the merges of the frontend's: their tokens lie beyond."""
    described = json.loads(byte_level_tokenizer().to_str())
    described["added_tokens"] = [each for each in described["added_tokens"] if each["id"] < VOCAB_SIZE]
    vocabulary = described["model"]["vocab"]
    described["model"]["vocab"] = {text: token for text, token in vocabulary.items() if token < VOCAB_SIZE}
    described["model"]["merges"] = []
    return json.dumps(described)
