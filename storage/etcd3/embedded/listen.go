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

// freePort returns u with a free port. If another process takes it before etcd does, Start tries
// another port.
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

func wantsFreePort(u url.URL) bool { return u.Scheme != "unix" && u.Port() == "0" }

// checkSocket checks that etcd may take the path of a unix socket. etcd removes any file at that
// path, so we must refuse a file other than a socket, and a socket in use.
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
		return nil // left over from an ended server
	}
	_ = conn.Close()
	return fmt.Errorf("%w: a server listens on it", ErrAddressInUse)
}
