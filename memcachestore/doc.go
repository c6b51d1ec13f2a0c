// Package memcachestore is onefill's store on memcached's meta protocol.
package memcachestore
