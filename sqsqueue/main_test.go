package sqsqueue

import (
	"flag"
	"os"
	"testing"
)

// TestMain runs more tests at once than there are processors, unless -parallel says
// otherwise: those of the suite wait for leases to end, in whole seconds.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		flag.Set("test.parallel", "32")
	}
	os.Exit(m.Run())
}
