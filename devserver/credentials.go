// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// The one client that the server trusts.
const (
	clientUser  = "developer"
	clientGroup = "devserver:clients"
)

const (
	// validity is how long new credentials last.
	validity = 365 * 24 * time.Hour
	// renewBefore is how long credentials must still last to be used again.
	renewBefore = 30 * 24 * time.Hour
)

// credentials are PEM blocks. The key of the certificate authority is not among
// them: it signs two certificates and is forgotten, so nobody can sign a third.
type credentials struct {
	ca                      []byte
	servingCert, servingKey []byte
	clientCert, clientKey   []byte
}

// files maps the name of each file to the block that it holds.
func (c *credentials) files() map[string]*[]byte {
	return map[string]*[]byte{
		"ca.crt":      &c.ca,
		"serving.crt": &c.servingCert,
		"serving.key": &c.servingKey,
		"client.crt":  &c.clientCert,
		"client.key":  &c.clientKey,
	}
}

// loadOrCreate returns the credentials in dir if they fit together, certify
// address, and last for renewBefore from now on; it fails if others may have them.
// Otherwise it makes new ones and writes them there.
func loadOrCreate(dir string, address net.IP, now time.Time) (*credentials, error) {
	creds, err := load(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the credentials: %w", err)
	}
	if creds.check(address, now) == nil {
		return creds, creds.checkPrivate(dir)
	}
	if creds, err = create(address, now); err != nil {
		return nil, fmt.Errorf("making credentials: %w", err)
	}
	if err := creds.write(dir); err != nil {
		return nil, fmt.Errorf("writing the credentials: %w", err)
	}
	return creds, nil
}

func load(dir string) (*credentials, error) {
	creds := &credentials{}
	for name, block := range creds.files() {
		var err error
		if *block, err = os.ReadFile(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return creds, nil
}

// checkPrivate fails if others may read or replace a file in dir, which write prevents.
// What may be read and is somebody else's is readable by others, unless we are root.
func (c *credentials) checkPrivate(dir string) error {
	for _, name := range append(slices.Collect(maps.Keys(c.files())), ".") {
		name = filepath.Join(dir, name)
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows" {
			return fmt.Errorf("%s is %s: others may have the credentials. Remove %s for new ones", name, info.Mode(), dir)
		}
	}
	return nil
}

func (c *credentials) write(dir string) error {
	if err := makePrivateDir(dir); err != nil {
		return err
	}
	for name, block := range c.files() {
		if err := writeFile(filepath.Join(dir, name), *block); err != nil {
			return err
		}
	}
	return nil
}

// check says why the credentials can't be used; a write that was cut short is one
// reason.
func (c *credentials) check(address net.IP, now time.Time) error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.ca) {
		return errors.New("no certificate authority")
	}
	serving, servingErr := leaf(c.servingCert, c.servingKey)
	client, clientErr := leaf(c.clientCert, c.clientKey)
	if err := cmp.Or(servingErr, clientErr); err != nil {
		return err
	}
	for _, at := range []time.Time{now, now.Add(renewBefore)} {
		err := cmp.Or(verify(serving, roots, x509.ExtKeyUsageServerAuth, at), verify(client, roots, x509.ExtKeyUsageClientAuth, at))
		if err != nil {
			return err
		}
	}
	if client.Subject.CommonName != clientUser || !slices.Contains(client.Subject.Organization, clientGroup) {
		return fmt.Errorf("the client certificate is for %s", client.Subject)
	}
	return serving.VerifyHostname(address.String())
}

func leaf(cert, key []byte) (*x509.Certificate, error) {
	pair, err := tls.X509KeyPair(cert, key)
	return pair.Leaf, err
}

func verify(cert *x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage, at time.Time) error {
	_, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}, CurrentTime: at})
	return err
}
