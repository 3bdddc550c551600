"""Which sequences compute how many tokens in the next step, and what their results change."""
