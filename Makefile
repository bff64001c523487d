# make demo         a simulation on the embedded digits, from nothing, with a table at the end
# make deploy-demo  the same app on a SuperLink and four SuperNodes on this machine, with TLS and node keys; four rounds
#                   make deploy-demo experiment=NAME|FILE: another experiment, its rounds; keys="data-dir=DIR method=i2pfl"
# make docker-demo  the same in containers: builds the image, runs docker/compose.yaml, removes it again
# make test         ruff, mypy and the tests;  make check leaves out the tests that start Flower's processes,
#                   make test-all runs those too that kill a run again and again, or train each method until it has learnt
# make coverage     the tests of make test, and how much of each room they cover; against=FILE: next to an earlier FILE
# make messages     the wordings of errors that tests compare, written anew; files="tests/..." for those of some files
# make pictures     README's pictures: the answer from the kept runs; the demo's report and a table need Chromium or Chrome
# make docs         the pages of docs/ as a site in site/, without a network; a link that leads nowhere is an error
# make dist         wheel, sdist and notes of HEAD in dist/;  make release also tries the wheel in fresh environments of
#                   Python 3.11 and 3.13 (release/release.sh: 20 minutes, 6 GB); nothing is uploaded
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# A worker per core, and one more where tests wait for Flower's processes, with which two begin (tests/conftest.py).
# Bytecode is kept, whatever the environment says: without it each process rewrites the assertions of 290 files, half of
# its collection.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n logical --maxprocesses 8 --dist worksteal
# One mark per checkout: an environment that is kept elsewhere may have served another one. A demo needs no extras.
MARK := $(VENV)/.fedshift-$(shell printf '%s' '$(CURDIR)' | cksum | cut -d' ' -f1)
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: install demo deploy-demo docker-demo lint style types tests check test test-all coverage messages pictures docs dist release clean

install: $(MARK)-dev

$(MARK): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "FedShift needs Python 3.11 or newer, " + sys.executable + " is " + sys.version.split()[0] + "; name another with: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	rm -f $(VENV)/.fedshift-*
	touch $(MARK)

$(MARK)-dev: $(MARK)
	$(PIP) -e ".[dev]"
	touch $(MARK)-dev

demo: $(MARK)
	$(BIN)/fedshift run handwritten method=i2pfl

deploy-demo: $(MARK)
	$(BIN)/fedshift deploy-demo $(experiment) $(keys)

docker-demo:
	docker/demo.sh

lint: style types

style: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install  # what mypy knows of torch and the rest is kept with them, for other checkouts too
	$(BIN)/mypy --cache-dir $(VENV)/.mypy_cache

tests: install
	$(PYTEST) $(if $(marked),-m "$(marked)")

# mypy works while tests wait for Flower's processes.
check: style
	@$(MAKE) --no-print-directory -j 2 types tests marked="not slow"

test: style
	@$(MAKE) --no-print-directory -j 2 types tests marked="not long"

test-all: style
	@$(MAKE) --no-print-directory -j 2 types tests

# Kept as $(VENV)/coverage.json; a later against= may name a copy of it.
coverage: export COVERAGE_FILE = $(abspath $(VENV))/.coverage
coverage: install
	$(PYTEST) -q -m "not long" --cov --cov-report=json:$(VENV)/coverage.json
	$(BIN)/python benchmarks/coverage_rooms.py $(VENV)/coverage.json $(against)

# The wordings that tests compare (tests/refusals.py), written anew.
messages: files ?= $(shell grep -rlE "import .*(refused|worded)" tests --include="test_*.py")
messages: install
	rm -f $(VENV)/messages.jsonl
	FEDSHIFT_TEST_MESSAGES=$(abspath $(VENV))/messages.jsonl $(PYTEST) -q $(files)
	$(BIN)/python tests/refusals.py $(VENV)/messages.jsonl

pictures: install
	$(BIN)/python benchmarks/answer.py
	$(BIN)/python benchmarks/pictures.py

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist:
	release/release.sh build

release:
	release/release.sh

clean:
	rm -rf build site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
