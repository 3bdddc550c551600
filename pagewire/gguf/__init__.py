"""GGUF files: a checkpoint in one file, with its configuration, tokenizer, chat template and tensors."""
