"""Checks everything about a request that needs neither tokenizer nor engine. Pure.

Single fields follow fields.py; this file checks combinations of fields.
"""

from collections.abc import Sequence
from itertools import islice

from google.protobuf.message import Message

from frontend.errors import InvalidRequest, Unsupported
from frontend.media.files import media_of
from frontend.validation import answer_forms
from frontend.validation.answer_forms import tool_problems
from frontend.validation.fields import FIELDS, Kind
from frontend.validation.multi_sequence import contradictions, returned
from frontend.validation.rules import (
    MAX_ID_BYTES,
    Limits,
    identifier_problem,
    outside_vocabulary,
    priority_problem,
)
from pagewire.limits import MAX_MEDIA, MAX_VECTOR_VALUES
from pagewire.v1 import generation_pb2, pooling_pb2, prompt_pb2, tokenizer_pb2

MAX_PROMPTS = 1024
"""Prompts or sequences of one request to TokenizerService."""
MAX_SCORED_BYTES = 2 << 20
"""Bytes of all continuations of one request."""
MAX_PAIR_BYTES = 16 << 20
"""Bytes of all pairs of one request, with the query and the instruction in each."""
DTYPES = ("float32", "float16", "bfloat16", "binary", "ubinary")
"""Of raw elements."""
MAX_DETOKENIZED = 1 << 19
"""Token ids of one Detokenize request."""
MAX_PARTS = 16_384
"""Nested messages of a request (mostly of a conversation). Checking one takes about 5 us of the
event loop."""
MAX_ABORTS = 256
"""Request ids of one Abort."""
MAX_VIOLATIONS = 8
"""Violations reported at once: they travel in a trailer, and HTTP/2 peers accept 8 KiB of those."""

NOT_BUILT = "is not implemented yet"


class Findings:
    """Problems found, by path."""

    def __init__(self) -> None:
        self.invalid: dict[str, str] = {}
        self.unsupported: dict[str, str] = {}
        self._num_parts = 0

    def add(self, path: str, problem: str | None) -> None:
        """Adds what is wrong with a field; None: nothing."""
        if problem is not None:
            self.invalid[path] = problem

    def walk(self, message: Message, path: str, rule_path: str, limits: Limits) -> None:
        """Checks the fields that are set. rule_path: the path without indexes."""
        for field, value in message.ListFields():
            name = f"{rule_path}.{field.name}" if rule_path else field.name
            rule = FIELDS.get(name)
            if rule is Kind.FREE:
                continue
            where = f"{path}.{field.name}" if path else field.name
            if rule is None:
                self.unsupported[where] = NOT_BUILT
            elif rule is Kind.NESTED:
                self._num_parts += len(value) if field.is_repeated else 1
                if self._num_parts > MAX_PARTS:
                    self.invalid[where] = f"has more than {MAX_PARTS} parts"
                    self.raise_any()
                for place, part in enumerate(value) if field.is_repeated else ((None, value),):
                    self.walk(part, where if place is None else f"{where}[{place}]", name, limits)
            else:
                self.add(where, rule(value, limits))

    def raise_any(self) -> None:
        """Raises what was found; invalid values take precedence over unimplemented fields."""
        if self.invalid:
            raise InvalidRequest(dict(list(self.invalid.items())[:MAX_VIOLATIONS]))
        if self.unsupported:
            raise Unsupported(dict(list(self.unsupported.items())[:MAX_VIOLATIONS]))


def check_generate(request: generation_pb2.GenerateRequest, limits: Limits) -> None:
    """Checks a generation request. Raises InvalidRequest or Unsupported, naming the fields."""
    findings = Findings()
    findings.walk(request, "", "", limits)
    check_prompt(
        request.prompt, "prompt", findings, may_be_empty=False, takes_embeddings=True, takes_media=True
    )
    _check_embeddings(request, limits, findings)
    if (first := next(media_of(request.prompt, "prompt"), None)) is not None:
        if not limits.takes_images and not limits.takes_audio:
            findings.unsupported[first[0]] = "is not served: the engine has no encoder for images or sounds"
        if request.output.HasField("prompt_logprobs"):
            findings.unsupported["output.prompt_logprobs"] = f"{NOT_BUILT} for prompts with media"
    _check_counts(request, findings)
    _check_choice(request, limits, findings)
    _check_continuation(request, limits, findings)
    if not limits.has_grammars:
        for field in answer_forms.fields_with_grammars(request):
            findings.unsupported[field] = "is not served: the engine has no grammars"
    if request.output.echo and request.output.HasField("text") and not request.output.text:
        findings.invalid["output.echo"] = "is text, which output.text switches off"
    if request.output.HasField("prompt_logprobs_start") and not request.output.HasField("prompt_logprobs"):
        findings.invalid["output.prompt_logprobs_start"] = "means nothing without output.prompt_logprobs"
    findings.raise_any()


