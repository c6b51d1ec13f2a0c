module github.com/onefill/onefill/memcachestore

go 1.25.0

require github.com/onefill/onefill v0.0.0

replace github.com/onefill/onefill => ../
