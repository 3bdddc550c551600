"""Which models can draft for which: those with the same vocabulary and at least the same context."""

from pathlib import Path
from typing import Any

from pagewire.checkpoints.files import read_object
from pagewire.errors import StartupError
from worker.config.hf_config import ModelConfig

FILE = "tokenizer.json"
_REMEDY = "use a draft model of the same family"


def check_draft_model(
    target: ModelConfig, target_path: Path, draft: ModelConfig, draft_path: Path, max_model_len: int
) -> None:
    """Raises StartupError, which names both models, where the second cannot draft for the first.

    max_model_len: the context that the target is served with.
    """
    what = what_fails(target_path, draft_path)
    if target.vocab_size != draft.vocab_size:
        why = f"the draft model's vocabulary has {draft.vocab_size} tokens, the target's {target.vocab_size}"
        raise StartupError(what, why, _REMEDY)
    if draft.has_states:
        why = f"{draft.architecture} keeps a state per row, from which no draft can be taken back"
        raise StartupError(what, why, _REMEDY)
    if draft.max_position < max_model_len:
        raise StartupError(
            what,
            f"the draft model goes to {draft.max_position} tokens, and the context is {max_model_len}",
            f"add --max-model-len {draft.max_position}, or use another draft model",
        )
    vocabularies = [_vocabulary(path, what) for path in (target_path, draft_path)]
    if None not in vocabularies and vocabularies[0] != vocabularies[1]:
        raise StartupError(what, "the tokens of their vocabularies are different", _REMEDY)


def what_fails(target_path: Path, draft_path: Path) -> str:
    """Returns the first line of an error about two models."""
    return f"cannot draft for {target_path.name} with {draft_path.name}"


def _vocabulary(path: Path, what: str) -> Any:
    """Returns the tokens of a checkpoint's tokenizer; None: it has no tokenizer.json."""
    tokenizer = read_object(path, FILE, what) if path.is_dir() else None
    model = tokenizer.get("model") if tokenizer is not None else None
    return model.get("vocab") if isinstance(model, dict) else None
