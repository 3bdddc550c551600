"""Vocabularies of trained models: texts become the tokens that llama.cpp recorded of the original
tokenizers, and tokens become the texts again, whole or piece by piece."""

from pathlib import Path

import pytest

from frontend.text.tokenizer import Tokenizer
from pagewire.errors import StartupError
from pagewire.gguf.header import read_header
from pagewire.gguf.vocabulary import GGUFVocabulary
from tests.real.vocabularies import vectors_of

READ = [
    *("command-r", "deepseek-coder", "falcon", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2"),
    *("qwen35", "refact", "starcoder"),
]
REFUSED = {
    "aquila": "tokenizer.ggml.pre: '' is not known",
    "bert-bge": "tokenizer.ggml.model: 'bert' is not known",
    "deepseek-llm": "tokenizer.ggml.pre: 'deepseek-llm' is not known",
    "gemma-4": "tokenizer.ggml.model: 'gemma4' is not known",
    "nomic-bert-moe": "tokenizer.ggml.model: 't5' is not known",
}


@pytest.mark.parametrize("name", READ)
def test_texts_and_tokens(name: str, llama_cpp: Path):
    path = llama_cpp / f"ggml-vocab-{name}.gguf"
    tokenizer = Tokenizer(GGUFVocabulary(read_header(path)).make())
    pairs = vectors_of(path)
    assert len(pairs) > 40
    for text, tokens in pairs:
        assert list(tokenizer.encode(text, add_special_tokens=False).token_ids) == tokens
        assert tokenizer.decode([tokens], skip_special_tokens=False) == [text]
        pieces = tokenizer.detokenizer(skip_special_tokens=False)
        assert "".join(pieces.push([token]) for token in tokens) + pieces.flush() == text


@pytest.mark.parametrize("name", REFUSED)
def test_kinds_that_are_not_read(name: str, llama_cpp: Path):
    vocabulary = GGUFVocabulary(read_header(llama_cpp / f"ggml-vocab-{name}.gguf"))
    with pytest.raises(StartupError) as caught:
        vocabulary.make()
    assert REFUSED[name] in str(caught.value)
