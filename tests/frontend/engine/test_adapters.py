"""Names of adapters: which callers may use them, and what becomes of them with the cores."""

import asyncio
from array import array
from typing import Any

import pytest

from frontend.auth.caller import ANONYMOUS, Caller, Terms
from frontend.engine.adapters import AdapterCatalogue
from frontend.errors import (
    AdapterChanged,
    AdaptersDiffer,
    ContextLengthExceeded,
    EngineRefused,
    InvalidRequest,
    ModelNotFound,
    Unsupported,
)
from frontend.prompts.prompt_encoding import TokenizedPrompt
from frontend.streams.request_adapter import (
    Request,
    apply,
    check_virtual_tokens,
    named_by,
    with_virtual_tokens,
)
from pagewire.internal.v1.engine_pb2 import (
    AdapterResult,
    AdapterTable,
    FrontendMessage,
    NamedAdapter,
    Utility,
    UtilityResult,
    Welcome,
)
from pagewire.ipc.named_adapters import MAX_FORMER
from pagewire.ipc.transport import MAX_MESSAGE_BYTES
from pagewire.limits import MAX_ADAPTERS
from pagewire.v1.generation_pb2 import Continuation, GenerateRequest
from pagewire.v1.pooling_pb2 import ClassifyRequest, EmbedRequest, ScoreContinuationsRequest


class FakeCore:
    """A core that remembers what it is sent."""

    def __init__(self, address: str, epoch: int = 1) -> None:
        self.address, self.epoch = address, epoch
        self.sent: list[FrontendMessage] = []

    def send(self, message: FrontendMessage) -> bool:
        self.sent.append(message)
        return True


class FakeQuestions:
    """Answers each question with prepared answers, one per core."""

    def __init__(self) -> None:
        self.answers: list[UtilityResult] = []
        self.asked: list[Utility] = []
        self.patience: list[float | None] = []

    async def of_all(self, call: Utility, seconds: float | None = 1.0) -> list[tuple[object, UtilityResult]]:
        self.asked.append(call)
        self.patience.append(seconds)
        await asyncio.sleep(0)
        return [(None, answer) for answer in self.answers]


def adapter(name: str, digest: str = "d", **fields: Any) -> NamedAdapter:
    return NamedAdapter(name=name, digest=digest.encode() * 32, source=f"/adapters/{name}", **fields)


def table(*adapters: NamedAdapter, epoch: int = 1) -> AdapterTable:
    return AdapterTable(epoch=epoch, adapters=adapters)


@pytest.fixture
def questions() -> FakeQuestions:
    return FakeQuestions()


@pytest.fixture
def catalogue(questions: FakeQuestions) -> AdapterCatalogue:
    return AdapterCatalogue(questions, lambda: Welcome(lora_folder="/adapters"))  # type: ignore[arg-type]


def told(core: FakeCore) -> list[list[NamedAdapter]]:
    """The adapters of each message to a core."""
    return [list(message.known_adapters.adapters) for message in core.sent]


def welcome(catalogue: AdapterCatalogue, core: FakeCore, *adapters: NamedAdapter) -> None:
    catalogue.on_welcome(core, Welcome(epoch=core.epoch, adapters=table(*adapters)))  # type: ignore[arg-type]


def test_a_core_that_starts_is_told_the_names(catalogue: AdapterCatalogue) -> None:
    core = FakeCore("a")
    welcome(catalogue, core, adapter("x"))
    core.epoch = 2
    welcome(catalogue, core)
    assert told(core) == [[adapter("x")]]
    core.sent.clear()
    catalogue.on_table(core, table(adapter("x"), epoch=2))  # type: ignore[arg-type]
    welcome(catalogue, core)  # a new connection to the same core, where it was unloaded meanwhile
    assert not core.sent and not catalogue.visible(ANONYMOUS)


def test_unloaded_at_one_core_is_unloaded(catalogue: AdapterCatalogue) -> None:
    cores = FakeCore("a"), FakeCore("b")
    for core in cores:
        welcome(catalogue, core, adapter("x"), adapter("y"))
    catalogue.on_table(cores[0], table(adapter("y")))  # type: ignore[arg-type]
    assert [each.name for each in catalogue.visible(ANONYMOUS)] == ["y"]


