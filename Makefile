# What to run, and what it needs. "make" lists it.
#
# TESTFLAGS are added to every go test:  make test TESTFLAGS='-run Herd -v'
# FUZZTIME is shared by all fuzz tests:  make fuzz FUZZTIME=60s

TESTFLAGS ?=
FUZZTIME  ?= 30s

.PHONY: help test deps lint fmt fuzz lab model bench bench-quick tidy-check clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

test: deps ## all tests of all modules, with the race detector and real servers
	@scripts/modules.sh go test -race -timeout 10m $(TESTFLAGS) ./...

deps: ## install the servers that the tests start, or say what is missing
	@scripts/deps.sh

lint: ## gofmt, go vet and golangci-lint
	@scripts/lint.sh

fmt: ## format all files
	@gofmt -l -w .

fuzz: ## every fuzz test for a share of FUZZTIME
	@scripts/fuzz.sh $(FUZZTIME)

lab: ## 12 readers of one absent key, on real servers
	@go run ./cmd/onefill lab

model: ## check the protocol's model exhaustively, some minutes (needs spin and gcc)
	@model/run.sh

bench: deps ## onefill beside its peers, in one run; writes docs/benchmarks.md (under 40 minutes, on a quiet machine)
	@scripts/bench.sh -command "make bench" -docs ../docs

bench-quick: deps ## the same with less of everything (under 4 minutes)
	@scripts/bench.sh -quick -command "make bench-quick" -docs ../docs

tidy-check: ## go.mod and go.sum of every module are what go mod tidy would write
	@scripts/tidy-check.sh

clean: ## remove what these targets have built
	@rm -rf bin
