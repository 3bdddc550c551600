"""ModelService over real gRPC."""

import grpc
import pytest

from pagewire.v1 import model_pb2
from tests.frontend.fakes import details_of, run_service


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
