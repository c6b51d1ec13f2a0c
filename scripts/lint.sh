#!/usr/bin/env bash
# gofmt and go vet, and golangci-lint (with staticcheck in it), pinned and built
# from its source into bin/. Where it cannot be had, offline, this is said and the
# rest decides. What any of them finds is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
version=v2.15.0

unformatted=$(gofmt -l .)
if [[ -n $unformatted ]]; then
  printf 'not formatted (make fmt):\n%s\n' "$unformatted" >&2
  exit 1
fi
scripts/modules.sh go vet ./...

tool=$PWD/bin/golangci-lint-$version
if [[ ! -x $tool ]]; then
  echo "building golangci-lint $version (once, some minutes)"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  if ! GOBIN=$PWD/bin GOWORK=off go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$version" >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "lint: SKIPPED golangci-lint $version, which could not be built; gofmt and go vet passed" >&2
    exit 0
  fi
  mv bin/golangci-lint "$tool"
fi
# A module without a Go file to look at is no error of its own.
# bench/ is outside of go.work, and needs a newer Go.
[[ $(scripts/bench.sh version) == skipped ]] || (cd bench && GOWORK=off "$tool" run ./...)
LINT=$tool scripts/modules.sh bash -c '[[ -z $(go list ./... 2>/dev/null) ]] || "$LINT" run ./...'
