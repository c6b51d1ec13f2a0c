#!/usr/bin/env bash
# Checks the models with spin: lease.pml, replay.pml (checks replay-*) and tags.pml (tags-*). Needs spin 6.5 and a C compiler.
#
#   ./run.sh            all checks; exits 1 if a property fails that should hold,
#                       or if a mutation is not caught by the property that should catch it
#   ./run.sh NAME...    only these, and prints the counterexample where there is one
#   ./run.sh -l         lists the checks
#
# JOBS sets how many run at once (default 2).
set -u
for tool in spin "${CC:-cc}"; do
	command -v "$tool" >/dev/null || { echo "$tool is missing: apt-get install spin gcc" >&2; exit 1; }
done
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# name | expected: ok, or the property that must fail | how | switches (see the head of the model)
#   how: dfs  every state            bfs  shortest counterexample
#        np   no cycle at all, and every state: each wait ends (a cycle search does not see
#             an end state in which somebody waits)
#        ltl  <>answered, weak fairness
checks='
two-in-B           |ok |dfs|-DNA=1 -DNB=2
one-each           |ok |dfs|-DNA=1 -DNB=1
one-each-fine      |ok |dfs|-DNA=1 -DNB=1 -DFINE=1
two-in-A           |ok |dfs|-DNA=2 -DNB=0 -DFINE=1
three-in-B         |ok |dfs|-DNA=0 -DNB=3
two-writes         |ok |dfs|-DNA=1 -DNB=1 -DWRITES=2
stored             |ok |dfs|-DNA=1 -DNB=1 -DSTORED=1 -DWRITES=2
set                |ok |dfs|-DNA=1 -DNB=1 -DSETS=1 -DOVERFLOWS=1
expiry             |ok |dfs|-DNA=1 -DNB=1 -DEXPIRIES=1 -DEVICTIONS=1
overflow           |ok |dfs|-DNA=1 -DNB=1 -DOVERFLOWS=2
undeclared         |ok |dfs|-DNA=1 -DNB=1 -DOVERFLOWS=1 -DEXPIRIES=1 -DDECLARED=0
connlost           |ok |dfs|-DNA=1 -DNB=1 -DLOSSES=1
renew              |ok |dfs|-DNA=1 -DNB=1 -DRENEWALS=1 -DEXPIRIES=1
oneload            |ok |dfs|-DNA=2 -DNB=2 -DWRITES=0 -DCHECK1=2
oneload-fine       |ok |dfs|-DNA=2 -DNB=2 -DWRITES=0 -DCHECK1=1 -DFINE=1
renew-acquires     |P4b|bfs|-DNA=1 -DNB=1 -DRENEWALS=1 -DWRITES=0 -DCHECK1=2
waits-end          |ok |np |-DNA=1 -DNB=1 -DCRASH=1 -DEXPIRIES=1 -DFAILS=1
waits-end-connlost |ok |np |-DNA=1 -DNB=1 -DLOSSES=1 -DWRITES=0
waits-end-renew    |ok |np |-DNA=1 -DNB=1 -DRENEWALS=2 -DCRASH=1 -DFAILS=1 -DEXPIRIES=1 -DEVICTIONS=1 -DWRITES=0
storm              |ok |ltl|-DNA=1 -DNB=1 -DWRITES=0 -DSTORM=1
hog-waittimeout    |ok |ltl|-DNA=0 -DNB=1 -DWRITES=0 -DHOG=1 -DWAITBOUND=2
hog-no-waittimeout |P6 |ltl|-DNA=0 -DNB=1 -DWRITES=0 -DHOG=1
nextlocal          |ok |dfs|-DNA=1 -DNB=1 -DWRITES=0 -DCHECK8=1 -DLATE=0
nextlocal-overdue  |P8 |bfs|-DNA=1 -DNB=1 -DWRITES=0 -DCHECK8=1
pipe-keepjoinable  |P3 |bfs|-DNA=0 -DNB=2 -DSTRICT=1
orphan-newtoken    |P5 |bfs|-DNA=0 -DNB=1 -DLOSSES=1 -DWRITES=0 -DSAMETOKEN=0 -DORPHANS=0
orphan-sametoken   |ok |dfs|-DNA=1 -DNB=1 -DLOSSES=1 -DWRITES=0 -DORPHANS=0
orphan-disown      |ok |dfs|-DNA=1 -DNB=1 -DLOSSES=1 -DORPHANS=0 -DGIVEUP=1
fill-again         |ok |dfs|-DNA=1 -DNB=1 -DLOSSES=1 -DFILLAGAIN=1
orphan-no-disown   |P5 |bfs|-DNA=1 -DNB=1 -DLOSSES=1 -DWRITES=0 -DORPHANS=0 -DGIVEUP=2
late-acquire       |ok |dfs|-DNA=1 -DNB=1 -DLOSSES=1 -DLATEACQ=1
late-acquire-waits |ok |np |-DNA=1 -DNB=1 -DLOSSES=1 -DLATEACQ=1 -DWRITES=0
late-acquire-disown|ok |dfs|-DNA=1 -DNB=1 -DLOSSES=1 -DLATEACQ=1 -DGIVEUP=1
acquire-twice      |P1 |bfs|-DNA=0 -DNB=1 -DLOSSES=1 -DLATEACQ=2
late-no-tries      |P1 |bfs|-DNA=0 -DNB=1 -DLOSSES=1 -DLATEACQ=1 -DTRIES=0
failover           |P1 |bfs|-DNA=0 -DNB=1 -DFAILOVER=1
noloop             |ok |dfs|-DNA=1 -DNB=1 -DNOLOOP=1 -DEVICTIONS=1 -DOVERFLOWS=1
noloop-no-ownwake  |P5 |bfs|-DNA=2 -DNB=0 -DNOLOOP=1 -DOWNWAKE=0
noloop-silent-full |P2 |bfs|-DNA=0 -DNB=1 -DNOLOOP=1 -DSILENT=1 -DOVERFLOWS=1
noloop-silent-evict|P2 |bfs|-DNA=0 -DNB=1 -DNOLOOP=1 -DSILENT=1 -DEVICTIONS=1
silent             |ok |dfs|-DNA=0 -DNB=2 -DSILENT=1 -DEVICTIONS=1 -DOVERFLOWS=1
m1                 |P1 |bfs|-DNA=0 -DNB=1 -DM=1
m2-neither         |P2 |bfs|-DNA=1 -DNB=0 -DM=20
m2-only-before     |P2 |bfs|-DNA=1 -DNB=1 -DM=21
m2-only-after      |ok |dfs|-DNA=1 -DNB=1 -DM=22
m2-only-after-2A   |ok |dfs|-DNA=2 -DNB=0 -DM=22
m3                 |P2 |bfs|-DNA=0 -DNB=1 -DM=3
m4                 |P2 |bfs|-DNA=0 -DNB=1 -DM=4
m5                 |P1 |bfs|-DNA=0 -DNB=1 -DM=5
m6                 |P1 |bfs|-DNA=0 -DNB=1 -DM=6
m7                 |P2 |bfs|-DNA=0 -DNB=1 -DM=7
m8-B               |P3 |bfs|-DNA=0 -DNB=2 -DM=8 -DSTORED=1
m8-A               |P3 |bfs|-DNA=2 -DNB=0 -DM=8 -DSTORED=1
m9                 |P4 |bfs|-DNA=1 -DNB=1 -DM=9 -DWRITES=0 -DCHECK1=1
m10                |P6 |bfs|-DNA=1 -DNB=0 -DM=10 -DWRITES=2
m11                |P2 |bfs|-DNA=0 -DNB=1 -DM=11 -DOVERFLOWS=1
m12                |P5 |bfs|-DNA=1 -DNB=1 -DM=12 -DWRITES=0
m13                |P5 |bfs|-DNA=1 -DNB=1 -DM=13 -DWRITES=0 -DCRASH=1
m14-no-marker      |P8 |bfs|-DNA=1 -DNB=1 -DM=14 -DWRITES=0 -DCHECK8=1 -DLATE=0
m15-refused-counts |P3 |bfs|-DNA=0 -DNB=2 -DM=15
m16-not-armed      |P2 |bfs|-DNA=0 -DNB=1 -DM=16 -DOVERFLOWS=1 -DDECLARED=0
first-text-hit     |P3 |bfs|-DNA=0 -DNB=2 -DDETACH=0 -DSTORED=1
first-text         |P3 |bfs|-DNA=0 -DNB=2 -DTOUCH=0
replay-failover    |ok |dfs|-DNA=1 -DNB=1
replay-lease       |ok |dfs|-DNA=1 -DNB=1 -DSTORED=0 -DPAYER=0
replay-lease-payer |ok |dfs|-DNA=0 -DNB=1 -DSTORED=0
replay-two-in-A    |ok |dfs|-DNA=2 -DNB=0 -DPAYER=0
replay-two-writes  |ok |dfs|-DNA=0 -DNB=1 -DWA=2
replay-outage      |ok |dfs|-DNA=1 -DNB=0 -DWB=1 -DFAILOVER=0 -DLOSSES=1
replay-outage-2    |ok |dfs|-DNA=0 -DNB=1 -DWA=2 -DFAILOVER=0 -DLOSSES=1
replay-first-read  |R2 |bfs|-DNA=1 -DNB=0 -DFIRST=1
replay-read-again  |ok |dfs|-DNA=1 -DNB=0 -DFIRST=1 -DAGAIN=1
replay-paid-lost   |R1 |bfs|-DNA=0 -DNB=1 -DLOSSES=1 -DKEEPPAID=0
replay-paid-by-old |R2 |bfs|-DNA=1 -DNB=0 -DLOSSES=1 -DPAYER=0
replay-both        |ok |dfs|-DNA=1 -DNB=0 -DLOSSES=1 -DFIRST=1 -DAGAIN=1
replay-both-B      |ok |dfs|-DNA=0 -DNB=1 -DLOSSES=1
replay-m1          |R1 |bfs|-DNA=1 -DNB=0 -DM=1
replay-m2          |R3 |bfs|-DNA=1 -DNB=0 -DWB=1 -DFAILOVER=0 -DLOSSES=1 -DM=2
replay-m3          |R2 |bfs|-DNA=1 -DNB=0 -DM=3
replay-m4          |R1 |dfs|-DNA=0 -DNB=1 -DWA=2 -DFAILOVER=0 -DLOSSES=2 -DM=4
replay-m5          |R1 |bfs|-DNA=0 -DNB=1 -DWA=2 -DFAILOVER=0 -DLOSSES=1 -DM=5
replay-m6          |R1 |bfs|-DNA=0 -DNB=1 -DM=6
replay-m7          |R3 |bfs|-DNA=0 -DNB=1 -DSTORED=0 -DM=7
tags-two-in-A      |ok |dfs|-DNA=2 -DNB=1 -DSTORED=1
tags-two-in-B      |ok |dfs|-DNA=1 -DNB=2
tags-two-voids     |ok |dfs|-DNA=0 -DNB=2 -DVOIDS=2
tags-lost          |ok |dfs|-DNA=1 -DNB=1 -DLOST=2 -DSTORED=1
tags-failover      |ok |dfs|-DNA=1 -DNB=1 -DSTORED=2 -DOTHERS=2 -DBACK=1
tags-m1            |T  |bfs|-DNA=0 -DNB=1 -DSTORED=1 -DLOST=1 -DM=1
tags-m2            |T  |bfs|-DNA=0 -DNB=1 -DM=2
tags-m3            |T  |bfs|-DNA=0 -DNB=1 -DM=3
tags-m4            |T  |bfs|-DNA=1 -DNB=0 -DSTORED=2 -DOTHERS=1 -DBACK=1 -DM=4
tags-m5            |T  |bfs|-DNA=1 -DNB=0 -DM=5
tags-m6            |T  |bfs|-DNA=0 -DNB=2 -DSTORED=1 -DM=6
tags-m7            |T  |bfs|-DNA=0 -DNB=2 -DSTORED=1 -DM=7
tags-m8            |T  |bfs|-DNA=0 -DNB=2 -DM=8
'

