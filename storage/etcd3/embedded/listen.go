// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"time"
)

// freePort returns u with a port that was free a moment ago. Another process
// may take it before etcd does; then Start tries another port.
func freePort(u url.URL) (url.URL, error) {
	host, _, err := net.SplitHostPort(u.Host)
	if err != nil {
		return u, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return u, err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	u.Host = net.JoinHostPort(host, port)
	return u, errors.Join(err, l.Close())
}

// wantsFreePort reports whether the choice of the port is left to Start.
func wantsFreePort(u url.URL) bool { return u.Scheme != "unix" && u.Port() == "0" }

// checkSocket makes sure that etcd may take the path of a unix socket. etcd
// removes any file at that path; so a file that is not a socket, or a socket on
// which a server listens, must be refused before.
func checkSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return withoutPath(err)
	}
	if info.Mode()&os.ModeSocket == 0 {
		return errors.New("the path is taken by a file that is not a socket")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return nil // left over from a server that is gone
	}
	_ = conn.Close()
	return fmt.Errorf("%w: a server listens on it", ErrAddressInUse)
}
