"""All bugs that are made on purpose in the sources; those of the simulation are in its own mutants.py."""

from tests.mutants import core, cuda, drafts, failure, frontend, handover, processes
from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *core.MUTANTS,
    *frontend.MUTANTS,
    *processes.MUTANTS,
    *cuda.MUTANTS,
    *drafts.MUTANTS,
    *failure.MUTANTS,
    *handover.MUTANTS,
)
