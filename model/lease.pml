/*
 * One key of onefill on a Redis-like store, seen by two processes A and B.
 * What is modelled, the bounds and the results: README.md beside this file.
 *
 * Every switch below is set with -D on the command line of spin (run.sh does it).
 */

/* ---- size ---------------------------------------------------------------------------- */
#ifndef NA
#define NA 2            /* callers in process A, one Get each; each may lead one flight    */
#endif
#ifndef NB
#define NB 2            /* callers in process B                                            */
#endif
#ifndef STORED
#define STORED 0        /* 1: the store holds version 1 when it starts                      */
#endif
#ifndef WRITES
#define WRITES 1        /* commits, each followed by Invalidate (or Set) through A         */
#endif
#ifndef EXPIRIES
#define EXPIRIES 0      /* lease ends although its holder lives (renewal late, pause)      */
#endif
#ifndef EVICTIONS
#define EVICTIONS 0     /* value ends by its TTL                                           */
#endif
#ifndef CRASH
#define CRASH 0         /* B may be killed while it loads                                  */
#endif
#ifndef SETS
#define SETS 0          /* the writer may use Set instead of Invalidate                    */
#endif
#ifndef LOSSES
#define LOSSES 0        /* connections lost                                                */
#endif
#ifndef FAILOVER
#define FAILOVER 0      /* the primary may be replaced, once, by a replica that lags; what is done
                           about that is in replay.pml                                     */
#endif
#ifndef LATEACQ
#define LATEACQ 0       /* an acquire that was out when its connection was lost may reach the server
                           at any time after that. 2: also one that it had executed, once more */
#endif
#ifndef RENEWALS
#define RENEWALS 0      /* PEXPIRE on the lease: pushes to everybody who read it           */
#endif
#ifndef STORM
#define STORM 0         /* invalidations without end                                       */
#endif
#ifndef HOG
#define HOG 0           /* others without end who take the lease and lose it                */
#endif
#ifndef FAILS
#define FAILS 0         /* loads that fail; the lease is released                          */
#endif

/* ---- the design, and what may be changed in it ---------------------------------------- */
#ifndef NOLOOP
#define NOLOOP 0        /* 0: as the code does it: the server tells a connection of its own writes,
                              each of them is followed by a marker, and its one own push is kept
                              from the process (redisstore/board.go)
                           1: rejected: CLIENT TRACKING ON NOLOOP, no marker, nothing is kept     */
#endif
#ifndef SILENT
#define SILENT 0        /* NOLOOP: what the server removes while it works on a connection's own
                           command (eviction, overflow of the tracking table) is not told to that
                           connection, as on Redis 7.0                                     */
#endif
#ifndef LATE
#define LATE 1          /* a push is kept for so long and no longer (ownPushDelay). 0: the marker is
                           always answered before that                                     */
#endif
#ifndef STRICT
#define STRICT 0        /* 1: a push that is kept counts as delivered                      */
#endif
#ifndef DETACH
#define DETACH 1        /* a push on the value takes the flight out of the table. 0: it only
                           marks and drops                                                 */
#endif
#ifndef TOUCH
#define TOUCH 1         /* Invalidate writes the value before it deletes it, so that those
                           who read its absence hear a push. 0: plain DEL                  */
#endif
#ifndef OWNWAKE
#define OWNWAKE 1       /* NOLOOP: who has written wakes the waiters of his own process     */
#endif
#ifndef SAMETOKEN
#define SAMETOKEN 1     /* acquire with the token that holds the lease: won, not held       */
#endif
#ifndef TRIES
#define TRIES 1         /* a lease belongs to one attempt of its token; 0: to the token        */
#endif
#ifndef ORPHANS
#define ORPHANS 1       /* 0: a lease that nobody renews stays; shows who would have to wait for it */
#endif
#ifndef GIVEUP
#define GIVEUP 0        /* a flight whose acquire was not answered: 0: sends it once more;
                           1: answers, and then gives back the lease that it may have (disown).
                           In both, if its fill was not answered (FILLAGAIN: twice): answers, and
                           releases.
                           2: as 1, and gives nothing back                                 */
#endif
#ifndef FILLAGAIN
#define FILLAGAIN 0     /* 1: a fill that was not answered is sent once more               */
#endif
#ifndef DECLARED
#define DECLARED 1      /* a read in a script registers all its KEYS (Redis 7.0), not only the
                           key that is read                                                */
#endif
#ifndef OVERFLOWS
#define OVERFLOWS 0     /* the tracking table drops an entry and says so                   */
#endif
#ifndef WAITBOUND
#define WAITBOUND 0     /* WaitTimeout, counted in wake-ups that led to nothing; 0: none   */
#endif
#ifndef FINE
#define FINE 0          /* 1: every lock taken anew is a step of its own, and pushes that wake
                           nobody are sent too; 0: steps that no other process can tell
                           apart, or that the implementation takes under one lock, are one */
