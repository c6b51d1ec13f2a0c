module github.com/onefill/onefill/redisstore

go 1.25.0

require (
	github.com/onefill/onefill v0.0.0
	github.com/redis/rueidis v1.0.79
)

require (
	github.com/maypok86/otter/v2 v2.4.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/onefill/onefill => ../
