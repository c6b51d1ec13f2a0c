#!/usr/bin/env bash
# Says in which modules go mod tidy would change something. A module that requires
# modules of this repository without a replace cannot be checked before those are
# released, and is left out.
set -euo pipefail
cd "$(dirname "$0")/.."
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

dirs=$(go list -m -f '{{.Dir}}')
failed=0
while IFS= read -r dir; do
  name=.${dir#"$PWD"}
  if [[ $name == ./cmd/onefill ]]; then
    echo "$name: not checked before its requirements are released"
    continue
  fi
  if ! diff=$(cd "$dir" && GOWORK=off go mod tidy -diff 2>"$errors"); then
    failed=1
    printf '%s: go mod tidy would change:\n%s\n' "$name" "$diff" >&2
    cat "$errors" >&2
  fi
done <<<"$dirs"
exit "$failed"
