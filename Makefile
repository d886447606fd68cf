# `make test` and `make demo` on a fresh clone need Python 3.11+ with pip and venv, npm and make; nothing is
# installed outside this folder. `make help` lists the rest.

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
ENGINE ?= embedded
# pip and npm may be set up by the user's environment; only what would break a quiet run is silenced.
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export NPM_CONFIG_UPDATE_NOTIFIER = false

.DEFAULT_GOAL := help
.PHONY: help check-python nixl venv venv-demo models models-demo test demo lint policy format test-parity test-vllm vllm-env \
	test-image-families test-kubernetes fault-campaign continuation-campaign test-manifest constraints manifests board docs sbom \
	bench-goodput bench-autoscale bench-images bench-pixels clean

help: ## this list
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

check-python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) is not installed: install Python 3.11 or newer, or say make PYTHON=/path/to/python3 ..." >&2; exit 1; }

venv: check-python ## .venv with the project and everything for development
	@$(PYTHON) scripts/bootstrap.py --extra dev

venv-demo: check-python
	@$(PYTHON) scripts/bootstrap.py --extra demo

models: venv ## the models, tokenizers and tools of the tests, in .cache (750 MB)
	@$(BIN)/python scripts/fetch_models.py
	@$(BIN)/python scripts/fetch_tools.py

models-demo: venv-demo
	@$(BIN)/python scripts/fetch_models.py smollm2 qwen3

# Whole files per worker: a file's servers are started once (tests/schedule.py: how many workers, which files share
# one). More than four workers only wait for each other's.
PARALLEL := -n auto --maxprocesses 4 --dist loadfile

test: models ## every test that needs nothing but this machine; ARGS="-k name" goes to pytest
	$(BIN)/pytest $(PARALLEL) $(ARGS)

fault-campaign: venv ## 5,000 requests with random faults on every hop (minutes); FAULT_SEED=n repeats one
	FAULT_REQUESTS=$${FAULT_REQUESTS:-5000} $(BIN)/pytest -q -s --no-header tests/faults/test_campaign.py

continuation-campaign: models ## 10,000 random conversations continued from their IDs (minutes); CONTINUATION_SEED=n repeats one
	CONTINUATIONS=$${CONTINUATIONS:-10000} CONTINUATION_SEED=$${CONTINUATION_SEED:-$$(date +%s)} \
	  $(BIN)/pytest -q -s --no-header tests/continuation/test_campaign.py

demo: models-demo ## all four hops here, a chat, what happened; ENGINE=vllm: real vLLM; ARGS=--keep: leave it running
ifeq ($(ENGINE),vllm)
	@VLLM_ENV="$$(scripts/vllm_env.sh)" && export VLLM_ENV && $(BIN)/pd-orchestrator demo --engine vllm $(ARGS)
else
	@$(BIN)/pd-orchestrator demo --engine $(ENGINE) $(ARGS)
endif

lint: venv ## ruff, formatting, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

policy: check-python ## deploy/ against checkov's policies; what is answered: deploy/policy.toml
	@env="$$(scripts/policy_env.sh)" && $(PYTHON) scripts/policy.py "$$env"

format: venv ## apply the formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

nixl: venv ## NIXL for the embedded engine's --transfer nixl, in .venv (torch, which its package names, is not needed)
	$(BIN)/python -m pip install -q --no-deps nixl-cu12==1.5.1

test-parity: models ## 20,000 texts through both encoders of each tokenizer (minutes; `make test` takes 2,000)
	PARITY_TEXTS=20000 $(BIN)/pytest tests/render_tier/model/test_engines.py $(ARGS)

vllm-env: ## a real vLLM on the CPU, outside the checkout (about 3 minutes and 3 GB, once); prints where
	@scripts/vllm_env.sh

test-vllm: models ## the tests against a real vLLM
	VLLM_ENV="$$(scripts/vllm_env.sh)" && LM_EVAL_ENV="$$(scripts/lm_eval_env.sh)" && export VLLM_ENV LM_EVAL_ENV && \
	  $(BIN)/pytest -n 2 --dist loadfile -m vllm tests/vllm $(ARGS)

test-image-families: models ## images over four hops of real engines of Gemma 3 (minutes); SEEING_FAMILIES="NAME ..." for others
	VLLM_ENV="$$(scripts/vllm_env.sh)" && export VLLM_ENV && SEEING_FAMILIES="$${SEEING_FAMILIES:-gemma3}" \
	  $(BIN)/pytest -m vllm tests/vllm/test_images.py $(ARGS)

test-kubernetes: models ## the tests against a real Kubernetes API server (compiled once, minutes: scripts/kubernetes_api.sh)
	$(BIN)/pytest -m kubernetes tests/cluster $(ARGS)

bench-%: models ## benchmarks/NAME.py beside a real vLLM: bench-startup, bench-derender, bench-engine, bench-pd_real
	VLLM_ENV="$$(scripts/vllm_env.sh)" && export VLLM_ENV && $(BIN)/python -m benchmarks.$* $(ARGS)

bench-images bench-pixels: models ## images beside vLLM's render with torchvision; processors beside torchvision's
	VLLM_ENV="$$(scripts/vllm_env.sh)" && TORCHVISION="$$(scripts/torchvision_env.sh)" && export VLLM_ENV TORCHVISION && \
	  $(BIN)/python -m $(@:bench-%=benchmarks.%) $(ARGS)

bench-goodput bench-autoscale: models ## goodput of engines apart and together; render tiers scaled behind HAProxy
	$(BIN)/python -m $(@:bench-%=benchmarks.%) $(ARGS)

test-manifest: venv ## write down which tests must exist (tests/expected*.json); CI fails when one is missing
	$(BIN)/pytest -q --collect-only --write-expected-tests tests/expected_tests.json >/dev/null
	$(BIN)/pytest -q --collect-only -m vllm tests/vllm --write-expected-tests tests/expected_vllm_tests.json >/dev/null

constraints: venv ## write down the exact versions now in .venv (constraints.txt)
	@{ sed -n '/^#/p' constraints.txt; \
	   $(BIN)/pip freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==' | sort -f; } > .cache/constraints.tmp
	@mv .cache/constraints.tmp constraints.txt

manifests: models ## deploy/kubernetes anew, as the chart renders it, and the chart's copies of alerts and board
	$(BIN)/python -m tests.support.charts

docs: check-python ## docs as a site, in build/docs (fetches mkdocs-material)
	@$(PYTHON) -m venv .cache/docs && .cache/docs/bin/pip install -q mkdocs-material==9.8.2
	@$(PYTHON) scripts/fetch_tools.py mermaid >/dev/null
	NO_MKDOCS_2_WARNING=1 .cache/docs/bin/mkdocs build --quiet --strict
	cp .cache/tools/mermaid/mermaid.min.js build/docs/assets/

sbom: check-python ## a bill of materials of each image's Python packages (CycloneDX), in build/sbom
	@$(PYTHON) -m venv .cache/sbom && .cache/sbom/bin/pip install -q cyclonedx-bom==7.5.0 && mkdir -p build/sbom
	for image in render multimodal multimodal-video orchestrator engine; do .cache/sbom/bin/cyclonedx-py requirements deploy/docker/$$image.lock \
	  --output-reproducible --output-format JSON --output-file build/sbom/$$image.cdx.json || exit 1; done

board: venv ## deploy/grafana/board.json anew from scripts/grafana_board.py
	$(BIN)/python scripts/grafana_board.py > deploy/grafana/board.json

clean: ## remove .venv, fetched models and every cache of this folder
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
