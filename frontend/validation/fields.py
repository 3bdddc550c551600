"""The fields of generation requests, and how each value is checked. Pure.

A set field without an entry in FIELDS is refused by its path (requests.py), so a field that is added to the
protos is refused until it is implemented. Fields of other requests are in scripts/limits/field_tables.py.
"""

from enum import Enum

from frontend.validation import rules
from pagewire.limits import MAX_LENGTH_PENALTY
from pagewire.v1 import generation_pb2, prompt_pb2


class Kind(Enum):
    """Treatment of a field whose value needs no rule."""

    NESTED = "look inside"
    FREE = "any value is fine"


FIELDS: dict[str, rules.Rule | Kind] = {
    "request_id": rules.IDENTIFIER,
    "model": rules.IDENTIFIER,
    "priority": rules.PRIORITY,
    "tenant": rules.IDENTIFIER,
    "speculation": Kind.NESTED,
    "speculation.max_draft_tokens": rules.DRAFT_TOKENS,
    "prompt": Kind.NESTED,
    "prompt.text": Kind.FREE,
    "prompt.token_ids": Kind.NESTED,
    "prompt.token_ids.ids": Kind.FREE,  # see check_token_ids
    "prompt.embeddings": rules.EMBEDDINGS,
    "prompt.media": Kind.NESTED,
    "prompt.media.data": rules.FILE,
    "prompt.media.uri": rules.MEDIA_URI,
    "prompt.media.sha256": rules.MEDIA_DIGEST,
    "prompt.media.mime_type": Kind.FREE,
    "prompt.chat": Kind.NESTED,
    "prompt.chat.messages": Kind.NESTED,
    "prompt.chat.messages.role": rules.IDENTIFIER,
    "prompt.chat.messages.content": Kind.NESTED,
    "prompt.chat.messages.content.text": Kind.FREE,
    "prompt.chat.messages.content.media": Kind.NESTED,
    "prompt.chat.messages.content.media.data": rules.FILE,
    "prompt.chat.messages.content.media.uri": rules.MEDIA_URI,
    "prompt.chat.messages.content.media.sha256": rules.MEDIA_DIGEST,
    "prompt.chat.messages.content.media.mime_type": Kind.FREE,
    "prompt.chat.messages.name": rules.IDENTIFIER,
    "prompt.chat.messages.reasoning": Kind.FREE,
    "prompt.chat.messages.tool_calls": Kind.NESTED,
    "prompt.chat.messages.tool_calls.id": rules.IDENTIFIER,
    "prompt.chat.messages.tool_calls.name": rules.TOOL_NAME,
    "prompt.chat.messages.tool_calls.arguments": Kind.FREE,  # see frontend.templates.conversation
    "prompt.chat.messages.tool_call_id": rules.IDENTIFIER,
    "prompt.chat.tools": Kind.NESTED,
    "prompt.chat.tools.name": rules.TOOL_NAME,
    "prompt.chat.tools.description": Kind.FREE,
    "prompt.chat.tools.parameters": Kind.FREE,  # see frontend.templates.conversation
    "prompt.chat.tools.strict": Kind.FREE,
    "prompt.chat.tool_choice": Kind.NESTED,
    "prompt.chat.tool_choice.mode": rules.known_value(prompt_pb2.ToolChoice.Mode),
    "prompt.chat.tool_choice.function": rules.TOOL_NAME,
    "prompt.chat.enable_thinking": Kind.FREE,
    "prompt.chat.parallel_tool_calls": Kind.FREE,
    "prompt.chat.add_generation_prompt": Kind.FREE,
    "prompt.chat.continue_final_message": Kind.FREE,
    "prompt.chat.template_kwargs": Kind.FREE,  # see frontend.templates.chat_template
    "prompt.add_special_tokens": Kind.FREE,
    "prompt.truncate_to": rules.AT_LEAST_ONE,
    "prompt.truncation_side": rules.known_value(prompt_pb2.TruncationSide),
    "sampling": Kind.NESTED,
    "sampling.temperature": rules.number(0, 100),
    "sampling.top_p": rules.number(0, 1, above=True),
    "sampling.top_k": rules.number(0, rules.MAX_COUNT),
    "sampling.min_p": rules.number(0, 1),
    "sampling.typical_p": rules.number(0, 1, above=True),
    "sampling.frequency_penalty": rules.number(-2, 2),
    "sampling.presence_penalty": rules.number(-2, 2),
    "sampling.repetition_penalty": rules.number(0.01, 100),
    "sampling.seed": Kind.FREE,
    "sampling.n": rules.SEQUENCES,
    "sampling.best_of": rules.SEQUENCES,
    "sampling.beam_search": Kind.NESTED,
    "sampling.beam_search.width": rules.SEQUENCES,
    "sampling.beam_search.length_penalty": rules.number(-MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY),
    "sampling.beam_search.early_stopping": Kind.FREE,
    "sampling.logit_bias": rules.LOGIT_BIAS,
    "sampling.allowed_token_ids": rules.TOKEN_IDS,
    "sampling.bad_words": rules.BAD_WORDS,
    "sampling.bad_token_ids": rules.FEW_TOKEN_IDS,
    "stopping": Kind.NESTED,
    "stopping.max_tokens": rules.number(0, rules.MAX_COUNT),
    "stopping.min_tokens": rules.number(0, rules.MAX_COUNT),
    "stopping.stop": rules.STOP_STRINGS,
    "stopping.stop_regex": rules.STOP_REGEXES,
    "stopping.stop_token_ids": rules.FEW_TOKEN_IDS,
    "stopping.ignore_eos": Kind.FREE,
    "stopping.include_stop": Kind.FREE,
    "stopping.time_limit": rules.TIME_LIMIT,
    "stopping.repetition": Kind.NESTED,
    "stopping.repetition.max_ngram": rules.number(1, 64),
    "stopping.repetition.count": rules.number(2, 1000),
    "structured_output": Kind.NESTED,
    "structured_output.json_object": rules.TRUE,
    "structured_output.json_schema": rules.GRAMMAR_TEXT,  # and see frontend.grammar
    "structured_output.regex": rules.GRAMMAR_TEXT,
    "structured_output.choice": Kind.NESTED,
    "structured_output.choice.values": rules.CHOICES,
    "structured_output.grammar": Kind.NESTED,
    "structured_output.grammar.text": rules.GRAMMAR_TEXT,
    "structured_output.grammar.syntax": rules.known_value(generation_pb2.StructuredOutput.Grammar.Syntax),
    "structured_output.structural_tag": rules.GRAMMAR_TEXT,
    "structured_output.backend": rules.BACKEND,
    "reasoning": Kind.NESTED,
    "reasoning.budget": rules.number(0, rules.MAX_COUNT),
    "output": Kind.NESTED,
    "output.mode": rules.known_value(generation_pb2.OutputOptions.Mode),
    "output.text": Kind.FREE,
    "output.token_ids": Kind.FREE,
    "output.logprobs": Kind.NESTED,
    "output.logprobs.top_n": rules.TOP_N,
    "output.logprobs.token_ids": Kind.NESTED,
    "output.logprobs.token_ids.ids": rules.CANDIDATE_IDS,
    "output.logprobs.all": rules.ALL_CANDIDATES,
    "output.prompt_token_ids": Kind.FREE,
    "output.prompt_logprobs": Kind.NESTED,
    "output.prompt_logprobs.top_n": rules.TOP_N,
    "output.prompt_logprobs.token_ids": Kind.NESTED,
    "output.prompt_logprobs.token_ids.ids": rules.CANDIDATE_IDS,
    "output.prompt_logprobs.all": rules.ALL_CANDIDATES,
    "output.prompt_logprobs_start": Kind.FREE,  # see frontend.engine.logprobs
    "output.echo": Kind.FREE,
    "output.skip_special_tokens": Kind.FREE,
    "output.stream_interval": rules.AT_LEAST_ONE,
    "output.continuous_usage": Kind.FREE,
    "output.timings": Kind.FREE,
    "output.parameters": Kind.FREE,
    "output.token_bytes": Kind.FREE,
    "cache": Kind.NESTED,
    "cache.salt": rules.IDENTIFIER,
    "cache.bypass": Kind.FREE,
    "routing": Kind.NESTED,
    "routing.data_parallel_rank": rules.RANK,
    "routing.session_id": rules.IDENTIFIER,
    "adapter": rules.IDENTIFIER,
    "continuation": Kind.NESTED,
    "continuation.adapter_digest": rules.DIGEST,
    "continuation.media_digests": rules.MEDIA_DIGESTS,
    "continuation.sequences": Kind.NESTED,
    "continuation.sequences.index": Kind.FREE,  # see _check_continuation in requests.py
    "continuation.sequences.token_ids": Kind.FREE,
}
"""Path of a field, without indexes -> how it is checked. A field that is missing here is not implemented."""
