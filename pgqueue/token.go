package pgqueue

import (
	"math"
	"strconv"
	"strings"

	"github.com/onefill/onefill/queue"
)

// claim is what a token says: the job, and the fence as it was left by the claim.
type claim struct {
	id    int64
	fence int64
}

func (c claim) token() queue.Token {
	var buf [40]byte
	b := append(strconv.AppendInt(buf[:0], c.id, 10), '.')
	return queue.Token(strconv.AppendInt(b, c.fence, 10))
}

func parseToken(t queue.Token) (c claim, ok bool) {
	id, fence, found := strings.Cut(string(t), ".")
	var idOK, fenceOK bool
	c.id, idOK = number(id, math.MaxInt64)
	c.fence, fenceOK = number(fence, math.MaxInt32)
	return c, found && idOK && fenceOK
}

// parseID is the id of a job or a dead letter.
func parseID(id string) (int64, bool) { return number(id, math.MaxInt64) }

// number takes what text makes: no sign, no leading zeros, nothing below 1.
func number(s string, most int64) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && '1' <= s[0] && s[0] <= '9' && n <= most
}
