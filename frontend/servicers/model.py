"""ModelService."""

from frontend.parts import FrontendParts
from frontend.rpc.call_context import Context
from frontend.rpc.error_mapping import guarded, unimplemented
from pagewire.v1 import model_pb2, model_pb2_grpc


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    """Describes the served model."""

    def __init__(self, parts: FrontendParts) -> None:
        self._parts = parts

    @guarded
    async def ListModels(
        self, request: model_pb2.ListModelsRequest, context: Context
    ) -> model_pb2.ListModelsResponse:
        return model_pb2.ListModelsResponse(models=[self._describe()])

    @guarded
    async def GetModel(
        self, request: model_pb2.GetModelRequest, context: Context
    ) -> model_pb2.GetModelResponse:
        self._parts.model.check_name(request.name)
        return model_pb2.GetModelResponse(model=self._describe())

    LoadAdapter = unimplemented("LoadAdapter")
    UnloadAdapter = unimplemented("UnloadAdapter")

    def _describe(self) -> model_pb2.Model:
        """Uses the last facts known of the engine, which stay valid while it is away."""
        welcome = self._parts.engine.facts or self._parts.engine.require()
        return self._parts.model.describe(welcome, self._parts.config)
