"""One step's plan on the worker's side: rows, reading and checking a plan, beams."""
