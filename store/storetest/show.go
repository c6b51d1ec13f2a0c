package storetest

import (
	"fmt"

	"github.com/onefill/onefill/store"
)

// short shows a key without filling the screen.
func short(key string) string {
	if len(key) > 40 {
		return fmt.Sprintf("%q… (%d bytes)", key[:40], len(key))
	}
	return fmt.Sprintf("%q", key)
}

// show shows an item without filling the screen.
func show(item store.Item) string {
	if !item.Found {
		return "a miss"
	}
	data := item.Data
	if e, err := store.Decode(data); err == nil {
		return fmt.Sprintf("%c %s %s, row version %d", e.Kind, e.Version, short(string(e.Payload)), e.RowVersion)
	}
	return fmt.Sprintf("%d bytes %s", len(data), short(string(data)))
}
