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

// Config describes an embedded server: its data directory, address and limits. Only Dir is
// required.
type Config struct {
	// Dir is the data directory. Start creates it if needed, with its parents and mode 0700.
	Dir string

	// ClientURL is the URL on which the server listens for clients: "http://127.0.0.1:2379",
	// "https://localhost:2379" (with CertFile and KeyFile), or "unix:///path/to.sock", which may be
	// relative. The host must be a loopback address. An empty ClientURL, or port 0, takes a free
	// port.
	//
	// Only the owner of the process can connect to a unix socket, whatever the umask.
	ClientURL string

	// CertFile and KeyFile are PEM files of the server's certificate and key. Set both or neither.
	// With them, the server accepts only TLS.
	CertFile, KeyFile string

	// TrustedCAFile is a PEM file of authorities. With it, clients need a certificate signed by one
	// of them. Needs CertFile and KeyFile.
	TrustedCAFile string

	// QuotaBytes is the size of the database above which etcd refuses writes. 0 means etcd's
	// default, 2 GiB.
	QuotaBytes int64

	// Logger receives etcd's log. Nil means none.
	Logger *zap.Logger

	// UnsafeNoFsync makes etcd skip every fsync. Writes are several times faster, but a crash of
	// the machine may lose or damage the data. For tests.
	UnsafeNoFsync bool
}

// Validate returns an error of one line that lists every invalid field by name and value. It reads
// the certificate files, but does not check Dir or whether ClientURL is free.
func (c Config) Validate() error {
	_, err := c.resolve()
	return err
}

type settings struct {
	Config
	dir    string  // absolute
	client url.URL // scheme and address; port 0: pick one
	pick   func(url.URL) (url.URL, error)
}

func (c Config) resolve() (settings, error) {
	s := settings{Config: c, pick: freePort}
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New(`Dir: "": is required: name the data directory`))
	} else if dir, err := filepath.Abs(c.Dir); err != nil {
		errs = append(errs, fmt.Errorf("Dir: %q: %w", c.Dir, err))
	} else {
		s.dir = dir
	}
	client, err := parseClientURL(c.ClientURL, c.CertFile != "")
	if err != nil {
		errs = append(errs, fmt.Errorf("ClientURL: %q: %w", shown(c.ClientURL), err))
	}
	s.client = client
	if c.QuotaBytes < 0 {
		errs = append(errs, fmt.Errorf("QuotaBytes: %d: must not be negative", c.QuotaBytes))
	}
	if err := c.checkTLS(); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return settings{}, fmt.Errorf("embedded etcd: %w", oneLine(errs))
	}
	return s, nil
}

// checkTLS checks that etcd can load the certificate files, which it does only when the server is
// up.
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

func shown(raw string) string {
	if at := strings.LastIndexByte(raw, '@'); at >= 0 && !strings.HasPrefix(raw, "unix://") {
		return "xxxxx" + raw[at:]
	}
	return raw
}

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
		return url.URL{}, errors.New("must contain a host and a port only")
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

// maxUnixPath is the most bytes of a socket's path on every platform. With the terminating zero,
// the limit is 104 bytes on the BSDs and macOS, 108 on Linux.
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
		return url.URL{}, fmt.Errorf("the path %q has %d bytes; a socket's path can have %d", abs, len(abs), maxUnixPath)
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
