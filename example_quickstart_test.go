package onefill_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/onefill/onefill"
)

// Twelve callers ask for a key that is not there. One of them loads it.
func Example() {
	cache, err := onefill.New(onefill.Options[int64, string]{
		Load: func(ctx context.Context, id int64) (string, error) {
			fmt.Println("asking the database for", id)
			return "Ada", nil
		},
		TTL: time.Minute,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()

	var callers sync.WaitGroup
	for range 12 {
		callers.Go(func() {
			if _, err := cache.Get(context.Background(), 42); err != nil {
				fmt.Println(err)
			}
		})
	}
	callers.Wait()

	name, err := cache.Get(context.Background(), 42)
	fmt.Println(name, err)
	// Output:
	// asking the database for 42
	// Ada <nil>
}
