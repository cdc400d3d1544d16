python := .venv/bin/python

.PHONY: check
check:  ## what a change must pass before it is looked at; everything else is .ci/run
	.venv/bin/ruff check -q
	.venv/bin/ruff format -q --check
	.venv/bin/mypy
	$(python) -m pytest -n 2 --dist loadfile tests/unit tests/widgets
