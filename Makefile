# Two commands matter: `make run` (see it work) and `make test` (see that it works).
# Both install what they need, may be repeated, and are quick once everything is there.

PYTHON = .venv/bin/python
# Tests mostly wait for the programs that they start, so more files at once than cores.
WORKERS = 3

.PHONY: run test bench check lint format docs venv

run: venv
	@$(PYTHON) -m contrib.setup.prepare run
	@exec $(PYTHON) -m contrib.setup.demo

test: venv
	@$(PYTHON) -m contrib.setup.prepare test
	$(PYTHON) -m pytest -n $(WORKERS) --dist loadfile

# One line a figure, beside its limit; with PEER=DIR also against the peer (contrib/bench/peer.py).
BENCHES = start_overhead idle log_intake stream_latency rest_throughput starvation \
	resources_read resources_churn control_link pulls

bench: venv
	@$(PYTHON) -m contrib.setup.prepare bench
	@for name in $(BENCHES); do $(PYTHON) -m contrib.bench.$$name || exit 1; done

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