#endif
#ifndef M
#define M 0             /* mutation, see README                                            */
#endif
#ifndef CHECK1
#define CHECK1 0        /* no writer, no expiry: exactly one load (P4)
                           2: and few acquires (P4b)                                       */
#endif
#ifndef MAXACQ
#define MAXACQ 3        /* P4b: the winner's, and two of the process that waits             */
#endif
#ifndef CHECK8
#define CHECK8 0        /* who loaded has it in local afterwards (P8)                      */
#endif

#define NC (NA + NB)
#define CANCUT (LOSSES > 0 || FAILOVER > 0)
#define GIVEBACK (CANCUT && GIVEUP != 2)
#define A 0
#define B 1
#define PR(c) ((c) < NA -> A : B)

/* messages on the wire to a process: pushes and replies in one order */
#define PUSHV 1
#define PUSHL 2
#define VALUE 3         /* reply of GET or of acquire: a value or 0                        */
#define WON   4
#define HELD  5
#define FILLED 6        /* reply to a fill's marker: the fill has been answered, too        */
#define RELEASED 7
#define DONE  8         /* the same to Invalidate's or Set's marker                        */
#define MARK  9         /* ghost: everything of invalidation x has now been delivered      */
#define EOF   10        /* connection lost                                                 */
#define ERR   11
#define CAP 12
chan wireA = [CAP] of { byte, byte, byte };
chan wireB = [CAP] of { byte, byte, byte };

/* database and store */
byte row = 1;           /* committed version                                               */
byte inv = 0;           /* row's version when the last invalidation was applied            */
byte val = STORED;      /* store: version or absent                                        */
byte lease = 0;         /* store: token (caller that leads + 1) or absent                  */
#if CANCUT
/* The number of an attempt, as far as it matters: whether its flight has sent a later one. */
bool lold;              /* store: the lease is that of such an attempt                     */
#endif
#if LATEACQ
byte late = 0;          /* on its way still: an acquire of the flight late - 1             */
bool laterSent;         /* and that flight has sent a later one                            */
#endif
bool armV[2], armL[2];  /* store: tracking table, per connection                           */
bool cut[2];            /* connection lost, the client has not noticed yet                 */
#if FAILOVER
byte rval = 0; byte rlease = 0;
#endif
bool failed = 0;

/* the processes */
byte mem[2];          /* local entry: version or absent                                  */
byte tab[2];            /* flight that can be joined: leader + 1                           */
byte seen[2];           /* ghost: what a Get that starts now must not be older than        */
bool crashed = 0;

/* own writes under way (redisstore/board.go): that of the flight c, and [NC] the writer's */
#define NONE   0
#define BEGUN  1        /* no push on the value since                                      */
#define KEPT   2        /* one, and the process has not been told of it                    */
#define TOLD   3        /* more, or it has been told of the one after all                  */
byte ow[NC+1];
byte kept[2];           /* how many are KEPT                                               */
/* ghosts: a push that is kept was somebody else's; an invalidation is delivered but for it */
bool others[2];
byte pend[2];
byte later;             /* 0 between steps                                                 */
#define PRW(x) ((x) < NA || (x) == NC -> A : B)

/* flights: the flight that caller c leads has number c */
#define IDLE    0
#define READ    1       /* a tracked read is out: the stamp matters                        */
#define ACQ     2       /* acquire is out: the stamp and the wake-up matter                */
#define WAITING 3       /* for somebody else's load: carries no data                       */
#define HOLDS   4       /* has a value, or loads one                                       */
#define ENDED   5
#define FILLING 6       /* fill and marker are out: the stamp matters                      */
#define RUNS(c) (fst[c] != IDLE && fst[c] != ENDED)
/* A stamp is taken (dirty := 0) and compared (dirty == 0). The code has a counter for a stripe of keys; here it is
   the number of times that it was raised since. Where a stamp is taken anew before it is compared, that is not counted
   (fewer states). */
#define MARKS(c) (fst[c] == READ || fst[c] == ACQ || fst[c] == FILLING)
#define WAKES(c) (fst[c] == ACQ || fst[c] == WAITING)
byte fst[NC];
bool dirty[NC];         /* something was heard since the stamp was taken                   */
bool voided[NC];        /* by this process's Invalidate; never cleared                     */
bool wake[NC];
byte rk[NC];            /* the reply, delivered, not yet seen by the flight                */
byte rv[NC];
byte res[NC];           /* what the flight answered                                        */
byte wrk = 0;           /* the same for the writer's command                               */
#if SETS
bool wdirty;            /* Set publishes what it has written: its stamp                    */
#endif
#if CANCUT
byte out[NC];           /* a command is out and unanswered; 2: an acquire that was executed */
bool wout = 0;
#endif
byte started[2];        /* callers of a process start in order (they are alike)            */
byte loads = 0;
byte ndone = 0;
#if CHECK1
byte nacq = 0;
#endif
byte nexp = 0, nev = 0, nloss = 0, nren = 0, nfail = 0;
#if CHECK8
byte loader = 0;
#endif
#define FAILURE 99

