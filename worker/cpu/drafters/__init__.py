"""What drafts with weights of its own on a CPU, loaded beside the target.

loaded.py       what both have in common
draft_model.py  a smaller model
head.py         a head that reads the target's hidden states
"""
