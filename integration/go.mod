module github.com/onefill/onefill/integration

go 1.25.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/jackc/pgx/v5 v5.13.0
	github.com/onefill/onefill v0.0.0
	github.com/onefill/onefill/memcachestore v0.0.0
	github.com/onefill/onefill/pgqueue v0.0.0
	github.com/onefill/onefill/redisstore v0.0.0
	github.com/redis/rueidis v1.0.79
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/maypok86/otter/v2 v2.4.0 // indirect
	golang.org/x/sync v0.22.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)

replace (
	github.com/onefill/onefill => ../
	github.com/onefill/onefill/memcachestore => ../memcachestore
	github.com/onefill/onefill/pgqueue => ../pgqueue
	github.com/onefill/onefill/redisstore => ../redisstore
)
