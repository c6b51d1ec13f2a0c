/*
 * Writes that the store may lack, and are repeated: replay.go. One key on a store that keeps its contract (store/store.go),
 * two processes A and B, a primary and a replica that may take its place.
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
#ifndef WA
#define WA 1            /* writers in A: a commit and an Invalidate each, at any time      */
#endif
#ifndef WB
#define WB 0            /* writers in B                                                    */
#endif
#ifndef STORED
#define STORED 1        /* 1: the store holds version 1 when it starts                      */
#endif
#ifndef FAILOVER
#define FAILOVER 1      /* the replica may be promoted, once                               */
#endif
#ifndef LOSSES
#define LOSSES 0        /* connections lost, to a server that has lost nothing             */
#endif

/* ---- the design, and what may be changed in it ---------------------------------------- */
#ifndef AGAIN
#define AGAIN 0         /* 1: a flight that was told of a replacement while it read reads again,
                           and one that pays does so until nothing is owed                 */
#endif
#ifndef FIRST
#define FIRST 0         /* 1: a Get that is under way when its process is told must not bring what
                           its own process had invalidated before it began                 */
#endif
#ifndef PAYER
#define PAYER 1         /* debts are also paid in the background                           */
#endif
#ifndef KEEPPAID
#define KEEPPAID 1      /* a payment is a write like any other: numbered, kept, and owed again if it
                           was under way when the server was replaced. 0: it pays what was owed
                           when it began, and is forgotten                                 */
#endif
#ifndef M
#define M 0             /* mutation, see README                                            */
#endif

#define NC (NA + NB)
#define NW (WA + WB)
#define A 0
#define B 1
#define PR(c) ((c) < NA -> A : B)
#define IDX(c) ((c) < NA -> (c) : (c) - NA)
/* commands: of callers, of writers, of those who pay in the background */
#define WID(w) (NC + (w))
#define PID(p) (NC + NW + (p))
#define NID (NC + NW + 2)
#define ISWRITER(x) ((x) >= NC && (x) < NC + NW)
#define PRI(x) ((x) < NC -> PR(x) : ((x) < NC + NW -> ((x) - NC < WA -> A : B) : (x) - NC - NW))

/* messages on the wire to a process: pushes and replies in one order */
#define PUSH   1
#define VALUE  2
#define WON    3
#define HELD   4
#define OK     5
#define REFUSED 6
#define MARK   7        /* ghost: everything of invalidation x has now been delivered      */
#define EOF    8        /* connection lost                                                 */
#define ERR    9
#define CAP 10
chan wire[2] = [CAP] of { byte, byte, byte };

/* the database, and the servers: 0 is the primary, 1 the replica */
byte row = 1;
byte val[2];
byte lease[2];
byte inv[2];            /* ghost: row's version at the last invalidation that it has had    */
bool promoted;
byte on[2];             /* the server to which a process is connected                      */
bool told[2];           /* the process has been told of the server (Events.Replaced)       */
bool cut[2];            /* connection lost, the client has not noticed yet                 */
bool arm[2];            /* the server will tell it of the next change                      */
byte nloss;

/* the processes */
byte mem[2];            /* local entry: version or absent                                  */
byte tab[2];            /* flight that can be joined: leader + 1                           */
/* debts (replay.go): the numbers of writes */
byte begun[2];
byte owed[2];           /* of the debt, 0: none                                            */
byte reopened[2];
bool recent[2];         /* a write was answered                                            */
byte under[2];          /* ghost: writes under way                                         */
byte busy[2];           /* ghost: and payments. What others change meanwhile is heard by the end of it at the latest */
byte pend[2];           /* ghost: that is to be seen then                                  */
byte ack[2];            /* ghost: the latest version whose Invalidate has returned here    */
byte seen[2];           /* ghost: what others have invalidated, and has been delivered     */

