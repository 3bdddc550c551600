"""The encoder of sounds: log-mel spectrograms to vectors of a decoder."""
