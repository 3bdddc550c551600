"""The one table of all fields: complete, and printed."""

import inspect

import pytest

from frontend.errors import Unimplemented
from frontend.servicers.admin import AdminServicer
from frontend.servicers.generation import GenerationServicer
from frontend.servicers.model import ModelServicer
from frontend.servicers.pooling import PoolingServicer
from frontend.servicers.tokenizer import TokenizerServicer
from frontend.validation.fields import FIELDS
from scripts.limits import field_rows, field_tables
from scripts.limits.field_rows import MODULES, NoRow, all_rows, request_rows
from scripts.limits.field_tables import DEFAULTS, NOT_BUILT, REFUSED_FIELDS, REQUESTS
from scripts.limits_page import PAGE, page
from tests.frontend.validation import test_requests as test_validation

SERVICERS = (GenerationServicer, TokenizerServicer, PoolingServicer, ModelServicer, AdminServicer)


def methods():
    for module, servicer in zip(MODULES, SERVICERS, strict=True):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield method, servicer


def test_every_field_of_every_public_message_has_a_row():
    rows = list(all_rows())
    places = [(row.message, row.path) for row in rows]
    assert len(set(places)) == len(places)
    messages = {row.message for row in rows}
    for method, _ in methods():
        for message in (method.input_type, method.output_type):
            assert not message.fields or message.name in messages, message.name
    assert all(row.type and row.range for row in rows)


def test_a_field_without_a_row_is_an_error(monkeypatch):
    fields = {path: entry for path, entry in REQUESTS["GenerateRequest"].items() if path != "sampling.seed"}
    monkeypatch.setitem(field_tables.REQUESTS, "GenerateRequest", fields)
    with pytest.raises(NoRow, match=r"GenerateRequest\.sampling\.seed"):
        list(all_rows())


def test_a_row_without_a_field_and_a_request_without_a_table_are_errors(monkeypatch):
    monkeypatch.setitem(field_tables.REQUESTS, "GetModelRequest", {**REQUESTS["GetModelRequest"], "x.y": 1})
    with pytest.raises(NoRow, match="GetModelRequest has no field x"):
        request_rows("GetModelRequest")
    monkeypatch.delitem(field_tables.REQUESTS, "AbortRequest")
    with pytest.raises(NoRow, match="AbortRequest"):
        request_rows("AbortRequest")


def test_the_printed_table_is_fresh():
    assert PAGE.read_text() == page(), "run python -m scripts.limits_page"


def test_what_is_refused_there_is_refused_by_the_validation():
    """Those paths are tried one by one in test_validation."""
    tried = {path.replace("[0]", "").replace("[1]", "") for path in test_validation.NOT_BUILT}
    assert tried - FIELDS.keys() == REFUSED_FIELDS


def test_defaults_are_of_fields_that_exist():
    known = {row.path for row in request_rows("GenerateRequest")}
    assert DEFAULTS.keys() <= known | {"routing.data_parallel_rank"}
    optional = {
        path
        for path in FIELDS
        if (field := field_of("GenerateRequest", path)).has_presence and field.message_type is None
    }
    in_a_oneof = {path for path in optional if field_of("GenerateRequest", path).containing_oneof.fields[1:]}
    assert optional - in_a_oneof <= DEFAULTS.keys()


def field_of(message, path):
    descriptor = field_rows._requests()[message]
    *above, last = path.split(".")
    for name in above:
        descriptor = descriptor.fields_by_name[name].message_type
    return descriptor.fields_by_name[last]


async def test_what_is_not_built_answers_so():
    for method, servicer in methods():
        if method.input_type.name in NOT_BUILT:
            rpc = inspect.unwrap(getattr(servicer, method.name))
            with pytest.raises(Unimplemented, match=method.name):
                await rpc(object.__new__(servicer), None, None)
        else:
            assert method.input_type.name in REQUESTS
