package watch

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"strings"
)

// Options configure a Recorder. The zero value of each field is its default; a number below
// zero counts as zero.
type Options struct {
	// Keys is how many keys each sketch keeps. The count of a key is too high by at most
	// the events of ten seconds divided by Keys. Default 256.
	Keys int
	// Groups is how many miss groups that have ended are kept for the snapshot. Default 128.
	Groups int
	// Flights is how many flights are followed while they are in the air; of further ones
	// only the end is seen. Default 4096.
	Flights int
	// HideKeys shows a hash in place of each key, and of errors their kind only.
	HideKeys bool
	// Salt makes the hashes of HideKeys the same in all processes that have the same, so that
	// `onefill top` can add them up. Keep it secret: who has it can try keys. Default: random.
	Salt string
	// Hosts are the names under which the handler may be asked, besides localhost and IP
	// addresses, without port: "app-1.internal".
	Hosts []string
}

func (o Options) withDefaults() Options {
	or := func(n, def int) int {
		if n <= 0 {
			return def
		}
		return n
	}
	o.Keys, o.Groups, o.Flights = or(o.Keys, 256), or(o.Groups, 128), or(o.Flights, 4096)
	if o.Salt == "" {
		o.Salt = rand.Text()
	}
	return o
}

// shown is a key as others may see it.
func (o *Options) shown(key string) string {
	if !o.HideKeys || key == "" {
		return key
	}
	mac := hmac.New(sha256.New, []byte(o.Salt))
	mac.Write([]byte(key))
	return "#" + hex.EncodeToString(mac.Sum(nil)[:8])
}

// text is an error's text as others may see it.
func (o *Options) text(text string) string {
	if o.HideKeys {
		return ""
	}
	return text
}

const (
	longestKey  = 256
	longestText = 200
)

// cutSeed differs from process to process only for keys that are too long to be shown anyway.
var cutSeed = maphash.MakeSeed()

// short bounds the length of a key.
func short(key string) string {
	if len(key) <= longestKey {
		return key
	}
	return fmt.Sprintf("%s...%016x", strings.ToValidUTF8(key[:longestKey-24], ""), maphash.String(cutSeed, key))
}

// cutText bounds the text of an error.
func cutText(text string) string {
	if len(text) <= longestText {
		return text
	}
	return strings.ToValidUTF8(text[:longestText], "") + "..."
}
