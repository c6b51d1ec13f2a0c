/*
 * Tags by generations: store/tags.go, tags.go. One key, whose value is under one tag, and that tag, on a store that
 * keeps its contract; two processes A and B.
 * What is modelled, the bounds and the results: README.md beside this file.
 *
 * Every switch below is set with -D on the command line of spin (run.sh does it).
 */

/* ---- size ---------------------------------------------------------------------------- */
#ifndef NA
#define NA 1            /* callers in process A, one Get each; each may lead one flight    */
#endif
#ifndef NB
#define NB 1            /* callers in process B                                            */
#endif
#ifndef VOIDS
#define VOIDS 1         /* commits, each followed by InvalidateTag through A               */
#endif
#ifndef STORED
#define STORED 0        /* 1: the store holds version 1 and the tag's generation at first; 2: only the latter */
#endif
#ifndef LOST
#define LOST 0          /* the tag's record is lost, or the epoch and all records          */
#endif
#ifndef OTHERS
#define OTHERS 0        /* other tags are voided: only the epoch is raised                 */
#endif
#ifndef BACK
#define BACK 0          /* 1: a failover may turn the epoch back, once, to before the other
                           tags were voided; what it does to this tag is replay.pml's business */
#endif

/* ---- the design, and what may be changed in it ---------------------------------------- */
#ifndef M
#define M 0             /* mutation, see README                                            */
#endif

#define NC (NA + NB)
#define A 0
#define B 1
#define IDX(c) ((c) < NA -> (c) : (c) - NA)
#define WID NC          /* the writer's command                                            */

/* messages on the wire to a process: pushes and replies in one order */
#define PUSH   1        /* the tag was voided, or its record lost                          */
#define RAISED 11       /* the epoch was raised: no flight can be joined any more              */
#define VALUE  2
#define WON    3
#define HELD   4
#define EPOCH  5
#define GEN    6
#define OK     7
#define REFUSED 8
#define DONE   9
#define MARK   10       /* ghost: everything of the void of version x has now been delivered */
#define CAP 8
chan wire[2] = [CAP] of { byte, byte, byte };

/* database and store */
byte row = 1;
byte epoch = 0, gen = 0;                /* 0: there is none                                 */
byte highest = 0;                       /* the clock: of all epochs that have ever been made */
byte val = 0, vepoch = 0;               /* the value, and the epoch of its load             */
byte lease = 0;
bool arm[2];                            /* the server will tell it of the tag's next change */
bool armE[2];                           /* and of the epoch's                               */
byte nlost, nother, back;               /* back: the epoch that a replica has               */

/* the processes */
byte mem[2];                            /* local entry: version or absent                   */
byte known[2];                          /* the generation that it knows, with a current stamp */
bool knows[2];
byte tab[2];                            /* flight that can be joined: leader + 1            */
byte seen[2];                           /* ghost: what a Get that starts now must not be older than */

#define IDLE  0
#define RUNS  1
#define WAITS 2                         /* for somebody else's load: carries no data        */
#define STAMPED 3                       /* the tag's stamp has been taken                   */
#define ENDED 4
byte fst[NC];
bool dirty[NC];                         /* the tag was heard of since its stamp was taken   */
byte res[NC];
byte rk[NC+1], rv[NC+1], re[NC+1];      /* replies, delivered                               */
byte started[2];

byte i;                                 /* loop variable, 0 between steps                   */

#define SAY(t)     printf(t, 65+p, IDX(c)+1)
#define SAYV(t, x) printf(t, 65+p, IDX(c)+1, x)
#define PUT(p, k, x, y) assert(nfull(wire[p])); wire[p]!k,x,y

/* everybody but by who has read the generation hears of it once */
inline push(by) {
	if :: arm[A] && by != A -> PUT(A, PUSH, 0, 0) :: else fi;
	if :: arm[B] && by != B -> PUT(B, PUSH, 0, 0) :: else fi;
	arm[A] = 0; arm[B] = 0
}
inline pushE(by) {
	if :: armE[A] && by != A -> PUT(A, RAISED, 0, 0) :: else fi;
	if :: armE[B] && by != B -> PUT(B, RAISED, 0, 0) :: else fi;
	armE[A] = 0; armE[B] = 0
}

/* the clock is part of the epoch: one that is made is above all that have been, also above those that were lost */
inline raise() {
	if :: M == 4 -> epoch++ :: else -> epoch = highest + 1 fi;
	if :: epoch > highest -> highest = epoch :: else fi
}
inline needEpoch() { if :: epoch == 0 -> raise() :: else fi }
inline needGen() {
	needEpoch();
	if :: gen == 0 && M != 1 -> gen = epoch :: else fi
}