#define IDLE    0
#define PAYING  1       /* carries no data, nor does                                       */
#define WAITING 2       /* one that waits for somebody else's load                         */
#define READ    3
#define HOLDS   4
#define FILLING 5
#define ENDED   6
#define EMPTY(c) (fst[c] == PAYING || fst[c] == WAITING)
byte fst[NC];
bool dirty[NC];         /* something was heard since the stamp was taken                   */
bool moved[NC];         /* it was told of a replacement since                              */
bool voided[NC];
byte omin[NC], fmin[NC]; /* ghosts: what the Get must bring, for its own process' invalidations and for others' */
byte res[NC];
byte out[NID];          /* a command is out and unanswered                                 */
byte rk[NID];           /* its reply, delivered                                            */
byte rv[NID];
byte started[2];
#define FAILURE 99

byte i;                 /* loop variable, 0 between steps                                   */

#define SAY(t)     printf(t, 65+PR(c), IDX(c)+1)
#define SAYV(t, x) printf(t, 65+PR(c), IDX(c)+1, x)

#define PUT(p, k, x, y) assert(nfull(wire[p])); wire[p]!k,x,y

/* a change of the value by p, on its server: the other one hears of it, if he is connected there and armed */
inline push(p) {
	if
	:: on[1-p] == on[p] && arm[1-p] && !cut[1-p] -> arm[1-p] = 0; PUT(1-p, PUSH, 0, 0)
	:: else
	fi
}

/* ---- what a process does when it hears something --------------------------------------- */

inline detach(p) {
	if
	:: tab[p] != 0 && !EMPTY(tab[p]-1) -> tab[p] = 0
	:: else
	fi
}
/* somebody else has changed the key, or may have */
inline changed(p) {
	mem[p] = 0;
	i = 0;
	do
	:: i < NC ->
		if :: PR(i) == p && (fst[i] == READ || fst[i] == FILLING) -> dirty[i] = 1 :: else fi;
		i++
	:: else -> break
	od;
	i = 0;
	detach(p)
}
/* its own write, before and after the store's part */
inline voidFlights(p) {
	i = 0;
	do
	:: i < NC ->
		if :: PR(i) == p && fst[i] != IDLE && fst[i] != ENDED -> voided[i] = 1 :: else fi;
		i++
	:: else -> break
	od;
	i = 0;
	tab[p] = 0; mem[p] = 0
}

inline owe(p, n) { if :: n > owed[p] -> owed[p] = n :: else fi }
inline reopen(p) {
	reopened[p] = begun[p];
	if
	:: recent[p] && M != 6 -> begun[p]++; owe(p, begun[p])
	:: else
	fi;
	recent[p] = 0
}
/* a write has ended; kept: it was answered */
inline ended(p, n, kept) {
	if
	:: !kept || (n <= reopened[p] && M != 1) -> owe(p, n)
	:: else ->
		if :: owed[p] < n || M == 5 -> owed[p] = 0 :: else fi;
		recent[p] = 1
	fi
}
/* a payment has been answered; n is its number or, without KEEPPAID, what was owed when it began */
inline paid(p, n) {
	if
	:: KEEPPAID && M != 4 -> ended(p, n, 1)
	:: else -> if :: owed[p] <= n || M == 4 -> owed[p] = 0 :: else fi
	fi
}
inline settle(p) {
	if
	:: under[p] == 0 && busy[p] == 0 && pend[p] ->
		if :: pend[p] > seen[p] -> seen[p] = pend[p] :: else fi;
		pend[p] = 0;
		assert(mem[p] == 0 || mem[p] >= seen[p])                /* R3 */
	:: else
	fi
}
inline beginPayment(p, n) {
	busy[p]++;
	if :: KEEPPAID -> begun[p]++; n = begun[p] :: else -> n = owed[p] fi
}