byte i;                 /* loop variable, 0 between steps                                   */

/* what a counterexample prints (spin -t): process, caller, event */
#define SAY(t)     printf(t, 65+PR(c), IDX(c)+1)
#define SAYV(t, x) printf(t, 65+PR(c), IDX(c)+1, x)
#define TELL(p, t) printf(t, 65+p)
#define IDX(c) ((c) < NA -> (c) : (c) - NA)

inline put(p, k, x, y) {
	if
	:: p == A -> assert(nfull(wireA)); wireA!k,x,y
	:: p == B && !crashed -> assert(nfull(wireB)); wireB!k,x,y
	:: else
	fi
}

/* A write to a key: each connection that is armed for it hears of it once. `by` is the writer's
   connection; with NOLOOP it does not hear its own writes, and loses its arming all the same.
   The message says whether it is somebody else's write; only ghosts look at that. */
inline pushV(by) {
	if
	:: armV[A] -> armV[A] = 0; if :: NOLOOP && by == A :: else -> put(A, PUSHV, (by != A), 0) fi
	:: else
	fi;
	if
	:: armV[B] -> armV[B] = 0; if :: NOLOOP && by == B :: else -> put(B, PUSHV, (by != B), 0) fi
	:: else
	fi
}
inline pushL(by) {
	if
	:: armL[A] -> armL[A] = 0; if :: NOLOOP && by == A :: else -> put(A, PUSHL, 0, 0) fi
	:: else
	fi;
	if
	:: armL[B] -> armL[B] = 0; if :: NOLOOP && by == B :: else -> put(B, PUSHL, 0, 0) fi
	:: else
	fi
}

/* ---- what a process does when it hears something --------------------------------------- */

/* Invalidate's local part, under the key's lock, before and after the store's part */
inline voidFlights(p) {
	i = 0;
	do
	:: i < NC ->
		if :: PR(i) == p && RUNS(i) -> voided[i] = 1 :: else fi;
		i++
	:: else -> break
	od;
	i = 0;
	if
	:: tab[p] != 0 && M == 8 && fst[tab[p]-1] == ENDED      /* m8: only those in progress */
	:: else -> tab[p] = 0
	fi;
	mem[p] = 0
}
inline markAll(p) {
	i = 0;
	do
	:: i < NC ->
		if
		:: PR(i) == p && MARKS(i) && (M != 11 || tab[p] == i+1) -> dirty[i] = 1
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}
inline wakeAll(p) {
	i = 0;
	do
	:: i < NC ->
		if :: PR(i) == p && WAKES(i) -> wake[i] = 1 :: else fi;
		i++
	:: else -> break
	od;
	i = 0
}
/* whoever may carry data is not joined any more */
inline detach(p) {
	if
	:: tab[p] != 0 && RUNS(tab[p]-1) && fst[tab[p]-1] != WAITING -> tab[p] = 0; TELL(p, "%c  the flight is not joined any more\n")
	:: else
	fi
}
/* the process is told that somebody else has changed the key */
inline changed(p) {
	TELL(p, "%c  is told: changed; drops local, raises the stamps' counter\n");
	markAll(p); mem[p] = 0;
	if :: DETACH -> detach(p) :: else fi
#if SETS
	; if :: p == A -> wdirty = 1 :: else fi
#endif
}

/* ---- own pushes are kept (redisstore/board.go) ------------------------------------------ */