def test_changes(catalogue: AdapterCatalogue) -> None:
    """What a change does not name stays."""

    def names() -> dict[str, bytes]:
        return {each.name: each.digest[:1] for each in catalogue.visible(ANONYMOUS)}

    core = FakeCore("a")
    welcome(catalogue, core, adapter("x"), adapter("y"), adapter("z"))
    change = AdapterTable(
        epoch=1, is_change=True, adapters=[adapter("y", "e"), adapter("new")], unnamed=["x"]
    )
    catalogue.on_table(core, change)  # type: ignore[arg-type]
    assert names() == {"y": b"e", "z": b"d", "new": b"d"}
    catalogue.on_table(core, AdapterTable(epoch=1, is_change=True, unnamed=["new", "unknown"]))  # type: ignore[arg-type]
    assert names() == {"y": b"e", "z": b"d"}
    catalogue.on_table(core, table(adapter("z")))  # type: ignore[arg-type]
    assert names() == {"z": b"d"}, "a table that is no change has all"


def test_as_many_names_as_a_core_keeps(catalogue: AdapterCatalogue) -> None:
    """A core that starts is told all in one message, and only what it lacks."""
    adapters = [adapter(f"n{number}") for number in range(MAX_ADAPTERS)]
    core = FakeCore("a")
    welcome(catalogue, core, *adapters)
    core.epoch = 2
    welcome(catalogue, core, *adapters[5:])
    assert told(core) == [adapters[:5]]
    core.epoch = 3
    welcome(catalogue, core)
    (_, message) = core.sent
    assert len(message.known_adapters.adapters) == MAX_ADAPTERS
    assert message.ByteSize() < MAX_MESSAGE_BYTES


@pytest.mark.parametrize("is_named_again", [False, True])
def test_a_name_that_another_load_has_taken_meanwhile_stays(
    catalogue: AdapterCatalogue, questions: FakeQuestions, is_named_again: bool
) -> None:
    """An unload is answered when its last stream has ended; names are those of the cores' tables."""
    core = FakeCore("a")
    welcome(catalogue, core, adapter("x"))
    questions.answers = [UtilityResult(adapter=AdapterResult(adapter=adapter("x")))]

    async def unload() -> None:
        waiting = asyncio.create_task(catalogue.unload("x"))
        await asyncio.sleep(0)  # it has been asked
        catalogue.on_table(core, table())  # type: ignore[arg-type]
        if is_named_again:
            catalogue.on_table(core, table(adapter("x", "e")))  # type: ignore[arg-type]
        await waiting

    asyncio.run(unload())
    assert [each.digest for each in catalogue.visible(ANONYMOUS)] == [b"e" * 32] * is_named_again


def test_a_name_that_no_core_has_is_taken_away(catalogue: AdapterCatalogue, questions: FakeQuestions) -> None:
    welcome(catalogue, FakeCore("a"), adapter("x"))
    questions.answers = [
        UtilityResult(adapter=AdapterResult(problem="is not there", reason="ADAPTER_NOT_FOUND"))
    ]
    for _ in range(2):
        with pytest.raises(ModelNotFound):
            asyncio.run(catalogue.unload("x"))
        assert not catalogue.visible(ANONYMOUS)


@pytest.mark.parametrize(
    ("caller", "names"),
    [
        (ANONYMOUS, ["mine", "open", "theirs"]),
        (Caller("me"), ["mine", "open"]),
        (Caller("me", terms=Terms(adapters=("mine", "theirs"))), ["mine"]),
        (Caller("me", terms=Terms(adapters=())), []),
        (Caller("root", is_admin=True), ["mine", "open", "theirs"]),
    ],
)
def test_who_may_use_which(catalogue: AdapterCatalogue, caller: Caller, names: list[str]) -> None:
    """One that a caller may not use does not exist for it."""
    all_of_them = adapter("mine", tenants=["me"]), adapter("theirs", tenants=["they"]), adapter("open")
    welcome(catalogue, FakeCore("a"), *all_of_them)
    assert [each.name for each in catalogue.visible(caller)] == names
    for each in all_of_them:
        if each.name in names:
            assert catalogue.find(each.name, caller) == each
        else:
            with pytest.raises(ModelNotFound):
                asyncio.run(catalogue.resolve(each.name, b"", caller))


