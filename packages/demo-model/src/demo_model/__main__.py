"""Trains the demo model that ships with pagewire, from text that this package writes.

The result is a real, if very small, Llama checkpoint (grouped-query attention, tied embeddings, a
byte-level BPE tokenizer, a chat template), so that a fresh checkout can serve something sensible on any
CPU without a download:

    python -m demo_model               # writes pagewire/demo_model/
    python -m demo_model --steps 9 --later-steps 9 --last-steps 9 --out FOLDER  # does it run?
    python -m demo_model --check-only  # asks the model that is there

It is trained in three stages: facts and chats; calls of tools, thinking and answers of a schema among them;
the same again at a lower learning rate.

Everything is seeded, uses one thread and runs a fixed number of steps, so the same versions of torch,
tokenizers and transformers on the same kind of CPU give the same files. No text, weights or tokenizer
from anyone else go in.

The text is in text.py, calls.py, thoughts.py and forms.py, the questions that check the result in probes.py
and later_probes.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from demo_model.probes import evaluate
from demo_model.template import BOS, CHAT_TEMPLATE, EOS, LATER_TOKENS, PAD
from demo_model.tokenizer import train_tokenizer, with_later_tokens
from demo_model.training import Stage, first_stage, later_stage, train

DEFAULT_OUT = Path(__file__).resolve().parents[4] / "pagewire" / "demo_model"

FILES = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
]


def model_config(tokenizer: Tokenizer) -> LlamaConfig:
    """The shape of the model: 1.8 million parameters, six query heads on two key-value heads of 32."""
    return LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(BOS),
        eos_token_id=tokenizer.token_to_id(EOS),
        pad_token_id=tokenizer.token_to_id(PAD),
        dtype="bfloat16",
    )


def write(out: Path, model: Any, config: LlamaConfig, tokenizer: Tokenizer) -> None:
    """Write the checkpoint in the layout of the Hugging Face hub, weights in bfloat16."""
    out.mkdir(parents=True, exist_ok=True)
    copy: Any = LlamaForCausalLM(config)
    copy.load_state_dict(model.state_dict())
    copy = copy.to(torch.bfloat16)
    make_defaults: Any = GenerationConfig
    copy.generation_config = make_defaults(
        do_sample=True,
        temperature=0.6,
        top_k=40,
        top_p=0.9,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )
    copy.save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": config.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
    }
    (out / "tokenizer_config.json").write_text(
        json.dumps(tokenizer_config, indent=2) + "\n", encoding="utf-8"
    )
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    for name in FILES:
        (out / name).chmod(0o644)


def learn_facts(args: argparse.Namespace, out: Path) -> None:
    """The first stage: facts and chats, from nothing."""
    torch.manual_seed(args.seed)
    tokenizer = train_tokenizer(random.Random(args.seed), args.vocab)
    config = model_config(tokenizer)
    model: Any = LlamaForCausalLM(config)
    model.float()
    print(
        f"vocabulary {config.vocab_size}, parameters {sum(p.numel() for p in model.parameters()):,}",
        flush=True,
    )
    run_stage(args, first_stage(args.steps, args.lr), 1, model, tokenizer, out)


def learn_forms(args: argparse.Namespace, begin: Path, out: Path) -> None:
    """The second stage: calls of tools, thinking and answers of a schema, from what the first stage wrote."""
    torch.manual_seed(args.seed)
    tokenizer = with_later_tokens(Tokenizer.from_file(str(begin / "tokenizer.json")))
    model: Any = LlamaForCausalLM.from_pretrained(begin, dtype=torch.float32)
    rows = model.get_input_embeddings().weight.detach()
    count = len(LATER_TOKENS)
    rows[-count:] = rows[:-count].mean(0) + torch.randn(count, rows.shape[1]) * rows[:-count].std()
    stage = later_stage(args.later_steps, args.later_lr)
    run_stage(args, stage, 2, model, tokenizer, out)


def settle(args: argparse.Namespace, begin: Path, out: Path) -> None:
    """The third stage: the same text at a lower learning rate, from what the second stage wrote."""
    tokenizer = Tokenizer.from_file(str(begin / "tokenizer.json"))
    model: Any = LlamaForCausalLM.from_pretrained(begin, dtype=torch.float32)
    run_stage(args, later_stage(args.last_steps, args.last_lr), 3, model, tokenizer, out)


def run_stage(
    args: argparse.Namespace, stage: Stage, number: int, model: Any, tokenizer: Tokenizer, out: Path
) -> None:
    """Train, write, and say how long it took."""

    def save() -> None:
        write(out, model, model_config(tokenizer), tokenizer)

    rng = random.Random(args.seed + number)
    seconds = train(model, tokenizer, rng, stage, save_every=args.save_every, save=save)
    save()
    print(f"stage {number}: {stage.steps} steps in {seconds:.0f} s on one thread", flush=True)


def options() -> argparse.Namespace:
    """Returns what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, help="folder to write (default: %(default)s)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=3400,
        help="steps of 2048 tokens of the first stage (default: %(default)s)",
    )
    parser.add_argument(
        "--lr", type=float, default=3e-3, help="its peak learning rate (default: %(default)s)"
    )
    parser.add_argument(
        "--later-steps", type=int, default=1800, help="steps of the second stage (default: %(default)s)"
    )
    parser.add_argument(
        "--later-lr", type=float, default=2e-3, help="its peak learning rate (default: %(default)s)"
    )
    parser.add_argument(
        "--last-steps", type=int, default=250, help="steps of the third stage (default: %(default)s)"
    )
    parser.add_argument(
        "--last-lr", type=float, default=1e-3, help="its peak learning rate (default: %(default)s)"
    )
    parser.add_argument("--begin", type=Path, help="folder that the first stage wrote: begin with the second")
    parser.add_argument("--seed", type=int, default=0, help="seed of text and weights (default: %(default)s)")
    parser.add_argument("--vocab", type=int, default=1024, help="tokenizer size (default: %(default)s)")
    parser.add_argument(
        "--save-every", type=int, default=0, metavar="N", help="also write after every N steps"
    )
    parser.add_argument(
        "--check-only", action="store_true", help="do not train: check the model that is in --out"
    )
    return parser.parse_args()


def main() -> None:
    """Make the corpus, the tokenizer and the model, write them, and check the result."""
    args = options()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if args.check_only:
        evaluate(args.out)
        return
    with tempfile.TemporaryDirectory() as scratch:
        facts, forms = args.begin or Path(scratch) / "facts", Path(scratch) / "forms"
        if args.begin is None:
            learn_facts(args, facts)
        learn_forms(args, facts, forms)
        settle(args, forms, args.out)
    print({path.name: path.stat().st_size for path in sorted(args.out.iterdir())})
    evaluate(args.out)


if __name__ == "__main__":
    main()
