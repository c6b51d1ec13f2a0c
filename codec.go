package onefill

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"reflect"
	"strconv"
)

// Codec turns values into bytes and back. It is safe for concurrent use.
type Codec[V any] interface {
	// Name is stored, as a hash, with each value; a value that was stored under
	// another name is a miss. Change it when old bytes must not be decoded.
	Name() string
	// Encode returns the value as bytes. The cache copies them before it returns.
	Encode(v V) ([]byte, error)
	// Decode returns the value in data, which it may keep. An error makes the entry
	// a miss, which is counted and loaded again.
	Decode(data []byte) (V, error)
}

// JSON is the codec of encoding/json.
func JSON[V any]() Codec[V] { return jsonCodec[V]{} }

type jsonCodec[V any] struct{}

func (jsonCodec[V]) Name() string               { return "json" }
func (jsonCodec[V]) Encode(v V) ([]byte, error) { return json.Marshal(v) }
func (jsonCodec[V]) Decode(data []byte) (v V, err error) {
	err = json.Unmarshal(data, &v)
	return v, err
}

type bytesCodec struct{}

func (bytesCodec) Name() string                       { return "raw" }
func (bytesCodec) Encode(v []byte) ([]byte, error)    { return v, nil }
func (bytesCodec) Decode(data []byte) ([]byte, error) { return data, nil }

type stringCodec struct{}

func (stringCodec) Name() string                       { return "raw" }
func (stringCodec) Encode(v string) ([]byte, error)    { return []byte(v), nil }
func (stringCodec) Decode(data []byte) (string, error) { return string(data), nil }

// defaultCodec is raw for []byte and string, JSON otherwise.
func defaultCodec[V any]() Codec[V] {
	for _, raw := range []any{bytesCodec{}, stringCodec{}} {
		if c, ok := raw.(Codec[V]); ok {
			return c
		}
	}
	return JSON[V]()
}

// codecID is what the envelope keeps of a codec's name.
func codecID(name string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(name))
	return h.Sum32()
}

// decodeSafely keeps a codec's panic from killing the process: a value that makes
// the decoder panic is as unreadable as any other.
func decodeSafely[V any](c Codec[V], data []byte) (v V, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the codec %q panicked: %v", c.Name(), r)
		}
	}()
	return c.Decode(data)
}

func encodeSafely[V any](c Codec[V], v V) (data []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the codec %q panicked: %v", c.Name(), r)
		}
	}()
	return c.Encode(v)
}

// defaultKey returns the key function of string and integer kinds, nil for other
// kinds: two structured keys must not meet because of how they print.
func defaultKey[K comparable]() func(K) string {
	switch reflect.TypeFor[K]().Kind() {
	case reflect.String:
		return func(k K) string {
			if s, ok := any(k).(string); ok {
				return s
			}
			return reflect.ValueOf(k).String()
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return func(k K) string { return strconv.FormatInt(reflect.ValueOf(k).Int(), 10) }
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return func(k K) string { return strconv.FormatUint(reflect.ValueOf(k).Uint(), 10) }
	}
	return nil
}
