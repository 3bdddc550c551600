"""gRPC server reflection, `v1` and `v1alpha`: the same messages in two packages.

grpcio-reflection has the older package only, so the newer one's descriptor is made from it, under another
name, and its method is served by the same servicer.
"""

from collections.abc import Iterable

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2

_OLD, _NEW = "grpc.reflection.v1alpha", "grpc.reflection.v1"
_METHOD = "ServerReflectionInfo"
SERVICE_NAME = f"{_NEW}.ServerReflection"
NAMES = (reflection.SERVICE_NAME, SERVICE_NAME)
"""Services that add_reflection() adds."""


def add_reflection(server: grpc.aio.Server, services: Iterable[str]) -> None:
    """Adds reflection to a server, of itself and of these services."""
    servicer = reflection.aio.ReflectionServicer((*services, *NAMES), pool=_pool())
    reflection.enable_server_reflection((*services, *NAMES), server, pool=_pool())
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, {_METHOD: handler}),))


def _pool() -> descriptor_pool.DescriptorPool:
    """Returns the default pool, with the descriptor of the newer package in it."""
    pool = descriptor_pool.Default()
    try:
        pool.FindFileContainingSymbol(SERVICE_NAME)
    except KeyError:
        file = descriptor_pb2.FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(file)
        _rename(file)
        pool.Add(file)
    return pool


def _rename(file: descriptor_pb2.FileDescriptorProto) -> None:
    """Moves a file, and the types that it refers to, to the newer package."""
    file.name, file.package = "grpc/reflection/v1/reflection.proto", _NEW
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(_OLD, _NEW)
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(_OLD, _NEW)
            method.output_type = method.output_type.replace(_OLD, _NEW)
