package onefill_test

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// fixed stores numbers in eight bytes instead of as JSON. The name is to change when
// old bytes must not be decoded any more: they are misses then.
type fixed struct{}

func (fixed) Name() string { return "fixed64 v1" }

func (fixed) Encode(v uint64) ([]byte, error) { return binary.BigEndian.AppendUint64(nil, v), nil }

func (fixed) Decode(data []byte) (uint64, error) {
	if len(data) != 8 {
		return 0, fmt.Errorf("%d bytes, want 8", len(data))
	}
	return binary.BigEndian.Uint64(data), nil
}

// A codec of one's own turns values into the bytes that lie in the store.
func ExampleCodec() {
	cache, err := onefill.New(onefill.Options[string, uint64]{
		Name:  "counters",
		Store: memstore.New(),
		Codec: fixed{},
		Load:  func(context.Context, string) (uint64, error) { return 42, nil },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()
	fmt.Println(cache.Get(context.Background(), "visits"))
	// Output: 42 <nil>
}
