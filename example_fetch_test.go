package onefill_test

import (
	"context"
	"fmt"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// Fetch says where a value came from.
func ExampleCache_Fetch() {
	options := onefill.Options[string, string]{
		Name:  "cities",
		Store: memstore.New(),
		Load:  func(context.Context, string) (string, error) { return "Wien", nil },
	}
	here, err := onefill.New(options)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer here.Close()
	elsewhere, err := onefill.New(options)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer elsewhere.Close()

	for _, cache := range []*onefill.Cache[string, string]{here, here, elsewhere} {
		r, err := cache.Fetch(context.Background(), "1010")
		fmt.Println(r.Value, r.Source, r.Stale, err)
	}
	// Output:
	// Wien load false <nil>
	// Wien local false <nil>
	// Wien store false <nil>
}