/* ghost: once nothing is kept, what was behind it on the wire has been delivered */
inline settle(p) {
	if
	:: kept[p] == 0 && others[p] ->
		others[p] = 0;
		if :: pend[p] > seen[p] -> seen[p] = pend[p] :: else fi;
		pend[p] = 0;
		assert(mem[p] == 0 || mem[p] >= seen[p])         /* P2 */
	:: else
	fi
}
inline count(p, foreign) {
	i = 0;
	do
	:: i <= NC ->
		if
		:: PRW(i) == p && ow[i] == BEGUN -> ow[i] = KEPT; kept[p]++; later = 1
		:: PRW(i) == p && ow[i] == KEPT -> ow[i] = TOLD; kept[p]--
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0;
	if
	:: later -> later = 0; TELL(p, "%c  keeps the push\n");
		if :: foreign -> others[p] = 1 :: else fi
	:: else -> changed(p)
	fi;
	settle(p)
}
/* the marker has been answered, or will never be; caused: pushes that the write has caused */
inline ownEnd(x, p, caused) {
	if
	:: ow[x] == KEPT -> kept[p]--;
		if :: !(caused) -> changed(p) :: else fi
	:: else
	fi;
	ow[x] = NONE;
	settle(p)
}
#if LATE && !NOLOOP
inline overdue(p) {
	i = 0;
	do
	:: PRW(i) == p && ow[i] == KEPT -> break
	:: else -> i++
	od;
	ow[i] = TOLD; kept[p]--; i = 0;
	TELL(p, "%c  has kept a push for long enough\n");
	changed(p); settle(p)
}
proctype Timer() {
end:	do
	:: d_step { kept[A] > 0 -> overdue(A) }
	:: d_step { kept[B] > 0 && !crashed -> overdue(B) }
	od
}
#endif

inline hear(p, k, x, y) {
	if
	:: k == PUSHV ->
		TELL(p, "%c  hears: value changed\n");
		count(p, x); wakeAll(p)
	:: k == PUSHL ->
		TELL(p, "%c  hears: lease changed\n");
		wakeAll(p)
	:: k == MARK ->
		/* P2, and P3 from here on */
		if
		:: others[p] && !STRICT -> pend[p] = x
		:: else ->
			printf("%c  has been delivered everything of the invalidation of v%d; local: v%d\n", 65+p, x, mem[p]);
			if :: x > seen[p] -> seen[p] = x :: else fi;
			assert(mem[p] == 0 || mem[p] >= seen[p])
		fi
#if CANCUT
	:: k == EOF ->
		TELL(p, "%c  connection lost: drops local, raises the stamps' counter, wakes all\n");
		changed(p); detach(p); wakeAll(p); cut[p] = 0;
		i = 0;
		do
		:: i < NC ->
			if :: PR(i) == p && out[i] -> out[i] = 0; rk[i] = ERR :: else fi;
			i++
		:: else -> break
		od;
		i = 0;
		if :: p == A && wout -> wout = 0; wrk = ERR :: else fi
	:: k == DONE -> wrk = DONE; wout = 0
	:: else -> rk[x] = k; rv[x] = y; out[x] = 0
#else
	:: k == DONE -> wrk = DONE
	:: else -> rk[x] = k; rv[x] = y
#endif
	fi
}

proctype ReaderA() {
	byte k, x, y;
end:	do
	:: d_step { wireA?k,x,y -> hear(A, k, x, y); k = 0; x = 0; y = 0 }
	od
}
proctype ReaderB() {
	byte k, x, y;
	{
end:	do
	:: d_step { wireB?k,x,y -> hear(B, k, x, y); k = 0; x = 0; y = 0 }
	od
	} unless { crashed }
}

/* ---- a flight's commands: sent, executed by the store, reply seen ----------------------- */

#if CANCUT
#define OUT(c)    out[c] = 1
#define MINE(c)   (lease == (c)+1 && !(TRIES && lold))
#define CANRUN(c) (out[c] == 1 && !cut[PR(c)])
#define LOST(c)   (!out[c])
#define WOUT      wout = 1
#define WCANRUN   (wout && !cut[A])
#define WLOST     (!wout)
#else
#define OUT(c)    skip
#define MINE(c)   (lease == (c)+1)
#define CANRUN(c) (true)
#define LOST(c)   (false)
#define WOUT      skip
#define WCANRUN   (true)
#define WLOST     (false)
#endif

/* an attempt to get the lease: with the flight's token, and the next number */
inline sendAcq(c) {
#if CANCUT
	if :: lease == c+1 -> lold = 1 :: else fi;
#endif
#if LATEACQ
	if :: late == c+1 -> laterSent = 1 :: else fi;
#endif
	OUT(c)
}
#if CANCUT
#define GRANT(c) lease = c+1; lold = 0
#else
#define GRANT(c) lease = c+1
#endif

/* the stamp is taken before the tracked read is sent */
inline send(c) { dirty[c] = 0; fst[c] = READ; OUT(c) }

#if FINE
#define ARML(p) armL[p] = 1
#else
#define ARML(p) skip            /* a push on the lease tells nothing but waiters: see HELD */
#endif
inline armBoth(p) { armV[p] = 1; ARML(p) }

inline execGet(c, p) {
	if
	:: atomic { CANRUN(c) -> armV[p] = 1; put(p, VALUE, c, val); SAYV("%c%d GET -> v%d (armed)\n", val) }
	:: LOST(c)
	fi
}

