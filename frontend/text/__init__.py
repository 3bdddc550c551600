"""Between text and tokens: prompts, chat templates, tokenizers, detokenizing, stop strings."""
