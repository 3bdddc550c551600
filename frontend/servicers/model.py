"""ModelService."""

from frontend.engine.adapters import AdapterCatalogue
from frontend.errors import InvalidRequest
from frontend.parts import FrontendParts
from frontend.rpc.call_context import Context, current_caller
from frontend.rpc.error_mapping import guarded
from pagewire.internal.v1.engine_pb2 import NamedAdapter
from pagewire.v1 import model_pb2, model_pb2_grpc


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    """Describes the served model."""

    def __init__(self, parts: FrontendParts) -> None:
        self._parts = parts

    @guarded
    async def ListModels(
        self, request: model_pb2.ListModelsRequest, context: Context
    ) -> model_pb2.ListModelsResponse:
        adapters = self._adapters.visible(current_caller())
        model = self._describe()
        models = [model, *(_as_model(adapter, model) for adapter in adapters)]
        return model_pb2.ListModelsResponse(models=models)

    @guarded
    async def GetModel(
        self, request: model_pb2.GetModelRequest, context: Context
    ) -> model_pb2.GetModelResponse:
        if request.name and request.name not in self._parts.model.names:
            adapter = self._adapters.find(request.name, current_caller(), "name")
            return model_pb2.GetModelResponse(model=_as_model(adapter, self._describe()))
        return model_pb2.GetModelResponse(model=self._describe())

    @guarded
    async def LoadAdapter(
        self, request: model_pb2.LoadAdapterRequest, context: Context
    ) -> model_pb2.LoadAdapterResponse:
        if request.name in self._parts.model.names:
            raise InvalidRequest({"name": "is the name of the model"})
        adapter = await self._adapters.load(
            request.name, request.source, pinned=request.pinned, tenants=request.tenants
        )
        return model_pb2.LoadAdapterResponse(adapter=_as_model(adapter, self._describe()))

    @guarded
    async def UnloadAdapter(
        self, request: model_pb2.UnloadAdapterRequest, context: Context
    ) -> model_pb2.UnloadAdapterResponse:
        await self._adapters.unload(request.name)
        return model_pb2.UnloadAdapterResponse()

    @guarded
    async def ListAdapters(
        self, request: model_pb2.ListAdaptersRequest, context: Context
    ) -> model_pb2.ListAdaptersResponse:
        adapters = await self._adapters.listed()
        return model_pb2.ListAdaptersResponse(adapters=[full_adapter(adapter) for adapter in adapters])

    @property
    def _adapters(self) -> AdapterCatalogue:
        return self._parts.engine.adapters

    def _describe(self) -> model_pb2.Model:
        """Uses the last facts known of the engine, which stay valid while it is away."""
        welcome = self._parts.engine.facts or self._parts.engine.require()
        return self._parts.model.describe(welcome, self._parts.config)


def _as_model(adapter: NamedAdapter, base: model_pb2.Model) -> model_pb2.Model:
    """Returns an adapter as a model: its base's description with other names."""
    model = model_pb2.Model()
    model.CopyFrom(base)
    model.base, model.name = base.name, adapter.name
    model.ClearField("source")
    model.adapter.CopyFrom(brief_adapter(adapter))
    return model


def brief_adapter(adapter: NamedAdapter) -> model_pb2.Adapter:
    """Returns what every caller that may use an adapter is shown."""
    return model_pb2.Adapter(
        name=adapter.name,
        digest=adapter.digest,
        rank=adapter.rank,
        bytes=adapter.bytes,
        modules=adapter.modules,
        trained_on=adapter.base,
        invocation_token_ids=adapter.invocation_token_ids,
        pinned=adapter.pinned,
        virtual_tokens=adapter.virtual_tokens,
    )


def full_adapter(adapter: NamedAdapter) -> model_pb2.Adapter:
    """Returns what an admin is shown."""
    shown = brief_adapter(adapter)
    shown.source, shown.loaded, shown.streams = adapter.source, adapter.loaded, adapter.requests
    shown.tenants.extend(adapter.tenants)
    return shown
