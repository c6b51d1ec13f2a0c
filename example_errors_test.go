package onefill_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/onefill/onefill"
)

// A failed load is an error for everybody who waits, and for ErrorTTL after; panics
// too. It is not a miss: nothing is deleted, and the loader is not called again by
// each caller in turn.
func Example_errors() {
	loads := 0
	cache, err := onefill.New(onefill.Options[string, string]{
		Load: func(context.Context, string) (string, error) {
			loads++
			return "", errors.New("connection refused")
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()
	ctx := context.Background()

	for range 5 {
		_, err = cache.Get(ctx, "k")
	}
	var load *onefill.LoadError
	fmt.Println(errors.Is(err, onefill.ErrLoadFailed), errors.As(err, &load), load.Key, loads)
	fmt.Println(err)

	_, err = cache.GetOrLoad(ctx, "panics", func(context.Context, string) (string, error) { panic("index out of range") })
	var p *onefill.PanicError
	fmt.Println(errors.As(err, &p), p.Value)
	// Output:
	// true true k 1
	// onefill: loading "k": connection refused
	// true index out of range
}
