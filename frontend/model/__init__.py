"""What the frontend knows of the served model, from the checkpoint's small files."""
