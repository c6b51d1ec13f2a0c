package onefill_test

import (
	"context"
	"fmt"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// Set writes a value through. Where rows carry a version of their own an older one
// never replaces a newer one, in whichever order the writers come.
func ExampleCache_Set() {
	type Account struct {
		Revision uint64
		Balance  int
	}
	cache, err := onefill.New(onefill.Options[string, *Account]{
		Name:    "accounts",
		Store:   memstore.New(),
		Load:    func(context.Context, string) (*Account, error) { return nil, onefill.ErrNotFound },
		Version: func(a *Account) uint64 { return a.Revision },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()
	ctx := context.Background()

	for _, a := range []*Account{{Revision: 8, Balance: 80}, {Revision: 7, Balance: 70}} {
		if err := cache.Set(ctx, "acme", a); err != nil {
			fmt.Println(err)
		}
	}
	account, err := cache.Get(ctx, "acme")
	fmt.Println(*account, err)
	// Output:
	// {8 80} <nil>
}
