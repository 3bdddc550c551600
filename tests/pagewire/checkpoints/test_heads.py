"""Classes of a config.json."""

from typing import Any

import pytest

from pagewire.checkpoints.heads import Classes, read_classes
from pagewire.errors import StartupError

CONFIG = {"architectures": ["Qwen3ForSequenceClassification"]}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Classes(("LABEL_0", "LABEL_1"), "softmax")),
        ({"num_labels": 1}, Classes(("LABEL_0",), "none")),
        ({"id2label": {"1": "b", "0": "a"}}, Classes(("a", "b"), "softmax")),
        ({"problem_type": "regression"}, Classes(("LABEL_0", "LABEL_1"), "none")),
        ({"problem_type": "multi_label_classification"}, Classes(("LABEL_0", "LABEL_1"), "sigmoid")),
    ],
)
def test_labels_and_activation(fields: dict[str, Any], expected: Classes):
    assert read_classes(CONFIG | fields) == expected
    assert read_classes(fields | {"architectures": ["Qwen3ForCausalLM"]}) is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"num_labels": True}, "num_labels"),
        ({"num_labels": 1 << 17}, "num_labels"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label"),
        ({"id2label": {}}, "id2label"),
        ({"id2label": ["a"]}, "id2label"),
        ({"problem_type": "other"}, "problem_type"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], why: str):
    with pytest.raises(StartupError, match=why):
        read_classes(CONFIG | fields)
