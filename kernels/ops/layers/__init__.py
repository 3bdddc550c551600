"""Operations of layers: linear, norms, rotary embedding, activations."""
