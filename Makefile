# run: serve the demo    test: every test    check: style, types, fast tests    bench: the README's table
# image: build and start the Dockerfile where there is no container engine (root, Debian)
#
# HOST, PORT and SPECDEMO_HOME reach the program from the environment or as `make run PORT=8000`.
PYTHON ?= python3
PY := .venv/bin/python
PIP := $(PY) -m pip install --disable-pip-version-check

.PHONY: run test check bench image

run: .venv/.installed
	$(PY) -m specdemo fetch
	$(PY) app.py

test: .venv/.installed-dev
	chromium=$$(tests/chromium.sh $(PY)) && CHROMIUM="$$chromium" $(PY) -m pytest

check: .venv/.installed-dev
	$(PY) -m ruff format --check
	$(PY) -m ruff check
	$(PY) -m mypy
	.venv/bin/hadolint Dockerfile
	$(PY) -m pytest -m "not model and not browser"

bench: .venv/.installed
	$(PY) -m specdemo bench --prompts article --modes tree,auto,ngram --peers --markdown docs/benchmark.md

image: .venv/.created
	$(PY) tests/image.py

# Stamps: what was done, touched last, so that an interrupted step is done again and a finished one
# is not until the file it depends on changes.
.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or later is needed, and $(PYTHON) is not: try make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.installed: requirements.txt .venv/.created
	$(PIP) -r requirements.txt
	@touch $@

.venv/.installed-dev: requirements-dev.txt requirements.txt .venv/.created
	$(PIP) -r requirements-dev.txt
	@touch .venv/.installed $@
