"""Models that see images: the vectors and logits of transformers, and the same bits however work is cut."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Llama4ForConditionalGeneration

from tests.vision_models import FAMILIES
from tests.worker.fakes import DrivenSequence, Driver
from tests.worker.vision.images import SIZES, WHOLE, Judge, make_image, prompt_of
from worker.vision.pixels import normalized

SIGLIP = {"model_type": "siglip_vision_model", "image_size": 56, "patch_size": 14}
SEEN_WHOLE = "gemma4, images seen whole in layers with windows, experts"
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in FAMILIES},
    "llava, SigLIP, all of its vectors, the last layer": (
        "llava",
        {"vision": SIGLIP, "vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
    ),
    "llava, SigLIP without its first vector, edges that no patch has": (
        "llava",
        {"vision": SIGLIP | {"patch_size": 13}, "vision_feature_layer": 1},
    ),
    "llava, two layers side by side, the class token, no biases": (
        "llava",
        {"vision_feature_layer": [-1, -3], "vision_feature_select_strategy": "full"}
        | {"multimodal_projector_bias": False, "projector_hidden_act": "gelu_pytorch_tanh"},
    ),
    "llava, exact gelu, Qwen3": (
        "llava",
        {"vision": {"hidden_act": "gelu"}, "text": {"model_type": "qwen3", "head_dim": 16}},
    ),
    "llava, Gemma, which scales what stands for tokens": (
        "llava",
        {"text": {"model_type": "gemma", "head_dim": 16}, "tie_word_embeddings": True},
    ),
    "llava, Gemma 3, which scales tokens alone": (
        "llava",
        {
            "text": {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 9},
            "tie_word_embeddings": True,
        },
    ),
    "pixtral, silu, other angles": (
        "pixtral",
        {"vision": {"hidden_act": "silu", "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0}}},
    ),
    "mistral3, biases, a layer below, tied": (
        "mistral3",
        {"multimodal_projector_bias": True, "vision_feature_layer": -2, "tie_word_embeddings": True},
    ),
    "smolvlm, larger squares, tied": ("smolvlm", {"scale_factor": 8, "tie_word_embeddings": True}),
    "idefics3, a side that is no power of two": (
        "idefics3",
        {"vision": {"patch_size": 3, "image_size": 32}, "scale_factor": 5},
    ),
    "internvl, norms of heads, root mean squares, a norm behind, Qwen3": (
        "internvl",
        {
            "vision": {"use_qk_norm": True, "norm_type": "rms_norm", "use_mean_pooling": False}
            | {"attention_bias": False},
            "text": {"model_type": "qwen3", "head_dim": 16},
        },
    ),
    "qwen3_5, experts, one position": (
        "qwen3_5",
        {
            "prefix": "Qwen3_5Moe",
            "vision": {"model_type": "qwen3_5_moe_vision", "num_position_embeddings": 1},
            "text": {"model_type": "qwen3_5_moe_text", "num_experts": 5, "num_experts_per_tok": 2}
            | {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 40},
        },
    ),
    "llama4, single patches, other angles": (
        "llama4",
        {
            "vision": {"pixel_shuffle_ratio": 1.0, "intermediate_size": 32}
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
        },
    ),
    "qwen2_vl, yarn, exact gelu, no frequency by time": (
        "qwen2_vl",
        {
            "vision": {"hidden_act": "gelu"},
            "text": {
                "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "mrope_section": [0, 1, 5]}
                | {"factor": 2.0, "original_max_position_embeddings": 16}
            },
        },
    ),
    "qwen2_5_vl, other angles, windows of one square, tied": (
        "qwen2_5_vl",
        {
            "vision": {"window_size": 8, "hidden_act": "gelu"}
            | {"rope_parameters": {"rope_type": "axial", "rope_theta": 100.0}},
            "tie_word_embeddings": True,
        },
    ),
    "gemma3, larger images than windows, three layers": (
        "gemma3",
        {"vision": {"patch_size": 4}, "mm_tokens_per_image": 16}
        | {"text": {"num_hidden_layers": 3, "sliding_window": 3, "layer_types": ["sliding_attention"] * 3}},
    ),
    "gemma4, nothing clipped, standardized, other angles, no vectors of layers": (
        "gemma4",
        {
            "vision": {"use_clipped_linears": False, "standardize": True, "pooling_kernel_size": 4}
            | {"patch_size": 2, "rope_parameters": {"rope_type": "axial", "rope_theta": 10.0}},
            "text": {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "attention_k_eq_v": True},
            "images": {"patch_size": 2, "pooling_kernel_size": 4},
        },
    ),
    SEEN_WHOLE: (
        "gemma4",
        {
            "text": {"use_bidirectional_attention": "vision", "sliding_window": 3}
            | {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "enable_moe_block": True}
            | {"num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 24}
        },
    ),
    "internvl, single patches, a layer below, no positions": (
        "internvl",
        {"downsample_ratio": 1.0, "vision_feature_layer": -2}
        | {"vision": {"use_absolute_position_embeddings": False}},
    ),
}
TEXT, MORE = [5, 100, 317, 210, 7, 3, 12], [9, 0, 160]
DECODERS = {
    "gemma4_unified_text": "gemma4_text",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
"""By model_type of text_config that is no decoder of its own: that which is the same for text."""
LIKE_QWEN2_5 = ("qwen2_vl",)
"""Families of which another one has all that steps could change."""
Logits = list[torch.Tensor]


def run(driver: Driver, *prompts: list[Any], placeholder: int = 320, count: int = 4) -> list[DrivenSequence]:
    """Returns the sequences of prompts, each a list of token ids and images."""
    made = [prompt_of(driver, parts, placeholder) for parts in prompts]
    sequences = [driver.add(ids, count, media=items)[0] for ids, items in made]
    driver.run()
    return sequences


def assert_same(found: DrivenSequence, expected: DrivenSequence) -> None:
    assert len(found.logits) == len(expected.logits) > 0
    assert all(map(torch.equal, found.logits, expected.logits))


@pytest.mark.parametrize("variant", VARIANTS)
def test_as_transformers(variant: str, vision_model: Callable[..., Path]):
    """Vectors, logits of a prompt with two images, one at its end if it may be, and greedy tokens."""
    family, changes = VARIANTS[variant]
    folder = vision_model(family, **changes)
    judge, driver = Judge(folder, family), Driver(folder, dtype="float32", budget=11)
    model = driver.runner.backend.model  # type: ignore[attr-defined]
    images = [make_image(family, number) for number in range(3)]
    for image in images:
        expected, pixels = judge.vectors(image), torch.from_numpy(image)
        values = normalized(pixels, model.vision._table).permute(2, 0, 1)
        assert torch.equal(values, judge.pixel_values(image))
        with torch.inference_mode():
            found = model.vision(pixels)
        assert len(found) == model.vision.config.num_vectors(*image.shape[:2])
        assert (found - expected).abs().max() < 1e-4 * (expected.max() - expected.min())
    parts = [TEXT, images[0], MORE, images[1]]
    if model.vision.config.has_grid_positions:
        parts.append(MORE)  # behind an image generate() goes on at other positions than forward()
    ids, _ = prompt_of(driver, parts, judge.placeholder)
    [sequence] = run(driver, parts, placeholder=judge.placeholder, count=6)
    expected = judge.logits(ids, images[:2])[-1]
    assert (sequence.logits[0] - expected).abs().max() < 1e-4 * (expected.max() - expected.min())
    assert sequence.output == judge.greedy(ids, images[:2], 6)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", [*(each for each in FAMILIES if each not in LIKE_QWEN2_5), SEEN_WHOLE])
def test_bits_do_not_depend_on_the_step(variant: str, dtype: str, vision_model: Callable[..., Path]):
    """Alone, in chunks that cut images, beside other prompts, encoded before, preempted and forked."""
    family, changes = VARIANTS[variant]
    folder, images = vision_model(family, **changes), [make_image(family, number) for number in range(3)]
    settings = {"dtype": dtype, "block_size": 16}
    prompt = [TEXT, images[0], MORE, images[1], MORE]
    others: list[list[Any]] = [[images[2], TEXT], [TEXT], [TEXT, images[0]]]
    [alone] = run(Driver(folder, **settings), prompt)
    whole = family in WHOLE or variant == SEEN_WHOLE
    for budget in (6, 7, 13) if whole else (1, 5, 13):
        assert_same(run(Driver(folder, budget=budget, **settings), prompt)[0], alone)
    driver = Driver(folder, budget=17, **settings)
    _, text, _, beside = run(driver, *others, prompt)
    assert_same(beside, alone)
    assert_same(run(driver, prompt)[0], alone)  # all is encoded
    assert_same(run(driver, [TEXT])[0], text)
    driver = Driver(folder, budget=9, **settings)
    ids, items = prompt_of(driver, prompt, 320)
    [sequence] = driver.add(ids, 4, media=items)
    driver.step()
    driver.preempt(sequence)
    driver.run()
    assert_same(sequence, alone)
    driver = Driver(folder, **settings)
    forks = driver.add(ids, 4, n=3, media=items)
    driver.run()
    for fork in forks:
        assert_same(fork, alone)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_bits_do_not_depend_on_threads(family: str, threads: int, vision_model: Callable[..., Path]):
    driver = Driver(vision_model(family), dtype="bfloat16", block_size=16)
    vision = driver.runner.backend.model.vision  # type: ignore[attr-defined]
    image = torch.from_numpy(make_image(family))
    with torch.inference_mode():
        expected = vision(image)
        torch.set_num_threads(threads)
        vision.ops.team.set_threads(threads)
        assert torch.equal(vision(image), expected)
        vision.ops.team.set_threads(1)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("family", FAMILIES)
def test_text_has_the_bits_of_the_text_model(family: str, vision_model: Callable[..., Path], tmp_path: Path):
    folder = vision_model(family)
    alone = tmp_path / "text"
    save_decoder(Judge(folder, family).model, alone)
    settings = {"dtype": "bfloat16", "block_size": 16}
    [found] = run(Driver(folder, **settings), [TEXT + MORE])
    [expected] = run(Driver(alone, **settings), [TEXT + MORE])
    assert_same(found, expected)


def save_decoder(model: Any, folder: Path) -> None:
    """Writes the decoder of a model that sees images as a checkpoint of its own."""
    if isinstance(model, Llama4ForConditionalGeneration):
        model.language_model.save_pretrained(folder)
        return
    config = model.config.text_config
    if (decoder := DECODERS.get(config.model_type)) is not None:
        fields = config.to_dict() | {"model_type": decoder}
        fields["rope_parameters"] = {
            name: value for name, value in fields["rope_parameters"].items() if not name.startswith("mrope")
        }
        if decoder == "gemma4_text":
            fields["hidden_size_per_layer_input"] = 0
        if decoder == "qwen3_moe":
            fields["norm_topk_prob"] = True
        config = AutoConfig.for_model(**fields)
    made = AutoModelForCausalLM.from_config(config)
    inner = getattr(model.model, "language_model", None) or model.model.text_model
    made.model.load_state_dict(inner.state_dict())
    made.lm_head.load_state_dict(model.lm_head.state_dict())
    made.save_pretrained(folder)


def test_sizes_that_no_encoder_takes_become_no_vectors(vision_model: Callable[..., Path]):
    assert SIZES.keys() == FAMILIES.keys()
    for family, (height, width) in (("llava", (42, 42)), ("pixtral", (24, 41)), ("mistral3", (24, 32))):
        driver = Driver(vision_model(family), dtype="float32")
        vision = driver.runner.backend.model.vision  # type: ignore[attr-defined]
        with torch.inference_mode():
            assert vision(torch.zeros(height, width, 3, dtype=torch.uint8)).shape == (0, 48)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_vector_costs_is_counted_by_weights(dtype: str, vision_model: Callable[..., Path]):
    """Of 16 patches of the tower, in tokens of the decoder; each matrix counts, but for tables. Packed ones
    may have more rows than their weights."""
    folder = vision_model("smolvlm", vision={"num_hidden_layers": 5})
    model = Judge(folder, "smolvlm").model.model
    tower, decoder = (
        sum(each.numel() for name, each in part.named_parameters() if each.dim() > 1 and "embed" not in name)
        for part in (model.vision_model, model.text_model)
    )
    tower += model.vision_model.embeddings.patch_embedding.weight.numel()
    found = Driver(folder, dtype=dtype, block_size=16).ready.tokens_per_vector
    assert found == pytest.approx(16 * tower / decoder, rel=0.3)
