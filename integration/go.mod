module github.com/onefill/onefill/integration

go 1.25.0

require (
	github.com/onefill/onefill v0.0.0
	github.com/onefill/onefill/redisstore v0.0.0
)

replace (
	github.com/onefill/onefill => ../
	github.com/onefill/onefill/redisstore => ../redisstore
)
