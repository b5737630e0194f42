// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"go.uber.org/zap"
)

// Config says where an embedded server keeps its data and where it listens.
// Only Dir is required.
type Config struct {
	// Dir is the data directory. It is created, with its parents and
	// mode 0700, if it does not exist.
	Dir string

	// ClientURL is where the server listens for clients:
	// "http://127.0.0.1:2379", "https://localhost:2379" (with CertFile and
	// KeyFile), or "unix:///path/to.sock". The host must be a loopback address.
	// An empty ClientURL, or port 0, takes a free port. A relative unix path
	// ("unix://to.sock") is taken from the working directory.
	ClientURL string

	// CertFile and KeyFile hold the server's certificate and key in PEM. Both
	// or none; with them the server speaks TLS only.
	CertFile, KeyFile string

	// TrustedCAFile, in PEM, makes the server demand a client certificate that
	// one of its authorities signed. Needs CertFile and KeyFile.
	TrustedCAFile string

	// QuotaBytes is the size of the database beyond which etcd refuses writes.
	// 0 means etcd's own default, 2 GiB.
	QuotaBytes int64

	// Logger receives etcd's log. Nil: nothing is logged.
	Logger *zap.Logger

	// UnsafeNoFsync leaves out every fsync: several times faster, and a crash
	// of the machine may lose or damage the data. For tests.
	UnsafeNoFsync bool
}

// Validate reports every field that can't be used, by name and value, in one
// line. It reads the certificate files, and looks at nothing else outside c.
func (c Config) Validate() error {
	_, err := c.resolve()
	return err
}

// settings is a Config that was checked, in the form that Start works with.
type settings struct {
	Config
	dir    string  // absolute
	client url.URL // scheme and address; port 0: pick one
	pick   func(url.URL) (url.URL, error)
}

// resolve checks c and translates it.
func (c Config) resolve() (settings, error) {
	s := settings{Config: c, pick: freePort}
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New(`Dir: "" is not a directory`))
	} else if dir, err := filepath.Abs(c.Dir); err != nil {
		errs = append(errs, fmt.Errorf("Dir: %q: %w", c.Dir, err))
	} else {
		s.dir = dir
	}
	client, err := parseClientURL(c.ClientURL, c.CertFile != "")
	if err != nil {
		errs = append(errs, fmt.Errorf("ClientURL: %q: %w", c.ClientURL, err))
	}
	s.client = client
	if c.QuotaBytes < 0 {
		errs = append(errs, fmt.Errorf("QuotaBytes: %d is negative", c.QuotaBytes))
	}
	if err := c.checkTLS(); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return settings{}, fmt.Errorf("embedded etcd: %w", oneLine(errs))
	}
	return s, nil
}

// checkTLS makes sure that etcd will be able to load the certificate files:
// it would find out only after the server is up.
func (c Config) checkTLS() error {
	if (c.CertFile == "") != (c.KeyFile == "") {
		return fmt.Errorf("CertFile: %q and KeyFile: %q must be given together", c.CertFile, c.KeyFile)
	}
	if c.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile); err != nil {
			return fmt.Errorf("CertFile: %q, KeyFile: %q: %w", c.CertFile, c.KeyFile, err)
		}
	}
	if c.TrustedCAFile == "" {
		return nil
	}
	if c.CertFile == "" {
		return fmt.Errorf("TrustedCAFile: %q needs CertFile and KeyFile", c.TrustedCAFile)
	}
	pem, err := os.ReadFile(c.TrustedCAFile)
	if err != nil {
		return fmt.Errorf("TrustedCAFile: %q: %w", c.TrustedCAFile, err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(pem) {
		return fmt.Errorf("TrustedCAFile: %q holds no PEM certificate", c.TrustedCAFile)
	}
	return nil
}

// parseClientURL accepts loopback http and https URLs and unix socket paths.
func parseClientURL(raw string, withTLS bool) (url.URL, error) {
	scheme := "http"
	if withTLS {
		scheme = "https"
	}
	if raw == "" {
		return url.URL{Scheme: scheme, Host: "127.0.0.1:0"}, nil
	}
	if path, ok := strings.CutPrefix(raw, "unix://"); ok {
		return unixURL(path, withTLS)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return url.URL{}, errors.New("is not a URL")
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return url.URL{}, errors.New("must begin with http://, https:// or unix://")
	case u.Scheme == "https" && !withTLS:
		return url.URL{}, errors.New("https needs CertFile and KeyFile")
	case u.Scheme == "http" && withTLS:
		return url.URL{}, errors.New("must be https, because CertFile is given")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "":
		return url.URL{}, errors.New("may hold a host and a port only")
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		return url.URL{}, errors.New("has no port (0 takes a free one)")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return url.URL{}, fmt.Errorf("port %q is not between 0 and 65535", port)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return url.URL{}, fmt.Errorf("host %q is not a loopback address", host)
	}
	return url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}

// maxUnixPath is what fits into a socket address on every platform, with the
// terminating zero: 104 bytes on the BSDs and macOS, 108 on Linux.
const maxUnixPath = 103

func unixURL(path string, withTLS bool) (url.URL, error) {
	if withTLS {
		return url.URL{}, errors.New("a unix socket can't be combined with CertFile")
	}
	if path == "" || strings.HasSuffix(path, "/") {
		return url.URL{}, errors.New("names no socket file")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return url.URL{}, err
	}
	if len(abs) > maxUnixPath {
		return url.URL{}, fmt.Errorf("the path %q has %d bytes, a socket's may have %d", abs, len(abs), maxUnixPath)
	}
	return url.URL{Scheme: "unix", Path: abs}, nil
}

// oneLine joins errs with "; ", keeping them reachable for errors.Is.
func oneLine(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return lineError(errs)
}

type lineError []error

func (e lineError) Error() string {
	parts := make([]string, len(e))
	for i, err := range e {
		parts[i] = err.Error()
	}
	return strings.Join(parts, "; ")
}

func (e lineError) Unwrap() []error { return e }
