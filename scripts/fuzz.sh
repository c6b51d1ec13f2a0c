#!/usr/bin/env bash
# Runs every fuzz test for an equal share of the time that is given in all.
#   scripts/fuzz.sh 30s
set -euo pipefail
cd "$(dirname "$0")/.."
total=${1:-30s}
total=${total%s}
if ! [[ $total =~ ^[0-9]+$ ]]; then
  echo "fuzz.sh: the time is given in seconds, such as 30s" >&2
  exit 2
fi

# file:func FuzzName, one a line
targets=$(grep -rEo '^func Fuzz[A-Za-z0-9_]+' --include='*_test.go' . | sort)
count=$(wc -l <<<"$targets")
share=$((total / count))
share=$((share > 0 ? share : 1))
while IFS= read -r target; do
  dir=$(dirname "${target%%:*}")
  name=${target##*func }
  echo "fuzz $name in $dir, $share s"
  (cd "$dir" && go test -run '^$' -fuzz "^$name\$" -fuzzminimizetime 10x -fuzztime "${share}s" .)
done <<<"$targets"
