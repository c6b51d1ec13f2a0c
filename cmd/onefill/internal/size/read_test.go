package size

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// request is what a line gives.
type request struct {
	hash uint64
	size uint32
}

// want is the request for a key.
func want(key string, size uint32) request { return request{hashKey([]byte(key)), size} }

func readAll(t *testing.T, r io.Reader, f Format) ([]request, lines, error) {
	t.Helper()
	in := lines{name: "trace", format: f}
	var got []request
	err := in.each(t.Context(), r, func(hash uint64, size uint32) bool {
		got = append(got, request{hash, size})
		return true
	}, func(int64) {})
	return got, in, err
}

const accessLog = `10.0.0.1 - - [10/Oct/2025:13:55:36 +0000] "GET /a?x=1 HTTP/1.1" 200 2326 "-" "agent (x; \"y\")"
10.0.0.2 - bob [10/Oct/2025:13:55:37 +0000] "POST /b HTTP/1.1" 200 12 "-" "agent"
10.0.0.3 - - [10/Oct/2025:13:55:38 +0000] "GET /a HTTP/1.1" 304 - "-" "agent"
`

func TestFormats(t *testing.T) {
	get := regexp.MustCompile(`"GET ([^ ?]+)`)
	for _, tt := range []struct {
		name    string
		text    string
		format  Format
		want    []request
		leftOut int64
	}{
		{"lines", "a\nb c\n\na\r\n \nd", Format{}, []request{want("a", 0), want("b c", 0), want("a", 0), want("d", 0)}, 2},
		{"column", "1  a\n 2 b 5\n3\tc\n", Format{Column: 2}, []request{want("a", 0), want("b", 0), want("c", 0)}, 0},
		{"log column", accessLog, Format{Column: 5}, []request{want("GET /a?x=1 HTTP/1.1", 0), want("POST /b HTTP/1.1", 0), want("GET /a HTTP/1.1", 0)}, 0},
		{"log bracket", accessLog, Format{Column: 4, Size: 7}, []request{want("10/Oct/2025:13:55:36 +0000", 2326), want("10/Oct/2025:13:55:37 +0000", 12), want("10/Oct/2025:13:55:38 +0000", 1)}, 0},
		{"log agent", accessLog, Format{Column: 9}, []request{want(`agent (x; \"y\")`, 0), want("agent", 0), want("agent", 0)}, 0},
		{"log match", accessLog, Format{Match: get, Size: 7}, []request{want("/a", 2326), want("/a", 1)}, 1},
		{"overhead", accessLog, Format{Match: get, Size: 7, Overhead: 100}, []request{want("/a", 2428), want("/a", 102)}, 1},
		{"match without group", "x12\ny\n", Format{Match: regexp.MustCompile(`\d+`)}, []request{want("12", 0)}, 1},
		{"match of nothing", "ab\nb\n", Format{Match: regexp.MustCompile(`(a)?b`)}, []request{want("a", 0)}, 1},
		{"csv", "1,a,5\n2,\"b,\"\"c\",6\n3,,7\n4,d, 8 ", Format{Column: 2, Size: 3, Separator: ','}, []request{want("a", 5), want(`b,"c`, 6), want("d", 8)}, 1},
		{"csv empty last", "1,\n", Format{Column: 2, Separator: ','}, nil, 1},
		{"tabs", "a b\tc\n", Format{Column: 1, Separator: '\t'}, []request{want("a b", 0)}, 0},
		{"zero size", "a 0\n", Format{Column: 1, Size: 2}, []request{want("a", 1)}, 0},
		{"empty", "", Format{}, nil, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, zipped := range []bool{false, true} {
				got, in, err := readAll(t, source(tt.text, zipped), tt.format)
				if err != nil || !slices.Equal(got, tt.want) || in.leftOut != tt.leftOut {
					t.Errorf("gzip %t: read %v, left out %d, error %v; want %v, %d", zipped, got, in.leftOut, err, tt.want, tt.leftOut)
				}
			}
		})
	}
}

func source(text string, zipped bool) io.Reader {
	if !zipped {
		return strings.NewReader(text)
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, text)
	z.Close()
	return &b
}

