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
from tests.worker.heads.test_drafter import PROMPTS, SIZES, driver, noted, outputs_of
from worker.families.registry import read_model_config
from worker.heads.config import read_head_config

Checkpoints = Callable[..., Path]
pytestmark = pytest.mark.cpu_kernels
LAST = "model.layers.2."
MTP = "model.layers.3."


def write_layer(folder: Path, target: Path, seed: int | None) -> Path:
    """A checkpoint of the layer alone, behind a target of three layers: as its last one, with a random
    projection; without a seed one that gives the token's embedding."""
    stored = load_file(target / "model.safetensors")
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


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_a_layer_that_knows_is_right(family: str, checkpoint: Checkpoints, tmp_path: Path):
    """Of a target whose layers add nothing, the next token follows from the embedding of the last one."""
    target = tmp_path / "target"
    shutil.copytree(checkpoint(family), target)
    stored = load_file(target / "model.safetensors")
    for name, tensor in stored.items():
        if "o_proj" in name or "down_proj" in name:
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
