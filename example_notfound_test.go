package onefill_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/onefill/onefill"
)

// A loader returns ErrNotFound, plain or wrapped, for a row that does not exist. That
// is an answer, and cached like one, for NotFoundTTL; Set and Invalidate clear it.
func Example_notFound() {
	cache, err := onefill.New(onefill.Options[string, string]{
		Load: func(_ context.Context, name string) (string, error) {
			fmt.Println("looking for", name)
			return "", fmt.Errorf("user %s: %w", name, onefill.ErrNotFound)
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()
	ctx := context.Background()

	for range 3 {
		_, err = cache.Get(ctx, "ada")
		fmt.Println(errors.Is(err, onefill.ErrNotFound))
	}
	if err := cache.Set(ctx, "ada", "Ada Lovelace"); err != nil { // she signs up
		fmt.Println(err)
	}
	fmt.Println(cache.Get(ctx, "ada"))
	// Output:
	// looking for ada
	// true
	// true
	// true
	// Ada Lovelace <nil>
}
