#!/usr/bin/env bash
# Runs a command in every module of go.work, in all of them even if one fails.
#   scripts/modules.sh go vet ./...
set -euo pipefail
cd "$(dirname "$0")/.."

dirs=$(go list -m -f '{{.Dir}}')
failed=''
while IFS= read -r dir; do
  (cd "$dir" && "$@") || failed+=" .${dir#"$PWD"}"
done <<<"$dirs"

if [[ -n $failed ]]; then
  echo "failed in$failed: $*" >&2
  exit 1
fi
