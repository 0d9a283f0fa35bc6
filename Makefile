# Every target covers every module. `make help` lists them.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

MODULES := . $(patsubst %/go.mod,%,$(wildcard brokers/*/go.mod)) $(patsubst %/go.mod,%,$(wildcard services/*/go.mod)) $(patsubst %/go.mod,%,$(wildcard bench/go.mod))
GOLANGCI_LINT := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# What each module's tests run with; TESTFLAGS=-short makes a quick pass.
TESTFLAGS ?=
# Two packages at a time: the suites start real servers and processes.
TESTPROCS ?= 2

# each runs one command in every module, outside the workspace, as a user of
# the module would.
define each
	@for m in $(MODULES); do \
		echo "== $$m: $(1)"; \
		(cd $$m && GOWORK=off $(1)); \
	done
endef

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-zA-Z_-]+:.*?## ' $(MAKEFILE_LIST) | awk -F':.*?## ' '{printf "  %-12s %s\n", $$1, $$2}'

.PHONY: run
run: ## run the three services on this machine (Ctrl-C stops them)
	go run ./cmd/headrace dev

.PHONY: demo
demo: ## run them and place three orders; prints each order's journey
	go run ./cmd/headrace demo

.PHONY: test
test: ## build, vet and test every module; starts the servers that it needs
	@scripts/with-servers $(MAKE) --no-print-directory test-modules

.PHONY: test-modules
test-modules: build vet ## the same on servers that already run
	$(call each,go test -race -p $(TESTPROCS) -timeout 20m $(TESTFLAGS) ./...)
	@echo "== .: what the race detector makes too slow, without it; two tests at a time, whose leases of a second one file's writers share"
	GOWORK=off go test $(TESTFLAGS) -parallel 2 -run 'TestConformance/sqlite' ./framework/broker/sqldb

.PHONY: test-short
test-short: ## the quick tests only, no race detector
	$(call each,go test -short -p $(TESTPROCS) ./...)

.PHONY: build
build: ## compile every module, alone and in the workspace
	$(call each,go build ./...)
	@for m in $(MODULES); do [ "$$m" = bench ] || echo "./$$m/..."; done | xargs go build

.PHONY: vet
vet: ## go vet every module
	$(call each,go vet ./...)
	$(call each,go vet -tags failpoint ./...)

.PHONY: lint
lint: ## golangci-lint over every module (holds the import arrows)
	@for m in $(MODULES); do \
		echo "== $$m: lint"; \
		(cd $$m && GOWORK=off $(GOLANGCI_LINT) run --allow-parallel-runners --config "$(CURDIR)/.golangci.yml" ./...); \
	done

.PHONY: fmt
fmt: ## gofmt every file
	gofmt -w $$(git ls-files '*.go')

.PHONY: tidy
tidy: ## go mod tidy every module
	$(call each,go mod tidy)

.PHONY: tidy-check
tidy-check: ## fail where a go.mod is not tidy or a file not formatted
	$(call each,go mod tidy -diff)
	@out=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$out" ] || { echo "not formatted:"; echo "$$out"; exit 1; }

.PHONY: check
check: tidy-check lint test ## all that CI runs

.PHONY: fuzz
fuzz: ## fuzz the envelope's decoder for a minute
	go test -run '^$$' -fuzz FuzzDecode -fuzztime 60s ./pkg/events

.PHONY: crash
crash: ## 200 random schedules of relays and writers that are killed; prints their seed
	@HEADRACE_TEST_CRASH=$${HEADRACE_TEST_CRASH:-200} scripts/with-servers go test -count=1 -timeout 60m -v -run '^TestCrashes$$' ./framework/outbox

.PHONY: up
up: ## the whole system in containers: services, servers, dashboards
	docker compose up --build --wait

.PHONY: down
down: ## stop the containers and drop their volumes
	docker compose down --volumes

.PHONY: clean
clean: ## remove what dev and demo leave behind
	rm -rf .headrace bin
