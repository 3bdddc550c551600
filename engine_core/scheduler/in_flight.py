"""A plan whose result has not been taken."""

from dataclasses import dataclass

from engine_core.request import Sequence
from engine_core.scheduler.outputs.prompt_logprobs import PromptRows
from engine_core.step.plan import Plan


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """A plan that the worker executes, and what the scheduler needs to take its result."""

    plan: Plan
    sampling: list[Sequence]  # in the order of its sample_rows
    num_ended: int  # SequenceStates.num_ended when it was made
    prompts: PromptRows  # whose log-probabilities the result may have
