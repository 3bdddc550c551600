"""Answers of the OpenAI API: whole, as events of a stream, and errors."""