// Every error is the input's, and names the line and the column.
func TestMalformed(t *testing.T) {
	whole, _ := io.ReadAll(source(strings.Repeat("a key\n", 100), true))
	for _, tt := range []struct {
		name   string
		text   string
		format Format
		says   string
	}{
		{"no column", "a b\na\n", Format{Column: 2}, "trace:2: there is no column 2; the line has 1"},
		{"no csv column", "a,b\na\n", Format{Column: 3, Separator: ','}, "trace:1: there is no column 3; the line has 2"},
		{"trailing blank", "a \n", Format{Column: 2}, "trace:1: there is no column 2; the line has 1"},
		{"open quote", "a b\n" + `c "d` + "\n", Format{Column: 2}, "trace:2: column 2: a quote is not closed"},
		{"open bracket", "[a b\n", Format{Column: 1}, "trace:1: column 1: a bracket is not closed"},
		{"open csv quote", `a,"b`, Format{Column: 2, Separator: ','}, "trace:1: column 2: a quote is not closed"},
		{"after csv quote", `a,"b"c`, Format{Column: 2, Separator: ','}, "trace:1: column 2: there is text after a closing quote"},
		{"size text", "key size\na 1\n", Format{Column: 1, Size: 2}, `trace:1: column 2: "size" is no size in bytes`},
		{"size negative", "a -1\n", Format{Column: 1, Size: 2}, `trace:1: column 2: "-1" is no size in bytes`},
		{"size missing", "a 1\na\n", Format{Column: 1, Size: 2}, "trace:2: there is no column 2"},
		{"size too large", "a 4294967296\n", Format{Column: 1, Size: 2}, "trace:1: column 2: an entry of 4294967296 bytes"},
		{"size too large with overhead", "a 4294967295\n", Format{Column: 1, Size: 2, Overhead: 1}, "trace:1: column 2: an entry of 4294967297 bytes"},
		{"long line", "a\n" + strings.Repeat("x", longestLine+1), Format{}, "trace:2: the line is longer than"},
		{"cut gzip", string(whole[:len(whole)-9]), Format{}, "trace:101: unexpected EOF"},
		{"bad gzip", "\x1f\x8bxxxxxxxxxxx", Format{}, "trace: gzip: invalid header"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := readAll(t, strings.NewReader(tt.text), tt.format)
			var input *InputError
			if !errors.As(err, &input) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want %q", err, tt.says)
			}
		})
	}
}

// Whatever a line holds, parsing it ends without a panic, gives a column that is part
// of the line, and a weight that can be used.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"a b c", `"a b" [c d] e`, `"a""b",c`, "", " ", `\"`, `"\`, ",,", "a 5"} {
		f.Add([]byte(seed), 2, byte(0))
		f.Add([]byte(seed), 1, byte(','))
	}
	f.Fuzz(func(t *testing.T, line []byte, n int, separator byte) {
		if n < 1 || n > 100 || separator == '"' {
			return
		}
		key, err := column(line, n, separator)
		if err == nil && separator == 0 && !bytes.Contains(line, key) {
			t.Errorf("column %d of %q is %q", n, line, key)
		}
		plain := separator != 0 && !bytes.Contains(line, []byte{'"'})
		if parts := bytes.Split(line, []byte{separator}); plain && len(line) > 0 && (n <= len(parts)) != (err == nil) {
			t.Errorf("column %d of %q: %v; there are %d", n, line, err, len(parts))
		} else if plain && err == nil && len(line) > 0 && !bytes.Equal(key, parts[n-1]) {
			t.Errorf("column %d of %q is %q, want %q", n, line, key, parts[n-1])
		}
		format := Format{Column: n, Size: 1, Overhead: 5, Separator: separator}
		if key, size, err := format.parse(line); err == nil && len(key) > 0 && int(size) < len(key)+5 {
			t.Errorf("%q weighs %d", line, size)
		}
	})
}

// The hash is part of what a result means: the same trace has the same sample in
// every run. Its ends are even.
func TestHashKey(t *testing.T) {
	if got := hashKey([]byte("key")); got != hashKey([]byte("key")) || got == hashKey([]byte("kez")) {
		t.Errorf("hash of key: %x", got)
	}
	const n = 1 << 16
	var first, last [8]int
	for i := range n {
		h := hashKey([]byte(fmt.Sprint("user:", i)))
		first[h>>61]++
		last[h&7]++
	}
	for i := range first {
		// A standard deviation is 85 of 8192.
		if math.Abs(float64(first[i]-n/8)) > 450 || math.Abs(float64(last[i]-n/8)) > 450 {
			t.Errorf("of %d hashes %d begin and %d end with %d", n, first[i], last[i], i)
		}
	}
}
