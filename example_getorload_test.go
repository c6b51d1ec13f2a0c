package onefill_test

import (
	"context"
	"fmt"

	"github.com/onefill/onefill"
)

// The loader may come with the call, where it needs more than the key.
func ExampleCache_GetOrLoad() {
	cache, err := onefill.New(onefill.Options[string, int]{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()

	for _, text := range []string{"one two three", "never looked at"} {
		n, err := cache.GetOrLoad(context.Background(), "words", func(context.Context, string) (int, error) {
			fmt.Println("counting", text)
			var a, b, c string
			return fmt.Sscan(text, &a, &b, &c)
		})
		fmt.Println(n, err)
	}
	// Output:
	// counting one two three
	// 3 <nil>
	// 3 <nil>
}
