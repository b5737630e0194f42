// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"k8s.io/client-go/rest"
)

// devicesPath is where the devices of all namespaces are.
const devicesPath = "/apis/fleet.example.com/v1/devices"

// receiveBuffer is what a slow client's kernel takes for it, in bytes.
const receiveBuffer = 4 << 10

// SlowWatch is a watch of all devices whose client reads nothing until it is told to.
type SlowWatch struct{ conn net.Conn }

// OpenSlowWatch opens a watch on a connection of its own, with the client's name as
// its user agent. The caller closes it.
func OpenSlowWatch(ctx context.Context, config *rest.Config, agent string) (*SlowWatch, error) {
	server, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	settings, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	settings = settings.Clone()
	settings.NextProtos = []string{"http/1.1"} // a stream of HTTP/2 has buffers of megabytes
	settings.ServerName = server.Hostname()
	raw, err := (&net.Dialer{Control: narrow}).DialContext(ctx, "tcp", server.Host)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, settings)
	w := &SlowWatch{conn: conn}
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	request, err := http.NewRequest(http.MethodGet, config.Host+devicesPath+"?watch=1&timeoutSeconds=3600", nil)
	if err == nil {
		request.Header.Set("User-Agent", agent)
		err = request.Write(conn)
	}
	if err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("opening a slow watch: %w", err)
	}
	return w, nil
}

// ReadFor reads and drops what comes, for so long. The error is that of a watch that
// has ended.
func (w *SlowWatch) ReadFor(d time.Duration) error {
	if err := w.conn.SetReadDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, w.conn)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	case err == nil:
		return io.EOF
	}
	return err
}

// Close ends the watch.
func (w *SlowWatch) Close() error { return w.conn.Close() }
