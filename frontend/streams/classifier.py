"""Classify: inputs that pool by the classifier of the checkpoint, and what its numbers become."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from frontend.call.call import Call
from frontend.errors import InvalidRequest, Unsupported
from frontend.model.info import limits_of
from frontend.model.pooling_config import TYPES
from frontend.streams.generator import Generator
from frontend.streams.pooling import Inputs, PoolingUsage, PromptPooler, inputs_of, pairs_of
from frontend.streams.request_spec import CallMode
from frontend.validation.requests import check_classify
from pagewire.checkpoints.heads import CLASSIFIER, Classes
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import unpack_f32_array
from pagewire.v1 import pooling_pb2


@dataclass(frozen=True, slots=True)
class Classified:
    """The classes of one call.

    labels: by index. values: of each input, in order, one per label: probabilities, or the classifier's
    numbers where it has no activation (reward models). raw: the numbers before the activation.
    """

    labels: tuple[str, ...]
    values: list[list[float]]
    raw: list[list[float]]
    usage: PoolingUsage


class Classifier:
    """Classifies by requests to the engine."""

    def __init__(self, generator: Generator, pooler: PromptPooler) -> None:
        self._generator, self._pooler = generator, pooler

    async def classify(
        self, request: pooling_pb2.ClassifyRequest, call: Call, first_text: str | None = None
    ) -> Classified:
        """Classifies all inputs, or the pairs of a first text and each of them, which are texts. Raises
        ServiceError."""
        generator = self._generator
        adapter = await generator.find_adapter(request, call.caller)
        welcome = generator.engine.require_known()

        def check() -> Classes:
            classes = self._require_classes(welcome.model)
            check_classify(request, limits, len(classes.labels))
            if first_text is not None and not classes.takes_pairs:
                raise Unsupported({"inputs": "are a pair of texts, which encoders classify"})
            if first_text == "":
                raise InvalidRequest({"inputs": "must not be empty"})
            return classes

        limits = limits_of(welcome, generator.config)
        classes, call = await generator.in_turn(check, request.request_id, request.ByteSize(), call)
        pooling = engine_pb2.Pooling(type=TYPES[classes.pooling], head=CLASSIFIER)
        mode = CallMode(one_message=True, pooling=pooling, adapter=adapter)
        inputs: Inputs = inputs_of(request)
        if first_text is not None:
            inputs = pairs_of(first_text, inputs_of(request), limits.max_model_len)
        found = await self._pooler.pool(request, call, mode, inputs)
        raw = [list(unpack_f32_array(column)) for column in found.columns]
        values = [activated(logits, classes.activation) for logits in raw]
        return Classified(classes.labels, values, raw, found.usage)

    def _require_classes(self, facts: engine_pb2.ModelFacts) -> Classes:
        """Returns what the model classifies by. Raises Unsupported."""
        classes = self._generator.model.classes
        if classes is None:
            problem = "does not classify: its architecture is no ...ForSequenceClassification"
            raise Unsupported({"model": problem})
        if facts.head_sizes[CLASSIFIER - 1 :] != [len(classes.labels)]:
            problem = f"does not classify: its engine has no classifier of {len(classes.labels)} labels"
            raise Unsupported({"model": problem})
        return classes


def activated(logits: Sequence[float], activation: str) -> list[float]:
    """Returns what the numbers of a classifier become. activation: of Classes."""
    if activation == "sigmoid":
        return [_sigmoid(x) for x in logits]
    if activation == "softmax":
        largest = max(logits)
        powers = [math.exp(x - largest) for x in logits]
        total = math.fsum(powers)
        return [power / total for power in powers]
    return list(logits)


def _sigmoid(x: float) -> float:
    power = math.exp(-abs(x))
    return (1 if x >= 0 else power) / (1 + power)
