"""The encoder of images: pixels, tower, projector."""
