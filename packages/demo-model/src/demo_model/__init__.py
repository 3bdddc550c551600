"""The demo model's text, tokenizer, training and questions."""
