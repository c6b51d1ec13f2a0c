package pgqueue

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/onefill/onefill/queue"
)

// Ack implements queue.Queue.
func (q *Queue) Ack(ctx context.Context, tokens ...queue.Token) error {
	return q.byToken(ctx, "ack", tokens, func(cs []claim, _ []int) stmt {
		return stmt{q.sql.ack, arrays(cs)}
	})
}

// Extend implements queue.Queue.
func (q *Queue) Extend(ctx context.Context, lease time.Duration, tokens ...queue.Token) error {
	if err := q.Caps().CheckLease(lease); err != nil {
		return q.fail("extend", err)
	}
	return q.byToken(ctx, "extend", tokens, func(cs []claim, _ []int) stmt {
		return stmt{q.sql.extend, append(arrays(cs), text(micros(lease)))}
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
	return q.byToken(ctx, "nack", tokens, func(cs []claim, of []int) stmt {
		rs := make([]returned, len(cs))
		for i, c := range cs {
			r := &returns[of[i]]
			rs[i] = returned{c.id, c.fence, micros(r.Delay), queue.ErrorText(r.Err), r.Uncounted}
		}
		return stmt{q.sql.nack, append(arrays(cs), asJSON(rs))}
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
	return q.byToken(ctx, "dead", tokens, func(cs []claim, of []int) stmt {
		bs := make([]buried, len(cs))
		for i, c := range cs {
			d := &deaths[of[i]]
			bs[i] = buried{c.id, c.fence, queue.ErrorText(d.Reason), queue.ErrorText(d.Err)}
		}
		return stmt{q.sql.dead, append(arrays(cs), asJSON(bs))}
	})
}

// byToken runs an operation on claims: build makes the statement for some of them, of
// says which entries they are. The statement returns id and fence of those that stood;
// the others are not their tokens' any more.
func (q *Queue) byToken(ctx context.Context, op string, tokens []queue.Token, build func(cs []claim, of []int) stmt) error {
	return q.split(ctx, op, len(tokens), func(from, to int, errs queue.Errors) error {
		var cs []claim
		var of []int
		open := make(map[claim]int, to-from)
		for i := from; i < to; i++ {
			c, ok := parseToken(tokens[i])
			if !ok {
				errs[i] = queue.ErrUnknown
				continue
			}
			if _, twice := open[c]; twice { // the first one ends it
				errs[i] = queue.ErrLeaseLost
				continue
			}
			open[c] = i
			cs, of = append(cs, c), append(of, i)
		}
		if len(cs) == 0 {
			return nil
		}
		results, err := q.exec(ctx, build(cs, of))
		if err != nil {
			return err
		}
		for _, r := range results[0] {
			var c claim
			if err := r.ints(map[int]*int64{0: &c.id, 1: &c.fence}); err != nil {
				return err
			}
			delete(open, c)
		}
		for _, i := range open {
			errs[i] = queue.ErrLeaseLost
		}
		return nil
	})
}

// arrays are the ids and the fences as literals of arrays.
func arrays(cs []claim) []string {
	var ids, fences strings.Builder
	separator := "{"
	for _, c := range cs {
		ids.WriteString(separator)
		ids.WriteString(text(c.id))
		fences.WriteString(separator)
		fences.WriteString(text(c.fence))
		separator = ","
	}
	ids.WriteByte('}')
	fences.WriteByte('}')
	return []string{ids.String(), fences.String()}
}

// asJSON is v as JSON: numbers, and text that is UTF-8.
func asJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // our own types, with payloads that were checked
	}
	return string(data)
}
