package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// One session's fill is held up on its way to the store; meanwhile another
// session invalidates the key. The late fill is refused.
func ExampleStore_SetFault() {
	ctx := context.Background()
	st := memstore.New()
	loader, _ := st.Attach(ctx, store.Config{Name: "users"})
	writer, _ := st.Attach(ctx, store.Config{Name: "users"})

	arrived, goOn := make(chan struct{}), make(chan struct{})
	st.SetFault(func(op memstore.Op) memstore.Fault {
		if op.Kind != memstore.OpFill {
			return memstore.Fault{}
		}
		close(arrived)
		return memstore.Fault{Hold: goOn}
	})

	answer, _ := loader.Acquire(ctx, "42", store.Request{Token: store.NewToken(), TTL: time.Second})
	result := make(chan bool)
	go func() {
		accepted, _ := answer.Lease.Fill(ctx, []byte("old row"), time.Minute)
		result <- accepted
	}()
	<-arrived
	writer.Invalidate(ctx, "42")
	close(goOn)

	fmt.Println("accepted:", <-result)
	_, found := st.Raw("users", "42")
	fmt.Println("stored:", found)
	// Output:
	// accepted: false
	// stored: false
}

func ExampleStore_Down() {
	ctx := context.Background()
	st := memstore.New()
	session, _ := st.Attach(ctx, store.Config{Name: "users"})

	st.Down()
	_, err := session.Get(ctx, "42")
	fmt.Println(err)
	fmt.Println(errors.Is(err, store.ErrUnavailable))

	st.Up()
	_, err = session.Get(ctx, "42")
	fmt.Println(err)
	// Output:
	// memory at in-process: get: the store is down
	// true
	// <nil>
}