inline hear(p, k, x, y) {
	if
	:: k == PUSH -> printf("%c  hears: value changed\n", 65+p); changed(p)
	:: k == MARK ->
		if
		:: under[p] || busy[p] -> if :: x > pend[p] -> pend[p] = x :: else fi
		:: else -> if :: x > seen[p] -> seen[p] = x :: else fi;
			printf("%c  has been delivered everything of the invalidation of v%d; local: v%d\n", 65+p, x, mem[p]);
			assert(mem[p] == 0 || mem[p] >= seen[p])        /* R3 */
		fi
	:: k == EOF ->
		printf("%c  connection lost\n", 65+p);
		changed(p); cut[p] = 0;
		i = 0;
		do
		:: i < NID -> if :: PRI(i) == p && out[i] -> out[i] = 0; rk[i] = ERR :: else fi; i++
		:: else -> break
		od;
		i = 0
	:: else -> rk[x] = k; rv[x] = y; out[x] = 0
	fi
}
proctype Reader(byte p) {
	byte k, x, y;
end:	do
	:: d_step { wire[p]?k,x,y -> hear(p, k, x, y); k = 0; x = 0; y = 0 }
	od
}

/* ---- commands: sent, executed by the server, reply seen --------------------------------- */

/* no command is executed by a server that the process has not been told of */
#define CAN(x, p) (out[x] && !cut[p] && told[p])
#define SEE(x) rk[x] != 0 -> k = rk[x]; rk[x] = 0

inline execAcquire(c, p) {
	if
	:: atomic { CAN(c, p) ->
		arm[p] = 1;
		if
		:: val[on[p]] != 0 -> PUT(p, VALUE, c, val[on[p]]); SAYV("%c%d acquire -> v%d\n", val[on[p]])
		:: val[on[p]] == 0 && (lease[on[p]] == 0 || lease[on[p]] == c+1) ->
			lease[on[p]] = c+1; PUT(p, WON, c, 0); SAY("%c%d acquire -> won\n")
		:: else -> PUT(p, HELD, c, lease[on[p]]); SAY("%c%d acquire -> held\n")
		fi }
	:: atomic { !out[c] -> skip }
	fi
}
inline execFill(c, p, v) {
	if
	:: atomic { CAN(c, p) ->
		if
		:: lease[on[p]] == c+1 ->
			lease[on[p]] = 0; val[on[p]] = v; push(p); arm[p] = 1;
			PUT(p, OK, c, 0); SAYV("%c%d fill v%d -> accepted\n", v)
		:: else -> PUT(p, REFUSED, c, 0); SAYV("%c%d fill v%d -> refused\n", v)
		fi }
	:: atomic { !out[c] -> skip }
	fi
}
/* an Invalidate, also as a payment: the own promise ends, and nothing is told to oneself */
inline execInvalidate(x, p) {
	if
	:: atomic { CAN(x, p) ->
		printf("%c  Invalidate, number %d: applied by server %d\n", 65+p, x, on[p]);
		val[on[p]] = 0; inv[on[p]] = row;
		if :: M == 7 && !ISWRITER(x) -> skip :: else -> lease[on[p]] = 0 fi;
		push(p); arm[p] = 0;
		if :: on[1-p] == on[p] && !cut[1-p] -> PUT(1-p, MARK, row, 0) :: else fi;
		PUT(p, OK, x, 0) }
	:: atomic { !out[x] -> skip }
	fi
}

/* ---- one caller, who may become the leader of a flight ---------------------------------- */

inline insert(c, p, v) {
	if
	:: v != 0 && !voided[c] && !dirty[c] ->
		mem[p] = v; SAYV("%c%d inserts v%d into local\n", v);
		assert(mem[p] >= ack[p]);                               /* R2 */
		assert(mem[p] >= seen[p])                               /* R3 */
	:: else
	fi;
	fst[c] = HOLDS
}
inline beginRead(c) { dirty[c] = 0; moved[c] = 0; fst[c] = READ; out[c] = 1 }