/* acquire: re-read and lease in one atomic step. A read inside a script registers all its KEYS. */
inline execAcquire(c, p) {
	if
	:: atomic { CANRUN(c) ->
		armBoth(p);
#if LATEACQ
		out[c] = 2;
#endif
#if CHECK1
		nacq++;
#endif
		if
		:: val != 0 && M != 9 -> put(p, VALUE, c, val); SAYV("%c%d acquire -> value v%d (armed)\n", val)
		:: else ->
			if
			:: SAMETOKEN && lease == c + 1 ->
				GRANT(c);
				put(p, WON, c, 0);
				SAY("%c%d acquire -> won, by its own token\n");
				pushL(p)
			:: lease == 0 ->
				GRANT(c);
				put(p, WON, c, 0);
				SAY("%c%d acquire -> won\n");
				pushL(p)
			:: else ->
				SAY("%c%d acquire -> held by another\n");
				if :: M != 13 -> armL[p] = 1 :: else -> armL[p] = 0 fi;
				put(p, HELD, c, 0)
			fi
		fi }
	:: LOST(c)
	fi
}

#define ACCEPT(c) (MINE(c) || M == 1 || (M == 6 && lease == 0))

/* The fill script: GET lease (which registers all KEYS), EXISTS value, SET value, DEL lease, EXISTS value. Its own reply
   needs no message: the flight looks at it when its marker has been answered. */
inline execFill(c, p, v, ok) {
	if
	:: atomic { CANRUN(c) ->
		if :: DECLARED -> armBoth(p) :: else -> ARML(p) fi;
		if :: NOLOOP || M == 14 -> put(p, FILLED, c, 0) :: else fi;
		if
		:: ACCEPT(c) ->
			SAYV("%c%d fill v%d -> accepted\n", v);
			if :: M != 16 -> armV[p] = 1 :: else fi;
			val = v; ok = 1;
			pushV(p);
			if :: lease != 0 -> lease = 0; pushL(p) :: else fi;
			if :: M != 7 -> armV[p] = 1; if :: DECLARED -> ARML(p) :: else fi :: else fi;
			assert(val >= inv)                      /* P1 */
		:: else ->
			SAYV("%c%d fill v%d -> refused\n", v);
			ok = 0
		fi }
	:: LOST(c)
	fi
}
/* EXISTS value, behind the fill in one pipeline */
inline execMarker(c, p) {
	if
	:: atomic { CANRUN(c) -> armV[p] = 1; put(p, FILLED, c, 0); SAY("%c%d marker (armed)\n") }
	:: LOST(c)
	fi
}
#if GIVEBACK
inline execRelease(c, p) {
	if
	:: atomic { CANRUN(c) ->
		ARML(p); put(p, RELEASED, c, 0);
		if :: MINE(c) -> SAY("%c%d release -> done\n"); lease = 0; pushL(p) :: else fi }
	:: LOST(c)
	fi
}
#endif

/* under the key's lock */
inline insert(c, p, v) {
	if
	:: v != 0 && !voided[c] && (!dirty[c] || M == 3) ->
		mem[p] = v;
		SAYV("%c%d inserts v%d into local\n", v);
		assert(mem[p] >= seen[p])                        /* P2 */
	:: else
	fi;
	fst[c] = HOLDS
}

/* ---- one caller, who may become the leader of a flight ---------------------------------- */

#define SEE(c) rk[c] != 0 -> k = rk[c]; rk[c] = 0; 

