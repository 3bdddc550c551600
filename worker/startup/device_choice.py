"""Chooses the device of --device auto."""

import logging

import torch

from kernels.triton import requirements

logger = logging.getLogger(__name__)


def choose_device(name: str) -> torch.device:
    """Returns the device. auto: the GPU that torch finds, unless our kernels cannot run on it."""
    if name == "cuda":
        return torch.device("cuda")
    if name == "auto" and torch.cuda.is_available():
        reason = requirements.why_not(torch.device("cuda"), torch.bfloat16, head_dim=128)
        if reason is None:
            return torch.device("cuda")
        logger.warning("computing on the CPU: %s", reason)
    return torch.device("cpu")
