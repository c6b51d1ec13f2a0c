module github.com/onefill/onefill/memcachestore

go 1.25.0

require github.com/onefill/onefill v0.0.0

require github.com/maypok86/otter/v2 v2.4.0 // indirect

replace github.com/onefill/onefill => ../
