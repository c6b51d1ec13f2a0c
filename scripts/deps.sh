#!/usr/bin/env bash
# Makes sure that what the tests need is there: the servers that they start
# themselves (private ones, on free ports, in temporary directories), and a C
# compiler for the race detector. On Debian and Ubuntu it installs what is missing
# if it may; elsewhere it says what to install. PgBouncer, and Chromium for
# the live page, are installed where that is possible; without them their tests are skipped.
set -euo pipefail

have() { command -v "$1" >/dev/null 2>&1; }
have_postgres() { have postgres || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; }

as_root=()
if ((EUID != 0)); then
  as_root=(sudo -n)
fi
can_install() { have apt-get && { ((EUID == 0)) || { have sudo && sudo -n true 2>/dev/null; }; }; }

programs=() packages=()
need() { programs+=("$1") packages+=("$2"); }
if [[ ${ONEFILL_SKIP_SERVERS:-} != 1 ]]; then
  have redis-server || have valkey-server || need redis-server redis-server
  have memcached || need memcached memcached
  have_postgres || need postgres postgresql
  have pgbouncer || [[ -x /usr/sbin/pgbouncer ]] || ! can_install || need pgbouncer pgbouncer
  have promtool || ! can_install || need promtool prometheus
  have chromium || have chromium-browser || have google-chrome || ! can_install || need chromium chromium
fi
if ! have "$(go env CC | cut -d' ' -f1)"; then
  need "a C compiler (for go test -race)" gcc
  packages+=(libc6-dev)
fi
((${#programs[@]})) || exit 0

missing=$(printf ', %s' "${programs[@]}")
missing=${missing:2}
if can_install; then
  echo "installing what the tests need: ${packages[*]}"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "$@" >>"$log" 2>&1
  }
  if install update -q && install install -q -y --no-install-recommends "${packages[@]}"; then
    exit 0
  fi
  tail -n 20 "$log" >&2
  echo "apt-get could not install ${packages[*]}" >&2
  exit 1
fi

cat >&2 <<END
Not installed: $missing.
  Debian, Ubuntu:  sudo apt-get install --no-install-recommends ${packages[*]}
  elsewhere:       install Redis 7.0 or newer, memcached and PostgreSQL, and put their programs on PATH
The tests start servers of their own and touch none that is running.
To skip the tests that need a server: ONEFILL_SKIP_SERVERS=1 make test
END
exit 1
