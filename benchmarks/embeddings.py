"""Texts that a service embeds per second, beside sentence-transformers in this process, in turns.

    pip install sentence-transformers
    python -m benchmarks.embeddings MODEL --tokens 16,64,256 --threads 2 --json runs.jsonl

MODEL is a folder; without modules.json, both pool as the peer chooses. Each call has --batch different texts
of about as many tokens. Both compute on the CPU with --threads threads. A line has the median rates over
--rounds, and the median of the ratios of each round with the least and the greatest. The vectors of both are
compared: a pair whose cosine is below --cosine ends the run.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from benchmarks.options import make_parser
from pagewire import Client
from pagewire.config import ServeConfig
from pagewire.local_service import Service

PEER = "sentence-transformers"
WORDS = ["river", "stone", "light", "garden", "window", "paper", "machine", "summer", "letter", "morning"]
Embed = Callable[[list[str]], Sequence[Any]]


def texts_of(tokenizer: Any, length: int, count: int) -> list[str]:
    """Returns texts of about `length` tokens, each with its number in front."""
    words = np.random.default_rng(length).choice(WORDS, (count, length)).tolist()
    ids = [tokenizer.encode(f"{n} {' '.join(row)}", add_special_tokens=False) for n, row in enumerate(words)]
    return [tokenizer.decode(each[:length]) for each in ids]


def least_cosine(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Returns the least cosine of two lists of vectors."""
    a, b = (np.asarray(each, np.float64) for each in (one, other))
    return float(((a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))).min())


def rate_of(embed: Embed, texts: list[str]) -> float:
    """Returns texts per second of one call."""
    began = time.perf_counter()
    embed(texts)
    return len(texts) / (time.perf_counter() - began)


def measure(cases: dict[str, Embed], texts: list[str], rounds: int) -> dict[str, Any]:
    """Returns the figures of one length. The first round is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(-1, rounds):
        for name, embed in cases.items():
            rate = rate_of(embed, texts)
            rates[name] += [rate] if turn >= 0 else []
    ratios = [one / other for one, other in zip(rates["pagewire"], rates[PEER], strict=True)]
    medians = {name: statistics.median(each) for name, each in rates.items()}
    return {**medians, "ratio": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios)}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", default="16,64,256", help="tokens of a text")
    parser.add_argument("--batch", type=int, default=64, help="texts of a call")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cosine", type=float, default=0.999)
    parser.add_argument("--json", type=Path, help="file to append the figures to, a line for each length")
    options = parser.parse_args()
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}: pip install {PEER}") from None
    torch.set_num_threads(options.threads)
    peer = SentenceTransformer(options.model, device="cpu", model_kwargs={"dtype": options.dtype})
    pooling = "auto"
    if not (Path(options.model) / "modules.json").is_file():
        pooling = peer[1].get_config_dict()["pooling_mode"].removesuffix("token")  # "mean", "lasttoken"
    config = ServeConfig(
        model=options.model,
        port=0,
        dtype=options.dtype,
        pooling_type=pooling,
        threads=options.threads,
        log_level="error",
    )
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    with Service(config) as service, Client(service.address) as client:
        cases: dict[str, Embed] = {
            "pagewire": lambda texts: client.embed(texts, cache_bypass=True),
            PEER: lambda texts: peer.encode(texts, batch_size=options.batch, show_progress_bar=False),
        }
        print(f"{'tokens':>6} {'pagewire/s':>12} {PEER + '/s':>24} {'ratio':>7}  least, greatest")
        for length in map(int, options.tokens.split(",")):
            texts = texts_of(tokenizer, length, options.batch)
            cosine = least_cosine(*(embed(texts) for embed in cases.values()))
            if not cosine >= options.cosine:
                raise SystemExit(f"{length} tokens: the vectors differ, with a cosine of {cosine:.6f}")
            found = measure(cases, texts, options.rounds)
            mine, theirs = found["pagewire"], found[PEER]
            spread = f"{found['least']:.2f}, {found['greatest']:.2f}"
            print(f"{length:>6} {mine:>12.1f} {theirs:>24.1f} {found['ratio']:>7.2f}  {spread}", flush=True)
            if options.json is not None:
                about = {"model": options.model, "tokens": length, "batch": options.batch, "cosine": cosine}
                with options.json.open("a") as file:
                    file.write(json.dumps({**about, "threads": options.threads, **found}) + "\n")


if __name__ == "__main__":
    main()
