"""Mixtures of experts: which experts a token goes to, and the weighted sum of what they compute."""