def test_first_use(catalogue: AdapterCatalogue, questions: FakeQuestions) -> None:
    """A name that is not known is a subfolder, loaded once at all cores."""
    questions.answers = [UtilityResult(adapter=AdapterResult(adapter=adapter("x")))] * 2
    for _ in range(2):
        assert asyncio.run(catalogue.resolve("x", b"", ANONYMOUS)) == adapter("x")
    (call,) = questions.asked
    assert call.load_adapter == NamedAdapter(name="x", source="/adapters/x")
    assert questions.patience == [None], "a load may take minutes, and wait for those before it"
    for name in ("..", "a/b", ".hidden", "x" * 200):
        with pytest.raises(ModelNotFound):
            asyncio.run(catalogue.resolve(name, b"", ANONYMOUS))
    with pytest.raises(ModelNotFound):
        asyncio.run(catalogue.resolve("y", b"", Caller("me", terms=Terms(adapters=("x",)))))
    assert len(questions.asked) == 1


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("", "/adapters/x"),
        ("other", "/adapters/other"),
        ("/elsewhere/a", "/elsewhere/a"),
        ("org/repo", "org/repo"),
        ("org/repo@v2", "org/repo@v2"),
        ("a/b/c", "/adapters/a/b/c"),
        ("../a", "/adapters/../a"),
    ],
)
def test_what_a_source_means(
    catalogue: AdapterCatalogue, questions: FakeQuestions, source: str, asked: str
) -> None:
    questions.answers = [UtilityResult(adapter=AdapterResult(adapter=adapter("x")))]
    asyncio.run(catalogue.load("x", source, pinned=False, tenants=()))
    assert questions.asked[0].load_adapter.source == asked


def test_problems_of_a_load(catalogue: AdapterCatalogue, questions: FakeQuestions) -> None:
    def load() -> object:
        return asyncio.run(catalogue.load("x", "", pinned=False, tenants=()))

    questions.answers = [UtilityResult(adapter=AdapterResult(adapter=adapter("x", each))) for each in "de"]
    with pytest.raises(AdaptersDiffer):
        load()
    bad = AdapterResult(problem="source is bad", code=3, reason="ADAPTER_INVALID", field="source")
    questions.answers = [UtilityResult(adapter=bad)]
    with pytest.raises(EngineRefused, match="source is bad") as caught:
        load()
    assert caught.value.violations == {"source": "is bad"}
    with pytest.raises(EngineRefused, match="adapter is bad") as caught:
        asyncio.run(catalogue.resolve("x", b"", ANONYMOUS, "adapter"))
    assert (caught.value.violations, caught.value.reason) == ({"adapter": "is bad"}, "ADAPTER_INVALID")
    assert not catalogue.visible(ANONYMOUS)
    with pytest.raises(InvalidRequest, match="name"):
        asyncio.run(catalogue.load("a b", "", pinned=False, tenants=()))
    with pytest.raises(InvalidRequest, match=r"tenants\[1\]: must be 1 to 64"):
        asyncio.run(catalogue.load("x", "", pinned=False, tenants=("a", "")))
    for reason in ("ADAPTER_NOT_FOUND", "ADAPTER_NAME_IN_USE"):  # the latter: another frontend loads it
        answer = AdapterResult(problem="tells that it exists", code=6, reason=reason)
        questions.answers = [UtilityResult(adapter=answer)]
        with pytest.raises(ModelNotFound):
            asyncio.run(catalogue.resolve("x", b"", Caller("me")))


def test_former_adapters_of_a_name(catalogue: AdapterCatalogue) -> None:
    """A broken stream goes on with what it had, if the name has stood for that; never with another's."""
    core = FakeCore("a")
    digests = "".join(map(chr, range(ord("a"), ord("a") + MAX_FORMER + 2)))
    for digest in digests:
        catalogue.on_table(core, table(adapter("x", digest), adapter("other", "!")))  # type: ignore[arg-type]
    for digest in digests[1:]:
        assert continued(catalogue, digest) == adapter("x", digest).digest
    for digest in (digests[0], "!"):
        with pytest.raises(AdapterChanged):
            continued(catalogue, digest)


def continued(catalogue: AdapterCatalogue, digest: str) -> bytes:
    """Returns the digest of the adapter with which a broken stream goes on."""
    return asyncio.run(catalogue.resolve("x", digest.encode() * 32, ANONYMOUS)).digest


def test_former_adapters_at_every_frontend(catalogue: AdapterCatalogue, questions: FakeQuestions) -> None:
    """A frontend that starts knows what those before it know; so does a core that takes over, and one that
    has found other files by itself."""
    core, now = FakeCore("a"), adapter("x", "c", former=[adapter("x", "b"), adapter("x", "a")])
    welcome(catalogue, core, now)
    assert [continued(catalogue, digest) for digest in "cba"] == [each.encode() * 32 for each in "cba"]
    core.epoch = 2
    welcome(catalogue, core, adapter("x", "d", former=[adapter("x", "a")]))
    assert told(core) == [[now]]
    assert [continued(catalogue, digest) for digest in "abcd"] == [each.encode() * 32 for each in "abcd"]
    core.sent.clear()
    core.epoch = 3
    welcome(catalogue, core, adapter("x", "e", former=[adapter("x", digest) for digest in "dcab"]))
    assert not core.sent, "it knows all"
    other = FakeCore("b")
    welcome(catalogue, other, adapter("x", "d"))
    assert continued(catalogue, "e") == b"e" * 32, "a core that loads it a moment later"


