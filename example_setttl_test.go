package onefill_test

import (
	"context"
	"fmt"
	"time"

	"github.com/onefill/onefill"
)

// A loader may decide for how long its value is fresh; 0 means not to store it.
func ExampleSetTTL() {
	loads := 0
	cache, err := onefill.New(onefill.Options[string, string]{
		Load: func(ctx context.Context, order string) (string, error) {
			loads++
			if order == "delivered" {
				onefill.SetTTL(ctx, 24*time.Hour) // it will not change any more
				return "delivered", nil
			}
			onefill.SetTTL(ctx, 0)
			return "on its way", nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()
	for _, order := range []string{"delivered", "moving"} {
		loads = 0
		for range 3 {
			if _, err := cache.Get(context.Background(), order); err != nil {
				fmt.Println(err)
			}
		}
		fmt.Println(order, "was loaded", loads, "times")
	}
	// Output:
	// delivered was loaded 1 times
	// moving was loaded 3 times
}
