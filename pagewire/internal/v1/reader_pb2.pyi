from pagewire.v1 import generation_pb2 as _generation_pb2
from pagewire.v1 import prompt_pb2 as _prompt_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadRequest(_message.Message):
    __slots__ = ("prompt", "words", "continuations", "answer_form", "pair", "media")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    CONTINUATIONS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FORM_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    prompt: ReadPrompt
    words: Texts
    continuations: Texts
    answer_form: AnswerForm
    pair: ReadPair
    media: FetchMedia
    def __init__(self, prompt: _Optional[_Union[ReadPrompt, _Mapping]] = ..., words: _Optional[_Union[Texts, _Mapping]] = ..., continuations: _Optional[_Union[Texts, _Mapping]] = ..., answer_form: _Optional[_Union[AnswerForm, _Mapping]] = ..., pair: _Optional[_Union[ReadPair, _Mapping]] = ..., media: _Optional[_Union[FetchMedia, _Mapping]] = ...) -> None: ...

class FetchMedia(_message.Message):
    __slots__ = ("uris", "paths")
    URIS_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    uris: _containers.RepeatedScalarFieldContainer[str]
    paths: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, uris: _Optional[_Iterable[str]] = ..., paths: _Optional[_Iterable[str]] = ...) -> None: ...

class AnswerForm(_message.Message):
    __slots__ = ("structured_output", "tools", "calls_required", "single_call", "reasoning", "reasoning_budget")
    class Reasoning(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASONING_UNSPECIFIED: _ClassVar[AnswerForm.Reasoning]
        REASONING_POSSIBLE: _ClassVar[AnswerForm.Reasoning]
        REASONING_BEGUN: _ClassVar[AnswerForm.Reasoning]
    REASONING_UNSPECIFIED: AnswerForm.Reasoning
    REASONING_POSSIBLE: AnswerForm.Reasoning
    REASONING_BEGUN: AnswerForm.Reasoning
    class CallableTool(_message.Message):
        __slots__ = ("name", "parameters", "place")
        NAME_FIELD_NUMBER: _ClassVar[int]
        PARAMETERS_FIELD_NUMBER: _ClassVar[int]
        PLACE_FIELD_NUMBER: _ClassVar[int]
        name: str
        parameters: str
        place: int
        def __init__(self, name: _Optional[str] = ..., parameters: _Optional[str] = ..., place: _Optional[int] = ...) -> None: ...
    STRUCTURED_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    CALLS_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    SINGLE_CALL_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    REASONING_BUDGET_FIELD_NUMBER: _ClassVar[int]
    structured_output: _generation_pb2.StructuredOutput
    tools: _containers.RepeatedCompositeFieldContainer[AnswerForm.CallableTool]
    calls_required: bool
    single_call: bool
    reasoning: AnswerForm.Reasoning
    reasoning_budget: int
    def __init__(self, structured_output: _Optional[_Union[_generation_pb2.StructuredOutput, _Mapping]] = ..., tools: _Optional[_Iterable[_Union[AnswerForm.CallableTool, _Mapping]]] = ..., calls_required: _Optional[bool] = ..., single_call: _Optional[bool] = ..., reasoning: _Optional[_Union[AnswerForm.Reasoning, str]] = ..., reasoning_budget: _Optional[int] = ...) -> None: ...

class ReadPrompt(_message.Message):
    __slots__ = ("prompt", "path", "vocab_size", "max_model_len", "offsets")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    prompt: _prompt_pb2.Prompt
    path: str
    vocab_size: int
    max_model_len: int
    offsets: bool
    def __init__(self, prompt: _Optional[_Union[_prompt_pb2.Prompt, _Mapping]] = ..., path: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., offsets: _Optional[bool] = ...) -> None: ...

class ReadPair(_message.Message):
    __slots__ = ("query", "document", "instruction", "path", "max_model_len")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    query: str
    document: _prompt_pb2.Prompt
    instruction: str
    path: str
    max_model_len: int
    def __init__(self, query: _Optional[str] = ..., document: _Optional[_Union[_prompt_pb2.Prompt, _Mapping]] = ..., instruction: _Optional[str] = ..., path: _Optional[str] = ..., max_model_len: _Optional[int] = ...) -> None: ...

class Texts(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("prompt", "texts", "error", "grammar", "media")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    prompt: Reading
    texts: Readings
    error: ReadError
    grammar: str
    media: FetchedMedia
    def __init__(self, prompt: _Optional[_Union[Reading, _Mapping]] = ..., texts: _Optional[_Union[Readings, _Mapping]] = ..., error: _Optional[_Union[ReadError, _Mapping]] = ..., grammar: _Optional[str] = ..., media: _Optional[_Union[FetchedMedia, _Mapping]] = ...) -> None: ...

class FetchedMedia(_message.Message):
    __slots__ = ("files", "digests")
    FILES_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedScalarFieldContainer[bytes]
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, files: _Optional[_Iterable[bytes]] = ..., digests: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Reading(_message.Message):
    __slots__ = ("token_ids", "text", "starts", "ends", "truncated", "second_text", "media_bytes", "media_tokens")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    SECOND_TEXT_FIELD_NUMBER: _ClassVar[int]
    MEDIA_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TOKENS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    text: str
    starts: bytes
    ends: bytes
    truncated: int
    second_text: int
    media_bytes: int
    media_tokens: int
    def __init__(self, token_ids: _Optional[bytes] = ..., text: _Optional[str] = ..., starts: _Optional[bytes] = ..., ends: _Optional[bytes] = ..., truncated: _Optional[int] = ..., second_text: _Optional[int] = ..., media_bytes: _Optional[int] = ..., media_tokens: _Optional[int] = ...) -> None: ...

class Readings(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, token_ids: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ReadError(_message.Message):
    __slots__ = ("code", "reason", "message", "violations", "metadata")
    class ViolationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    violations: _containers.ScalarMap[str, str]
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., violations: _Optional[_Mapping[str, str]] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...
