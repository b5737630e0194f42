// SPDX-License-Identifier: Apache-2.0

// Package authority signs certificates for the servers and the users of tests.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Authority signs the certificates of a server and of its users.
type Authority struct {
	// PEM is its own certificate.
	PEM         []byte
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
}

// Signed is a certificate and its key.
type Signed struct {
	Certificate     tls.Certificate
	CertPEM, KeyPEM []byte
}

// New returns an authority of its own.
func New() (Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Authority{}, err
	}
	own, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "test authority"}, key)
	if err != nil {
		return Authority{}, err
	}
	return Authority{key: key, certificate: own, PEM: pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: own.Raw})}, nil
}

// Pool is for those who trust the authority.
func (a Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// Sign makes a certificate of a user, or of a server on the loopback address.
func (a Authority) Sign(name string, server bool) (Signed, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Signed{}, err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return Signed{}, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, SerialNumber: serial,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if server {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return Signed{}, err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return Signed{}, err
	}
	out := Signed{CertPEM: pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: raw}), KeyPEM: keyPEM}
	out.Certificate, err = tls.X509KeyPair(out.CertPEM, out.KeyPEM)
	return out, err
}
