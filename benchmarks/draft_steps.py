"""What drafts gain in the worker alone, by how often they are right, beside theory's curve.

    python -m benchmarks.draft_steps /data/models/M1 --noise 0.03,0.06,0.1        # benchmarks/models.py
    python -m benchmarks.draft_steps /data/models/M1 --threads 1 --processor-time      # beside other load
    python -m benchmarks.draft_steps "$(python -m scripts.real_model --path)" --texts edits,copies

With --noise, a draft model for each (benchmarks/draft_pairs.py): a row of random tokens goes on, at a
temperature at which random weights are as decided as trained ones are at 1. With --texts, lookups in the
prompts of benchmarks.speculation, greedy, for a model of ChatML that follows instructions. A turn is one row
without drafts and one with as many as the worker wants; both have the same tokens. A ratio is that of tokens
per second, the median over turns.

`right`: of drafts of one token, how many are accepted. Theory: (1 - a^(k+1)) / ((1 - a) (1 + k c)) of
Leviathan et al., for drafts of k tokens that are right with this probability a, and a draft model that takes
c of the target's time for a token, here its share of the weights. `drafted`, `steps`: for a token of output.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.draft_pairs import write_pair
from benchmarks.speculation import Theory, requests
from benchmarks.worker_step import BLOCK_SIZE, BUDGET, GREEDY, plan  # prepares threads
from frontend.model.info import load_model
from pagewire.config import FrontendConfig
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32, unpack_u32
from worker.cpu.load import load

LONGEST_PROMPT = 1500


@dataclass
class Run:
    """A row, to its end."""

    seconds: float = 0.0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0


class Row:
    """Row 0 of a worker that drafts."""

    def __init__(self, model: Path, speculation: str, draft: str, options: argparse.Namespace) -> None:
        """speculation: see --speculate. draft: the path of the draft model, or empty."""
        self._positions = LONGEST_PROMPT + options.tokens + 80
        command = worker_pb2.Initialize(
            model_path=str(model),
            device="cpu",
            max_num_seqs=1,
            max_num_batched_tokens=BUDGET,
            block_size=BLOCK_SIZE,
            num_blocks=-(-self._positions // BLOCK_SIZE),
            speculation=speculation,
            draft_model_path=draft,
        )
        self._clock: Callable[[], float] = time.process_time if options.processor_time else time.perf_counter
        self._runner, ready = load(command, 0, options.threads, lambda what, fraction: None)
        self.vocab_size, self._tokens = ready.model.vocab_size, options.tokens

    def run(self, prompt: Sequence[int], most: int, temperature: float, seed: int) -> Run:
        """Returns what it takes with drafts of at most so many tokens."""
        new = worker_pb2.NewRow(
            row=0,
            prompt_len=len(prompt),
            token_ids=pack_u32(prompt),
            blocks=pack_u32(range(-(-self._positions // BLOCK_SIZE))),
            sampling=GREEDY,
        )
        new.sampling.temperature, new.sampling.seed = temperature, seed
        result, run = self._runner.execute(plan(range(1), 0, len(prompt), [new])), Run()
        at = len(prompt)
        while at < len(prompt) + self._tokens:
            wanted = unpack_u32(result.next_draft_counts) if result.next_draft_counts else [0]
            room = min(most, wanted[0])
            step = plan(range(1), at, 1 + room, [])
            if room:
                step.sample_counts = pack_u32([1 + room])
            began = self._clock()
            result = self._runner.execute(step)
            run.seconds += self._clock() - began
            taken = len(result.token_ids) // 4
            at, run.steps = at + taken, run.steps + 1
            run.drafted, run.accepted = run.drafted + room, run.accepted + taken - 1
        run.seconds *= self._tokens / (at - len(prompt))  # the last draft may go beyond
        self._runner.execute(worker_pb2.StepPlan(removed_rows=pack_u32([0])))
        return run


def measure(
    row: Row, name: str, prompts: list[list[int]], most: int, temperature: float, options: argparse.Namespace
) -> tuple[str, float]:
    """Returns the beginning of a row of the table, and how often a drafted token is right."""
    turns = [(seed, prompts[seed % len(prompts)]) for seed in range(options.turns)]
    singles = [row.run(prompt, 1, temperature, seed) for seed, prompt in turns]
    right = sum(run.accepted for run in singles) / max(1, sum(run.drafted for run in singles))
    pairs = [[row.run(prompt, room, temperature, seed) for room in (0, most)] for seed, prompt in turns]
    ratios = sorted(plain.seconds / drafting.seconds for plain, drafting in pairs)
    tokens = options.turns * options.tokens
    drafted, steps = (
        sum(number) / tokens for number in zip(*((run.drafted, run.steps) for _, run in pairs), strict=True)
    )
    text = f"| {name} | {right:.2f} | {statistics.median(ratios):.2f} | {ratios[0]:.2f}, {ratios[-1]:.2f} |"
    return f"{text} {drafted:.2f} | {steps:.2f} |", right


def measure_pairs(options: argparse.Namespace) -> None:
    """Prints a row for each noise."""
    for noise in map(float, options.noise.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            pair = write_pair(options.model, Path(folder), options.layers, noise, options.part)
            sizes = [(path / "model.safetensors").stat().st_size for path in (pair[1], options.model)]
            theory = Theory(options.draft_tokens, sizes[0] / sizes[1])
            row = Row(pair[0], f"draft:{pair[1]},tokens={options.draft_tokens}", str(pair[1]), options)
            prompts = [requests("greedy", 1, turn, row.vocab_size)[0][0] for turn in range(options.turns)]
            most = options.draft_tokens
            text, right = measure(row, f"noise {noise:g}", prompts, most, options.temperature, options)
            print(f"{text} {theory.ratio(right):.2f} |", flush=True)


def measure_texts(options: argparse.Namespace) -> None:
    """Prints a row for each kind of text."""
    tokenizer = load_model(FrontendConfig(model=str(options.model))).tokenizer
    row = Row(options.model, f"lookup:tokens={options.draft_tokens}", "", options)
    for kind in options.texts.split(","):
        prompts = []
        for turn in range(options.turns):
            [(messages, _)] = requests(kind, 1, turn, row.vocab_size)
            text = f"<|im_start|>user\n{messages[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
            prompts.append(list(tokenizer.encode(text, add_special_tokens=False).token_ids)[-LONGEST_PROMPT:])
        print(measure(row, kind, prompts, options.draft_tokens, 0, options)[0] + " |", flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--layers", type=int, default=1, help="of the draft model")
    parser.add_argument("--part", type=int, default=4, help="see benchmarks.draft_pairs")
    parser.add_argument("--noise", default="0.03,0.06,0.1")
    parser.add_argument("--texts", default="", help="edits, copies: drafts by lookup")
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.1, help="of --noise")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--processor-time", action="store_true", help="of all threads together")
    options = parser.parse_args()
    print("| drafts | right | ratio | lowest, highest | drafted | steps | theory |")
    print("| --- " + "| ---: " * 6 + "|")
    if options.texts:
        measure_texts(options)
    else:
        measure_pairs(options)


if __name__ == "__main__":
    main()
