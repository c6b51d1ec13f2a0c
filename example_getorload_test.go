package onefill_test

import (
	"context"
	"fmt"

	"github.com/onefill/onefill"
)

// The loader may come with the call, where it needs more than the key.
func ExampleCache_GetOrLoad() {
	cache, err := onefill.New(onefill.Options[string, string]{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()

	for _, tenant := range []string{"acme", "never asked"} {
		logo, err := cache.GetOrLoad(context.Background(), "logo", func(_ context.Context, key string) (string, error) {
			fmt.Println("loading the", key, "of", tenant)
			return tenant + ".svg", nil
		})
		fmt.Println(logo, err)
	}
	// Output:
	// loading the logo of acme
	// acme.svg <nil>
	// acme.svg <nil>
}
