"""Operations that choose tokens."""
