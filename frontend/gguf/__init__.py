"""GGUF files as a frontend reads them: tokenizer and chat template from metadata."""