proctype Caller(byte c) {
	byte v = 0, r = 0, k = 0, min = 0;
	byte ok = 0;
#if GIVEBACK
	byte give = 0;          /* 1: disown, 2: release */
#endif
#if FILLAGAIN
	bool second = 0;        /* the fill has been sent twice */
#endif
	{
	atomic { started[PR(c)] == IDX(c) -> started[PR(c)]++;  /* Get starts: look at local */
		min = seen[PR(c)]; v = mem[PR(c)];
		SAYV("%c%d Get starts, must be at least v%d\n", min);
		if :: v != 0 -> goto answer :: else fi };
	atomic {                                                /* join or lead */
		if
		:: tab[PR(c)] != 0 -> k = tab[PR(c)];
			SAYV("%c%d joins the flight of %d\n", IDX(k-1)+1)
		:: else -> tab[PR(c)] = c + 1; fst[c] = HOLDS;
			SAY("%c%d leads a flight\n");
#if FINE == 0
			v = mem[PR(c)];
			if :: v != 0 -> goto finish :: else -> send(c); goto get fi
#else
			goto lead
#endif
		fi };
	atomic { res[k-1] != 0 -> v = res[k-1]; goto answer };
#if FINE
lead:
	atomic { v = mem[PR(c)];                                /* 1 local again */
		if :: v != 0 -> goto finish :: else -> send(c) fi };
#endif
get:
	execGet(c, PR(c));                                      /* 2 store */
	atomic { SEE(c)
		v = rv[c]; rv[c] = 0;
		if
		:: k == ERR -> k = 0; v = 0; OUT(c); goto get   /* once more, with the same stamp */
		:: k != ERR && v != 0 -> k = 0;
			if :: M == 4 -> dirty[c] = 0 :: else fi;
			insert(c, PR(c), v); goto finish
		:: else -> k = 0; dirty[c] = 0; wake[c] = 0; fst[c] = ACQ; sendAcq(c)
		fi };
acq:
	execAcquire(c, PR(c));                                  /* 3 acquire */
	atomic { SEE(c)
		v = rv[c]; rv[c] = 0;
		if
		:: k == ERR -> k = 0; wake[c] = 0;
#if GIVEUP
#if GIVEBACK
			give = 1;
#endif
			v = FAILURE; goto finish
#else
			sendAcq(c); goto acq                    /* once more: same stamp, same token, new watch */
#endif
		:: k == VALUE -> k = 0; wake[c] = 0;
			if :: M == 4 -> dirty[c] = 0 :: else fi;
			insert(c, PR(c), v); goto finish
		:: k == WON -> k = 0; wake[c] = 0; fst[c] = HOLDS; goto load
		:: k == HELD -> k = 0; dirty[c] = 0; fst[c] = WAITING;
			if :: M == 12 -> wake[c] = 0 :: else fi
		fi };
	atomic {                                                /* who is woken acquires at once */
		if
		:: wake[c] && (!WAITBOUND || ok < WAITBOUND) -> wake[c] = 0; dirty[c] = 0; fst[c] = ACQ; sendAcq(c);
			if :: WAITBOUND -> ok++ :: else fi; goto acq
		:: WAITBOUND && ok >= WAITBOUND -> wake[c] = 0; v = FAILURE; goto finish
		fi };
load:
	atomic {
	if
	:: v = row; loads++;                                    /* 5 load */
		SAYV("%c%d loads v%d from the database\n", v);
		assert(!CHECK1 || loads <= 1);                  /* P4 */
		assert(loads <= NC);                            /* P6 */
#if CHECK8
		loader = c + 1
#endif
	:: CRASH && PR(c) == B && !crashed ->
		SAY("%c%d process killed while loading\n");
		crashed = 1; armV[B] = 0; armL[B] = 0;
		do :: wireB?_,_,_ :: empty(wireB) -> break od; (false)
	:: nfail < FAILS -> nfail++; v = FAILURE; SAY("%c%d load fails, lease released\n");               /* 6 fail: only if owner */
		if :: MINE(c) -> lease = 0; pushL(PR(c)) :: else fi;
		if :: NOLOOP && OWNWAKE -> wakeAll(PR(c)) :: else fi; goto finish
	fi };
	atomic { dirty[c] = 0; fst[c] = FILLING;
#if FINE
	}; atomic {
#endif
		if :: !NOLOOP -> ow[c] = BEGUN :: else fi; OUT(c) };
fill:
	execFill(c, PR(c), v, ok);                              /* 6 fill, and the marker right behind it */
#if !NOLOOP && M != 14
	execMarker(c, PR(c));
#endif
	atomic { SEE(c)
		rv[c] = 0;
		if :: !NOLOOP -> ownEnd(c, PR(c), (M == 15 || (k == FILLED && ok))) :: else fi;
#if FINE
	}; atomic {
#endif
#if FILLAGAIN
		if
		:: k == ERR && !second -> k = 0; ok = 0; second = 1;    /* with the same stamp */
			if :: !NOLOOP -> ow[c] = BEGUN :: else fi; OUT(c); goto fill
		:: else -> second = 0
		fi;
#endif
		if :: M == 4 -> dirty[c] = 0 :: else fi;
		if
		:: k == FILLED && ok -> insert(c, PR(c), v)
		:: M == 10 && k == FILLED && !ok -> k = 0; v = 0; send(c); goto get    /* m10: starts over */
		:: else
		fi;
#if GIVEBACK
		if :: k == ERR -> give = 2 :: else fi;
#endif
		if :: NOLOOP && OWNWAKE -> wakeAll(PR(c)) :: else fi;
		k = 0; ok = 0 };
finish:
#if FINE
	skip;
#endif
	/* leaves the table (only its own place in it) and answers */
	atomic {
#if M != 8
		if :: tab[PR(c)] == c + 1 -> tab[PR(c)] = 0 :: else fi;
#endif
		fst[c] = ENDED; res[c] = v; dirty[c] = 0; wake[c] = 0; voided[c] = 0 };
#if M == 8
	atomic { if :: tab[PR(c)] == c + 1 -> tab[PR(c)] = 0 :: else fi };
#endif
answer:
	atomic {
		SAYV("%c%d Get returns v%d\n", v);
		assert(v == FAILURE || v >= min);               /* P3 */
		ndone++; v = 0; min = 0; k = 0 };
#if GIVEBACK
	/* the caller has his answer; in the background the lease is given back */
	if
	:: atomic { give == 0 -> goto over }
	:: atomic { give == 2 -> goto release }
	:: atomic { give == 1 -> skip }
	fi;
#if GIVEUP
disown:
	atomic { sendAcq(c) };
	execAcquire(c, PR(c));
	atomic { SEE(c)
		rv[c] = 0;
		if
		:: k == ERR -> k = 0; goto disown
		:: k == WON -> k = 0
		:: else -> k = 0; goto over
		fi };
#endif
release:
	atomic { OUT(c) };
	execRelease(c, PR(c));
	atomic { SEE(c)
		rv[c] = 0;
		if :: k == ERR -> k = 0; goto release :: else -> k = 0 fi };
over:	skip
#endif
	} unless { crashed && PR(c) == B }
}

