// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	// ErrUnreachable is wrapped by Open's error when nobody answered at the
	// endpoints.
	ErrUnreachable = errors.New("no etcd answered")
	// ErrTLS is wrapped by Open's error when the files, the endpoints and the
	// servers don't fit together. To try again with the same is useless.
	ErrTLS = errors.New("TLS does not fit")
)

// asker asks one endpoint at a time who it is, on a connection of its own.
type asker struct {
	cfg    Config
	client *clientv3.Client
	// dialing is what client was made with.
	dialing clientv3.Config
}

// version returns the version that the etcd at endpoint reports. An endpoint
// that answers without telling one is reached too: its version is "", and so is
// that of a server without a cluster, which is not etcd whatever it says. Errors
// wrap ErrTLS if asking again is useless.
func (a *asker) version(ctx context.Context, endpoint string) (string, error) {
	version, err := statusOnce(ctx, a.client, endpoint)
	if err == nil || reached(err) {
		return version, nil
	}
	if ctx.Err() == nil {
		if tlsErr := a.diagnose(ctx, endpoint, err); tlsErr != nil {
			return "", fmt.Errorf("%w: %q: %w", ErrTLS, endpoint, tlsErr)
		}
	}
	return "", err
}

// statusOnce makes one attempt: unlike Client.Status, it does not hide the reason
// behind retries and a deadline.
func statusOnce(ctx context.Context, client *clientv3.Client, endpoint string) (string, error) {
	conn, err := client.Dial(endpoint)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	resp, err := etcdserverpb.NewMaintenanceClient(conn).Status(ctx, &etcdserverpb.StatusRequest{})
	if resp.GetHeader().GetClusterId() == 0 {
		return "", err
	}
	return resp.GetVersion(), err
}

// reached reports whether err is an answer, if not the one that was wanted: a
// proxy, or a database that speaks etcd's protocol, may not know the question.
func reached(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown:
		return false
	}
	return true
}

// diagnose returns an error if the reason for err is that client and server
// disagree about TLS, and nil if that is not certain.
func (a *asker) diagnose(ctx context.Context, endpoint string, err error) error {
	text := reason(err)
	switch {
	case strings.Contains(text, "tls: certificate required"):
		return errors.New("the server demands a client certificate, and CertFile is not given")
	case strings.Contains(text, "remote error: tls:"):
		return fmt.Errorf("the server refuses: %s (CertFile: %q)", strings.TrimPrefix(text, "error reading server preface: "), a.cfg.CertFile)
	case strings.Contains(text, "x509:"):
		if a.cfg.TrustedCAFile == "" {
			return fmt.Errorf("%s (TrustedCAFile is not given: the system's authorities count)", text)
		}
		return fmt.Errorf("%s (TrustedCAFile: %q)", text, a.cfg.TrustedCAFile)
	case strings.Contains(text, "handshake failed"), strings.Contains(text, "server preface"):
		return a.askOtherWay(ctx, endpoint)
	}
	return nil
}

// askOtherWay asks with TLS instead of without, or the other way round, after
// a connection that came about and then broke: what etcd does with clients of
// the other kind.
func (a *asker) askOtherWay(ctx context.Context, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, otherWayTimeout)
	defer cancel()
	sec, err := parseEndpoint(endpoint)
	if err != nil {
		return nil
	}
	secure := a.cfg.secure(sec)
	dialing := a.dialing
	other := swapTLS(endpoint)
	dialing.Endpoints = []string{other}
	dialing.TLS = nil
	if !secure {
		dialing.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	client, err := clientv3.New(dialing)
	if err != nil {
		return nil
	}
	defer client.Close()
	_, err = statusOnce(ctx, client, other)
	answered := err == nil || reached(err)
	switch text := reason(err); {
	case secure && answered:
		return errors.New("the server speaks without TLS (http://)")
	case !secure && (answered || strings.Contains(text, "x509:") || strings.Contains(text, "remote error: tls:")):
		return errors.New("the server speaks TLS (https://)")
	}
	return nil
}

const otherWayTimeout = 2 * time.Second

// reason is the part of a gRPC error that says what happened, in one line.
func reason(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Message()
	}
	if _, inner, ok := strings.Cut(text, `desc = "`); ok {
		if unquoted, err := strconv.Unquote(`"` + inner); err == nil {
			text = unquoted
		}
	}
	for _, noise := range []string{"transport: ", "Error while dialing: "} {
		text = strings.TrimPrefix(text, noise)
	}
	text = strings.TrimPrefix(text, "authentication handshake failed: tls: ")
	return strings.Join(strings.Fields(text), " ")
}