inline detach(p) { if :: tab[p] && fst[tab[p]-1] != WAITS -> tab[p] = 0 :: else fi }
/* the process hears that the tag was voided: local, what is known of it, and all flights */
inline voided(p) {
	mem[p] = 0;
	if :: M != 7 -> knows[p] = 0; known[p] = 0 :: else fi;
	i = 0;
	do
	:: i < NC ->
		if :: (i < NA) == (p == A) && fst[i] == STAMPED -> dirty[i] = 1 :: else fi;
		i++
	:: else -> break
	od;
	i = 0;
	detach(p)
}

inline hear(p, k, x, y) {
	if
	:: k == PUSH -> printf("%c  hears: the tag was voided\n", 65+p); voided(p)
	:: k == RAISED -> detach(p)
	:: k == MARK ->
		printf("%c  has been delivered everything of the void of v%d; local: v%d\n", 65+p, x, mem[p]);
		if :: x > seen[p] -> seen[p] = x :: else fi;
		assert(mem[p] == 0 || mem[p] >= seen[p])                /* T2 */
	:: k == VALUE -> rk[x] = k; rv[x] = y / 16; re[x] = y % 16
	:: else -> rk[x] = k; re[x] = y
	fi
}
proctype Reader(byte p) {
	byte k, x, y;
end:	do
	:: d_step { wire[p]?k,x,y -> hear(p, k, x, y); k = 0; x = 0; y = 0 }
	od
}

#define SEE(x) rk[x] != 0 -> k = rk[x]; rk[x] = 0

/* ---- one caller, who may become the leader of a flight ---------------------------------- */

/* under the key's lock */
inline insert(c, p, v) {
	if
	:: !dirty[c] -> mem[p] = v; SAYV("%c%d inserts v%d into local\n", v);
		assert(mem[p] >= seen[p])                               /* T1, T2 */
	:: else
	fi
}
#define STAMP(c) dirty[c] = 0; fst[c] = STAMPED

proctype Caller(byte c, p) {
	byte v, e, k, min, sv, se;      /* sv, se: the value that was seen, and cannot be used */
	bool loaded;
	atomic { started[p] == IDX(c) -> started[p]++;          /* Get starts: look at local */
		min = seen[p]; v = mem[p];
		SAYV("%c%d Get starts, must be at least v%d\n", min);
		if :: v != 0 -> goto answer :: else fi };
	atomic {                                                /* join or lead */
		if
		:: tab[p] != 0 -> k = tab[p]; SAYV("%c%d joins the flight of %d\n", IDX(k-1)+1)
		:: else -> tab[p] = c + 1; fst[c] = RUNS; v = mem[p];
			if :: v != 0 -> goto finish :: else -> goto acquire fi
		fi };
	atomic { res[k-1] != 0 -> v = res[k-1]; k = 0; goto answer };
acquire:
	atomic {                                                /* what was seen is no hit */
		fst[c] = RUNS;
		if
		:: val != 0 && !(val == sv && vepoch == se) -> PUT(p, VALUE, c, val * 16 + vepoch);
			SAYV("%c%d acquire -> v%d", val); printf(" of epoch %d\n", vepoch)
		:: else ->
			if
			:: lease == 0 -> lease = c + 1; PUT(p, WON, c, 0); SAY("%c%d acquire -> won\n")
			:: else -> PUT(p, HELD, c, lease)
			fi
		fi };
	atomic { SEE(c);
		if
		:: k == HELD -> e = re[c]; re[c] = 0; k = 0; fst[c] = WAITS; goto wait
		:: k == WON -> k = 0; loaded = 1; sv = 0; se = 0;
			if :: M == 3 -> goto load :: else fi
		:: k == VALUE -> v = rv[c]; e = re[c]; rv[c] = 0; re[c] = 0; k = 0; goto check
		fi };
readEpoch:
	atomic { needEpoch(); armE[p] = (M != 8); PUT(p, EPOCH, c, epoch); SAYV("%c%d reads the epoch: %d\n", epoch) };
	atomic { SEE(c); e = re[c]; re[c] = 0; k = 0;
		if :: M == 3 -> goto check :: else fi };
load:
	atomic { v = row; SAYV("%c%d loads v%d from the database\n", v);
		if :: M == 3 -> goto readEpoch :: else fi };
check:
	atomic {
		if :: M != 2 -> STAMP(c) :: else fi;
		if
		:: knows[p] -> k = known[p];
			SAYV("%c%d knows the tag's generation: %d\n", k); goto judge
		:: else
		fi };
	atomic { needGen(); arm[p] = 1; PUT(p, GEN, c, gen); SAYV("%c%d reads the tag's generation: %d\n", gen) };
	atomic { SEE(c); k = re[c]; re[c] = 0;
		if :: M == 2 -> STAMP(c) :: else fi;
		if :: !dirty[c] || M == 6 -> known[p] = k; knows[p] = 1 :: else fi };
judge:
	atomic {
		if
		:: k > e && !loaded -> sv = v; se = e; v = 0; e = 0; k = 0; dirty[c] = 0; goto acquire
		:: k > e && loaded -> k = 0; e = 0; SAY("%c%d has loaded in vain, releases\n");
			if :: lease == c + 1 -> lease = 0 :: else fi; goto finish
		:: k <= e -> k = 0;
			if :: !loaded -> insert(c, p, v); goto finish :: else fi
		fi };
	atomic {
		if
		:: lease == c + 1 -> lease = 0; val = v; vepoch = e; PUT(p, OK, c, 0); SAYV("%c%d fill v%d -> accepted", v); printf(", of epoch %d\n", e)
		:: else -> PUT(p, REFUSED, c, 0)
		fi };
	atomic { SEE(c); if :: k == OK -> insert(c, p, v) :: else fi; k = 0; re[c] = 0 };
finish:
	atomic {
		if :: tab[p] == c + 1 -> tab[p] = 0 :: else fi;
		fst[c] = ENDED; res[c] = v; dirty[c] = 0 };
answer:
	atomic {
		SAYV("%c%d Get returns v%d\n", v);
		assert(v >= min);                                       /* T1, T2 */
		v = 0; e = 0; sv = 0; se = 0; min = 0; loaded = 0; goto over };
	/* until the lease that it has seen is gone; that everybody is woken is shown in lease.pml */
wait:	atomic { lease != e -> e = 0; goto acquire };
over:	skip
}

