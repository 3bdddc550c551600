"""A worker process without a model: speaks worker.proto, computes as FakeWorker does.

Started as the real one is (`worker --engine=ADDRESS --rank=R ...`). FAKE_WORKER says how it misbehaves:
"" not at all; "refuse": fails before it connects; "fail-load", "fail-step": sends Failed; "die-load",
"die-step": kills itself; "wrong-step": answers with a token too many; "hang-step": never answers; "burst":
answers once the burst is ended; "few-blocks": has room for half of the blocks; "other-model": loads another
model; "other-version": is of another pagewire. "FAULT@R": rank R alone.
"""

import json
import os
import signal
import sys
import time

import zmq

from pagewire import __version__
from pagewire.host import spawn as process
from pagewire.internal.v1.engine_pb2 import ModelFacts
from pagewire.internal.v1.worker_pb2 import (
    Failed,
    GrammarCompiled,
    LoadProgress,
    Ready,
    StepResult,
    WorkerCommand,
    WorkerHello,
    WorkerMessage,
)
from pagewire.ipc import transport
from pagewire.ipc.columns import pack_u32
from tests.engine_core.fakes import EOS, VOCAB, FakeWorker, decode_plan

MAX_MODEL_LEN = 2048
FAILED = Failed(type="ValueError", what="cannot load", why="a tensor is missing", todo="look for it")


def main(arguments: list[str]) -> None:
    """Serves until Shutdown."""
    options = dict(argument.removeprefix("--").split("=", 1) for argument in arguments if "=" in argument)
    rank = int(options.get("rank", "0"))
    fault, _, faulty_rank = os.environ.get("FAKE_WORKER", "").partition("@")
    if faulty_rank and rank != int(faulty_rank):
        fault = ""
    if fault == "refuse":
        event = {"event": "failed", "what": "cannot start", "why": "no torch", "todo": "install it"}
        os.write(int(os.environ["PAGEWIRE_STATUS_FD"]), json.dumps(event).encode() + b"\n")
        sys.exit(1)
    context = zmq.Context()
    socket = transport.connect_dealer(context, options["engine"], transport.new_identity())

    def send(**message: object) -> None:
        socket.send(transport.pack(WorkerMessage(**message)))  # type: ignore[arg-type]

    def receive() -> WorkerCommand:
        return WorkerCommand.FromString(transport.unpack(socket.recv()))

    version = "1.0.0" if fault == "other-version" else __version__
    send(hello=WorkerHello(rank=rank, pid=os.getpid(), version=version))
    initialize = receive().initialize
    send(load_progress=LoadProgress(what="weights", fraction=0.5))
    _misbehave(fault, "load", send)
    num_blocks = (initialize.num_blocks or 256) // (2 if fault == "few-blocks" else 1)
    worker = FakeWorker(num_blocks, initialize.block_size)
    facts = ModelFacts(
        architecture="Other" if fault == "other-model" else "Fake",
        vocab_size=VOCAB,
        max_model_len=initialize.max_model_len or MAX_MODEL_LEN,
        eos_token_ids=[EOS],
    )
    send(ready=Ready(model=facts, num_blocks=worker.num_blocks, device="cpu"))
    while (command := receive()).WhichOneof("command") != "shutdown":
        if command.HasField("compile_grammar"):
            send(grammar_compiled=GrammarCompiled(number=command.compile_grammar.number))
            continue
        _misbehave(fault, "step", send)
        tokens = worker.execute(decode_plan(command.step_plan))
        worker.plans.clear()
        if fault == "burst":
            assert receive().HasField("end_burst")
        if fault == "wrong-step":
            tokens.append(1)
        time.sleep(float(os.environ.get("FAKE_WORKER_STEP_S", "0")))
        send(step_result=StepResult(step=command.step_plan.step, token_ids=pack_u32(tokens)))
    socket.close()
    context.term()


def _misbehave(fault: str, where: str, send: object) -> None:
    if fault == f"fail-{where}":
        send(failed=FAILED)  # type: ignore[operator]
        signal.pause()  # the core must not wait for our end
    elif fault == f"die-{where}":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == f"hang-{where}":
        signal.pause()


if __name__ == "__main__":
    process.die_with_parent()
    main(sys.argv[1:])
