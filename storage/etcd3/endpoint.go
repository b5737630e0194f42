// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

func checkEndpoint(raw string) error {
	scheme, rest, ok := strings.Cut(raw, "://")
	switch {
	case raw == "":
		return errors.New("must not be empty")
	case shown(raw) != raw:
		return errors.New("must not contain a user name or a password; an etcd client ignores them")
	case strings.ContainsAny(raw, ", \t\n"):
		return errors.New("must not contain a comma or a space; list each endpoint as an element of its own")
	case !ok:
		rest = raw
	case scheme == "unix" || scheme == "unixs":
		if strings.Trim(rest, "/") == "" {
			return errors.New("names no socket")
		}
		return nil
	case scheme != "http" && scheme != "https":
		return fmt.Errorf("scheme %q is not http, https, unix or unixs", scheme)
	}
	if host, _, err := net.SplitHostPort(strings.TrimSuffix(rest, "/")); err != nil || host == "" {
		return errors.New("is not host:port")
	}
	return nil
}

// shown returns an endpoint for errors and logs, without a user name and password, even if it does
// not parse as a URL.
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
	// A leading @ is an abstract socket, which has no file.
	at := strings.LastIndexByte(rest[:end], '@')
	if at <= 0 {
		return raw
	}
	return scheme + "xxxxx" + rest[at:]
}

// checkEndpoints checks each endpoint, and that all use TLS or none, because the client uses the
// first one's setting for all, and would silently ignore the certificate files for an http
// endpoint.
func (c Config) checkEndpoints() []error {
	var errs []error
	for i, raw := range c.Endpoints {
		if err := checkEndpoint(raw); err != nil {
			errs = append(errs, fmt.Errorf("Endpoints[%d]: %q %w", i, shown(raw), err))
		} else if c.hasFiles() && !c.secure(raw) {
			errs = append(errs, fmt.Errorf("Endpoints[%d]: %q is without TLS, but a file is set: TrustedCAFile: %q, CertFile: %q, KeyFile: %q", i, raw, c.TrustedCAFile, c.CertFile, c.KeyFile))
		} else if first := c.Endpoints[0]; c.secure(raw) != c.secure(first) {
			errs = append(errs, fmt.Errorf("Endpoints[0]: %q and Endpoints[%d]: %q: one is with TLS and one without", shown(first), i, raw))
		}
	}
	return errs
}

func (c Config) secure(endpoint string) bool {
	switch scheme, _, _ := strings.Cut(endpoint, "://"); scheme {
	case "https", "unixs":
		return true
	case "http":
		return false
	}
	return c.hasFiles()
}

func (c Config) hasFiles() bool { return c.TrustedCAFile != "" || c.CertFile != "" || c.KeyFile != "" }

// tcpDialer converts the dialer of an egress selector for gRPC, which passes host:port or,
// depending on the resolver, a URL.
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
