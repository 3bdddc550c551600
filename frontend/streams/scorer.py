"""Score: the relevance of documents to a query, each pair or text a request that pools.

Where templates put the query before the document, the prefix cache has it from the first pair on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import mul

from frontend.call.call import Call
from frontend.errors import Unsupported
from frontend.model.info import limits_of
from frontend.model.scoring_config import PairScoring
from frontend.streams.classifier import activated
from frontend.streams.generator import Generator
from frontend.streams.pooling import Inputs, PoolingUsage, PromptPooler, pairs_of, require_pooling
from frontend.streams.request_spec import CallMode
from frontend.validation.requests import check_score
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import unpack_f32_array
from pagewire.v1 import pooling_pb2


@dataclass(frozen=True, slots=True)
class ScoredDocument:
    """index: in the request. raw: the number before the activation; of embeddings the score."""

    index: int
    score: float
    raw: float


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of one call. documents: the best `top_n`, best first, equal ones by index."""

    documents: list[ScoredDocument]
    usage: PoolingUsage


class Scorer:
    """Scores by requests to the engine."""

    def __init__(self, generator: Generator, pooler: PromptPooler) -> None:
        self._generator, self._pooler = generator, pooler

    async def score(self, request: pooling_pb2.ScoreRequest, call: Call) -> Scored:
        """Scores all documents. Raises ServiceError."""
        generator = self._generator
        adapter = await generator.find_adapter(request, call.caller)
        welcome = generator.engine.require_known()
        scoring, limits = generator.model.scoring, limits_of(welcome, generator.config)

        def prepare() -> tuple[engine_pb2.Pooling, Inputs]:
            pooling, size = self._require_scores(welcome.model)
            template = None if scoring is None else scoring.template
            takes_instruction = template is not None and template.takes_instruction
            check_score(request, limits, size, takes_instruction=takes_instruction)
            texts = [(f"documents[{index}]", prompt) for index, prompt in enumerate(request.documents)]
            if scoring is not None:
                query, instruction = request.query.text, request.instruction
                return pooling, pairs_of(query, texts, limits.max_model_len, instruction)
            texts = [("query", request.query), *texts]
            generator.model.texts.apply(texts, None, limits.max_model_len)
            longest = generator.model.texts.longest(limits.max_model_len)
            for _, prompt in texts:
                if prompt.HasField("truncate_to"):
                    prompt.truncate_to = min(prompt.truncate_to, longest)
            return pooling, texts

        size = request.ByteSize()
        (pooling, inputs), call = await generator.in_turn(prepare, request.request_id, size, call)
        mode = CallMode(one_message=True, pooling=pooling, adapter=adapter)
        found = await self._pooler.pool(request, call, mode, inputs)
        rank = partial(_best, found.columns, scoring, request.top_n or len(request.documents))
        best = await generator.prompts.run(rank, call.caller.tenant, sum(map(len, found.columns)))
        return Scored(best, found.usage)

    def _require_scores(self, facts: engine_pb2.ModelFacts) -> tuple[engine_pb2.Pooling, int]:
        """Returns how inputs pool, and the elements of an embedding; 0: each pair is one prompt. Raises
        Unsupported."""
        model = self._generator.model
        if model.scoring is not None:
            head = model.scoring.pooling.head
            if not facts.embedding_size or (head and facts.head_sizes[head - 1 :] != [1]):
                raise Unsupported({"model": "does not score: its engine cannot pool, or has no classifier"})
            return model.scoring.pooling, 0
        if model.pooling is not None and model.pooling.of_texts:
            defaults, size = require_pooling(model, facts)
            return engine_pb2.Pooling(type=defaults.type, head=defaults.head), size
        if model.classes is not None and len(model.classes.labels) != 1:
            what = f"its classifier has {len(model.classes.labels)} labels, and a score is the number of one"
        elif model.pooling is not None:
            what = "it has vectors of tokens or sparse ones, and a score is the cosine of vectors of texts"
        else:
            what = (
                "no template is known that makes one prompt of a query and a document; --score-template, and"
                " --score-tokens for a model that generates, say how it was trained to score"
            )
        raise Unsupported({"model": f"does not score: {what}"})


def _best(columns: Sequence[bytes], scoring: PairScoring | None, count: int) -> list[ScoredDocument]:
    """Returns the documents with the best scores. columns: float32, of each pair, or of query and documents.
    scoring: None: embeddings."""
    vectors = [unpack_f32_array(column) for column in columns]
    if scoring is None:
        query, *documents = vectors
        found = [(score := _cosine(query, document), score) for document in documents]
    else:
        raws = [math.fsum((vector[0], *(-x for x in vector[1:]))) for vector in vectors]
        found = [(activated([raw], scoring.activation)[0], raw) for raw in raws]
    ranked = [ScoredDocument(index, score, raw) for index, (score, raw) in enumerate(found)]
    return sorted(ranked, key=lambda each: (-each.raw, each.index))[:count]


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the cosine of two vectors of float32: sums are correctly rounded, and depend on no order. A
    vector of zeros has no direction: 0."""
    product = math.fsum(map(mul, one, other))
    squares = math.fsum(map(mul, one, one)) * math.fsum(map(mul, other, other))
    return product / math.sqrt(squares) if squares else 0.0