def test_what_names_it() -> None:
    models = "m", "alias"
    assert named_by(GenerateRequest(model="alias"), models).name == ""
    assert named_by(GenerateRequest(model="x"), models) == ("x", "model", b"")
    assert named_by(GenerateRequest(model="m", adapter="x"), models) == ("x", "adapter", b"")
    continuation = Continuation(adapter_digest=b"d")
    continued = GenerateRequest(adapter="x", continuation=continuation)
    assert named_by(continued, models) == ("x", "adapter", b"d")
    with pytest.raises(InvalidRequest, match="continuation.adapter_digest"):
        named_by(GenerateRequest(model="m", continuation=continuation), models)
    with pytest.raises(InvalidRequest, match="adapter"):
        named_by(GenerateRequest(model="x", adapter="y"), models)


@pytest.mark.parametrize(
    ("invocation", "prompt", "start"),
    [
        ([], [1, 2], 0),
        ([7, 8], [1, 7, 8, 2, 7, 8, 3, 7], 4),
        ([7, 8], [7, 8], 0),
        ([7, 7], [7, 7, 7, 1], 1),
        ([7, 8], [7], None),
        ([7, 8], [8, 7], None),
    ],
)
def test_where_it_begins(invocation: list[int], prompt: list[int], start: int | None) -> None:
    applied = apply(adapter("x", invocation_token_ids=invocation), prompt)
    assert applied.start == start
    reference = applied.reference()
    assert (None if reference is None else reference.start) == start
    assert applied.shown().HasField("start") is (start is not None)


class Counted(list[int]):
    """A prompt that counts how many of its tokens are read."""

    num_read = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.num_read += len(found) if isinstance(at, slice) else 1
        return found


@pytest.mark.parametrize(
    "invocation", [[8, *[7] * 99], [*[7] * 99, 8], [7, 8] * 50, [*[7] * 50, 8, *[7] * 49]]
)
def test_each_token_is_read_once(invocation: list[int]) -> None:
    for prompt in (Counted([7] * 5000), Counted([7, 8] * 2500), Counted(invocation * 9)):
        start = apply(adapter("x", invocation_token_ids=invocation), prompt).start
        assert prompt.num_read <= len(prompt)
        found = [
            at for at in range(len(prompt)) if list.__getitem__(prompt, slice(at, at + 100)) == invocation
        ]
        assert start == (found[-1] if found else None)


def test_virtual_tokens_stand_before_the_prompt() -> None:
    soft, prompt = adapter("x", virtual_tokens=3), TokenizedPrompt(array("I", [5, 6]))
    read = with_virtual_tokens(prompt, 3, 6, prompt_only=False)
    assert (read.token_ids.tolist(), read.known_ids.tolist()) == ([0, 0, 0, 5, 6], [5, 6])
    assert len(with_virtual_tokens(prompt, 3, 5, prompt_only=True).token_ids) == 5
    with pytest.raises(ContextLengthExceeded, match="5 tokens leave no room for output in a context of 5"):
        with_virtual_tokens(prompt, 3, 5, prompt_only=False)
    reference = apply(soft, read.token_ids).reference()
    assert reference is not None and (reference.virtual_tokens, reference.start) == (3, 0)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (GenerateRequest(prompt={"embeddings": {}}), "prompt.embeddings"),
        (GenerateRequest(output={"echo": True}), "output.echo"),
        (GenerateRequest(output={"prompt_logprobs": {}}), "output.prompt_logprobs"),
        (GenerateRequest(output={"prompt_token_ids": True}), "output.prompt_token_ids"),
        (EmbedRequest(), "model"),
        (ClassifyRequest(), "model"),
        (ScoreContinuationsRequest(), "model"),
    ],
)
def test_what_virtual_tokens_cannot_have(request_: Request, field: str) -> None:
    check_virtual_tokens(request_, adapter("lora"), "model")
    with pytest.raises((InvalidRequest, Unsupported), match=f"{field}.*virtual tokens"):
        check_virtual_tokens(request_, adapter("soft", virtual_tokens=3), "model")
