// Package bench measures onefill beside others. It is a module of its own, outside of
// go.work, since what it compares with needs a newer Go:
//
//	cd bench && GOWORK=off go test -v .
package bench
