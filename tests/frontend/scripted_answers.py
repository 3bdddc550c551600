"""What the fake engine says where tests cut a stream: a function of sequence and position, as a real one's
answers are."""

from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import unpack_u32
from pagewire.v1 import generation_pb2
from tests.frontend.fakes import END, Output, encode

EOS = generation_pb2.FINISH_REASON_EOS

TEXTS = ("a 🙂 says hello, héllo", "the second is 你好 and more")
ANSWERS = [[*encode(text), END] for text in TEXTS]


def delivered_of(request: engine_pb2.AddRequest) -> dict[int, list[int]]:
    return {part.index: list(unpack_u32(part.token_ids)) for part in request.delivered}


def steps_of(request: engine_pb2.AddRequest) -> list[list[Output]]:
    """What the engine still has to say: a token of each live sequence per step, from where it is."""
    delivered, ended = delivered_of(request), set(request.ended_indexes)
    counts = {index: len(delivered.get(index, ())) for index in range(request.sampling.n)}
    steps = []
    while live := [index for index in counts if index not in ended and counts[index] < len(ANSWERS[index])]:
        step = []
        for index in live:
            position = counts[index]
            counts[index] += 1
            token = ANSWERS[index][position]
            finish = (EOS, END) if token == END else (0, 0)
            step.append(Output([token], *finish, index=index, position=position))
        steps.append(step)
    return steps
