"""Texts a service embeds per second, beside sentence-transformers or onnxruntime in this process, in turns.

    pip install sentence-transformers
    python -m benchmarks.embeddings MODEL --tokens 16,64,256 --threads 2 --json runs.jsonl
    pip install onnxruntime
    python -m benchmarks.embeddings MODEL --onnx model.onnx --quantization int8 --cosine 0.95

MODEL is a folder; without modules.json, both pool as sentence-transformers chooses. --onnx: a file of the
same encoder, whose states the peer averages, instead of sentence-transformers. Each call has --batch
different texts of about as many tokens. Both compute on the CPU with --threads threads. A line has the median
rates over --rounds, and the median of the ratios of each round with the least and the greatest. The vectors
of both are compared: a pair whose cosine is below --cosine ends the run.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from transformers import AutoTokenizer

from benchmarks.options import make_parser
from pagewire import Client
from pagewire.config import ServeConfig
from pagewire.config.engine import Quantization
from pagewire.local_service import Service

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


def measure(ours: Embed, theirs: Embed, texts: list[str], rounds: int) -> dict[str, float]:
    """Returns the figures of one length. The first round is not counted."""
    pairs = [(rate_of(ours, texts), rate_of(theirs, texts)) for _ in range(rounds + 1)][1:]
    ratios = [one / other for one, other in pairs]
    return {
        "pagewire": statistics.median(one for one, _ in pairs),
        "peer": statistics.median(other for _, other in pairs),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "greatest": max(ratios),
    }


def of_sentence_transformers(options: argparse.Namespace) -> tuple[Embed, str]:
    """Returns the peer, and how ours has to pool."""
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(options.threads)
    peer = SentenceTransformer(options.model, device="cpu", model_kwargs={"dtype": options.dtype})
    pooling = "auto"
    if not (Path(options.model) / "modules.json").is_file():
        pooling = peer[1].get_config_dict()["pooling_mode"].removesuffix("token")  # "mean", "lasttoken"
    return lambda texts: peer.encode(texts, batch_size=options.batch, show_progress_bar=False), pooling


def of_onnxruntime(options: argparse.Namespace) -> Embed:
    """Returns the peer: the mean of a file's states."""
    import onnxruntime  # type: ignore[import-not-found, unused-ignore]

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    session = onnxruntime.InferenceSession(options.onnx, settings, providers=["CPUExecutionProvider"])
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    wanted = {each.name for each in session.get_inputs()}

    def embed(texts: list[str]) -> Sequence[Any]:
        inputs = {**tokenizer(texts, padding=True, return_tensors="np")}
        (states,) = session.run(None, {name: each for name, each in inputs.items() if name in wanted})
        mask = inputs["attention_mask"][:, :, None]
        return (states * mask).sum(1) / mask.sum(1)  # type: ignore[no-any-return]

    return embed


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", default="16,64,256", help="tokens of a text")
    parser.add_argument("--batch", type=int, default=64, help="texts of a call")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantization", choices=get_args(Quantization), default="none", help="of ours")
    parser.add_argument("--onnx", metavar="FILE", help="the peer is onnxruntime with this file")
    parser.add_argument("--cosine", type=float, default=0.999)
    parser.add_argument("--json", type=Path, help="file to append the figures to, a line for each length")
    options = parser.parse_args()
    peer, pooling = "sentence-transformers" if options.onnx is None else "onnxruntime", "auto"
    try:
        if options.onnx is None:
            theirs, pooling = of_sentence_transformers(options)
        else:
            theirs = of_onnxruntime(options)
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}: pip install {peer}") from None
    config = ServeConfig(
        model=options.model,
        port=0,
        dtype=options.dtype,
        quantization=options.quantization,
        pooling_type=pooling,
        threads=options.threads,
        no_standby=True,  # none starts beside the first rounds
        log_level="error",
    )
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    with Service(config) as service, Client(service.address) as client:

        def ours(texts: list[str]) -> Sequence[Any]:
            return client.embed(texts, cache_bypass=True)

        print(f"{'tokens':>6} {'pagewire/s':>12} {peer + '/s':>24} {'ratio':>7}  least, greatest")
        for length in map(int, options.tokens.split(",")):
            texts = texts_of(tokenizer, length, options.batch)
            cosine = least_cosine(ours(texts), theirs(texts))
            if not cosine >= options.cosine:
                raise SystemExit(f"{length} tokens: the vectors differ, with a cosine of {cosine:.6f}")
            found = measure(ours, theirs, texts, options.rounds)
            spread = f"{found['least']:.2f}, {found['greatest']:.2f}"
            line = f"{length:>6} {found['pagewire']:>12.1f} {found['peer']:>24.1f} {found['ratio']:>7.2f}"
            print(f"{line}  {spread}", flush=True)
            if options.json is not None:
                about = {
                    "model": options.model,
                    "peer_name": peer,
                    "tokens": length,
                    "batch": options.batch,
                    "cosine": cosine,
                }
                with options.json.open("a") as file:
                    file.write(json.dumps({**about, "threads": options.threads, **found}) + "\n")


if __name__ == "__main__":
    main()
