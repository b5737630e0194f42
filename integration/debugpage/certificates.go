// SPDX-License-Identifier: Apache-2.0

package debugpage

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

// authority signs the certificates of the server and of its users.
type authority struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	pem         []byte
}

// signed is a certificate and its key.
type signed struct {
	certificate     tls.Certificate
	certPEM, keyPEM []byte
}

func newAuthority() (authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, err
	}
	own, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "test authority"}, key)
	if err != nil {
		return authority{}, err
	}
	return authority{key: key, certificate: own, pem: pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: own.Raw})}, nil
}

func (a authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// sign makes a certificate of a user, or of a server on the loopback address.
func (a authority) sign(name string, server bool) (signed, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return signed{}, err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return signed{}, err
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
		return signed{}, err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return signed{}, err
	}
	out := signed{certPEM: pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: raw}), keyPEM: keyPEM}
	out.certificate, err = tls.X509KeyPair(out.certPEM, out.keyPEM)
	return out, err
}
