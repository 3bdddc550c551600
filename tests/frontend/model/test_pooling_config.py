"""How a checkpoint says that it pools."""

import json
from pathlib import Path
from typing import Any

import pytest

from frontend.model.pooling_config import PoolingDefaults, read_pooling
from frontend.model.text_defaults import TextDefaults
from pagewire.errors import StartupError
from pagewire.internal.v1.engine_pb2 import (
    POOLING_TYPE_CLS,
    POOLING_TYPE_LAST,
    POOLING_TYPE_MAX,
    POOLING_TYPE_MEAN,
    POOLING_TYPE_WEIGHTED_MEAN,
    ModelFacts,
)

OLD, NEW = "sentence_transformers.models.", "sentence_transformers.sentence_transformer.modules."
LAST = {"pooling_mode_cls_token": False, "pooling_mode_lasttoken": True, "include_prompt": True}


def write(folder: Path, modules: Any, pooling: Any = None) -> Path:
    (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def modules(*kinds: str, prefix: str = OLD) -> list[dict[str, Any]]:
    paths = [f"{place}_{kind}" if place else "" for place, kind in enumerate(kinds)]
    return [
        {"idx": place, "name": str(place), "path": path, "type": prefix + kind}
        for place, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]


@pytest.mark.parametrize(
    ("kinds", "pooling", "expected"),
    [
        (("Transformer", "Pooling", "Normalize"), LAST, (POOLING_TYPE_LAST, True)),
        (("Transformer", "Pooling"), LAST, (POOLING_TYPE_LAST, False)),
        (("Transformer", "Pooling"), {"pooling_mode_mean_tokens": True}, (POOLING_TYPE_MEAN, False)),
        (("Transformer", "Pooling"), {"pooling_mode": "lasttoken"}, (POOLING_TYPE_LAST, False)),
        (("Transformer", "Pooling"), {"pooling_mode": ["mean"]}, (POOLING_TYPE_MEAN, False)),
        (("Transformer", "Pooling"), {"pooling_mode_cls_token": True}, (POOLING_TYPE_CLS, False)),
        (("Transformer", "Pooling"), {"pooling_mode": "max"}, (POOLING_TYPE_MAX, False)),
        (("Transformer", "Pooling"), {"pooling_mode": "weightedmean"}, (POOLING_TYPE_WEIGHTED_MEAN, False)),
    ],
)
@pytest.mark.parametrize("prefix", [OLD, NEW])
def test_files_of_sentence_transformers(tmp_path: Path, kinds, pooling, expected, prefix: str):
    folder = write(tmp_path, modules(*kinds, prefix=prefix), pooling)
    assert read_pooling(folder, "auto") == PoolingDefaults(*expected)
    assert read_pooling(folder, "none") is None
    assert read_pooling(folder, "mean") == PoolingDefaults(POOLING_TYPE_MEAN, True)


def test_prompts_and_the_length_of_texts(tmp_path: Path):
    folder = write(tmp_path, modules("Transformer", "Pooling"), LAST)
    listed = json.loads((folder / "modules.json").read_text())
    listed[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "0_Transformer").mkdir()
    (folder / "0_Transformer" / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    prompts = folder / "config_sentence_transformers.json"
    prompts.write_text('{"prompts": {"query": "q: "}, "default_prompt_name": null}')
    found = read_pooling(folder, "auto")
    assert found is not None and found.texts == TextDefaults({"query": "q: "}, "", 256)
    assert (found.texts.longest(128), found.texts.longest(512)) == (128, 256)
    for wrong, why in (
        ('{"prompts": ["query"]}', "must be texts by name"),
        ('{"prompts": {"query": 1}}', "must be texts by name"),
        ('{"prompts": {}, "default_prompt_name": "query"}', "there is no prompt 'query'"),
    ):
        prompts.write_text(wrong)
        with pytest.raises(StartupError, match=why):
            read_pooling(folder, "auto")
    prompts.unlink()
    (folder / "0_Transformer" / "sentence_bert_config.json").write_text('{"max_seq_length": "long"}')
    with pytest.raises(StartupError, match="max_seq_length must be a number"):
        read_pooling(folder, "auto")


@pytest.mark.parametrize(
    ("stated", "positions", "expected"),
    [
        (512, 514, 512),
        (512, 128, 128),
        (10**30, 128, 128),
        (1e30, None, 0),
        (None, 128, 128),
        (True, None, 0),
    ],
)
def test_the_length_of_the_tokenizer(tmp_path: Path, stated: object, positions: object, expected: int):
    """Where sentence_bert_config.json has none, as in sentence-transformers."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": stated}))
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": positions}))
    found = read_pooling(tmp_path, "mean")
    assert found is not None and not found.texts.max_length, "it is not of sentence-transformers"
    write(tmp_path, modules("Transformer", "Pooling"), LAST)
    for name, content in (("none", None), ("no field", {}), ("null", {"max_seq_length": None})):
        if content is not None:
            (tmp_path / "sentence_bert_config.json").write_text(json.dumps(content))
        for kind in ("auto", "mean"):
            found = read_pooling(tmp_path, kind)
            assert found is not None and found.texts.max_length == expected, name
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 7}')
    found = read_pooling(tmp_path, "auto")
    assert found is not None and found.texts.max_length == 7


@pytest.mark.parametrize("first", ["MLMTransformer", "Transformer"])
def test_sparse_vectors(tmp_path: Path, first: str):
    folder = write(tmp_path, modules(first, "SpladePooling"))
    (folder / "1_SpladePooling").mkdir()
    path = folder / "1_SpladePooling" / "config.json"
    path.write_text('{"pooling_strategy": "max", "activation_function": "relu"}')
    found = read_pooling(folder, "auto")
    assert found is not None and (found.type, found.normalize, found.head) == (POOLING_TYPE_MAX, False, 3)
    assert found == read_pooling(folder, "splade") and not found.of_texts
    for field, value in (("pooling_strategy", "sum"), ("activation_function", "log1p_relu")):
        path.write_text(json.dumps({field: value}))
        with pytest.raises(StartupError, match=f"{field} '{value}' is not known"):
            read_pooling(folder, "auto")


DENSE_FIELDS = {
    "in_features": 8,
    "out_features": 3,
    "activation_function": "torch.nn.modules.linear.Identity",
}


def dense(folder: Path, *fields: dict[str, Any]) -> Path:
    write(folder, modules("Transformer", "Pooling", *["Dense"] * len(fields), "Normalize"), LAST)
    for number, each in enumerate(fields, start=2):
        (folder / f"{number}_Dense").mkdir()
        (folder / f"{number}_Dense" / "config.json").write_text(json.dumps(each))
    return folder


def test_dense_modules_are_a_head(tmp_path: Path):
    folder = dense(tmp_path, DENSE_FIELDS, {"in_features": 3, "out_features": 5})
    found = read_pooling(folder, "auto")
    assert found == PoolingDefaults(POOLING_TYPE_LAST, True, head=1)
    assert [found.size(ModelFacts(embedding_size=8, head_sizes=sizes)) for sizes in ([5], [])] == [5, 0]
    assert read_pooling(folder, "last") == PoolingDefaults(POOLING_TYPE_LAST, True)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"in_features": 4, "out_features": 5}, "gives 3 features and 3_Dense takes 4"),
        ({"in_features": 3, "out_features": True}, "out_features"),
        ({"in_features": 3, "out_features": 1 << 17}, "out_features"),
        ({"in_features": 3, "out_features": 5, "bias": 1}, "bias"),
        ({"in_features": 3, "out_features": 5, "use_residual": True}, "use_residual True"),
        ({"in_features": 3, "out_features": 5, "module_input_name": "x"}, "module_input_name 'x'"),
        ({"in_features": 3, "out_features": 5, "activation_function": "torch.nn.Mish"}, "Mish is not known"),
    ],
)
def test_dense_modules_that_are_refused(tmp_path: Path, second: dict[str, Any], why: str):
    with pytest.raises(StartupError, match=why):
        read_pooling(dense(tmp_path, DENSE_FIELDS, second), "auto")


def test_a_checkpoint_that_says_nothing(tmp_path: Path):
    assert read_pooling(tmp_path, "auto") is None
    for of_cross_encoder in (modules("Transformer"), modules("Transformer", "LogitScore")):
        (tmp_path / "modules.json").write_text(json.dumps(of_cross_encoder))
        assert read_pooling(tmp_path, "auto") is None
    (tmp_path / "modules.json").unlink()
    assert read_pooling(tmp_path, "last") == PoolingDefaults(POOLING_TYPE_LAST, True)
    file = tmp_path / "model.gguf"
    file.touch()
    assert read_pooling(file, "auto") is None


@pytest.mark.parametrize(
    ("content", "pooling", "why"),
    [
        (modules("Transformer", "Pooling", "Dense", "Normalize"), LAST, "2_Dense/config.json"),
        (modules("Transformer", "Pooling", "Normalize", "Pooling"), LAST, "is not Transformer"),
        (modules("StaticEmbedding"), None, "modules.json: StaticEmbedding is not"),
        (modules("Transformer", "Pooling"), None, "1_Pooling/config.json"),
        (modules("Transformer", "Pooling"), {"pooling_mode": "mean_sqrt_len_tokens"}, "by mean_sqrt"),
        (modules("Transformer", "Pooling"), {**LAST, "pooling_mode_mean_tokens": True}, "mean, lasttoken"),
        (modules("Transformer", "Pooling"), {}, "by nothing"),
        (
            modules("Transformer", "Pooling"),
            {"pooling_mode": "mean", "include_prompt": False},
            "include_prompt",
        ),
        ({"type": "x"}, None, "not a list"),
        ([5], None, "not a list"),
        (5, None, "not a list"),
        ([{"path": "x"}], None, "not a list"),
    ],
)
def test_what_is_refused(tmp_path: Path, content: Any, pooling: Any, why: str):
    folder = write(tmp_path, content, pooling)
    with pytest.raises(StartupError) as refused:
        read_pooling(folder, "auto")
    assert why in refused.value.why and "--pooling-type" in refused.value.todo
    assert read_pooling(folder, "none") is None