# what failed, from pan's words
property() { # model, words
	case "$1:$2" in
	tags:*'v>=min'*|tags:*'mem['*) echo T ;;
	replay:*settled*) echo R1 ;;
	replay:*'>=omin'*|replay:*'>=ack'*) echo R2 ;;
	replay:*'>=fmin'*|replay:*'>=seen'*) echo R3 ;;
	*'non-progress cycle'*|*'invalid end state'*) echo P5 ;;
	*'acceptance cycle'*|*'loads<=('*) echo P6 ;;
	*'loads<=1'*|*'loads==1'*) echo P4 ;;
	*nacq*) echo P4b ;;
	*loader*) echo P8 ;;
	*'v>=min'*) echo P3 ;;
	*'mem['*) echo P2 ;;
	*'val>=inv'*) echo P1 ;;
	*) echo "? $2" ;;
	esac
}

search() { # model how switches; sets got, states and depth of one()
	local cflags flags="" opt=-O1 line
	case "$2" in
	dfs) cflags="-DSAFETY -DNOBOUNDCHECK -DCOLLAPSE"; flags="-w24"; opt=-O2 ;;
	bfs) cflags="-DSAFETY -DNOBOUNDCHECK -DBFS -DCOLLAPSE"; flags="-w20" ;;
	np)  cflags="-DNP -DNOFAIR -DCOLLAPSE"; flags="-l" ;;
	ltl) cflags="-DCOLLAPSE -DNFAIR=4"; flags="-a -f" ;;
	esac
	# shellcheck disable=SC2086
	if ! spin -a $3 "$1.pml" >spin.log 2>&1 || ! ${CC:-cc} $opt -w -DMEMLIM=6000 $cflags -o pan pan.c 2>cc.log; then
		cat spin.log cc.log 2>/dev/null; got="does not build"; return
	fi
	# shellcheck disable=SC2086
	./pan -m100000 $flags >out 2>&1
	states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' out | head -1)
	depth=$(sed -n 's/.*depth reached \([0-9]*\).*/\1/p' out | head -1)
	line=$(grep -m1 '^pan:1:' out)
	if [ -n "$line" ]; then got=$(property "$1" "$line")
	elif grep -q 'errors: 0' out && ! grep -qE 'too small|out of memory|aborted|not completed' out; then got=ok
	else got="incomplete"; fi
}

