"""The first hour on a card: what only a GPU can show, in order of value, within 40 minutes, as one report.

    python -m benchmarks.gpu.first_hour                      # any card of compute capability 8.0 and later
    python -m benchmarks.gpu.first_hour --folder h200        # where figures, logs and the report are kept
    python -m benchmarks.gpu.first_hour --device cpu         # the same parts, small, without a card

The parts are in benchmarks/gpu/first_hour/parts.py, each with the seconds that it may take:

    tests        those that need a GPU; each that ends its process is left out of the next one's
    equality     row equality: whether a row's bits depend on its batch mates, for 1 to 2048 of them
    ranks        models on two devices beside one, where there are two
    kernels      benchmarks/gpu/kernels.py: each kernel beside the ceilings and what torch offers
    steps        benchmarks/gpu/steps.py: steps of five models, of which one has experts and one latents
    service      benchmarks/service/serve.py: the whole service, with a model of 8B
    kills        tests/chaos: processes are killed under 80 streams, up to 1,000 times

A part is a process of its own, which is killed when its time is over; what it has written until then counts.
FOLDER/state.json says which parts have ended: a run that is cut off, by whatever, continues there when the
command is repeated, and the time that it took before counts. A part that is cut off twice is left out; one
that failed is computed again with --again NAME. FOLDER/report.md and report.json are written anew after
each part.

With --device cpu, kernels run in Triton's interpreter and the service on the CPU. It shows that the parts run
to their ends, and nothing about a card.
"""

import sys
from pathlib import Path

from benchmarks.gpu.first_hour.facts import Refused, device_facts
from benchmarks.gpu.first_hour.parts import cpu_parts, cuda_parts
from benchmarks.gpu.first_hour.report import write_report
from benchmarks.gpu.first_hour.runner import Run, open_state
from benchmarks.options import make_parser

MINUTES = 40.0


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--folder", type=Path, default=Path("build/gpu_first_hour"))
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all parts; default: %(default)g")
    parser.add_argument("--only", default="", help="parts, such as equality,kills; default: all")
    parser.add_argument("--again", default="", help="parts to compute again, such as kernels")
    options = parser.parse_args()
    parts = cuda_parts() if options.device == "cuda" else cpu_parts()
    names = [part.name for part in parts]
    only, again = ([name for name in words.split(",") if name] for words in (options.only, options.again))
    if unknown := set(only + again) - set(names):
        sys.exit(f"unknown parts: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    try:
        facts = device_facts(options.device)
        state = open_state(options.folder, facts)
    except Refused as why:
        sys.exit(str(why))
    for name in again:
        state.forget(name)
    run = Run(options.folder, state, 60 * options.minutes, lambda line: print(line, flush=True))
    chosen = [part for part in parts if part.name in (only or names)]
    for part in chosen:
        run.part(part)
        write_report(options.folder, state, parts)
    print(f"\n{options.folder / 'report.md'}:\n")
    print((options.folder / "report.md").read_text())
    if not all(state.parts[part.name].status == "done" for part in chosen):
        sys.exit(1)


if __name__ == "__main__":
    main()