def check_continuations(
    request: pooling_pb2.ScoreContinuationsRequest, limits: Limits, max_continuations: int
) -> None:
    """Checks a request to score continuations. Raises InvalidRequest or Unsupported."""
    findings = Findings()
    _check_group(request, max_continuations, limits, findings)
    findings.walk(request.prompt, "prompt", "prompt", limits)
    check_prompt(request.prompt, "prompt", findings, may_be_empty=False)
    count, texts = len(request.continuations), request.continuations
    if not 1 <= count <= max_continuations:
        findings.invalid["continuations"] = f"must be 1 to {max_continuations}, not {count}"
    elif (size := sum(len(text.encode()) for text in texts)) > MAX_SCORED_BYTES:
        findings.invalid["continuations"] = f"must be at most {MAX_SCORED_BYTES} bytes in all, not {size}"
    for place, text in enumerate(texts[:max_continuations]):
        findings.add(f"continuations[{place}]", None if text else "must not be empty")
    findings.raise_any()


def check_embed(request: pooling_pb2.EmbedRequest, limits: Limits, size: int) -> None:
    """Checks a request to embed. size: elements of a vector of the model. Raises InvalidRequest or
    Unsupported, naming the fields."""
    findings = Findings()
    is_sparse = request.kind == pooling_pb2.EMBEDDING_KIND_SPARSE
    _check_inputs(request, limits, request.dimensions or size, findings)
    if request.kind not in pooling_pb2.EmbeddingKind.values():
        findings.add("kind", f"{request.kind} is not known")
    if request.HasField("dimensions") and (is_sparse or not 1 <= request.dimensions <= size):
        problem = f"must be 1 to {size}, not {request.dimensions}"
        findings.add("dimensions", "is not for sparse vectors" if is_sparse else problem)
    wrong = _dtype_problem(request.raw_dtype, request.dimensions or size)
    findings.add("raw_dtype", "is not for sparse vectors" if is_sparse and request.raw_dtype else wrong)
    findings.raise_any()


def _dtype_problem(dtype: str, size: int) -> str | None:
    """Returns what is wrong with the type of raw elements. size: elements of a vector."""
    if dtype in ("int8", "uint8"):
        return (
            f"{dtype} needs ranges that come from data, not from one vector: quantize float32 or take binary"
        )
    if dtype and dtype not in DTYPES:
        return f"must be {', '.join(DTYPES)}, or absent"
    if dtype.endswith("binary") and size % 8:
        return f"{dtype} packs 8 elements into a byte, and a vector has {size}: dimensions may shorten it"
    return None


def check_classify(request: pooling_pb2.ClassifyRequest, limits: Limits, num_labels: int) -> None:
    """Checks a request to classify. Raises InvalidRequest or Unsupported, naming the fields."""
    findings = Findings()
    _check_inputs(request, limits, num_labels, findings)
    findings.raise_any()


