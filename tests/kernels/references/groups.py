"""Formulas of products by weights in groups, for tests of kernels.cpu.matmul.groups."""

import torch
import torch.nn.functional as F

from kernels.cpu.matmul.groups.weight import GroupedWeight
from kernels.cpu.matmul.int8 import quantize_reference


def quantize_inputs_reference(x: torch.Tensor, group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, K] -> integers [T, groups, G] int32 and scales [T, groups] float32; halves go to even."""
    padded = F.pad(x.float(), (0, -x.shape[1] % group_size))
    return quantize_reference(padded.view(len(x), -1, group_size))


def grouped_linear_reference(
    x: torch.Tensor, weight: GroupedWeight, bias: torch.Tensor | None
) -> torch.Tensor:
    """The formula, with the integers of the inputs. [T, K], [N] -> [T, N] float64."""
    values = weight.values()
    if weight.order is not None:
        x, values = x[:, weight.order], values[:, weight.order]
    q, u = quantize_inputs_reference(x, weight.group_size)
    inputs = (q.double() * u.double()[:, :, None]).flatten(1)[:, : x.shape[1]]
    result = inputs @ values.double().T
    return result if bias is None else result + bias.double()
