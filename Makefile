# make demo   install, then train, export, serve, predict and measure on the CPU
# make test   install, then the tests
# make check  install, then ruff (format, lint, security), mypy (strict) and the audit
# make audit  known vulnerabilities among the packages; without the network it says that nothing was audited
# make test-models   slow model matrices and guides
# make docs   the documentation's site, in build/site
# make reference   the pages of it that are written from the code
# make image  the serving image, by docker; make image EXTRAS=serve-gpu
# make smoke  makes it, serves demo/models in it, asks it and stops it; after make demo
# make lock   pins what images hold anew, in deploy/*.lock
# Another Python: make demo PYTHON=python3.12      Another index: PIP_INDEX_URL=… make demo

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

# What clients see must be the same whether one process answers them or several.
IN_BOTH := $(addprefix tests/serve/test_,app.py rpc.py tritonclient.py conformance.py drain.py routes.py tracing.py page.py)

# What an image is made of (extras, with commas), and what it is called.
EXTRAS ?= serve
IMAGE ?= penstock

.PHONY: demo test check audit test-models docs reference image smoke lock clean

demo: $(STAMP)
	@$(BIN)/python demo.py

test: $(STAMP)
	$(BIN)/python -m pytest -m "not models"
	PENSTOCK_TEST_WORKERS=2 $(BIN)/python -m pytest $(IN_BOTH)

test-models: $(STAMP)
	$(BIN)/python -m pytest -m models || test $$? -eq 5

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p penstock
	$(BIN)/mypy -p docs.writers
	$(BIN)/python audit.py

audit: $(STAMP)
	$(BIN)/python audit.py

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

reference: $(STAMP)
	$(BIN)/python -m docs.writers

image: deploy/$(EXTRAS).lock
	docker build --tag $(IMAGE) --build-arg EXTRAS=$(EXTRAS) \
	  --build-arg REVISION=$$(git rev-parse HEAD) --build-arg CREATED=$$(git log -1 --format=%cI) .

smoke: image $(STAMP)
	$(BIN)/python deploy/smoke.py demo/models -- \
	  docker run --rm --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges --network host \
	  --volume {models}:/models:ro --env PENSTOCK_SERVE_HOST=127.0.0.1 --env PENSTOCK_SERVE_PORT={port} \
	  --env PENSTOCK_SERVE_GRPC_PORT={grpc_port} $(IMAGE)

lock: .venv/.uv
	rm -f deploy/*.lock
	$(MAKE) deploy/build.lock deploy/serve.lock deploy/serve-gpu.lock

# For every Python from 3.11 on and every platform; no word of where packages were fetched.
PIN := $(BIN)/uv --no-config pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
  --custom-compile-command "make lock"
COMMA := ,

deploy/build.lock: | .venv/.uv
	$(PIN) deploy/build.in --output-file $@

deploy/%.lock: | .venv/.uv
	$(PIN) pyproject.toml --extra $(subst $(COMMA), --extra ,$*) --output-file $@

.venv/.uv:
	@test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet 'uv>=0.9'
	@touch $@

# The wheel of PyTorch that pip chooses decides the size of this: 1 GB for the CPU, 5 GB with CUDA.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "penstock needs Python 3.10 or later: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "installing penstock and what its stages need into .venv (PyTorch is the large part) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