def check_score(
    request: pooling_pb2.ScoreRequest, limits: Limits, size: int, *, takes_instruction: bool
) -> None:
    """Checks a request to score. size: elements of an embedding; 0: a template makes a prompt of two texts.
    takes_instruction: the template does. Raises InvalidRequest or Unsupported, naming the fields."""
    findings = Findings()
    count = _require_count("documents", request.documents)
    _check_group(request, MAX_PROMPTS, limits, findings)
    if request.HasField("top_n") and not request.top_n:
        findings.add("top_n", "must be at least 1")
    if request.instruction and not takes_instruction:
        findings.unsupported["instruction"] = "is not used by this model"
    inputs = [("query", request.query)]
    inputs += ((f"documents[{place}]", prompt) for place, prompt in enumerate(request.documents))
    for path, prompt in inputs:
        findings.walk(prompt, path, "prompt", limits)
        check_prompt(prompt, path, findings, may_be_empty=not size and path != "query")
        kind = prompt.WhichOneof("kind")
        if not size and kind not in (None, "text"):
            findings.unsupported[f"{path}.{kind}"] = "is not served: a template makes one prompt of two texts"
        if not size and prompt.HasField("add_special_tokens"):
            findings.add(f"{path}.add_special_tokens", "has no meaning: a template writes them")
    if not size and request.query.HasField("truncate_to"):
        findings.add("query.truncate_to", "is not for queries: documents are truncated")
    if size and (count + 1) * size > MAX_VECTOR_VALUES:
        most = MAX_VECTOR_VALUES // size - 1
        findings.add("documents", f"must be at most {most} with vectors of this size, not {count}")
    shared = len(request.query.text.encode()) + len(request.instruction.encode())
    pairs = count * shared + sum(len(prompt.text.encode()) for prompt in request.documents)
    if not size and pairs > MAX_PAIR_BYTES:
        problem = (
            f"must be at most {MAX_PAIR_BYTES} bytes in all, each with query and instruction, not {pairs}"
        )
        findings.add("documents", problem)
    findings.raise_any()


def _check_inputs(
    request: pooling_pb2.EmbedRequest | pooling_pb2.ClassifyRequest,
    limits: Limits,
    size: int,
    findings: Findings,
) -> None:
    """Checks a group of inputs. size: elements of the vector of each."""
    count = _require_count("inputs", request.inputs)
    _check_group(request, MAX_PROMPTS, limits, findings)
    if count * size > MAX_VECTOR_VALUES:
        most = MAX_VECTOR_VALUES // size
        findings.add("inputs", f"must be at most {most} with vectors of this size, not {count}")
    for place, prompt in enumerate(request.inputs):
        findings.walk(prompt, f"inputs[{place}]", "prompt", limits)
        check_prompt(prompt, f"inputs[{place}]", findings, may_be_empty=False)


def _check_group(
    request: pooling_pb2.EmbedRequest
    | pooling_pb2.ScoreRequest
    | pooling_pb2.ClassifyRequest
    | pooling_pb2.ScoreContinuationsRequest,
    most: int,
    limits: Limits,
    findings: Findings,
) -> None:
    """Checks the fields that hold for a group of requests, of which there are at most `most`."""
    suffix = len(f"#{most}")  # each is a request with this id and its index
    findings.add("request_id", identifier_problem(request.request_id, MAX_ID_BYTES - suffix))
    findings.add("priority", priority_problem(request.priority, limits))
    findings.add("tenant", identifier_problem(request.tenant))
    findings.walk(request.cache, "cache", "cache", limits)


def check_tokenize(request: tokenizer_pb2.TokenizeRequest, limits: Limits) -> None:
    """Checks the prompts of a Tokenize request. Raises InvalidRequest or Unsupported."""
    findings = Findings()
    _require_count("prompts", request.prompts)
    for place, prompt in enumerate(request.prompts):
        path = f"prompts[{place}]"
        findings.walk(prompt, path, "prompt", limits)
        check_prompt(prompt, path, findings, may_be_empty=True, takes_media=True)
    findings.raise_any()


def check_detokenize(request: tokenizer_pb2.DetokenizeRequest, vocab_size: int) -> None:
    """Checks the sequences of a Detokenize request. Raises InvalidRequest."""
    findings = Findings()
    _require_count("sequences", request.sequences)
    if sum(len(sequence.ids) for sequence in request.sequences) > MAX_DETOKENIZED:
        raise InvalidRequest({"sequences": f"must be at most {MAX_DETOKENIZED} ids in all"})
    for place, sequence in enumerate(request.sequences):
        findings.add(f"sequences[{place}].ids", outside_vocabulary(sequence.ids, vocab_size))
    findings.raise_any()


