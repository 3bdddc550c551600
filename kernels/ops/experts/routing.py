"""How a router chooses experts, in all published forms. Needs no torch.

scores   a function of the logits of all experts
choice   scores + correction: the largest ones are chosen, of the best groups where there are any;
         of equal ones that with the lowest number
weights  the scores of the chosen experts, without the correction; normalized, then scaled
"""

from dataclasses import dataclass
from enum import Enum


class Score(Enum):
    """What is made of the logits."""

    SOFTMAX = 0
    """Over all experts."""
    SIGMOID = 1
    """Of each expert by itself."""
    SOFTMAX_OF_CHOSEN = 2
    """The logits choose, and softmax over those of the chosen experts makes their weights."""
    SPARSE_MIXER = 3
    """The logits choose. A weight is a softmax over the expert and those not chosen before it whose logits
    are at most a tolerance below (https://arxiv.org/abs/2409.12136)."""
    SIGMOID_OF_CHOSEN = 4
    """The logits choose, and a weight is the sigmoid of a chosen logit."""


@dataclass(frozen=True, kw_only=True)
class Routing:
    """The choice of `top_k` out of `num_experts`."""

    num_experts: int  # N
    top_k: int  # k
    score: Score = Score.SOFTMAX
    groups: int = 1  # of consecutive experts, equally large
    top_groups: int = 1  # experts are chosen from so many groups
    group_best: int = 1  # a group is as good as the sum of its best scores, so many: 1 or 2
    normalized: bool = False  # weights are divided by their sum
    least_sum: float = 0.0  # is added to that sum
    scale: float = 1.0  # of the weights
    tolerance: float = 0.0  # of SPARSE_MIXER: relative to the larger of a logit's size and the largest logit
