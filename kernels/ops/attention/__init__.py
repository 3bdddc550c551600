"""Operations on the paged KV cache."""
