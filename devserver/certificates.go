// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// create makes a certificate authority, a serving certificate for the loopback
// addresses and for address, and the client's certificate.
func create(address net.IP, now time.Time) (*credentials, error) {
	authority, err := newSigner(now)
	if err != nil {
		return nil, err
	}
	creds := &credentials{ca: encode("CERTIFICATE", authority.cert.Raw)}
	creds.servingCert, creds.servingKey, err = authority.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "devserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, address},
	})
	if err != nil {
		return nil, err
	}
	creds.clientCert, creds.clientKey, err = authority.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: clientUser, Organization: []string{clientGroup}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return creds, err
}

// signer is a certificate authority with its key, which lives as long as create.
type signer struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newSigner(now time.Time) (*signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "devserver CA"},
		NotBefore:             now.Add(-time.Minute),
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &signer{cert: cert, key: key}, err
}

// sign completes the template and returns the certificate and its new key.
func (s *signer) sign(template *x509.Certificate) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	// RFC 5280, 4.1.2.2: at most 20 octets, and positive.
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, nil, err
	}
	template.NotBefore, template.NotAfter = s.cert.NotBefore, s.cert.NotAfter
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, template, s.cert, private.Public(), s.key)
	if err != nil {
		return nil, nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", pkcs8), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
