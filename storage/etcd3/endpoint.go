// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// security is whether an endpoint's form asks for TLS.
type security int

const (
	byFiles security = iota // TLS if a certificate file is given
	plain
	withTLS
)

// parseEndpoint checks an endpoint in one of the forms that Config.Endpoints
// lists.
func parseEndpoint(raw string) (security, error) {
	if raw == "" {
		return 0, errors.New("must not be empty")
	}
	if shown(raw) != raw {
		return 0, errors.New("must not contain a user name or a password; an etcd client ignores them")
	}
	if strings.ContainsAny(raw, ", \t\n") {
		return 0, errors.New("must not contain a comma or a space; list each endpoint as an element of its own")
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return byFiles, checkHostPort(raw)
	}
	switch scheme {
	case "unix", "unixs":
		if strings.Trim(rest, "/") == "" {
			return 0, errors.New("names no socket")
		}
		if scheme == "unixs" {
			return withTLS, nil
		}
		return byFiles, nil
	case "http", "https":
		u, err := url.Parse(raw)
		if err != nil {
			return 0, errors.New("is not a URL")
		}
		if u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
			return 0, errors.New("must contain a host and a port only")
		}
		if scheme == "https" {
			return withTLS, checkHostPort(u.Host)
		}
		return plain, checkHostPort(u.Host)
	}
	return 0, fmt.Errorf("scheme %q is not http, https, unix or unixs", scheme)
}

func checkHostPort(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return errors.New("is not host:port")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("port %q is not between 1 and 65535", port)
	}
	return nil
}

// shown returns an endpoint as errors and logs may show it, without a user name
// and a password, which somebody may have meant for etcd. Text that does not
// parse as a URL is treated alike: it may be a mistyped URL.
func shown(raw string) string {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || strings.Contains(scheme, "@") {
		scheme, rest = "", raw
	} else {
		scheme += "://"
	}
	end := len(rest)
	if slash := strings.IndexByte(rest, '/'); slash >= 0 && strings.HasPrefix(scheme, "unix") {
		end = slash // the rest is a path
	}
	// An @ at the beginning is an abstract socket, which has no file.
	at := strings.LastIndexByte(rest[:end], '@')
	if at <= 0 {
		return raw
	}
	return scheme + "xxxxx" + rest[at:]
}

// checkEndpoints checks each endpoint, and that all agree about TLS: the client
// uses the setting of the first endpoint for all of them, and would silently
// ignore the certificate files for an http endpoint.
func (c Config) checkEndpoints() []error {
	var errs []error
	first, firstTLS := -1, false
	for i, raw := range c.Endpoints {
		sec, err := parseEndpoint(raw)
		if err != nil {
			errs = append(errs, fmt.Errorf("Endpoints[%d]: %q %w", i, shown(raw), err))
			continue
		}
		if name, file := c.firstFile(); sec == plain && file != "" {
			errs = append(errs, fmt.Errorf("Endpoints[%d]: %q is without TLS, but %s: %q is set", i, raw, name, file))
			continue
		}
		secure := c.secure(sec)
		if first < 0 {
			first, firstTLS = i, secure
		} else if secure != firstTLS {
			errs = append(errs, fmt.Errorf("Endpoints[%d]: %q and Endpoints[%d]: %q: one is with TLS and one without", first, c.Endpoints[first], i, raw))
		}
	}
	return errs
}

// secure reports whether an endpoint is reached with TLS.
func (c Config) secure(s security) bool {
	_, file := c.firstFile()
	return s == withTLS || (s == byFiles && file != "")
}

// firstFile returns a TLS file that is given, and its field.
func (c Config) firstFile() (field, file string) {
	switch {
	case c.TrustedCAFile != "":
		return "TrustedCAFile", c.TrustedCAFile
	case c.CertFile != "":
		return "CertFile", c.CertFile
	case c.KeyFile != "":
		return "KeyFile", c.KeyFile
	}
	return "", ""
}

// swapTLS returns the same address with TLS instead of without, or the other
// way round.
func swapTLS(endpoint string) string {
	for _, pair := range [][2]string{{"https://", "http://"}, {"unixs://", "unix://"}} {
		if rest, ok := strings.CutPrefix(endpoint, pair[0]); ok {
			return pair[1] + rest
		}
		if rest, ok := strings.CutPrefix(endpoint, pair[1]); ok {
			return pair[0] + rest
		}
	}
	return endpoint
}

// tcpDialer turns the dialer of an egress selector into one for gRPC, which
// passes host:port or, depending on the resolver, a URL.
func tcpDialer(dial utilnet.DialFunc) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		if strings.Contains(address, "//") {
			parsed, err := url.Parse(address)
			if err != nil {
				return nil, err
			}
			address = parsed.Host
		}
		return dial(ctx, "tcp", address)
	}
}
