# Two commands matter: `make run` (see it work) and `make test` (see that it works).
# Both install what they need, may be repeated, and are quick once everything is there.

PYTHON = .venv/bin/python
# Tests mostly wait for the programs that they start, so more files at once than cores.
WORKERS = 3

.PHONY: run test bench chaos check lint format docs venv

run: venv
	@$(PYTHON) -m contrib.setup.prepare run
	@exec $(PYTHON) -m contrib.setup.demo

test: venv
	@$(PYTHON) -m contrib.setup.prepare test
	$(PYTHON) -m pytest -n $(WORKERS) --dist loadfile

# All figures beside their limits and the peer's, into docs/bench (docs/benchmarks.md).
# BENCH=idle,pulls chooses, BENCH_SCALE=0.1 is a tenth as long, for a try.
BENCH =
comma = ,

bench: venv
	@$(PYTHON) -m contrib.setup.prepare bench
	@$(PYTHON) -m contrib.bench.run $(subst $(comma), ,$(BENCH))

# Random work and faults around a real agent, judged all the time (docs/chaos.md).
# CHAOS_SEED repeats a run, CHAOS_MINUTES makes it shorter or longer.
CHAOS_MINUTES = 15
CHAOS_SEED =

chaos: venv
	@$(PYTHON) -m contrib.setup.prepare chaos
	@CHAOS_MINUTES=$(CHAOS_MINUTES) CHAOS_SEED=$(CHAOS_SEED) $(PYTHON) -m contrib.chaos

# What a change has to pass before it is committed: seconds, and no servers.
check: lint
	$(PYTHON) -m pytest tests/unit

lint: venv
	@$(PYTHON) -m contrib.setup.python_packages
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

format: venv
	@$(PYTHON) -m contrib.setup.python_packages
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

docs: venv
	$(PYTHON) -m solarhost.settings > docs/settings.md

venv:
	@sh contrib/setup/venv.sh
