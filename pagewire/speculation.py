"""What a DraftMethod is called in --speculate, metrics, usage and replays."""

from pagewire.internal.v1.engine_pb2 import DraftMethod

METHOD_NAMES = {number: name.removeprefix("DRAFT_METHOD_").lower() for name, number in DraftMethod.items()}
