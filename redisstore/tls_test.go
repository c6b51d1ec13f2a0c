package redisstore

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/store"
	"github.com/redis/rueidis"
)

// certificate makes a certificate for 127.0.0.1 that signs itself, as files.
func certificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, private.Public(), private))(t)
	keyDER := must(x509.MarshalPKCS8PrivateKey(private))(t)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	ok(t, os.WriteFile(cert, certPEM, 0o600))
	ok(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	return cert, key, pool
}

func TestTLS(t *testing.T) {
	cert, key, pool := certificate(t)
	server, err := servers.Redis(t.Context(), t.TempDir(), servers.RedisOptions{TLSCert: cert, TLSKey: key, TLSCA: cert})
	if err != nil && strings.Contains(err.Error(), "tls-port") {
		t.Skip("this redis-server is built without TLS:", err)
	}
	ok(t, err)
	defer server.Stop()

	option := rueidis.MustParseURL(server.URL())
	option.TLSConfig = &tls.Config{RootCAs: pool}
	s := must(OpenOption(option))(t)
	defer s.Close()
	a := attach(t, s, "n")
	if !a.Features().Push {
		t.Error("no pushes over TLS")
	}
	must(a.win("k").Fill(a.ctx, []byte("v"), time.Minute))(t)
	a.wantValue("k", "v")

	unknown := opened(t, server.URL()) // which does not trust the certificate
	defer unknown.Close()
	_, err = unknown.Attach(t.Context(), store.Config{Name: "n"})
	wantError(t, err, "attach", true, "certificate")

	insecure := opened(t, server.URL()+"?skip_verify=true")
	defer insecure.Close()
	attach(t, insecure, "n").wantValue("k", "v")
}
