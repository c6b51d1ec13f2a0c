package promonefill_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/promonefill"
	"github.com/prometheus/client_golang/prometheus"
)

// Five readers ask for an absent key at once. A hit rate would call that five misses; the miss
// group says that they have cost one load.
func Example() {
	metrics, err := promonefill.New(promonefill.Options{})
	if err != nil {
		panic(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)

	var users *onefill.Cache[string, string]
	users, err = onefill.New(onefill.Options[string, string]{
		Name:     "users",
		Observer: metrics,
		Load: func(context.Context, string) (string, error) {
			for users.Stats().Coalesced < 4 { // until the other four have joined
				runtime.Gosched()
			}
			return "Ada", nil
		},
	})
	if err != nil {
		panic(err)
	}
	if err := metrics.Add("users", users); err != nil {
		panic(err)
	}

	var readers sync.WaitGroup
	for range 5 {
		readers.Go(func() {
			if _, err := users.Get(context.Background(), "ada"); err != nil {
				fmt.Println(err)
			}
		})
	}
	readers.Wait()
	if err := users.Close(); err != nil { // and so wait for what the flight has to tell
		fmt.Println(err)
	}

	families, err := registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		switch m := f.GetMetric()[0]; f.GetName() {
		case "onefill_loads_total", "onefill_collapsed_total":
			fmt.Println(f.GetName(), m.GetCounter().GetValue())
		case "onefill_miss_loads", "onefill_miss_callers":
			fmt.Println(f.GetName(), m.GetHistogram().GetSampleSum(), "in", m.GetHistogram().GetSampleCount(), "group")
		}
	}
	// Output:
	// onefill_collapsed_total 4
	// onefill_loads_total 1
	// onefill_miss_callers 5 in 1 group
	// onefill_miss_loads 1 in 1 group
}