def _require_count(path: str, items: Sequence[object]) -> int:
    """Returns the number of prompts or sequences. Raises InvalidRequest for none, and for too many."""
    if not 1 <= len(items) <= MAX_PROMPTS:
        raise InvalidRequest({path: f"must be 1 to {MAX_PROMPTS}, not {len(items)}"})
    return len(items)


def check_abort(request: generation_pb2.AbortRequest) -> None:
    """Checks the ids and the tenant of an Abort. Raises InvalidRequest."""
    findings = Findings()
    findings.add("tenant", identifier_problem(request.tenant))
    if len(request.request_ids) > MAX_ABORTS:
        raise InvalidRequest({"request_ids": f"must be at most {MAX_ABORTS}, not {len(request.request_ids)}"})
    for place, request_id in enumerate(request.request_ids):
        findings.add(f"request_ids[{place}]", identifier_problem(request_id))
    findings.raise_any()


def check_token_ids(ids: Sequence[int], vocab_size: int, path: str) -> None:
    """Checks a prompt's token ids, separately because they may be many. Raises InvalidRequest."""
    problem = outside_vocabulary(ids, vocab_size)
    if problem is not None:
        raise InvalidRequest({path: problem})


def check_prompt(
    prompt: prompt_pb2.Prompt,
    path: str,
    findings: Findings,
    *,
    may_be_empty: bool,
    takes_embeddings: bool = False,
    takes_media: bool = False,
) -> None:
    """Checks a prompt, besides single fields. path: of it in the request."""
    _check_media(prompt, path, findings, is_served=takes_media)
    kind = prompt.WhichOneof("kind")
    if kind is None:
        findings.invalid[path] = "is required: text, token_ids or chat"
    elif kind == "embeddings" and not takes_embeddings:
        findings.unsupported[f"{path}.embeddings"] = "is not served here: it is a prompt to generate from"
    elif kind == "text" and not prompt.text and not may_be_empty:
        findings.invalid[f"{path}.text"] = "must not be empty"
    elif kind == "token_ids" and not prompt.token_ids.ids and not may_be_empty:
        findings.invalid[f"{path}.token_ids.ids"] = "must not be empty"
    elif kind == "chat":
        _check_chat(prompt.chat, f"{path}.chat", findings)


def _check_media(prompt: prompt_pb2.Prompt, path: str, findings: Findings, *, is_served: bool) -> None:
    kind, media = prompt.WhichOneof("kind"), list(islice(media_of(prompt, path), MAX_MEDIA + 1))
    if not media:
        return
    if not is_served:
        findings.unsupported[media[0][0]] = "is not served here: it is of prompts to generate from"
    if len(media) > MAX_MEDIA:
        findings.invalid[media[-1][0]] = f"is one too many: a prompt may have {MAX_MEDIA} media"
    for where, each in media:
        if each.WhichOneof("source") is None:
            findings.invalid[where] = "is required: data, uri, sha256 or frames"
    if prompt.media and kind not in ("text", "token_ids"):
        problem = "is of prompts that are text or token_ids; a chat has media in its messages"
        findings.invalid[f"{path}.media"] = problem
    if prompt.HasField("truncate_to"):
        findings.invalid[f"{path}.truncate_to"] = "cannot be combined with media, which it might cut"


def _check_chat(chat: prompt_pb2.Chat, path: str, findings: Findings) -> None:
    if not chat.messages:
        findings.invalid[f"{path}.messages"] = "must not be empty"
    for place, message in enumerate(chat.messages):
        if not message.role:
            findings.invalid[f"{path}.messages[{place}].role"] = "must not be empty"
    for where, problem in tool_problems(chat):
        findings.invalid[f"{path}.{where}"] = problem
    if chat.continue_final_message and chat.add_generation_prompt:
        problem = "cannot be combined with add_generation_prompt"
        findings.invalid[f"{path}.continue_final_message"] = problem


