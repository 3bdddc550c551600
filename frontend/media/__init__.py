"""Images of prompts: files to what a model's encoder takes, and to the tokens that stand for it."""
