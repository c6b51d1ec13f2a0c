package onefill_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/onefill/onefill"
)

// A loader may get other keys, of this cache or of another one, with the context that
// it was given. A load that would wait for itself is an error and not a deadlock.
func Example_nestedLoads() {
	var cache *onefill.Cache[string, string]
	cache, err := onefill.New(onefill.Options[string, string]{
		MaxLoads: 1, // enough: an outer load lends its place to the one that it waits for
		Load: func(ctx context.Context, key string) (string, error) {
			switch key {
			case "page":
				header, err := cache.Get(ctx, "header")
				return header + " + body", err
			case "ouroboros":
				return cache.Get(ctx, "ouroboros")
			}
			return key, nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()

	fmt.Println(cache.Get(context.Background(), "page"))
	_, err = cache.Get(context.Background(), "ouroboros")
	fmt.Println(errors.Is(err, onefill.ErrCycle))
	// Output:
	// header + body <nil>
	// true
}
