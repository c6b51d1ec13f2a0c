package onefill_test

import (
	"context"
	"fmt"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// Two processes share a store: what one has loaded the other one reads, and what one
// invalidates the other one does not serve. The store is in memory here, and in a
// real fleet the one of redisstore or memcachestore.
func Example_sharedStore() {
	row := "draft"
	newProcess := func(store *memstore.Store) *onefill.Cache[string, string] {
		cache, err := onefill.New(onefill.Options[string, string]{
			Name:  "articles", // the namespace in the store
			Store: store,
			Load: func(context.Context, string) (string, error) {
				fmt.Println("loading", row)
				return row, nil
			},
		})
		if err != nil {
			panic(err)
		}
		return cache
	}
	store := memstore.New()
	a, b := newProcess(store), newProcess(store)
	defer a.Close()
	defer b.Close()
	ctx := context.Background()

	fmt.Println(a.Get(ctx, "intro"))
	fmt.Println(b.Get(ctx, "intro"))

	row = "final" // somebody commits a change, and says so
	if err := a.Invalidate(ctx, "intro"); err != nil {
		fmt.Println(err)
	}
	fmt.Println(b.Get(ctx, "intro"))
	// Output:
	// loading draft
	// draft <nil>
	// draft <nil>
	// loading final
	// final <nil>
}
