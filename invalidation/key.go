package invalidation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"
)

// encodeKey puts the key into the payload and returns its name among the jobs: a string as
// it is, everything else as its JSON. What does not come back as it was is refused here,
// where the writer hears of it, and not by the worker.
func encodeKey[K comparable](key K, p *payload) (name string, err error) {
	if s, ok := isString(key); ok {
		if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
			raw := []byte(s)
			p.Bytes = &raw
			return s, nil
		}
		p.Key, err = json.Marshal(s)
		return s, err
	}
	if p.Key, err = json.Marshal(key); err != nil {
		return "", fmt.Errorf("the key %#v cannot be encoded as JSON: %w", key, err)
	}
	again, err := decodeKey[K](*p)
	if err != nil || again != key {
		return "", fmt.Errorf("the key %#v does not come back from its JSON %s as it was (%#v, %v); make it encode itself (json.Marshaler), or use its string as the key",
			key, p.Key, again, err)
	}
	return string(p.Key), nil
}

// isString returns a key of a string kind as it is in the store, unless it encodes itself.
func isString(key any) (string, bool) {
	if v := reflect.ValueOf(key); v.Kind() == reflect.String && !encodesItself(v.Type()) {
		return v.String(), true
	}
	return "", false
}

var marshalers = []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[json.Unmarshaler](),
	reflect.TypeFor[interface{ MarshalText() ([]byte, error) }](), reflect.TypeFor[interface{ UnmarshalText([]byte) error }]()}

func encodesItself(t reflect.Type) bool {
	for _, m := range marshalers {
		if t.Implements(m) || reflect.PointerTo(t).Implements(m) {
			return true
		}
	}
	return false
}

// decodeKey is the key of a payload. It can be the key of a map.
func decodeKey[K comparable](p payload) (key K, err error) {
	defer func() {
		if r := recover(); r != nil { // an interface that holds what cannot be compared, or the key's own code
			err = fmt.Errorf("the key %s cannot be used as a %T: %v", abbreviate(string(p.Key)), key, r)
		}
	}()
	v := reflect.ValueOf(&key).Elem()
	isText := v.Kind() == reflect.String && !encodesItself(v.Type())
	switch {
	case p.Bytes != nil && isText:
		v.SetString(string(*p.Bytes))
		return key, nil
	case p.Bytes != nil:
		return key, fmt.Errorf("the key is given as bytes, but this cache's keys are of type %T", key)
	}
	if string(p.Key) == "null" && !encodesItself(v.Type()) { // it would become the zero key
		return key, errors.New("the key is null")
	}
	text := fit(p.Key, isText, v)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields() // else a key of an older type would become another key
	if err := d.Decode(&key); err != nil {
		return key, fmt.Errorf("the key %s is no %T, as the keys of this cache are: %w", abbreviate(string(p.Key)), key, err)
	}
	if key != key {
		return key, errors.New("the key is not equal to itself")
	}
	return key, nil
}

// fit lets an integer be given as a string, and a string as an integer: what writes the job
// may know the key only as text, or only as a number.
func fit(text json.RawMessage, isText bool, v reflect.Value) json.RawMessage {
	if isText && isInteger(string(text)) {
		return json.RawMessage(`"` + string(text) + `"`)
	}
	if (v.CanInt() || v.CanUint()) && !encodesItself(v.Type()) {
		var s string
		if json.Unmarshal(text, &s) == nil && isInteger(s) {
			return json.RawMessage(s)
		}
	}
	return text
}

// isInteger says whether s is an integer in JSON.
func isInteger(s string) bool {
	digits := strings.TrimPrefix(s, "-")
	return digits != "" && strings.Trim(digits, "0123456789") == "" && (digits == "0" || digits[0] != '0')
}
