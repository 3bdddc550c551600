"""LoRA adapters: their files, and where each of their tensors goes."""