def _check_embeddings(request: generation_pb2.GenerateRequest, limits: Limits, findings: Findings) -> None:
    """Refuses what needs the token ids of a prompt that has none."""
    prompt, output = request.prompt, request.output
    if not prompt.HasField("embeddings"):
        return
    if not limits.input_embedding_size:
        findings.unsupported["prompt.embeddings"] = "is not served: the engine takes token ids alone"
    wanted = {
        "prompt.truncate_to": prompt.HasField("truncate_to"),
        "prompt.add_special_tokens": prompt.HasField("add_special_tokens"),
        "output.prompt_token_ids": output.prompt_token_ids,
        "output.prompt_logprobs": output.HasField("prompt_logprobs"),
        "output.echo": output.echo,
    }
    for path in (path for path, is_wanted in wanted.items() if is_wanted):
        findings.invalid[path] = "cannot be combined with prompt.embeddings, which has no token ids"


def _check_counts(request: generation_pb2.GenerateRequest, findings: Findings) -> None:
    sampling, stopping = request.sampling, request.stopping
    findings.invalid.update(contradictions(request))
    findings.invalid.update(answer_forms.contradictions(request))
    if sampling.HasField("beam_search") and request.output.HasField("logprobs"):
        findings.unsupported["output.logprobs"] = f"{NOT_BUILT} for sampling.beam_search"
    _check_repetition(stopping, findings)
    if stopping.HasField("max_tokens") and stopping.min_tokens > stopping.max_tokens:
        problem = f"must not exceed max_tokens ({stopping.max_tokens}), not {stopping.min_tokens}"
        findings.invalid["stopping.min_tokens"] = problem


def _check_repetition(stopping: generation_pb2.StoppingCriteria, findings: Findings) -> None:
    if not stopping.HasField("repetition"):
        return
    missing = [name for name in ("max_ngram", "count") if not getattr(stopping.repetition, name)]
    if len(missing) == 2 or not any(path.startswith("stopping.repetition.") for path in findings.invalid):
        for name in missing:
            findings.invalid[f"stopping.repetition.{name}"] = "is required"


def _check_choice(request: generation_pb2.GenerateRequest, limits: Limits, findings: Findings) -> None:
    """Checks that at least one token can be chosen."""
    sampling, stopping = request.sampling, request.stopping
    if not (sampling.allowed_token_ids or sampling.bad_token_ids):
        return
    if not findings.invalid.keys().isdisjoint(("sampling.allowed_token_ids", "sampling.bad_token_ids")):
        return
    barred = set(sampling.bad_token_ids)
    if stopping.min_tokens:  # until then the tokens that end the sequence are barred, too
        barred.update(stopping.stop_token_ids, () if stopping.ignore_eos else limits.eos_token_ids)
    if sampling.allowed_token_ids:
        if barred.issuperset(sampling.allowed_token_ids):
            findings.invalid["sampling.allowed_token_ids"] = "leaves no token to choose"
    elif len(barred) >= limits.vocab_size:
        findings.invalid["sampling.bad_token_ids"] = "leaves no token to choose"


def _check_continuation(request: generation_pb2.GenerateRequest, limits: Limits, findings: Findings) -> None:
    """Checks what neither depends on the prompt nor takes time per token; see frontend.streams.continuation
    for the rest."""
    if not request.HasField("continuation"):
        return
    sampling = request.sampling
    draws = not (sampling.HasField("temperature") and sampling.temperature == 0)
    if draws and not (sampling.HasField("seed") or sampling.HasField("beam_search")):
        problem = "is required to continue a stream, unless temperature is 0: its first message reported it"
        findings.invalid["sampling.seed"] = problem
    n, sequences = returned(sampling), request.continuation.sequences
    if len(sequences) > n:
        findings.invalid["continuation.sequences"] = f"must be at most n ({n}), not {len(sequences)}"
        return
    seen: set[int] = set()
    for place, sequence in enumerate(sequences):
        path = f"continuation.sequences[{place}]"
        if sequence.index >= n:
            findings.invalid[f"{path}.index"] = f"must be below n ({n}), not {sequence.index}"
        elif sequence.index in seen:
            findings.invalid[f"{path}.index"] = f"{sequence.index} is there twice"
        seen.add(sequence.index)
        if (count := len(sequence.token_ids)) >= limits.max_model_len:
            problem = f"must be less than the context of {limits.max_model_len} tokens, not {count}"
            findings.invalid[f"{path}.token_ids"] = problem
