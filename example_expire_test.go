package onefill_test

import (
	"context"
	"fmt"
	"time"

	"github.com/onefill/onefill"
)

// Expire makes a value stale: with StaleFor it is served at once while one caller
// refreshes it in the background.
func ExampleCache_Expire() {
	row := "v1"
	refreshed := make(chan struct{}, 1)
	cache, err := onefill.New(onefill.Options[string, string]{
		Load:     func(context.Context, string) (string, error) { return row, nil },
		StaleFor: time.Minute,
		Observer: onefill.ObserverFunc(func(e onefill.Event) {
			if e.Kind == onefill.EventLoad {
				refreshed <- struct{}{}
			}
		}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()
	ctx := context.Background()

	r, err := cache.Fetch(ctx, "k")
	fmt.Println(r.Value, r.Stale, err)
	<-refreshed

	row = "v2"
	if err := cache.Expire(ctx, "k"); err != nil {
		fmt.Println(err)
	}
	r, err = cache.Fetch(ctx, "k")
	fmt.Println(r.Value, r.Stale, err)

	<-refreshed // the load has ended; its value appears in a moment
	for r.Stale {
		r, err = cache.Fetch(ctx, "k")
	}
	fmt.Println(r.Value, r.Stale, err)
	// Output:
	// v1 false <nil>
	// v1 true <nil>
	// v2 false <nil>
}
