"""Models without a family, by transformers' code on our cache, compute what transformers computes."""

import logging
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from kernels.cpu.instruction_sets import target_set
from pagewire.errors import StartupError
from pagewire_transformers.products import Lookup, Product
from tests.engine_core.fakes import add_request
from tests.transformers_models import DRIVEN, REFUSED, make_model
from tests.worker.fakes import Driver
from tests.worker.test_parity import assert_equal, prompts, reference
from tests.worker.test_pressure import InProcess


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with windows in one layer, and tied weights."""
    return make_model("VaultGemma", tmp_path_factory.mktemp("vault"), **DRIVEN["VaultGemma"])


@pytest.mark.parametrize("prefix", DRIVEN)
def test_logits_and_tokens(prefix: str, tmp_path: Path):
    """Rows of one model in one batch: cold, in odd chunks with shuffled blocks, and resumed."""
    made = make_model(prefix, tmp_path, **DRIVEN[prefix])
    inputs = prompts(4, longest=40)
    expected = reference(made, inputs, 5)
    driver = Driver(made, shuffle=1, model_impl="transformers")
    assert driver.ready.model.implementation.startswith("transformers 5.")
    assert "transformers' code" in driver.ready.model.exactness_caveat
    assert driver.ready.model.adapters_caveat == "adapters need a model of one of pagewire's families"
    assert_equal(driver, inputs, expected)
    driver.budget = 13
    assert_equal(driver, inputs, expected)
    assert_equal(driver, inputs, expected, delivered=[2] * len(inputs))


@pytest.mark.parametrize("prefix", REFUSED)
def test_code_that_cannot_be_driven(prefix: str, tmp_path: Path):
    """Each is refused before it serves, with the reason: without the probe it would give other tokens."""
    fields, why = REFUSED[prefix]
    with pytest.raises(StartupError, match=why) as refused:
        Driver(make_model(prefix, tmp_path, **fields), model_impl="transformers")
    assert "docs/models.md" in refused.value.todo


@pytest.mark.parametrize(
    ("prefix", "rope", "why"),
    [
        ("Olmo", {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, "rope_type dynamic"),
        (
            "GPTNeoX",
            {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 3, "long_factor": [2.0] * 3}
            | {"partial_rotary_factor": 0.5},
            "rope_type longrope",
        ),
    ],
)
def test_angles_that_depend_on_other_rows(prefix: str, rope: dict[str, object], why: str, tmp_path: Path):
    made = make_model(prefix, tmp_path, **DRIVEN[prefix] | {"rope_parameters": rope})
    with pytest.raises(StartupError, match=why):
        Driver(made)


def test_preempted_and_swapped(folder: Path):
    """Greedy rows of a pool that is far too small become what they are alone."""
    messages = [
        add_request(handle, prompt, max_tokens=9) for handle, prompt in enumerate(prompts(10, 24), start=1)
    ]
    roomy = InProcess(folder, blocks=200, swap_costs=None, prefix_cache=False)
    expected = roomy.outputs(messages)
    tight = InProcess(folder, blocks=14, swap_costs=None, prefix_cache=True)
    assert tight.outputs(messages) == expected
    assert tight.scheduler.num_preemptions > 0


@pytest.mark.cpu_kernels
def test_products_and_attention_by_compiled_kernels(folder: Path):
    """Linear layers are packed, the tied table with them; in bfloat16, logits stay near those of float32."""
    driver = Driver(folder, dtype="bfloat16", block_size=16)
    model = driver.runner.backend.model
    products = [each for each in model.modules() if isinstance(each, Product)]
    assert len(products) == 2 * 7 + 1 and all(each.packed is not None for each in products)
    assert sum(isinstance(each, Lookup) for each in model.modules()) == 0  # its embedding scales by itself
    assert driver.runner.backend.cache.layers[0][0].dtype == torch.bfloat16
    chosen = target_set()
    assert chosen is not None and chosen.name in driver.ready.model.arithmetic
    sequence = driver.add(prompts(2)[1], 4)[0]
    driver.run()
    with torch.inference_mode():
        tokens = torch.tensor([sequence.tokens[:-1]])
        exact = AutoModelForCausalLM.from_pretrained(folder)(tokens).logits[0, sequence.prompt_len - 1 :]
    assert (torch.stack(sequence.logits) - exact).abs().max() <= 0.06 * exact.abs().max()


def test_a_table_that_is_head_and_embedding(tmp_path: Path):
    driver = Driver(make_model("Apertus", tmp_path, tie_word_embeddings=True))
    model = driver.runner.backend.model
    (lookup,) = [each for each in model.modules() if isinstance(each, Lookup)]
    assert lookup.head in list(model.modules())


def test_random_weights(folder: Path):
    """--load-format dummy: the same for the same seed."""
    logits = []
    for seed in (1, 1, 2):
        driver = Driver(folder, load_format="dummy", seed=seed, max_num_batched_tokens=16)
        sequence = driver.add([5, 6, 7], 1)[0]
        driver.run()
        logits.append(sequence.logits[0].tolist())
    assert logits[0] == logits[1] != logits[2]


def test_native_families_keep_their_code(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """auto takes transformers' code where there is no family; both can be asked for, with equal logits."""
    made = make_model("Llama", tmp_path)
    inputs = prompts(3, longest=20)
    expected = reference(made, inputs, 3)
    native, driven = Driver(made), Driver(made, model_impl="transformers")
    assert native.ready.model.implementation == "native"
    assert driven.ready.model.implementation.startswith("transformers")
    for driver in (native, driven):
        assert_equal(driver, inputs, expected)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
