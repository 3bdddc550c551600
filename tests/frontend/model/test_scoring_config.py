"""How a checkpoint, its name or flags say that it scores pairs."""

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment

from frontend.model.info import load_model
from frontend.model.score_templates import RERANKERS
from pagewire.checkpoints.heads import CLASSIFIER
from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
from pagewire.internal.v1.engine_pb2 import (
    POOLING_TYPE_CLS,
    POOLING_TYPE_LAST,
    POOLING_TYPE_MEAN,
    Pooling,
)
from tests.frontend.fakes import encode, write_checkpoint

OWN = """{% set query = messages | selectattr("role", "eq", "query") | map(attribute="content") | first %}
{% set document = messages | selectattr("role", "eq", "document") | map(attribute="content") | first %}
{{ query }}?{{ document }}"""
ONE_LABEL = {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}


def load(folder: Path, files: dict[str, Any] | None = None, **flags: Any) -> Any:
    write_checkpoint(folder, **(files or {}))
    return load_model(FrontendConfig(model=str(folder), **flags)).scoring


QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: {}\n<Query>: Q?\n<Document>: D\n!<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
MXBAI = (
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n{}query: Q?\ndocument: D\n!\nYou are a search relevance expert who evaluates how well "
    "documents match search queries. For each query-document pair, carefully analyze the semantic "
    "relationship between them, then provide your binary relevance judgment (0 for not relevant, 1 for "
    "relevant).\nRelevance:<|im_end|>\n<|im_start|>assistant\n"
)
BGE = "<|begin|>A: Q?\nB: D\n!\n{}"
ASKED = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by "
    "providing a prediction of either 'Yes' or 'No'."
)
SEARCH = "Given a web search query, retrieve relevant passages that answer the query"


@pytest.mark.parametrize(
    ("name", "instruction", "expected"),
    [
        ("qwen3-reranker", "", QWEN3.format(SEARCH)),
        ("qwen3-reranker", "I", QWEN3.format("I")),
        ("mxbai-rerank-v2", "", MXBAI.format("")),
        ("mxbai-rerank-v2", "I", MXBAI.format("instruction: I\n")),
        ("bge-reranker-v2-gemma", "", BGE.format(ASKED)),
        ("bge-reranker-v2-gemma", "I", BGE.format("I")),
    ],
)
def test_templates_are_those_of_the_models_own_code(
    tmp_path: Path, name: str, instruction: str, expected: str
):
    scoring = load(tmp_path, score_template=name, score_tokens="y,n")
    assert scoring.template.render("Q?", "D\n!", instruction, "") == expected
    assert scoring.template.takes_instruction


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Qwen3-Reranker-0.6B", "qwen3-reranker"),
        ("models--Qwen--Qwen3-Reranker-8B/snapshots/0", "qwen3-reranker"),
        ("bge-reranker-v2-gemma", "bge-reranker-v2-gemma"),
        ("mxbai-rerank-large-v2", "mxbai-rerank-v2"),
        ("mxbai-rerank-large-v1", ""),
        ("Qwen3-Embedding-0.6B", ""),
        ("Qwen3-Reranker-0.6B/llama", ""),
    ],
)
def test_checkpoints_that_are_known_by_name(tmp_path: Path, name: str, known: str):
    scoring = load(tmp_path / name, score_tokens="y,n" if known else "")
    assert (scoring is not None) == bool(known)
    if known:
        source = RERANKERS[known].template
        plain = Environment().from_string(source).render(query="q", document="d", bos_token="<|begin|>")
        assert scoring.template.render("q", "d", "", "") == plain
        assert scoring.pooling == Pooling(type=POOLING_TYPE_LAST, token_ids=encode("yn"))


def test_a_name_whose_tokens_the_vocabulary_lacks_says_nothing(tmp_path: Path):
    """Here yes is three tokens: this is another model."""
    assert load(tmp_path / "Qwen3-Reranker-0.6B") is None
    with pytest.raises(StartupError, match="'yes' is not one token of the vocabulary, but 3"):
        load(tmp_path, score_template="qwen3-reranker")


def test_the_checkpoints_own_template(tmp_path: Path):
    files = {"chat_template_jinja": OWN}
    assert load(tmp_path, files) is None, "nothing says which tokens"
    scoring = load(tmp_path, files, score_tokens="y")
    assert scoring.template.render("q", "d", "", "") == "q?d" and not scoring.template.takes_instruction
    assert list(scoring.pooling.token_ids) == encode("y")
    assert load(tmp_path, {"config_json": ONE_LABEL, **files}).pooling.head == CLASSIFIER


