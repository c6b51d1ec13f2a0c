package onefill_test

import (
	"bytes"
	"compress/flate"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// deflated stores texts compressed. Its name is to change when old bytes must not be
// decoded any more: they are misses then.
type deflated struct{}

func (deflated) Name() string { return "deflate v1" }

func (deflated) Encode(v string) ([]byte, error) {
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(w, v); err != nil {
		return nil, err
	}
	err = w.Close()
	return b.Bytes(), err
}

func (deflated) Decode(data []byte) (string, error) {
	v, err := io.ReadAll(flate.NewReader(bytes.NewReader(data)))
	return string(v), err
}

// A codec of one's own turns values into the bytes that lie in the store.
func ExampleCodec() {
	store := memstore.New()
	cache, err := onefill.New(onefill.Options[string, string]{
		Name:  "pages",
		Store: store,
		Codec: deflated{},
		Load:  func(context.Context, string) (string, error) { return strings.Repeat("hello ", 1000), nil },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()
	page, err := cache.Get(context.Background(), "index")
	raw, _ := store.Raw("pages", "index")
	fmt.Println(len(page), err, len(raw) < 200)
	// Output: 6000 <nil> true
}
