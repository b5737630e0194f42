// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	// ErrUnreachable is wrapped by Open's error when no server has answered at the
	// endpoints.
	ErrUnreachable = errors.New("no etcd answered")
	// ErrTLS is wrapped by Open's error when the certificate files, the endpoints
	// and the servers do not fit together. Trying again with the same Config is
	// useless.
	ErrTLS = errors.New("TLS does not fit")
)

// asker asks one endpoint at a time for its version and member ID, on a
// connection of its own.
type asker struct {
	cfg    Config
	client *clientv3.Client
	// dialing is the configuration that client was made with.
	dialing clientv3.Config
}

// member returns the version and member ID that the etcd at endpoint reports.
// For a server that answers with an error, and for one without a cluster ID,
// which is not etcd, the member is empty and the error nil. The error wraps
// ErrTLS if asking again is useless.
func (a *asker) member(ctx context.Context, endpoint string) (member, error) {
	who, err := statusOnce(ctx, a.client, endpoint)
	if err == nil || reached(err) {
		return who, nil
	}
	if ctx.Err() == nil {
		if tlsErr := a.diagnose(ctx, endpoint, err); tlsErr != nil {
			return member{}, fmt.Errorf("%w: %q: %w", ErrTLS, endpoint, tlsErr)
		}
	}
	return member{}, err
}

// statusOnce makes one attempt. Client.Status would retry, and hide the reason
// of a failure behind its deadline.
func statusOnce(ctx context.Context, client *clientv3.Client, endpoint string) (member, error) {
	conn, err := client.Dial(endpoint)
	if err != nil {
		return member{}, err
	}
	defer conn.Close()
	resp, err := etcdserverpb.NewMaintenanceClient(conn).Status(ctx, &etcdserverpb.StatusRequest{})
	if resp.GetHeader().GetClusterId() == 0 {
		return member{}, err
	}
	return member{version: resp.GetVersion(), id: resp.GetHeader().GetMemberId()}, err
}

// reached reports whether err came from a server: a proxy, or a database that
// speaks etcd's protocol, may not implement the method.
func reached(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown:
		return false
	}
	return true
}

// checkPause is for how long an answer of checkConnection is good.
const checkPause = 5 * time.Second

// checkConnection asks each endpoint once, over a connection of its own, and returns why
// none has answered: a status of gRPC, as for a request that fails for that reason. While
// one caller asks, the others get nil at once.
func (b *Backend) checkConnection(ctx context.Context) error {
	if !b.checked.TryLock() {
		return nil
	}
	defer b.checked.Unlock()
	if b.checked.at.IsZero() || time.Since(b.checked.at) > checkPause {
		err := b.versions.unanswered(ctx)
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil // the caller has left, which says nothing of etcd
		}
		b.checked.at, b.checked.err = time.Now(), err
	}
	return b.checked.err
}

// unanswered asks all endpoints once and returns nil if one answers. The members'
// versions are not kept.
func (v *versions) unanswered(ctx context.Context) error {
	errs := make([]error, len(v.endpoints))
	var wg sync.WaitGroup
	for i, endpoint := range v.endpoints {
		wg.Go(func() {
			if _, err := v.ask(ctx, endpoint); errors.Is(err, ErrTLS) {
				errs[i] = err
			} else if err != nil {
				errs[i] = fmt.Errorf("%q: %s", endpoint, reason(err))
			}
		})
	}
	wg.Wait()
	if slices.Contains(errs, nil) {
		return nil
	}
	return status.Error(codes.Unavailable, oneLine(errs).Error())
}

// diagnose returns an error that explains err if client and server disagree
// about TLS, and nil if that is not certain.
func (a *asker) diagnose(ctx context.Context, endpoint string, err error) error {
	text := reason(err)
	switch {
	case strings.Contains(text, "tls: certificate required"):
		return errors.New("the server requires a client certificate; set CertFile and KeyFile")
	case strings.Contains(text, "remote error: tls:"):
		return fmt.Errorf("the server refuses the TLS connection: %s (CertFile: %q)", strings.TrimPrefix(text, "error reading server preface: "), a.cfg.CertFile)
	case strings.Contains(text, "x509:"):
		if a.cfg.TrustedCAFile == "" {
			return fmt.Errorf("%s (TrustedCAFile is not set: only the system's authorities are trusted)", text)
		}
		return fmt.Errorf("%s (TrustedCAFile: %q)", text, a.cfg.TrustedCAFile)
	case strings.Contains(text, "handshake failed"), strings.Contains(text, "server preface"):
		return a.askOtherWay(ctx, endpoint)
	}
	return nil
}

// askOtherWay asks with TLS instead of without, or the other way round, after a
// connection that was made and then broke, as etcd breaks those of clients that
// use TLS where it does not, or the other way round.
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
		return errors.New("the server does not use TLS; use http:// in the endpoint")
	case !secure && (answered || strings.Contains(text, "x509:") || strings.Contains(text, "remote error: tls:")):
		return errors.New("the server uses TLS; use https:// in the endpoint")
	}
	return nil
}

const otherWayTimeout = 2 * time.Second

// reason returns the part of a gRPC error that says what happened, in one line.
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
