package live

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// headers are on every answer: the page needs nothing but its own files, and nobody is to
// put it into a frame.
var headers = map[string]string{
	"Content-Security-Policy":      "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	"X-Content-Type-Options":       "nosniff",
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Cache-Control":                "no-cache",
}

// guard refuses requests that another site has led here. A name that somebody makes point at
// this machine (DNS rebinding) is in Host; a page of another site is in Origin, or the browser
// says so in Sec-Fetch-Site. Programs that are no browsers send neither, and may.
func (h *Handler) guard(w http.ResponseWriter, r *http.Request) bool {
	for name, value := range headers {
		w.Header().Set(name, value)
	}
	if !h.hostAllowed(r.Host) {
		refuse(w, http.StatusForbidden, "", "the Host "+strconv.Quote(r.Host)+" is neither an IP address nor localhost, and not in Options.Hosts")
		return false
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	site := r.Header.Get("Sec-Fetch-Site")
	if origin := r.Header.Get("Origin"); !sameHost(origin, r.Host) || site != "" && site != "same-origin" {
		refuse(w, http.StatusForbidden, "", "the request comes from a page of another site")
		return false
	}
	return true
}

// hostAllowed: an address cannot be made to point elsewhere, and localhost is not asked of
// anybody.
func (h *Handler) hostAllowed(host string) bool {
	name := host
	if n, _, err := net.SplitHostPort(host); err == nil {
		name = n
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if _, err := netip.ParseAddr(name); err == nil || name == "localhost" {
		return true
	}
	return slices.Contains(h.hosts, name)
}

// sameHost says whether an Origin, if there is one, is the page's own.
func sameHost(origin, host string) bool {
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}
