package onefill_test

import (
	"context"
	"fmt"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/bus"
	"github.com/onefill/onefill/bus/membus"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// The store cannot tell the other processes of a change, as memcached cannot; a bus
// does. In a real fleet the store is memcachestore's, say, and the bus redisstore's.
func Example_bus() {
	row := "draft"
	heard := make(chan struct{}, 1)
	newProcess := func(st store.Store, b bus.Bus) *onefill.Cache[string, string] {
		cache, err := onefill.New(onefill.Options[string, string]{
			Name:  "articles", // also the topic on the bus
			Store: st,
			Bus:   b,
			Load:  func(context.Context, string) (string, error) { return row, nil },
		})
		if err != nil {
			panic(err)
		}
		return cache
	}
	st, messages := memstore.New(memstore.Options{NoPush: true}), membus.New()
	a, b := newProcess(st, messages), newProcess(st, messages)
	defer a.Close()
	defer b.Close()
	ctx := context.Background()
	fmt.Println(b.Get(ctx, "intro")) // b has it in its local cache now

	// For this example only: wait until the message has gone round.
	stop, err := messages.Subscribe(ctx, "articles", func([]byte) { heard <- struct{}{} }, func() {})
	if err != nil {
		panic(err)
	}
	defer stop()

	row = "final"
	if err := a.Invalidate(ctx, "intro"); err != nil {
		fmt.Println(err)
	}
	<-heard
	fmt.Println(b.Get(ctx, "intro"))
	// Output:
	// draft <nil>
	// final <nil>
}
