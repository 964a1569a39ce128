# The one way to do each thing, for people and for CI. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test local lint unit-test trainer-test api-test cluster-test soak bench-trainer \
        venv generate lock images cluster-up cluster-down cluster-status

PY := .venv/bin/python
BED := python3 tests/bed

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: venv ## A job applied with kubectl trains to the end on a real cluster, with live progress
	@hack/demo.sh

test: venv ## All tests; sets up all that they need. CI runs exactly this
	@hack/test.sh

local: venv ## Train a job file on this machine, without a cluster: make local JOB=examples/quickstart.yaml [ARGS=--help]
	@$(PY) -m mfsdp_operator.cli.main local $(or $(JOB),$(error set JOB, e.g. make local JOB=examples/quickstart.yaml)) $(ARGS)

lint: venv ## ruff, mypy, import contract, generated files, chart, scripts
	@hack/lint.sh

unit-test: venv ## Pure functions and the launcher's processes (2 minutes)
	@hack/side-by-side.sh tests/unit

trainer-test: venv ## Training against an unsharded run, on the CPU
	@hack/side-by-side.sh tests/trainer

api-test: venv cluster-up ## The CRD against the real API server
	@$(PY) -m pytest tests/api

cluster-test: venv cluster-up ## Jobs on the real cluster, from the real images and chart
	@$(PY) -m pytest tests/cluster

soak: venv cluster-up ## What takes too long for `make test`
	@$(PY) -m pytest tests -m soak

bench-trainer: venv ## The trainer's figures beside their limits; SECTION=throughput|saves|memory|pipeline|start for one
	@$(PY) -m tests.bench.trainer $(SECTION)

venv: ## The pinned development environment in .venv
	@hack/venv.sh

generate: venv ## The CRD, the chart's copy of it and the API reference, from the typed models
	@hack/generate.sh

lock: venv ## Pin all dependencies anew
	@UV=.venv/bin/uv hack/lock.sh

images: ## Build both images and push them to the embedded cluster's registry
	@$(BED) images

cluster-up: ## The embedded Kubernetes cluster (two nodes); seconds when it is up already
	@$(BED) up

cluster-down: ## Stop the embedded cluster and leave nothing of it behind but its caches
	@$(BED) down

cluster-status: ## What of the embedded cluster runs
	@$(BED) status