proctype Caller(byte c, p) {
	byte v, k, n;
	atomic { started[p] == IDX(c) -> started[p]++;  /* Get starts: look at local */
		omin[c] = ack[p]; fmin[c] = seen[p]; v = mem[p];
		SAYV("%c%d Get starts; local: v%d\n", v);
		if :: v != 0 -> goto answer :: else fi };
	atomic {                                                /* join or lead */
		if
		:: tab[p] != 0 -> k = tab[p];
			SAYV("%c%d joins the flight of %d\n", IDX(k-1)+1)
		:: else -> tab[p] = c + 1; v = mem[p];
			if :: v != 0 -> goto finish :: else -> goto ask fi
		fi };
	atomic { res[k-1] != 0 -> v = res[k-1]; k = 0; goto answer };
ask:	atomic {
		if
		:: owed[p] && M != 3 -> fst[c] = PAYING; beginPayment(p, n); out[c] = 1;
			SAYV("%c%d pays the debt of write %d\n", owed[p])
		:: else -> beginRead(c); goto read
		fi };
	execInvalidate(c, p);
	atomic { SEE(c);
		if :: M != 2 -> changed(p) :: else fi;
		busy[p]--; settle(p);
		if
		:: k == ERR -> v = FAILURE; k = 0; n = 0; fst[c] = HOLDS; goto finish
		:: else ->
			paid(p, n); k = 0; n = 0;
			if :: AGAIN && owed[p] -> goto ask :: else -> beginRead(c) fi
		fi };
read:	execAcquire(c, p);
	atomic { SEE(c);
		v = rv[c]; rv[c] = 0;
		if
		:: k == ERR -> k = 0; v = 0; out[c] = 1; goto read      /* once more, with the same stamp */
		:: k == VALUE -> k = 0;
			if
			:: AGAIN && moved[c] -> v = 0; goto ask
			:: else -> insert(c, p, v); goto finish
			fi
		:: k == WON -> k = 0; fst[c] = HOLDS
		:: k == HELD -> k = 0; fst[c] = WAITING; goto wait
		fi };
	atomic { v = row; SAYV("%c%d loads v%d from the database\n", v) };
	atomic { dirty[c] = 0; fst[c] = FILLING; out[c] = 1 };
	execFill(c, p, v);
	atomic { SEE(c);
		if :: k == OK -> insert(c, p, v) :: else fi;
		k = 0; fst[c] = HOLDS };
finish:
	atomic {
		if :: tab[p] == c + 1 -> tab[p] = 0 :: else fi;
		fst[c] = ENDED; res[c] = v; dirty[c] = 0; moved[c] = 0; voided[c] = 0 };
answer:
	atomic {
		SAYV("%c%d Get returns v%d\n", v);
		assert(v == FAILURE || v >= omin[c]);                   /* R2 */
		assert(v == FAILURE || v >= fmin[c]);                   /* R3 */
		omin[c] = 0; fmin[c] = 0; v = 0;
		goto over };
	/* until the lease that it has seen is gone; that everybody is woken is shown in lease.pml */
wait:
end:	atomic { lease[on[p]] != v -> v = 0; goto ask };
over:	skip
}

/* ---- writers, and who pays in the background -------------------------------------------- */

proctype Writer(byte w, p) {
	byte v, k, n;
	atomic { row++; v = row; printf("%c  commits v%d\n", 65+p, v) };
	atomic { voidFlights(p);
		begun[p]++; n = begun[p]; under[p]++; out[WID(w)] = 1;
		printf("%c  Invalidate begins, of v%d\n", 65+p, v) };
	execInvalidate(WID(w), p);
	atomic { SEE(WID(w));
		ended(p, n, (k == OK));
		printf("%c  Invalidate of v%d: %e; owed: %d\n", 65+p, v, k, owed[p]) };
	atomic { voidFlights(p);
		printf("%c  Invalidate of v%d returns\n", 65+p, v);
		if :: v > ack[p] -> ack[p] = v :: else fi;
		under[p]--; settle(p); v = 0; k = 0; n = 0 }
}

