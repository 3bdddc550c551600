"""Where a checkpoint is, and how its files are opened: folders, GGUF files, the Hugging Face Hub."""
