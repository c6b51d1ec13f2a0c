package memcachestore

import (
	"context"

	"github.com/onefill/onefill/store"
)

var _ store.ManyReader = (*session)(nil)

// readsAtOnce bounds how long the reads of one call hold up the others on a connection.
const readsAtOnce = 256

// GetMany implements store.ManyReader: one mg for each key, 256 of them at once.
func (s *session) GetMany(ctx context.Context, keys []string) ([]store.Item, error) {
	const op = "get many"
	if s.closed.Load() {
		return nil, failure(op, s.st.addrs(), errSessionClosed)
	}
	items := make([]store.Item, len(keys))
	for done := 0; done < len(keys); {
		n, node, err := s.getSome(ctx, keys[done:], items[done:])
		if err != nil {
			return nil, failure(op, node.addr.text, err)
		}
		done += n
	}
	return items, nil
}

// getSome reads some of the keys, from the first one on: those that have its server, as all
// have by the contract, but not too many. It returns how many, and the server.
func (s *session) getSome(ctx context.Context, keys []string, items []store.Item) (int, *node, error) {
	var room [maxItemKey]byte
	first, _ := appendItemKey(room[:0], s.st.hash, s.name, keys[0])
	n := nodeOf(s.st.ring, first)
	c, err := n.get(ctx)
	if err != nil {
		return 0, n, err
	}
	most := min(len(keys), readsAtOnce)
	r, m := newRequest(), &manyReads{items: items[:0:most]}
	r.opaque, r.many = c.mark(uint32(most)), m
	for i, key := range keys[:most] {
		begin := len(r.text)
		text, kept := appendItemKey(append(r.text, getCommand...), s.st.hash, s.name, key)
		if nodeOf(s.st.ring, text[begin+len(getCommand):]) != n {
			break
		}
		r.text = appendOpaque(append(text, getFlags...), r.opaque+uint32(i))
		m.expect(kept)
	}
	if _, err := c.roundTrip(ctx, r); err != nil {
		return 0, n, err
	}
	return len(m.items), n, m.err
}

// manyReads are the items that one request reads, in order. From the time when it is sent
// the goroutine that reads the connection has it, until the request is finished.
type manyReads struct {
	items []store.Item
	kept  []string // see place; nil if no item's key is a hash
	got   int
	err   error // a refusal of one of them
}

// expect adds an item.
func (m *manyReads) expect(kept string) {
	if kept != "" && m.kept == nil {
		m.kept = make([]string, cap(m.items))
	}
	if kept != "" {
		m.kept[len(m.items)] = kept
	}
	m.items = m.items[:len(m.items)+1]
}

// put takes the next item's reply, and says whether it was the last one.
func (m *manyReads) put(rep reply) (last bool) {
	kept := ""
	if m.kept != nil {
		kept = m.kept[m.got]
	}
	switch rep.code {
	case codeValue, codeMiss:
		it := decodeItem(rep, kept)
		m.items[m.got] = it.public()
	default:
		m.err = rep.unexpected()
	}
	m.got++
	return m.got == len(m.items)
}
