"""The files in pagewire/demo_model are of this package's tokenizer, template and shape."""

import json
import random

from tokenizers import Tokenizer

from demo_model.__main__ import DEFAULT_OUT, model_config
from demo_model.calls import calls_document
from demo_model.forms import forms_document
from demo_model.template import CHAT_TEMPLATE, LATER_TOKENS, SPECIAL_TOKENS
from demo_model.text import document
from demo_model.thoughts import thoughts_document

TOKENIZER = Tokenizer.from_file(str(DEFAULT_OUT / "tokenizer.json"))


def test_template_and_special_tokens():
    assert (DEFAULT_OUT / "chat_template.jinja").read_text(encoding="utf-8") == CHAT_TEMPLATE
    assert None not in map(TOKENIZER.token_to_id, [*SPECIAL_TOKENS, *LATER_TOKENS])


def test_shape():
    shipped = json.loads((DEFAULT_OUT / "config.json").read_text())
    for name in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_key_value_heads",
    ):
        assert getattr(model_config(TOKENIZER), name) == shipped[name]


def test_text_is_a_function_of_the_seed():
    """The vocabulary has a token for each of its characters, too."""
    for make in (document, calls_document, thoughts_document, forms_document):
        first, again = ([make(random.Random(seed)) for seed in range(50)] for _ in range(2))
        assert first == again and first[0] != first[1]
        for segments in first:
            text = "".join(segment.text for segment in segments)
            ids = TOKENIZER.encode(text, add_special_tokens=False).ids
            assert TOKENIZER.decode(ids, skip_special_tokens=False) == text
