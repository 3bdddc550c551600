"""ModelService over real gRPC."""

import grpc
import pytest

from frontend.model.info import ModelInfo
from frontend.rpc.grpc_server import MAX_SEND_BYTES
from pagewire.internal.v1 import engine_pb2
from pagewire.limits import MAX_ADAPTERS
from pagewire.v1 import model_pb2, model_pb2_grpc
from tests.frontend.fakes import details_of, run_service, until


async def test_the_model(checkpoint, model):
    async with run_service(checkpoint, model=model, max_sequences=7) as service:
        (listed,) = (await service.models.ListModels(model_pb2.ListModelsRequest())).models
        for name in ("", "fake"):
            found = (await service.models.GetModel(model_pb2.GetModelRequest(name=name))).model
            assert found == listed
        assert listed.name == "fake" and listed.architecture == "FakeForCausalLM"
        assert listed.max_model_len == 200 and listed.limits.max_sequences == 7
        assert listed.default_sampling.temperature == 0.5 and listed.default_sampling.top_k == 40
        origins = listed.default_sampling_origins
        assert (origins["top_k"], origins["top_p"]) == ("generation_config.json", "default")
        (end,) = listed.ends
        assert [end.token_id] == listed.eos_token_ids and end.text == "<|end|>"
        assert end.origin == "config.json, tokenizer_config.json"


async def test_an_unknown_model(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.models.GetModel(model_pb2.GetModelRequest(name="gpt"))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        assert details_of(caught.value)["ResourceInfo"].resource_name == "gpt"


async def test_the_model_is_unknown_before_the_engine(checkpoint, model):
    """And after it, what it said stays true."""
    request = model_pb2.ListModelsRequest()
    async with run_service(checkpoint, model=model, wait=False) as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.models.ListModels(request)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        await service.engine.start()
        await service.frontend.wait_until_serving()
        await service.engine.stop()
        assert (await service.models.ListModels(request)).models[0].vocab_size == 512


async def test_as_many_adapters_as_an_engine_names(checkpoint, model, monkeypatch):
    """They fit into an answer, and share one description of their base."""
    described, describe = [], ModelInfo.describe
    monkeypatch.setattr(ModelInfo, "describe", lambda *of: described.append(of) or describe(*of))
    modules = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]
    names = [f"{number:0128}" for number in range(MAX_ADAPTERS)]
    named = [engine_pb2.NamedAdapter(name=name, digest=bytes(32), modules=modules) for name in names]
    table = engine_pb2.AdapterTable(epoch=1, adapters=named)
    options = [("grpc.max_receive_message_length", MAX_SEND_BYTES)]
    async with run_service(checkpoint, model=model) as service:
        service.engine.answers["list_adapters"] = engine_pb2.UtilityResult(adapters=table)
        await service.engine.tell_adapters(table)
        await until(lambda: bool(service.frontend.parts.engine.adapters._named))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{service.port}", options=options) as channel:
            models = model_pb2_grpc.ModelServiceStub(channel)
            base, *found = (await models.ListModels(model_pb2.ListModelsRequest())).models
            listed = (await models.ListAdapters(model_pb2.ListAdaptersRequest())).adapters
    assert [each.name for each in found] == [each.name for each in listed] == names
    assert {each.base for each in found} == {base.name} and found[0].vocab_size == base.vocab_size
    assert len(described) == 1