/* ---- the writer: commit, then InvalidateTag through A ----------------------------------- */

proctype Writer() {
	byte v, k;
	do
	:: row <= VOIDS ->
		atomic { row++; v = row; printf("W  commits v%d\n", v) };
		atomic { printf("W  InvalidateTag (by A): begins\n"); voided(A) };
		atomic { raise(); gen = epoch; push(A); pushE(A);
			printf("W  InvalidateTag (by A): applied, generation %d\n", gen);
			PUT(A, DONE, WID, 0); PUT(B, MARK, v, 0) };
		atomic { SEE(WID); k = 0; re[WID] = 0;
			if :: M != 5 -> voided(A) :: else fi };
		atomic { printf("W  InvalidateTag (by A): returns nil; local of A: v%d\n", mem[A]);
			seen[A] = v; v = 0;
			assert(mem[A] == 0 || mem[A] >= seen[A]) }       /* T1 */
	:: else -> break
	od
}

proctype World() {
end:	do
	:: atomic { gen != 0 && nlost < LOST -> nlost++; gen = 0; printf("   the tag's record is lost\n"); push(2) }
	:: atomic { epoch != 0 && nlost < LOST -> nlost++; gen = 0; epoch = 0; printf("   the epoch and all records are lost\n"); push(2) }
	:: atomic { nother < OTHERS && epoch != 0 ->
		if :: nother == 0 && BACK -> back = epoch :: else fi;
		nother++; raise(); pushE(2); printf("   another tag is voided: epoch %d\n", epoch) }
	/* the sessions are told before anything else is answered */
	:: atomic { BACK && back != 0 && gen <= back && gen != 0 && epoch > back ->
		epoch = back; back = 0; printf("   failover: epoch %d\n", epoch);
		arm[A] = 0; arm[B] = 0; armE[A] = 0; armE[B] = 0; voided(A); voided(B) }
	od
}

init {
	atomic {
#if STORED
		epoch = 1; gen = 1; highest = 1;
#endif
#if STORED == 1
		val = 1; vepoch = 1;
#endif
		run Reader(A); run Reader(B); run World(); run Writer();
		i = 0;
		do
		:: i < NC -> if :: i < NA -> run Caller(i, A) :: else -> run Caller(i, B) fi; i++
		:: else -> break
		od;
		i = 0
	}
}
