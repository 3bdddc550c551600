"""The attention operations for modules that do not import triton are those of the folder."""

import torch

from kernels.triton.attention import fp8, latent_attention, paged_attention, store_kv
from kernels.triton.attention.paged_kernels import paged_kernels
from tests.kernels.triton.references import quantize_reference


def test_each_operation_is_the_one_of_its_name():
    kernels = paged_kernels()
    assert vars(kernels) == {
        "store_kv": store_kv.store_kv,
        "rotary_store_kv": store_kv.rotary_store_kv,
        "head_norms": store_kv.HeadNorms,
        "attend": paged_attention.paged_attention,
        "unit_scales": fp8.unit_scales,
        "store_latents": latent_attention.store_latents,
        "attend_to_latents": latent_attention.latent_attention,
    }


def test_unit_scales_change_no_bit():
    """Those of a cache of 8 bits without scales of its own."""
    scales = paged_kernels().unit_scales(3, torch.device("cpu"))
    assert scales.key.dtype == torch.float32 and scales.key.tolist() == scales.value.tolist() == [1.0] * 3
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0.0)
    stored = quantize_reference(every.view(1, 1, 256).expand(1, 3, 256), scales.key)
    assert torch.equal(stored.float(), every.expand(1, 3, 256))
