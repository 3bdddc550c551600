"""Answers taken apart: text, reasoning and tool calls, in the format that the model was trained on."""
