package pgqueue

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/onefill/onefill/queue"
)

// Ack implements queue.Queue.
func (q *Queue) Ack(ctx context.Context, tokens ...queue.Token) error {
	return q.byToken(ctx, "ack", tokens, func(cs []claim, _ []int) []stmt { return q.acking(cs) })
}

// acking finds its rows one by one through the primary key, whatever the planner thinks,
// and so locks them in the order of their ids.
func (q *Queue) acking(cs []claim) []stmt {
	sql := q.sql.ackSame
	if slices.ContainsFunc(cs, func(c claim) bool { return c.fence != cs[0].fence }) {
		sql = q.sql.ack
	}
	return []stmt{
		{sql: "SET LOCAL enable_bitmapscan = off"}, {sql: "SET LOCAL enable_seqscan = off"},
		q.settling(sql, arrays(cs)...),
	}
}

// settling is a statement that returns id and fence.
func (q *Queue) settling(sql string, args ...string) stmt {
	return stmt{sql: sql, args: args, formats: []int16{asBinary, asBinary}}
}

const opExtend = "extend"

// Extend implements queue.Queue.
func (q *Queue) Extend(ctx context.Context, lease time.Duration, tokens ...queue.Token) error {
	if err := q.Caps().CheckLease(lease); err != nil {
		return q.fail(opExtend, err)
	}
	return q.byToken(ctx, opExtend, tokens, func(cs []claim, _ []int) []stmt {
		return []stmt{q.settling(q.sql.extend, append(arrays(cs), text(micros(lease)))...)}
	})
}

// returned is a queue.Return on its way to nack.sql.
type returned struct {
	ID        int64  `json:"id"`
	Fence     int64  `json:"fence"`
	Delay     int64  `json:"delay"`
	Error     string `json:"error"`
	Uncounted bool   `json:"uncounted"`
}

// Nack implements queue.Queue.
func (q *Queue) Nack(ctx context.Context, returns ...queue.Return) error {
	tokens := make([]queue.Token, len(returns))
	for i := range returns {
		tokens[i] = returns[i].Token
	}
	return q.byToken(ctx, "nack", tokens, func(cs []claim, of []int) []stmt {
		rs := make([]returned, len(cs))
		for i, c := range cs {
			r := &returns[of[i]]
			rs[i] = returned{c.id, c.fence, micros(r.Delay), queue.ErrorText(r.Err), r.Uncounted}
		}
		return []stmt{q.settling(q.sql.nack, append(arrays(cs), asJSON(rs))...)}
	})
}

// buried is a queue.Death on its way to dead.sql.
type buried struct {
	ID     int64  `json:"id"`
	Fence  int64  `json:"fence"`
	Reason string `json:"reason"`
	Error  string `json:"error"`
}

// Dead implements queue.Queue.
func (q *Queue) Dead(ctx context.Context, deaths ...queue.Death) error {
	tokens := make([]queue.Token, len(deaths))
	for i := range deaths {
		tokens[i] = deaths[i].Token
	}
	return q.byToken(ctx, "dead", tokens, func(cs []claim, of []int) []stmt {
		bs := make([]buried, len(cs))
		for i, c := range cs {
			d := &deaths[of[i]]
			bs[i] = buried{c.id, c.fence, queue.ErrorText(d.Reason), queue.ErrorText(d.Err)}
		}
		return []stmt{q.settling(q.sql.dead, append(arrays(cs), asJSON(bs))...)}
	})
}

// byToken runs an operation on claims: build makes the statements for some of them, of
// says which entries they are. The last statement returns id and fence of those that
// stood; the others are not their tokens' any more.
func (q *Queue) byToken(ctx context.Context, op string, tokens []queue.Token, build func(cs []claim, of []int) []stmt) error {
	return q.split(ctx, op, len(tokens), func(from, to int, errs queue.Errors) error {
		cs, of := make([]claim, 0, to-from), make([]int, 0, to-from)
		open := make(map[claim]int, to-from)
		var twins [][2]int // an entry, and the first one of the same claim
		for i := from; i < to; i++ {
			c, ok := parseToken(tokens[i])
			if !ok {
				errs[i] = queue.ErrUnknown
				continue
			}
			if first, twice := open[c]; twice {
				twins = append(twins, [2]int{i, first})
				continue
			}
			open[c] = i
			cs, of = append(cs, c), append(of, i)
		}
		if len(cs) == 0 {
			return nil
		}
		stmts := build(cs, of)
		results, err := q.exec(ctx, stmts...)
		if err != nil {
			return err
		}
		for _, r := range results[len(stmts)-1] {
			var c claim
			if err := r.binary(0, &c.id, &c.fence); err != nil {
				return err
			}
			delete(open, c)
		}
		for _, i := range open {
			errs[i] = queue.ErrLeaseLost
		}
		for _, t := range twins {
			errs[t[0]] = queue.ErrLeaseLost // the first one has ended it
			if op == opExtend {
				errs[t[0]] = errs[t[1]]
			}
		}
		return nil
	})
}

// arrays are the ids and the fences as literals of arrays.
func arrays(cs []claim) []string {
	ids, fences := make([]byte, 0, 12*len(cs)), make([]byte, 0, 4*len(cs))
	separator := byte('{')
	for _, c := range cs {
		ids = strconv.AppendInt(append(ids, separator), c.id, 10)
		fences = strconv.AppendInt(append(fences, separator), c.fence, 10)
		separator = ','
	}
	return []string{string(append(ids, '}')), string(append(fences, '}'))}
}

// asJSON is v as JSON: numbers, and text that is UTF-8.
func asJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // our own types, with payloads that were checked
	}
	return string(data)
}
