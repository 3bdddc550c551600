"""Measures what a frontend and the engine core can carry: the whole service, on a simulated H200.

    python -m benchmarks.service.pipeline
    python -m benchmarks.service.pipeline --frontends 1,4 --repeats 5 --json figures.json
    python -m benchmarks.service.pipeline --frontends 1 --loads light,heavy --merge-delays 0,0.1

The model has the shape of Llama-3-8B and no weights; its vocabulary is the demo model's, whose
tokenizer serves it. Three loads, all of streams that ask for token ids:

    light       few streams: each token is a message of its own
    heavy       more tokens than the machine can carry one by one: frontends merge what has come
    interval    as heavy, and the clients ask for at least 8 tokens in a message

Clients are processes of their own and only count messages. What a machine with few cores can show
is not how many tokens per second N frontends reach (service and clients want the same cores), but
what each process pays: CPU seconds from /proc, over whole requests, admission and prompts included.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc
import grpc.aio

from benchmarks.service.processes import by_role, cpu_seconds
from pagewire import __version__
from pagewire.checkpoints.paths import checkpoint_folder
from pagewire.config import ServeConfig
from pagewire.local_service import Service
from pagewire.v1 import generation_pb2

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
MAX_NUM_SEQS = 1024
CLIENTS = 2
CHANNELS = 8
"""Connections of each client: the kernel spreads them over the frontends, by chance."""
PROMPT_TOKENS = 64


@dataclass(frozen=True)
class Load:
    """Streams at once, the tokens of each, and how many a message has at least."""

    name: str
    streams: int
    output: int
    interval: int = 1


LOADS = {
    load.name: load
    for load in (Load("light", 32, 512), Load("heavy", 768, 256), Load("interval", 768, 256, 8))
}


@dataclass
class Figures:
    """Of one run. CPU in seconds, of all processes of a kind together."""

    seconds: float
    tokens: int
    messages: int
    frontend_cpu: float
    engine_cpu: float
    worker_cpu: float
    client_cpu: float

    def summary(self) -> dict[str, float]:
        """What the table shows."""
        return {
            "tokens_per_s": self.tokens / self.seconds,
            "tokens_per_message": self.tokens / self.messages,
            "tokens_per_frontend_cpu_s": self.tokens / self.frontend_cpu,
            "engine_us_per_token": 1e6 * self.engine_cpu / self.tokens,
            "engine_share": self.engine_cpu / self.seconds,
            "worker_share": self.worker_cpu / self.seconds,
        }


@contextlib.contextmanager
def model_folder(**changes: int):
    """A folder with the shape of an 8B model, but for what is given, and the demo model's tokenizer."""
    demo = checkpoint_folder("demo")
    with tempfile.TemporaryDirectory(prefix="pagewire-8b-") as name:
        folder = Path(name)
        for path in demo.iterdir():
            if path.suffix != ".safetensors":
                shutil.copy(path, folder)
        theirs = json.loads((demo / "config.json").read_text())
        ids = {name: theirs[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")}
        (folder / "config.json").write_text(json.dumps(LLAMA_3_8B | ids | changes))
        yield folder


async def read_stream(channel: grpc.aio.Channel, request: bytes) -> tuple[int, int]:
    """Tokens and messages of one stream. Only the last message is parsed: it has the count."""
    call = channel.unary_stream("/pagewire.v1.GenerationService/Generate")(request)
    messages, last = 0, b""
    while (message := await call.read()) is not grpc.aio.EOF:
        messages, last = messages + 1, message
    return generation_pb2.GenerateResponse.FromString(last).usage.completion_tokens, messages


async def run_streams(address: str, streams: int, load: Load) -> tuple[int, int]:
    """As many streams at once; tokens and messages of all."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with contextlib.AsyncExitStack() as stack:
        channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(CHANNELS)]
        for channel in channels:
            await stack.enter_async_context(channel)
        requests = [make_request(number, load) for number in range(streams)]
        counts = await asyncio.gather(
            *(read_stream(channels[i % CHANNELS], request) for i, request in enumerate(requests))
        )
    return sum(tokens for tokens, _ in counts), sum(messages for _, messages in counts)


def make_request(number: int, load: Load) -> bytes:
    """Token ids in, token ids out; greedy, past EOS."""
    request = generation_pb2.GenerateRequest()
    request.prompt.token_ids.ids.extend(16 + (number * 31 + i) % 1000 for i in range(PROMPT_TOKENS))
    request.sampling.temperature = 0
    request.stopping.max_tokens = load.output
    request.stopping.ignore_eos = True
    request.output.text = False
    request.output.token_ids = True
    request.output.stream_interval = load.interval
    return request.SerializeToString()


def client(address: str, streams: int, load: Load) -> tuple[int, int, float]:
    """A client process: tokens, messages, CPU seconds."""
    before = time.process_time()
    tokens, messages = asyncio.run(run_streams(address, streams, load))
    return tokens, messages, time.process_time() - before


def run_once(service: Service, clients: list[ProcessPoolExecutor], load: Load) -> Figures:
    """All streams of a load, from the first request to the last token."""
    pids = by_role(service.pid)
    before = {role: sum(map(cpu_seconds, pids[role])) for role in pids}
    start = time.perf_counter()
    share = load.streams // len(clients)
    futures = [each.submit(client, service.address, share, load) for each in clients]
    tokens, messages, client_cpu = map(sum, zip(*(future.result() for future in futures), strict=True))
    seconds = time.perf_counter() - start
    if tokens != load.streams * load.output:
        raise RuntimeError(f"asked for {load.streams * load.output} tokens, got {tokens}")
    used = {role: sum(map(cpu_seconds, pids[role])) - before[role] for role in pids}
    return Figures(
        seconds, int(tokens), int(messages), used["frontend"], used["engine"], used["worker"], client_cpu
    )


def measure(
    folder: Path, frontends: int, repeats: int, loads: list[Load], delays: list[float]
) -> dict[str, list[Figures]]:
    """Figures by load and --max-merge-delay, of services with so many frontends, in turns. Each load runs
    once before it counts."""
    spawn = multiprocessing.get_context("spawn")
    figures: dict[str, list[Figures]] = {}
    with contextlib.ExitStack() as stack:
        services = {
            delay: stack.enter_context(Service(make_config(folder, frontends, delay))) for delay in delays
        }
        clients = [
            stack.enter_context(ProcessPoolExecutor(max_workers=1, mp_context=spawn)) for _ in range(CLIENTS)
        ]
        for load in loads:
            for place in range(repeats + 1):
                for delay, service in services.items():
                    run = run_once(service, clients, load)
                    if place:
                        figures.setdefault(f"{load.name} {delay:g}", []).append(run)
    return figures


def make_config(folder: Path, frontends: int, merge_delay: float) -> ServeConfig:
    """A service on a simulated H200."""
    return ServeConfig(
        model=str(folder),
        device="simulated",
        profile="h200",
        frontends=frontends,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=8192,
        port=0,
        max_merge_delay=merge_delay,
        log_level="error",
    )


def print_table(results: dict[int, dict[str, list[Figures]]]) -> None:
    """Medians; one line per load and number of frontends."""
    print(f"{os.cpu_count()} cores for the service and {CLIENTS} clients; medians (least..greatest)")
    print(
        f"{'frontends':<10}{'load, delay':<15}{'tokens/s':>24}{'tokens/message':>16}"
        f"{'tokens per frontend-CPU-s':>30}{'core us/token':>15}{'core share':>12}{'worker share':>14}"
    )
    for frontends, loads in results.items():
        for name, runs in loads.items():
            rows = [figures.summary() for figures in runs]
            values = {key: sorted(row[key] for row in rows) for key in rows[0]}
            middle = {key: statistics.median(numbers) for key, numbers in values.items()}

            def spread(key: str, values=values, middle=middle) -> str:
                return f"{middle[key]:.0f} ({values[key][0]:.0f}..{values[key][-1]:.0f})"

            print(
                f"{frontends:<10}{name:<15}{spread('tokens_per_s'):>24}{middle['tokens_per_message']:>16.2f}"
                f"{spread('tokens_per_frontend_cpu_s'):>30}{middle['engine_us_per_token']:>15.1f}"
                f"{middle['engine_share']:>12.0%}{middle['worker_share']:>14.0%}"
            )


def main() -> None:
    """Runs, prints, writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frontends", default="1,2,4", help="numbers of frontends; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--loads", default=",".join(LOADS), help="default: %(default)s")
    parser.add_argument(
        "--merge-delays", default="0.1", help="values of --max-merge-delay; default: %(default)s"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures there")
    options = parser.parse_args()
    with model_folder() as folder:
        results = {
            number: measure(
                folder,
                number,
                options.repeats,
                [LOADS[name] for name in options.loads.split(",")],
                [float(delay) for delay in options.merge_delays.split(",")],
            )
            for number in map(int, options.frontends.split(","))
        }
    print_table(results)
    if options.json:
        runs = {
            number: {name: [asdict(figures) for figures in runs] for name, runs in loads.items()}
            for number, loads in results.items()
        }
        content = {"version": __version__, "command": sys.argv, "cores": os.cpu_count(), "runs": runs}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
