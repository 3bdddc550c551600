"""The requests of the engine core by state: waiting, running, ended."""
