"""From a request and its prompt to the form of the answer."""

from pathlib import Path

import pytest

from frontend.answers.reader import answer_form
from frontend.errors import Unsupported
from frontend.model.info import ModelInfo, load_model
from pagewire.config import FrontendConfig
from pagewire.internal.v1 import reader_pb2
from pagewire.v1 import generation_pb2, prompt_pb2
from tests.frontend.fakes import encode, write_checkpoint
from tests.frontend.streams.test_answers import TEMPLATE

Form = reader_pb2.AnswerForm
TOOLS = [{"name": "f", "parameters": '{"properties":{}}'}, {"name": "g", "strict": True}]
REQUIRED = {"mode": prompt_pb2.ToolChoice.MODE_REQUIRED}
FREE = [{"name": "f"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    folder = write_checkpoint(tmp_path_factory.mktemp("forms"), chat_template_jinja=TEMPLATE)
    return load_model(FrontendConfig(model=str(folder)))


def form(model: ModelInfo, prompt_end: str = "<|assistant|>", **fields) -> Form | None:
    chat = {"messages": [{"role": "user"}], **fields.pop("chat", {})}
    request = generation_pb2.GenerateRequest(prompt={"chat": chat}, **fields)
    return answer_form(request, model.answers, encode(prompt_end))


def test_most_requests_have_none(model: ModelInfo) -> None:
    assert form(model) is None
    assert form(model, chat={"tools": FREE}) is None
    none = {"mode": prompt_pb2.ToolChoice.MODE_NONE}
    assert form(model, chat={"tools": TOOLS, "tool_choice": none}) is None


def test_required_calls_have_all_schemas(model: ModelInfo) -> None:
    found = form(model, chat={"tools": TOOLS, "tool_choice": REQUIRED})
    assert found is not None and found.calls_required and not found.single_call
    assert [(tool.name, tool.parameters, tool.place) for tool in found.tools] == [
        ("f", '{"properties":{}}', 0),
        ("g", "", 1),
    ]
    assert all(tool.HasField("parameters") for tool in found.tools)
    named = form(model, chat={"tools": TOOLS, "tool_choice": {"function": "g"}})
    assert named is not None and named.single_call and [tool.place for tool in named.tools] == [1]


def test_strict_tools_alone_have_schemas_where_the_model_chooses(model: ModelInfo) -> None:
    found = form(model, chat={"tools": TOOLS, "parallel_tool_calls": False})
    assert found is not None and not found.calls_required and found.single_call
    assert [tool.HasField("parameters") for tool in found.tools] == [False, True]


@pytest.mark.parametrize(
    ("prompt_end", "expected"),
    [
        ("<|assistant|>", Form.REASONING_POSSIBLE),
        ("<|assistant|><think>\n", Form.REASONING_BEGUN),
        ("<|assistant|><think>\n\n</think>\n\n", Form.REASONING_UNSPECIFIED),
    ],
)
def test_the_prompt_decides_where_reasoning_may_be(model: ModelInfo, prompt_end: str, expected: int) -> None:
    found = form(model, prompt_end, structured_output={"regex": "a"}, reasoning={"budget": 7})
    assert found is not None and found.reasoning == expected and found.reasoning_budget == 7
    assert found.structured_output.regex == "a" and not found.tools


def test_a_text_has_no_reasoning(model: ModelInfo) -> None:
    request = generation_pb2.GenerateRequest(prompt={"text": "<think>"}, structured_output={"regex": "a"})
    found = answer_form(request, model.answers, encode("<think>"))
    assert found == Form(structured_output={"regex": "a"})


def test_a_budget_needs_marks(tmp_path: Path) -> None:
    plain = load_model(FrontendConfig(model=str(write_checkpoint(tmp_path))))
    with pytest.raises(Unsupported) as refusal:
        form(plain, reasoning={"budget": 7})
    assert list(refusal.value.violations) == ["reasoning.budget"]