one() { # name expected how switches trace?
	local d="$work/$1" model got states="" depth="" secs began ended verdict
	case "$1" in
	replay-*) model=replay ;;
	tags-*) model=tags ;;
	*) model=lease ;;
	esac
	mkdir -p "$d"; cd "$d" || return 1; cp "$here/$model.pml" .
	began=$(date +%s.%N)
	case "$3" in
	np) search "$model" np "$4" && [ "$got" = ok ] && search "$model" dfs "$4" ;;
	*) search "$model" "$3" "$4" ;;
	esac
	ended=$(date +%s.%N)
	if [ "$got" = "$2" ]; then verdict=pass; else verdict=FAIL; touch "$work/failed"; fi
	secs=$(echo "$ended $began" | awk '{printf "%.1f", $1-$2}')
	printf '%-4s %-20s expected %-3s got %-3s %9s states  depth %4s  %5ss\n' "$verdict" "$1" "$2" "$got" "$states" "$depth" "$secs"
	if [ "$5" = 1 ] && [ -f "$model.pml.trail" ]; then
		# shellcheck disable=SC2086
		spin -t -T $4 "$model.pml" 2>&1 | sed '/^spin: trail ends/,$d; /^spin: text/d'
	fi
	rm -rf "$d"
}

if [ "${1:-}" = -l ]; then echo "$checks"; exit 0; fi
for wanted; do
	case "${checks// /}" in *"
$wanted|"*) ;; *) echo "no check is called $wanted; ./run.sh -l lists them" >&2; exit 1 ;; esac
done
trace=0; [ $# -gt 0 ] && trace=1
running=0
while IFS='|' read -r name expected how switches; do
	name=${name// /}; expected=${expected// /}; how=${how// /}
	[ -z "$name" ] && continue
	if [ $# -gt 0 ]; then
		case " $* " in *" $name "*) ;; *) continue ;; esac
	fi
	one "$name" "$expected" "$how" "$switches" "$trace" &
	running=$((running + 1))
	if [ "$trace" = 1 ] || [ "$running" -ge "${JOBS:-2}" ]; then wait -n; running=$((running - 1)); fi
done <<<"$checks"
wait
if [ -e "$work/failed" ]; then echo "some checks FAILED"; exit 1; fi
echo "all checks pass"
