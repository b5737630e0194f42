// SPDX-License-Identifier: Apache-2.0

//go:build unix

package local

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetime is how long the certificates of a cluster are valid: clusters live for hours.
const lifetime = 30 * 24 * time.Hour

// authority signs the certificates of a cluster.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// writeCredentials writes what the servers and the administrator of a cluster prove
// themselves with: ca.crt, serving.*, KIND.crt and KIND.key of each client, and sa.key of
// the service accounts' tokens.
func writeCredentials(dir string) error {
	ca, err := newAuthority(dir)
	if err != nil {
		return err
	}
	serving := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 1)},
		DNSNames:    []string{"localhost", "kubernetes.default.svc"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	err = ca.sign(dir, "serving", serving)
	for file, subject := range clients {
		client := &x509.Certificate{Subject: subject, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		err = errors.Join(err, ca.sign(dir, file, client))
	}
	if err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	return writeKey(dir, "sa", key)
}

// clients are the users of a cluster, by the names of their files.
var clients = map[string]pkix.Name{
	"admin":                   {CommonName: "admin", Organization: []string{"system:masters"}},
	"nodes":                   {CommonName: "fake-nodes", Organization: []string{"system:masters"}},
	"relay":                   {CommonName: "relay", Organization: []string{"system:masters"}},
	"viewer":                  {CommonName: "viewer"}, // without rights, unless somebody gives it some
	"kube-controller-manager": {CommonName: "system:kube-controller-manager"},
	"kube-scheduler":          {CommonName: "system:kube-scheduler"},
}

func newAuthority(dir string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:  pkix.Name{CommonName: "cluster"},
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	ca := &authority{certificate: template, key: key}
	if err := ca.write(dir, "ca", template, key.Public()); err != nil {
		return nil, err
	}
	return ca, nil
}

// sign writes a certificate and its new key.
func (a *authority) sign(dir, name string, template *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	return errors.Join(a.write(dir, name, template, key.Public()), writeKey(dir, name, key))
}

func (a *authority) write(dir, name string, template *x509.Certificate, key crypto.PublicKey) error {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = template.NotBefore.Add(lifetime)
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key, a.key)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", name, err)
	}
	return writePEM(filepath.Join(dir, name+".crt"), "CERTIFICATE", der)
}

func writeKey(dir, name string, key crypto.Signer) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(filepath.Join(dir, name+".key"), "PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