/* ---- the writer: commit, then Invalidate (or Set) through A ----------------------------- */

proctype Writer() {
	byte w = 0, k = 0, nv = 0;                              /* nv: what is left in the store */
	do
	:: row <= WRITES ->
		atomic { row++; w = row; printf("W  commits v%d\n", w);                  /* commit */
			if :: SETS -> nv = w :: nv = 0 fi };
again:
		atomic {
			printf("W  Invalidate (by A): begins\n");
			if
			:: M != 20 && M != 22 -> voidFlights(A) /* m2: neither, m2b: not before */
			:: else
			fi;
#if SETS
			wdirty = 0;
#endif
			if :: !NOLOOP -> ow[NC] = BEGUN :: else fi;
			WOUT };
		if
		:: atomic { WCANRUN ->
			inv = row;
			printf("W  Invalidate (by A): applied in the store\n");
			if
			:: NOLOOP -> put(A, DONE, 0, 0)
			:: else -> armV[A] = 1; if :: DECLARED -> ARML(A) :: else fi    /* EXISTS */
			fi;
			if :: lease != 0 && M != 5 -> lease = 0; pushL(A) :: else fi;
			if :: nv != 0 || TOUCH || val != 0 -> val = nv; pushV(A) :: else fi;
			if :: nv != 0 && !NOLOOP -> armV[A] = 1 :: else fi;             /* EXISTS */
			put(B, MARK, inv, 0) }
		:: WLOST
		fi;
#if !NOLOOP
		if
		:: atomic { WCANRUN -> armV[A] = 1; put(A, DONE, 0, 0) }                /* the marker */
		:: WLOST
		fi;
#endif
		atomic { wrk != 0 -> k = wrk; wrk = 0;
			if :: !NOLOOP -> ownEnd(NC, A, (k == DONE)) :: else fi;
#if FINE
		}; atomic {
#endif
			if
			:: k == ERR -> k = 0; goto again        /* not applied for sure: again */
			:: else -> k = 0
			fi;
			if
			:: M != 20 && M != 21 -> voidFlights(A) /* m2: neither, m2a: not after */
			:: else
			fi;
#if SETS
			if :: nv != 0 && !wdirty && !NOLOOP -> mem[A] = nv :: else fi;
#endif
			if :: NOLOOP && OWNWAKE -> wakeAll(A) :: else fi };
		/* Invalidate returns nil: P2 in A, and P3 in A from here on */
		atomic {
			printf("W  Invalidate (by A): returns nil; local of A: v%d\n", mem[A]);
			seen[A] = w; nv = 0; w = 0;
			assert(mem[A] == 0 || mem[A] >= seen[A])
		}
	:: else -> break
	od
}
#if STORM
/* invalidations that never end; they change nothing in the database */
proctype Storm() {
	do
	:: atomic {
		(nfull(wireA) && nfull(wireB) && len(wireA) < 3 && len(wireB) < 3) ->
		val = 0; pushV(2); if :: lease != 0 -> lease = 0; pushL(2) :: else fi }
	od
}
#endif

#if HOG
/* others without end, who take the lease and lose it again: is a waiter answered all the same? */
proctype Hog() {
	do
	:: atomic { lease == 0 && val == 0 -> lease = 90; pushL(2) };
	   atomic { if :: lease == 90 -> lease = 0; pushL(2) :: else fi }
	od
}
#endif

/* ---- what else can happen -------------------------------------------------------------- */

#define OWNERDEAD (crashed && lease != 0 && lease != 90 && PR(lease-1) == B)
/* a lease that nobody renews: its flight has ended, or does not know that it has won */
#if CANCUT
#define ORPHAN (lease != 0 && lease != 90 && (fst[lease-1] == ENDED || fst[lease-1] == WAITING || lold))
#else
#define ORPHAN (lease != 0 && lease != 90 && (fst[lease-1] == ENDED || fst[lease-1] == WAITING))
#endif