proctype Payer(byte p) {
	byte k, n;
end:	do
	:: atomic { owed[p] -> beginPayment(p, n); out[PID(p)] = 1;
		printf("%c  pays the debt of write %d, in the background\n", 65+p, owed[p]) };
	   execInvalidate(PID(p), p);
	   atomic { SEE(PID(p));
		if :: M != 2 -> changed(p) :: else fi;
		busy[p]--; settle(p);
		if :: k == OK -> paid(p, n) :: else fi;
		k = 0; n = 0 }
	od
}

/* ---- what else can happen -------------------------------------------------------------- */

inline lose(p, s) {
	cut[p] = 1; arm[p] = 0; on[p] = s;
	PUT(p, EOF, 0, 0)
}
/* a lease that nobody renews */
#define ORPHAN(s) (lease[s] != 0 && fst[lease[s]-1] != HOLDS && fst[lease[s]-1] != FILLING && fst[lease[s]-1] != READ)

/* the process is told, before the server is let answer it */
inline tell(p) {
	told[p] = 1; changed(p); reopen(p);
	printf("%c  is told that the server was replaced; owed: %d\n", 65+p, owed[p]);
	seen[p] = inv[on[p]]; pend[p] = 0;      /* of what others did the new server may know less */
	i = 0;
	do
	:: i < NC ->
		if
		:: PR(i) == p -> moved[i] = (fst[i] == READ || fst[i] == PAYING); fmin[i] = 0;
			if :: FIRST -> skip :: else -> omin[i] = 0 fi
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

proctype World() {
	byte p, l;
end:	do
	:: atomic { !promoted && FAILOVER && (val[1] != val[0] || lease[1] != lease[0] || inv[1] != inv[0]) ->
		val[1] = val[0]; lease[1] = lease[0]; inv[1] = inv[0];
		printf("   the replica catches up: v%d, lease of %d\n", val[1], lease[1]) }
	:: atomic { !promoted && FAILOVER -> promoted = 1; printf("   the replica is promoted: v%d, lease of %d\n", val[1], lease[1]) }
	:: atomic { promoted && on[A] == 0 && !cut[A] -> printf("A  is moved to the new server\n"); told[A] = 0; lose(A, 1) }
	:: atomic { promoted && on[B] == 0 && !cut[B] -> printf("B  is moved to the new server\n"); told[B] = 0; lose(B, 1) }
	:: atomic { nloss < LOSSES && !cut[A] -> nloss++; lose(A, on[A]) }
	:: atomic { nloss < LOSSES && !cut[A] ->                /* and what was on its way */
		nloss++; do :: wire[A]?_,_,_ :: empty(wire[A]) -> break od;
		lose(A, on[A]); PUT(A, MARK, inv[on[A]], 0) }
	:: atomic { !told[A] && !cut[A] -> tell(A) }
	:: atomic { !told[B] && !cut[B] -> tell(B) }
	:: atomic { ORPHAN(0) -> lease[0] = 0 }
	:: atomic { promoted && ORPHAN(1) -> lease[1] = 0 }
	od
}

/* R1: a process that was told of its server, owes nothing and writes nothing has nothing older than its own
   invalidations in the store */
#define R1(p) (!told[p] || owed[p] || under[p] || val[on[p]] == 0 || val[on[p]] >= ack[p])
proctype Monitor() {
	byte settled = 0;
end:	atomic { !R1(A) || !R1(B) -> assert(settled) }
}

init {
	atomic {
		val[0] = STORED; val[1] = STORED; told[A] = 1; told[B] = 1;
		run Reader(A); run Reader(B); run World(); run Monitor();
#if PAYER
		run Payer(A);
#endif
#if PAYER && WB
		run Payer(B);
#endif
		i = 0;
		do :: i < NW -> if :: i < WA -> run Writer(i, A) :: else -> run Writer(i, B) fi; i++ :: else -> break od;
		i = 0;
		do :: i < NC -> if :: i < NA -> run Caller(i, A) :: else -> run Caller(i, B) fi; i++ :: else -> break od;
		i = 0
	}
}