@pytest.mark.parametrize(
    ("fields", "activation"),
    [
        ({}, "sigmoid"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "none"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "none"),
    ],
)
def test_a_classifier_of_one_label(tmp_path: Path, fields: dict[str, Any], activation: str):
    scoring = load(tmp_path, {"config_json": ONE_LABEL | fields}, score_template="qwen3-reranker")
    assert (scoring.pooling, scoring.activation) == (Pooling(type=POOLING_TYPE_LAST, head=2), activation)


def test_the_activation_that_newer_checkpoints_name(tmp_path: Path):
    """In a file of their own, which counts before config.json."""
    fields = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}
    write_checkpoint(tmp_path, config_json=ONE_LABEL | fields)
    newer = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(newer))
    config = FrontendConfig(model=str(tmp_path), score_template="qwen3-reranker")
    scoring = load_model(config).scoring
    assert scoring is not None and scoring.activation == "none"


TWO = {"config_json": {**ONE_LABEL, "num_labels": 2}}
BARE = {"config_json": {"architectures": ["MistralModel"]}}
OTHER = {"config_json": {**ONE_LABEL, "sbert_ce_default_activation_function": "x.Tanh"}}


@pytest.mark.parametrize(
    ("files", "flags", "problem"),
    [
        ({}, {"score_tokens": "y,n"}, "--score-tokens has no template"),
        ({}, {"score_template": "/nowhere"}, "/nowhere is no file, and none of qwen3-reranker"),
        ({}, {"score_template": "TEMPLATE"}, "must name the tokens for and against"),
        ({}, {"score_template": "TEMPLATE", "score_tokens": "a,b,c"}, "must name the tokens for and against"),
        ({}, {"score_template": "TEMPLATE", "score_tokens": "y,"}, "'' is not one token"),
        ({}, {"score_template": "QUERY", "score_tokens": "y,n"}, "leaves out the document"),
        ({}, {"score_template": "BROKEN", "score_tokens": "y,n"}, "line 1"),
        ({}, {"score_template": "RAISES", "score_tokens": "y,n"}, "refused it: no"),
        (TWO, {"score_template": "TEMPLATE"}, "the classifier has 2 labels"),
        (TWO, {"score_template": "TEMPLATE", "score_tokens": "y,n"}, "has a classifier in place of tokens"),
        (OTHER, {"score_template": "TEMPLATE"}, "activation_fn Tanh is not known"),
        (
            BARE,
            {"score_template": "TEMPLATE", "score_tokens": "y,n", "pooling_type": "last"},
            "without an output head",
        ),
    ],
)
def test_what_stops_the_start(tmp_path: Path, files: dict[str, Any], flags: dict[str, Any], problem: str):
    sources = {
        "TEMPLATE": "{{ query }} {{ document }}",
        "QUERY": "{{ query }}",
        "BROKEN": "{{ query",
        "RAISES": "{{ raise_exception('no') }}",
    }
    if flags.get("score_template") in sources:
        path = tmp_path / "pair.jinja"
        path.write_text(sources[flags["score_template"]])
        flags = {**flags, "score_template": str(path)}
    with pytest.raises(StartupError) as stopped:
        load(tmp_path / "model", files, **flags)
    assert problem in str(stopped.value)


def test_pairs_of_encoders_are_those_of_their_tokenizer(tmp_path: Path):
    """Unless a template is named; chosen tokens have no logits there, and several labels are no score."""
    config = {"architectures": ["BertForSequenceClassification"], "num_labels": 1}
    found = load(tmp_path / "one", {"config_json": config})
    assert found.template is None and found.activation == "sigmoid"
    assert found.pooling == Pooling(type=POOLING_TYPE_CLS, head=CLASSIFIER)
    found = load(tmp_path / "named", {"config_json": config}, score_template="qwen3-reranker")
    assert found.template is not None and found.pooling.type == POOLING_TYPE_CLS
    mean = {"architectures": ["ModernBertForSequenceClassification"], "classifier_pooling": "mean"}
    assert load(tmp_path / "two", {"config_json": mean}) is None
    found = load(tmp_path / "mean", {"config_json": mean | {"num_labels": 1}})
    assert found.pooling.type == POOLING_TYPE_MEAN
    with pytest.raises(StartupError, match="a classifier in place of tokens"):
        load(tmp_path / "tokens", {"config_json": config}, score_tokens="yes,no")
