"""Operations that are specific to an instruction set."""
