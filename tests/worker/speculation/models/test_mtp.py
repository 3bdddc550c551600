"""Drafts of the layer that predicts one token more: what its formulas say; outputs stay."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from pagewire.errors import StartupError
from tests.worker.fakes import Driver, resolved_params
from tests.worker.speculation.models.test_head_drafter import PROMPTS, SIZES, driver, noted, outputs_of
from worker.families.registry import read_model_config
from worker.speculation.models.head_config import read_head_config

Checkpoints = Callable[..., Path]
pytestmark = pytest.mark.cpu_kernels
LAST = "model.layers.2."
MTP = "model.layers.3."
BESIDE = ("qwen3_next", "qwen3_5")
"""Families whose layer is under `mtp`, and like that layer of the target's three which attends."""


def write_layer(folder: Path, target: Path, seed: int | None) -> Path:
    """A checkpoint of the layer alone, behind a target of three layers: as its last one, with a random
    projection; without a seed one that gives the token's embedding."""
    stored = load_file(target / "model.safetensors")
    if any(".linear_attn." in name for name in stored):
        return write_layer_beside(folder, target, seed)
    head = {name.replace(LAST, MTP): tensor for name, tensor in stored.items() if name.startswith(LAST)}
    width = stored["model.norm.weight"].shape[0]
    projection = torch.cat((torch.eye(width), torch.zeros(width, width)), dim=1)
    if seed is not None:
        projection = torch.randn(projection.shape, generator=torch.Generator().manual_seed(seed)) * 0.2
    head |= {f"{MTP}{name}.weight": torch.ones(width) for name in ("enorm", "hnorm")}
    head |= {"model.norm.weight": stored["model.norm.weight"], f"{MTP}eh_proj.weight": projection}
    head |= {f"{MTP}shared_head.norm.weight": stored["model.norm.weight"].clone()}
    head |= {"lm_head.weight": stored["lm_head.weight"]}
    folder.mkdir()
    save_file(head, folder / "model.safetensors")
    config = json.loads((target / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_layer_beside(folder: Path, target: Path, seed: int | None) -> Path:
    """As write_layer(), of Qwen's families, whose norms store their distance from 1."""
    stored = load_file(target / "model.safetensors")
    old, new = "model.layers.1.", "mtp.layers.0."
    head = {name.replace(old, new): tensor for name, tensor in stored.items() if name.startswith(old)}
    width = stored["model.norm.weight"].shape[0]
    projection = torch.cat((torch.eye(width), torch.zeros(width, width)), dim=1)
    if seed is not None:
        projection = torch.randn(projection.shape, generator=torch.Generator().manual_seed(seed)) * 0.2
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        head[f"mtp.{name}.weight"] = torch.zeros(width)
    head |= {"mtp.fc.weight": projection, "mtp.norm.weight": stored["model.norm.weight"].clone()}
    head |= {name: stored[name] for name in ("model.norm.weight", "lm_head.weight")}
    folder.mkdir()
    save_file(head, folder / "model.safetensors")
    shutil.copy(target / "config.json", folder)
    return folder


@pytest.mark.parametrize("family", BESIDE)
def test_a_layer_under_mtp(
    family: str, checkpoint: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its first two tokens, by transformers' layers, of which the second one reads what the norm has left;
    outputs are those without drafts."""
    target = checkpoint(family)
    head = write_layer(tmp_path / "head", target, seed=1)
    drafted = noted(monkeypatch)
    outputs = outputs_of(driver(target, head), n=2)
    plain = Driver(target, **SIZES)  # type: ignore[arg-type]
    assert [each.output for each in outputs] == [each.output for each in outputs_of(plain, n=2)]
    model = transformers.AutoModelForCausalLM.from_pretrained(target)
    body, projection = model.model, load_file(head / "model.safetensors")["mtp.fc.weight"]
    some = [each for each in drafted if len(each[1]) > 1]
    assert len(some) > 5
    layers = body.layers

    def inputs(tokens: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return torch.cat([normed(x) for x in (body.embed_tokens(tokens), features)], dim=-1) @ projection.T

    with torch.inference_mode():
        for token_ids, drafts in some:
            body.layers, ids = layers, torch.tensor([token_ids])
            embedded = inputs(ids[:, 1:], body(ids[:, :-1], use_cache=False).last_hidden_state)
            body.layers = layers[1:2]
            for token in drafts[:2]:
                states = body(inputs_embeds=embedded, use_cache=False).last_hidden_state[:, -1:]
                assert model.lm_head(states).argmax() == token
                embedded = torch.cat((embedded, inputs(torch.tensor([[token]]), states)), dim=1)


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_it_drafts_as_the_formulas_say(
    family: str, checkpoint: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its first token, by transformers' layers; and the tokens are those without drafts."""
    target = checkpoint(family)
    head = write_layer(tmp_path / "head", target, seed=1)
    drafted = noted(monkeypatch)
    outputs = outputs_of(driver(target, head), n=2)
    plain = Driver(target, **SIZES)  # type: ignore[arg-type]
    assert [each.output for each in outputs] == [each.output for each in outputs_of(plain, n=2)]
    model = transformers.AutoModelForCausalLM.from_pretrained(target)
    tensors, body = load_file(head / "model.safetensors"), model.model
    some = [each for each in drafted if each[1]]
    assert len(some) > 10
    layers = body.layers
    with torch.inference_mode():
        for token_ids, drafts in some[::4]:
            ids = torch.tensor([token_ids])
            body.layers = layers
            features = body(ids[:, :-1]).last_hidden_state
            both = torch.cat([normed(x) for x in (body.embed_tokens(ids[:, 1:]), features)], dim=-1)
            body.layers = torch.nn.ModuleList([layers[2]])
            layers[2].self_attn.layer_idx = 0
            embedded = both @ tensors[f"{MTP}eh_proj.weight"].T
            expected = model(inputs_embeds=embedded).logits[0, -1].argmax()
            layers[2].self_attn.layer_idx = 2
            assert drafts[0] == expected


def normed(x: torch.Tensor) -> torch.Tensor:
    """A norm whose weights are 1."""
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe", *BESIDE])
def test_a_layer_that_knows_is_right(family: str, checkpoint: Checkpoints, tmp_path: Path):
    """Of a target whose layers add nothing, the next token follows from the embedding of the last one."""
    target = tmp_path / "target"
    shutil.copytree(checkpoint(family), target)
    stored = load_file(target / "model.safetensors")
    for name, tensor in stored.items():
        if any(part in name for part in ("o_proj", "down_proj", "out_proj")):
            tensor.zero_()
    save_file(stored, target / "model.safetensors", {"format": "pt"})
    driving = driver(target, write_layer(tmp_path / "head", target, None))
    for params in (resolved_params(), resolved_params(temperature=0.2, seed=5)):
        driving.add(PROMPTS[0], 30, params, n=2)
    driving.run()
    assert driving.num_accepted > 0.9 * driving.num_drafted > 60


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_nextn_predict_layers": 0}, "num_nextn_predict_layers is 0"),
        ({"num_hidden_layers": 4}, "its num_layers is 4, the target's is 3"),
        ({"vocab_size": 300}, "its vocab_size is 300"),
    ],
)
def test_refused(changes: dict[str, int], message: str, checkpoint: Checkpoints, tmp_path: Path):
    """No such layer, or that of another model."""
    target = checkpoint("glm4_moe")
    fields = json.loads((target / "config.json").read_text()) | {"num_nextn_predict_layers": 1} | changes
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(StartupError, match=message):
        read_head_config(tmp_path, read_model_config(target))


def test_refused_under_mtp(checkpoint: Checkpoints, tmp_path: Path):
    """The file says that there is no such layer, or that it has an embedding of its own."""
    target = checkpoint("qwen3_5")
    fields = json.loads((target / "config.json").read_text())
    for changes, message in (
        ({"mtp_num_hidden_layers": 0}, "mtp_num_hidden_layers is 0"),
        ({"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings is true"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(fields | changes))
        with pytest.raises(StartupError, match=message):
            read_head_config(tmp_path, read_model_config(target))
