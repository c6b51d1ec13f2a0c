package onefill_test

import (
	"context"
	"fmt"

	"github.com/onefill/onefill"
)

// Invalidate, called after a committed write, also voids the loads that are in flight:
// a load that has read the old row does not put it back.
func ExampleCache_Invalidate() {
	row := "old"
	loading, goOn := make(chan struct{}), make(chan struct{})
	cache, err := onefill.New(onefill.Options[string, string]{
		Load: func(context.Context, string) (string, error) {
			read := row
			if read == "old" {
				close(loading)
				<-goOn // a slow query
			}
			return read, nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()
	ctx := context.Background()

	first := make(chan string)
	go func() {
		v, _ := cache.Get(ctx, "k")
		first <- v
	}()
	<-loading
	row = "new" // committed while the old row is on its way
	if err := cache.Invalidate(ctx, "k"); err != nil {
		fmt.Println(err)
	}
	v, err := cache.Get(ctx, "k") // does not join the old load
	fmt.Println(v, err)
	close(goOn)
	fmt.Println("who had waited before:", <-first)
	v, err = cache.Get(ctx, "k")
	fmt.Println(v, err)
	// Output:
	// new <nil>
	// who had waited before: old
	// new <nil>
}
