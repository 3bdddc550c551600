"""What is asked of each model."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from pagewire.errors import StartupError
from pagewire.internal.v1 import engine_pb2
from tests.checkpoints import make_checkpoint
from tests.eagle_heads import write_head
from tests.worker.fakes import Driver
from tests.worker.fuzz.engine import FuzzEngine, Told, Way, draw_load, resumed

TOLERANCE = 1e-3
"""Of the range of a row's logits."""
FORMS = (
    *({"dtype": name} for name in ("float32", "bfloat16", "bfloat16", "float16")),
    *({"dtype": "bfloat16", "quantization": name} for name in ("int8", "int4")),
)
WAYS = (
    Way("in a crowd"),
    Way("in chunks", budget=13),
    Way("in chunks, one step ahead", budget=37, ahead=True),
    Way("preempted", blocks=1, budget=64),
    Way("swapped", blocks=1, budget=64, swap=True),
    Way("with a prefix cache", cached=True),
    Way("with a prefix cache, preempted", cached=True, blocks=1, ahead=True),
    Way("with two threads", threads=2),
    Way("with two threads, in chunks, preempted", threads=2, budget=29, blocks=1),
    Way("in bursts", burst=4, cached=True),
    Way("in bursts, one request after the other", burst=16, alone=True, ahead=True),
    Way("resumed", resumed=True),
)


@torch.inference_mode()
def check_parity(family: str, folder: Path, draw: random.Random, counts: Counter[str]) -> list[str]:
    """Greedy tokens and logits in float32 are those of transformers. Returns what is wrong."""
    model = AutoModelForCausalLM.from_pretrained(folder, experts_implementation="eager").eval()
    vocab = model.config.vocab_size
    lengths = [1, 60, *(draw.randint(2, 50) for _ in range(2))]
    prompts = [[draw.randrange(vocab) for _ in range(length)] for length in lengths]
    block_size = draw.choice([1, 3, 4, 8, 16, 16, 32])
    sizes = {"block_size": block_size, "num_blocks": 600, "budget": draw.choice([4096, 13, 40])}
    driver = Driver(folder, dtype="float32", shuffle=draw.randint(0, 9), **sizes)
    sequences = [driver.add(prompt, 6)[0] for prompt in prompts]
    driver.run()
    counts["parities"] += 1
    found = []
    counting = model.config.model_type == "bamba"  # whose code rotates as at position 0 in each call
    for prompt, sequence in zip(prompts, sequences, strict=True):
        model(torch.tensor([[0]]))  # dynamic rope keeps the longest context that it saw, until a short one
        out = model(torch.tensor([prompt]), use_cache=True)
        for position, (token, logits) in enumerate(zip(sequence.output, sequence.logits, strict=True)):
            theirs = out.logits[0, -1]
            wrong = ((logits - theirs).abs().max() / theirs.abs().max()).item()
            if not wrong <= TOLERANCE:
                found.append(
                    f"parity: prompt of {len(prompt)}, output {position}: off by {wrong:.2g}; {sizes}"
                )
                break
            place = {"position_ids": torch.tensor([[len(prompt) + position]])} if counting else {}
            out = model(torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True, **place)
    return found


def check_bits(family: str, folder: Path, draw: random.Random, counts: Counter[str]) -> list[str]:
    """Every request gets what it gets alone, bit for bit. Returns what is wrong."""
    form = draw.choice(FORMS)
    block_size = draw.choice([16, 16, 32, 8])
    try:
        engine = FuzzEngine(folder, Way("alone", alone=True), block_size, **form)
    except StartupError as error:
        counts["refused"] += 1
        return [] if "has" in str(error) and "inputs" in str(error) else [f"{form}: {error}"]
    if engine.ready.model.exactness_caveat:
        counts["inexact"] += 1
        return []
    load = draw_load(engine.limits.vocab_size, draw)
    expected = engine.outputs(load)
    found = []
    for way in _ways(family, folder, draw):
        found += _try_way(way, folder, block_size, form, load, expected, counts)
    return found


def _try_way(
    way: Way,
    folder: Path,
    block_size: int,
    form: dict[str, str],
    load: Sequence[engine_pb2.AddRequest],
    expected: Told,
    counts: Counter[str],
) -> list[str]:
    """Returns what differs from `expected` when an engine works in this way."""
    named = f"{way.name} {form} blocks of {block_size}"
    if way.blocks:
        most = max(len(m.prompt_token_ids) // 4 + m.stopping.max_tokens for m in load)
        way = replace(way, blocks=-(-most // block_size) + 2)
    engine = FuzzEngine(folder, way, block_size, **form)
    messages = resumed(load, expected) if way.resumed else load
    counts["ways"] += 1
    found = []
    for turn in range(2 if way.cached else 1):
        told = engine.outputs(messages)
        found += [f"{named}, turn {turn}: {what}" for what in differences(told, expected)]
    counts["preemptions"] += engine.scheduler.num_preemptions
    counts["swaps"] += engine.scheduler.swap.num_swapped_out
    counts["accepted drafts"] += engine.num_accepted
    return found


def differences(told: Told, expected: Told) -> list[str]:
    """What differs, of the sequences that were told."""
    found = []
    for key, tokens in told.tokens.items():
        if tokens != expected.tokens[key]:
            found.append(f"tokens of {key}: {tokens}, not {expected.tokens[key]}")
        if told.ends.get(key, expected.ends[key]) != expected.ends[key]:
            found.append(f"end of {key}")
        scores = told.scores.get(key, [])
        whole = expected.scores.get(key, [])
        if scores != whole[len(whole) - len(scores) :]:
            found.append(f"log-probabilities of {key}")
    for handle, scores in told.prompt_scores.items():
        if scores != expected.prompt_scores[handle]:
            found.append(f"log-probabilities of the prompt of {handle}")
    return found


def _ways(family: str, folder: Path, draw: random.Random) -> list[Way]:
    """Returns some ways, and one with drafts where the family can have them."""
    ways = draw.sample(WAYS, 3)
    drafting = draw.choice(("lookup", "lookup", "draft", "heads"))
    way = Way(
        f"with {drafting}",
        blocks=draw.choice([0, 1]),
        cached=draw.random() < 0.5,
        ahead=draw.random() < 0.5,
        threads=draw.choice([1, 2]),
        speculation="lookup:tokens=4",
    )
    if drafting == "lookup":
        return [*ways, way]
    if drafting == "draft":
        draft = make_checkpoint("llama", folder.parent / "draft", vocab_size=_field(folder, "vocab_size"))
        return [*ways, replace(way, speculation=f"draft:{draft},tokens=4")]
    width = _field(folder, "hidden_size")
    if not width or width % 32 or family in ("opt", "gpt2"):
        return ways
    layers = _field(folder, "num_hidden_layers")
    head = write_head(folder.parent / "head", folder, after=tuple(range(1, layers + 1)))
    return [*ways, replace(way, speculation=f"heads:{head},tokens=4")]


def _field(folder: Path, name: str) -> int:
    value: int = json.loads((folder / "config.json").read_text()).get(name, 0)
    return value
