"""Constants of kernels.ops.sampling.choose, for modules that do not import torch."""

ROUNDS = 10
MASK = 0xFFFFFFFF
M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
