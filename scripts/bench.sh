#!/usr/bin/env bash
# onefill beside its peers, on private servers, in one run. bench/ is a module of its own
# that needs a newer Go than the rest, since some peers do.
#   scripts/bench.sh [flags of bench/main.go]   measure
#   scripts/bench.sh test                       see that every measure runs, in less than a minute
#   scripts/bench.sh version                    "skipped" where Go is too old, or "ok"
set -euo pipefail
cd "$(dirname "$0")/../bench"
export GOWORK=off

needed=$(sed -n 's/^go //p' go.mod)
have=$(go env GOVERSION)
have=${have#go}
if [[ $(printf '%s\n' "$needed" "${have%% *}" | sort -V | head -n 1) != "$needed" ]]; then
  [[ ${1:-} != version ]] || { echo skipped; exit; }
  echo "bench: SKIPPED, it needs Go $needed and this is Go $have" >&2
  exit 0
fi
[[ ${1:-} != version ]] || { echo ok; exit; }

if [[ ${1:-} == test ]]; then
  go vet ./...
  exec go test -count=1 -timeout 5m ./...
fi
binary=$(mktemp -d)/bench
trap 'rm -rf "$(dirname "$binary")"' EXIT
go build -o "$binary" .
"$binary" "$@"
