"""Our service beside its peers, on the same cores: five workloads, two models, taking turns.

    python -m benchmarks.versus.models /data/peers/models                     # once: makes the models
    BENCH_DIR=/data/peers benchmarks/versus/install.sh all             # once: vllm, openvino, llama.cpp
    python -m benchmarks.versus --folder /data/peers --json runs.jsonl
    python -m benchmarks.versus --folder /data/peers --peers pagewire,vllm --models M1 --workloads W1,W2
    python -m benchmarks.versus --folder /data/peers --peers pagewire,pagewire-http,llama-server,vllm-server
    python -m benchmarks.versus --folder /data/peers --peers pagewire,pagewire-worker --workloads W1
    python -m benchmarks.versus --folder /data/peers --peers pagewire,pagewire-lora32,vllm-server-lora32
    python -m benchmarks.versus --folder /data/peers --held-to avx2    # as a CPU without AVX-512 would
    python -m benchmarks.versus --table runs.jsonl more.jsonl          # nothing is run

A peer that is not installed is left out, with a line that says how to install it. Output tokens/s are
those of the whole run, from the moment that all requests are handed over until the last token is here. A peer
is asked in its own process, through its library, or as a server (vllm-server, llama-server) over HTTP, by one
client in a separate process. Ours answers over gRPC, and as pagewire-http like the servers; pagewire-worker
is its worker without the service. Requests of NAME-lora1 have one LoRA adapter of rank 16 on all projections,
those of NAME-lora32 take turns to have 32, which are made. What follows `--` goes to `pagewire serve`.
Figures are medians over the undisturbed runs, with the least and the greatest.
"""

import argparse
import os
import signal
import sys
from collections.abc import Collection
from pathlib import Path

from benchmarks.options import make_parser, split_at_dashes
from benchmarks.versus import records
from benchmarks.versus.catalog import HELD_TO, PEERS, SERVERS, WORKER
from benchmarks.versus.comparison import Comparison, Wishes
from benchmarks.versus.table import render
from pagewire_bench.workloads import SHORT

MODELS = ("M1", "M2", "M3", "M4", "M5")
"""See benchmarks.versus.models."""


def own_parser() -> argparse.ArgumentParser:
    """Returns the parser of our own flags."""
    parser = make_parser(__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--folder", type=Path, help="where models and peers are")
    what.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="show what has been measured")
    within = [name for name in PEERS if name not in (*SERVERS, WORKER) and not PEERS[name].adapters]
    for name, names in (("peers", within), ("models", MODELS[:2]), ("workloads", SHORT)):
        parser.add_argument(f"--{name}", default=",".join(names), help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="of each run; default: %(default)s")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores"
    )
    parser.add_argument(
        "--held-to",
        choices=[name for name in HELD_TO if name],
        default="",
        help="an instruction set that ours and all peers are held to, in copies that install.sh makes",
    )
    parser.add_argument(
        "--others", type=float, default=5, metavar="PERCENT", help="that do no harm; default: %(default)s"
    )
    parser.add_argument("--tries", type=int, default=3, help="of a disturbed run; default: %(default)s")
    parser.add_argument(
        "--patience", type=float, help="seconds for a run; default: 300, or 1800 of peers that are held"
    )
    parser.add_argument(
        "--json", type=Path, help="lines go there; default: runs.jsonl, or runs-avx2.jsonl of peers so held"
    )
    return parser


def chosen(parser: argparse.ArgumentParser, text: str, known: Collection[str]) -> list[str]:
    """Names with commas between."""
    given = text.split(",")
    for name in given:
        if name not in known:
            parser.error(f"{name!r} is none of {', '.join(known)}")
    return given


def main() -> None:
    """Runs, or not, and shows. Peers end with this process, also when it is told to."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    ours, theirs = split_at_dashes()
    parser = own_parser()
    options = parser.parse_args(ours)
    files = options.table
    if options.folder:
        wishes = Wishes(
            folder=options.folder.absolute(),
            peers=chosen(parser, options.peers, PEERS),
            models=chosen(parser, options.models, MODELS),
            workloads=chosen(parser, options.workloads, SHORT),
            repeats=options.repeats,
            threads=options.threads,
            most_disturbance=options.others,
            tries=options.tries,
            patience_s=options.patience or (1800 if options.held_to else 300),
            flags=theirs,
            held_to=options.held_to,
        )
        held = f"-{options.held_to}" if options.held_to else ""  # a table of both would mix them
        files = [options.json or Path(f"runs{held}.jsonl")]
        with files[0].open("a", buffering=1) as file:
            Comparison(
                wishes, lambda line: print(line, file=file), lambda text: print(text, flush=True)
            ).run()
    found = records.read(files)
    if not found.runs:
        parser.exit(1, "no runs\n")
    print(render(found))


if __name__ == "__main__":
    main()
