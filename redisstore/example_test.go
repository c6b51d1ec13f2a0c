package redisstore_test

import (
	"fmt"

	"github.com/onefill/onefill/redisstore"
)

// The server does not have to be up for Open: it is asked when a cache is made.
func ExampleOpen() {
	s, err := redisstore.Open("redis://localhost:6379")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	fmt.Println("ready for onefill.Options.Store")

	_, err = redisstore.Open("http://localhost")
	fmt.Println(err)
	// Output:
	// ready for onefill.Options.Store
	// redisstore: open: not a Redis URL (redis: invalid URL scheme: http)
}
