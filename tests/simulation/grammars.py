"""Grammars of simulated requests: what a frontend makes of a form, and a matcher of the plain twin's own."""

from functools import cache
from random import Random

from llguidance import LLMatcher, LLTokenizer

from frontend.grammar.answer import AnswerJudge
from pagewire.internal.v1 import reader_pb2
from pagewire.v1 import generation_pb2
from tests.frontend.fakes import SPECIAL
from tests.simulation.vocabulary import EOS, VOCAB_SIZE, tokenizer_json

_LARK = generation_pb2.StructuredOutput.Grammar.SYNTAX_LARK
FORMS = (
    {"json_schema": '{"type":"array","items":{"enum":["a","bc",1]},"minItems":2,"maxItems":9}'},
    {"json_schema": '{"type":"object","properties":{"f":{"const":1},"g":{"type":"string","maxLength":9}}}'},
    {"regex": "[a-h]{3,40}x?"},
    {"choice": {"values": ["yes", "no", "perhaps"]}},
    # Free text of five tokens at most, as reasoning with a budget has it, then a mark, then a call.
    {
        "grammar": {
            "text": 'start: free <|user|> "f(" /[0-9]{1,6}/ ")"\nfree[max_tokens=5]: /(.|\\n)*/\n',
            "syntax": _LARK,
        }
    },
)


class GrammarDraw:
    """Gives some requests a form. Half of the simulations have none, and are what they were before."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"grammars {seed}")
        self._has_any = self._random.random() < 0.5

    def constrain(self, request: generation_pb2.GenerateRequest) -> None:
        """Gives a request a form, or none."""
        random, stopping = self._random, request.stopping
        if not self._has_any or random.random() < 0.4:
            return
        if request.sampling.HasField("beam_search") or request.sampling.allowed_token_ids or stopping.stop:
            return
        request.structured_output.CopyFrom(generation_pb2.StructuredOutput(**random.choice(FORMS)))
        request.sampling.bad_token_ids.extend(random.sample(range(len(SPECIAL), VOCAB_SIZE), 40))
        if random.random() < 0.3:
            stopping.min_tokens = random.choice([1, 4])
            if stopping.HasField("max_tokens"):
                stopping.min_tokens = min(stopping.min_tokens, stopping.max_tokens)


class Twin:
    """The candidates of a sequence with a grammar, one position after the other."""

    def __init__(self, request: generation_pb2.GenerateRequest) -> None:
        form = request.structured_output.SerializeToString(deterministic=True)
        self._matcher = LLMatcher(_tokenizer(), _grammar(form), log_level=0)
        self._bad = set(request.sampling.bad_token_ids)
        self._min_tokens = request.stopping.min_tokens

    def candidates(self, position: int) -> list[int]:
        """What may be chosen, ascending: what is barred only where nothing else is left."""
        mask = int.from_bytes(self._matcher.compute_bitmask(), "little")
        allowed = [token for token in range(VOCAB_SIZE) if mask >> token & 1]
        for barred in (self._bad, {EOS} if position < self._min_tokens else set[int]()):
            allowed = [token for token in allowed if token not in barred] or allowed
        return allowed

    def advance(self, token: int) -> None:
        """Takes what was chosen."""
        assert token == EOS or self._matcher.consume_token(token)


@cache
def _grammar(form: bytes) -> str:
    requested = generation_pb2.StructuredOutput.FromString(form)
    judge = AnswerJudge({text: token for token, text in enumerate(SPECIAL)}, None, None)
    return judge.compile(reader_pb2.AnswerForm(structured_output=requested))


@cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer(tokenizer_json(), n_vocab=VOCAB_SIZE, eos_token=[EOS])
