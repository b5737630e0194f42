// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// keyPair is a certificate with its key, in memory and in files.
type keyPair struct {
	cert              *x509.Certificate
	key               *ecdsa.PrivateKey
	certFile, keyFile string
}

// newKeyPair makes a certificate for 127.0.0.1, signed by ca, or an authority
// if ca is nil.
func newKeyPair(t *testing.T, name string, ca *keyPair) *keyPair {
	t.Helper()
	return keyPairUntil(t, name, ca, time.Now().Add(time.Hour))
}

func keyPairUntil(t *testing.T, name string, ca *keyPair, end time.Time) *keyPair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              end,
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		IsCA:                  ca == nil,
	}
	parent, signer := template, key
	if ca != nil {
		parent, signer = ca.cert, ca.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	dir := t.TempDir()
	p := &keyPair{cert: cert, key: key, certFile: filepath.Join(dir, name+".crt"), keyFile: filepath.Join(dir, name+".key")}
	writePEM(t, p.certFile, "CERTIFICATE", der)
	writePEM(t, p.keyFile, "EC PRIVATE KEY", keyDER)
	return p
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

func TestTLS(t *testing.T) {
	ca, otherCA := newKeyPair(t, "ca", nil), newKeyPair(t, "other-ca", nil)
	server, client := newKeyPair(t, "server", ca), newKeyPair(t, "client", ca)
	stranger := newKeyPair(t, "stranger", otherCA)

	plain := startEtcd(t, embedded.Config{}).Endpoints()[0]
	secure := startEtcd(t, embedded.Config{CertFile: server.certFile, KeyFile: server.keyFile}).Endpoints()[0]
	mutual := startEtcd(t, embedded.Config{CertFile: server.certFile, KeyFile: server.keyFile, TrustedCAFile: ca.certFile}).Endpoints()[0]
	require.True(t, strings.HasPrefix(secure, "https://"))
	bare := func(endpoint string) string { _, addr, _ := strings.Cut(endpoint, "://"); return addr }

	for name, cfg := range map[string]etcd3.Config{
		"server's certificate": {Endpoints: []string{secure}, TrustedCAFile: ca.certFile},
		"both certificates":    {Endpoints: []string{mutual}, TrustedCAFile: ca.certFile, CertFile: client.certFile, KeyFile: client.keyFile},
		"by the files":         {Endpoints: []string{bare(secure)}, TrustedCAFile: ca.certFile},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, open(t, cfg).Healthy(testContext(t)))
		})
	}

	for name, tc := range map[string]struct {
		cfg  etcd3.Config
		want []string
	}{
		"another authority": {
			etcd3.Config{Endpoints: []string{secure}, TrustedCAFile: otherCA.certFile},
			[]string{secure, "unknown authority", "TrustedCAFile", otherCA.certFile},
		},
		"the system's authorities": {
			etcd3.Config{Endpoints: []string{secure}},
			[]string{secure, "unknown authority", `TrustedCAFile: ""`},
		},
		"another name": {
			etcd3.Config{Endpoints: []string{strings.Replace(secure, "127.0.0.1", "localhost", 1)}, TrustedCAFile: ca.certFile},
			[]string{"localhost", "x509"},
		},
		"no client certificate": {
			etcd3.Config{Endpoints: []string{mutual}, TrustedCAFile: ca.certFile},
			[]string{mutual, "certificate required", `CertFile: ""`},
		},
		"a stranger's client certificate": {
			etcd3.Config{Endpoints: []string{mutual}, TrustedCAFile: ca.certFile, CertFile: stranger.certFile, KeyFile: stranger.keyFile},
			[]string{mutual, "CertFile", stranger.certFile},
		},
		"no such certificate": {
			etcd3.Config{Endpoints: []string{secure}, CertFile: "/no/such.crt", KeyFile: client.keyFile},
			[]string{"CertFile", "/no/such.crt", "no such file"},
		},
		"another's key": {
			etcd3.Config{Endpoints: []string{secure}, CertFile: client.certFile, KeyFile: stranger.keyFile},
			[]string{"KeyFile", stranger.keyFile, "does not match"},
		},
		"no such authority": {
			etcd3.Config{Endpoints: []string{secure}, TrustedCAFile: "/no/ca.crt"},
			[]string{"TrustedCAFile", "/no/ca.crt", "no such file"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			// With the default DialTimeout: what can't get better is told
			// without waiting for it, as another error than it would bring.
			err := openError(t, tc.cfg)
			require.ErrorIs(t, err, etcd3.ErrTLS)
			require.NotErrorIs(t, err, etcd3.ErrUnreachable)
			for _, want := range tc.want {
				require.Contains(t, err.Error(), want)
			}
		})
	}
	for name, endpoint := range map[string]string{"client without, server with": bare(secure), "client with, server without": "https://" + bare(plain)} {
		t.Run(name, func(t *testing.T) {
			// It may be that the server only starts.
			err := openError(t, etcd3.Config{Endpoints: []string{endpoint}, DialTimeout: time.Second})
			require.ErrorIs(t, err, etcd3.ErrUnreachable)
			require.ErrorContains(t, err, endpoint)
			require.ErrorContains(t, err, "does one side only use TLS?")
		})
	}
}
