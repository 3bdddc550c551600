"""The tensors of a GGUF file under the names that a model family uses."""
