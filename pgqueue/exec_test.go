package pgqueue

import (
	"bytes"
	"strings"
	"testing"
)

// Copies of rows are not changed by what comes after them: the connection reads into its
// buffer again, other rows are copied, and whoever has one appends to it.
func TestCopies(t *testing.T) {
	var c copies
	empty := c.row([][]byte{nil, {}})
	if empty[0] != nil || empty[1] == nil {
		t.Errorf("NULL and an empty text are %v and %v", empty[0], empty[1])
	}
	var rows []row
	long := strings.Repeat("x", copyBytes)
	for i := range 3 * copyCells {
		buffer := []byte{byte(i), byte(i >> 8)}
		values := [][]byte{buffer, nil, {}}
		if i%100 == 7 {
			values = append(values, []byte(long))
		}
		rows = append(rows, c.row(values))
		clear(buffer)
	}
	for i, r := range rows {
		_ = append(r, []byte("more"))
		for _, cell := range r {
			_ = append(cell, "more"...)
		}
		if !bytes.Equal(r[0], []byte{byte(i), byte(i >> 8)}) || r[1] != nil || r[2] == nil || len(r[2]) > 0 || i%100 == 7 && r.text(3) != long {
			t.Fatalf("row %d is %.20q", i, r)
		}
	}
}
