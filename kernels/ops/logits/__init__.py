"""Operations that change or read logits, row by row."""