#if LATEACQ
/* it reaches the server over a connection that nobody reads any more */
inline lateAcquire() {
	printf("   the late acquire of %d arrives\n", late);
	if
	:: val == 0 && lease == 0 ->
		lease = late; lold = laterSent;
		printf("   and is granted; a later attempt was sent: %d\n", laterSent);
		pushL(2)
	:: else         /* a value, another's lease, or its own flight's: changes nothing */
	fi;
	late = 0; laterSent = 0
}
#endif

#if CANCUT
inline lose(p) {
	cut[p] = 1; armV[p] = 0; armL[p] = 0;
#if LATEACQ
	i = 0;
	do
	:: i < NC -> if :: PR(i) == p && out[i] && fst[i] == ACQ && (out[i] == 1 || LATEACQ == 2) -> late = i+1 :: else fi; i++
	:: else -> break
	od;
	i = 0;
#endif
	put(p, EOF, 0, 0)
}
#endif

/* the removal happens while the server works on a command of that connection, and it is not told */
#define QUIET (SILENT && NOLOOP)

proctype World() {
end:	do
	:: atomic { lease != 0 && nexp < EXPIRIES -> nexp++; lease = 0; printf("   the lease expires\n"); pushL(2) }
	:: atomic { OWNERDEAD -> lease = 0; printf("   the lease of the dead process expires\n"); pushL(2) }
	:: atomic { ORPHANS && ORPHAN -> lease = 0; printf("   a lease that nobody renews expires\n"); pushL(2) }
#if OVERFLOWS
	:: atomic { nev < OVERFLOWS && armV[A] -> nev++; armV[A] = 0; printf("   the tracking table drops A's entry\n");
		if :: put(A, PUSHV, 1, 0) :: QUIET fi }
	:: atomic { nev < OVERFLOWS && armV[B] -> nev++; armV[B] = 0; printf("   the tracking table drops B's entry\n");
		if :: put(B, PUSHV, 1, 0) :: QUIET fi }
#endif
	:: atomic { val != 0 && nev < EVICTIONS -> nev++; val = 0; printf("   the value expires, or is evicted\n");
		if :: pushV(2) :: QUIET -> pushV(A) :: QUIET -> pushV(B) fi }
	:: atomic { lease != 0 && nren < RENEWALS && fst[lease-1] == HOLDS && !OWNERDEAD -> nren++; printf("   the lease is renewed\n");
		armL[PR(lease-1)] = 1; pushL(PR(lease-1)) }
#if CANCUT
	:: atomic { nloss < LOSSES && !cut[A] -> nloss++; lose(A) }
	:: atomic { nloss < LOSSES && !cut[B] && !crashed -> nloss++; lose(B) }
	:: atomic { nloss < LOSSES && !cut[B] && !crashed ->    /* and what was on its way */
		nloss++;
		do :: wireB?_,_,_ :: empty(wireB) -> break od;
		lose(B); put(B, MARK, inv, 0) }
#endif
#if LATEACQ
	:: atomic { late != 0 -> lateAcquire() }
#endif
#if FAILOVER
	:: atomic { !failed && (rval != val || rlease != lease) -> rval = val; rlease = lease; printf("   the replica catches up: value v%d, lease of %d\n", val, lease) }
	:: atomic { !failed && !cut[A] && !cut[B] ->
		failed = 1; val = rval; lease = rlease;
		printf("   failover to the replica: value v%d, lease of %d\n", val, lease);
		lose(A); lose(B);
		assert(val == 0 || val >= inv)                  /* P1 */
		}
#endif
	od
}

#if CHECK1 || CHECK8
proctype Final() {
	atomic { ndone == NC ->
		assert(!CHECK1 || loads == 1);
#if CHECK1 == 2
		assert(nacq <= MAXACQ)                          /* P4b */
#endif
#if CHECK8
		assert(loader == 0 || mem[PR(loader-1)] != 0)
#endif
	}
}
#endif

init {
	atomic {
		run ReaderA(); run ReaderB(); run World();
#if WRITES > 0
		run Writer();
#endif
#if STORM
		run Storm();
#endif
#if HOG
		run Hog();
#endif
#if LATE && !NOLOOP
		run Timer();
#endif
#if CHECK1 || CHECK8
		run Final();
#endif
		i = 0;
		do
		:: i < NC -> run Caller(i); i++
		:: else -> break
		od;
		i = 0
	}
}

#if STORM || HOG
/* P6: every caller is answered, however many invalidations come */
ltl answered { <> (ndone == NC) }
#endif
