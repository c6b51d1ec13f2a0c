package onefill_test

import (
	"context"
	"fmt"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// An Observer hears of everything but most hits in the process, which Stats counts.
func ExampleObserver() {
	cache, err := onefill.New(onefill.Options[string, string]{
		Name:  "users",
		Store: memstore.New(),
		Load:  func(context.Context, string) (string, error) { return "Ada", nil },
		Observer: onefill.ObserverFunc(func(e onefill.Event) {
			switch e.Kind {
			case onefill.EventLoad, onefill.EventFill:
				fmt.Println(e.Cache, e.Key, e.Kind)
			}
		}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()
	for range 3 {
		if _, err := cache.Get(context.Background(), "ada"); err != nil {
			fmt.Println(err)
		}
	}
	s := cache.Stats()
	fmt.Println(s.Loads, "load,", s.Fills, "fill,", s.LocalHits, "hits in the process")
	// Output:
	// users ada load
	// users ada fill
	// 1 load, 1 fill, 2 hits in the process
}
