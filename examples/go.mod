module github.com/onefill/onefill/examples

go 1.25.0

require (
	github.com/jackc/pgx/v5 v5.13.0
	github.com/onefill/onefill v0.0.0
	github.com/onefill/onefill/memcachestore v0.0.0
	github.com/onefill/onefill/pgqueue v0.0.0
	github.com/onefill/onefill/promonefill v0.0.0
	github.com/onefill/onefill/redisstore v0.0.0
	github.com/prometheus/client_golang v1.24.1
)

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/maypok86/otter/v2 v2.4.0 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/prometheus/client_model v0.6.2 // indirect
	github.com/prometheus/common v0.70.1 // indirect
	github.com/prometheus/procfs v0.21.1 // indirect
	github.com/redis/rueidis v1.0.79 // indirect
	golang.org/x/sync v0.22.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)

replace (
	github.com/onefill/onefill => ../
	github.com/onefill/onefill/memcachestore => ../memcachestore
	github.com/onefill/onefill/pgqueue => ../pgqueue
	github.com/onefill/onefill/promonefill => ../promonefill
	github.com/onefill/onefill/redisstore => ../redisstore
)
