// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
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
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

var (
	// ErrUnreachable is wrapped by Open's error if no server answered at the endpoints.
	ErrUnreachable = errors.New("no etcd answered")
	// ErrTLS is wrapped by Open's error if a certificate or file does not match. Retrying with the
	// same Config is useless.
	ErrTLS = errors.New("TLS does not fit")
)

// member returns the etcd version and member ID of the server at endpoint, over a connection of its
// own, or an empty member for a server that returns an error or is not etcd, i.e. has no cluster
// ID. The error wraps ErrTLS if retrying is useless.
func (b *Backend) member(ctx context.Context, endpoint string) (member, error) {
	who, err := statusOnce(ctx, b.Client(), endpoint)
	if err == nil || reached(err) {
		return who, nil
	}
	if text := reason(err); ctx.Err() == nil && (strings.Contains(text, "tls:") || strings.Contains(text, "x509:")) {
		return member{}, fmt.Errorf("%w: %q: %s (CertFile: %q, TrustedCAFile: %q)", ErrTLS, endpoint, text, b.cfg.CertFile, b.cfg.TrustedCAFile)
	}
	return member{}, err
}

// statusOnce makes one attempt. Client.Status would retry, and hide the cause behind its deadline.
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

// reached reports whether err came from a server, e.g. a proxy that does not implement the method.
func reached(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown:
		return false
	}
	return true
}

// checkPause is the time for which a result of checkConnection is reused.
const checkPause = 5 * time.Second

// checkConnection queries each endpoint once, over a connection of its own, and returns why none
// answered, as a gRPC status. During a check, other callers get nil at once.
func (b *Backend) checkConnection(ctx context.Context) error {
	if !b.checked.TryLock() {
		return nil
	}
	defer b.checked.Unlock()
	if b.checked.at.IsZero() || time.Since(b.checked.at) > checkPause {
		err := b.versions.unanswered(ctx)
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil // the caller has left
		}
		b.checked.at, b.checked.err = time.Now(), err
	}
	return b.checked.err
}

// unanswered queries all endpoints once and returns nil if one answers. It does not record
// versions.
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
	return status.Error(codes.Unavailable, utilerrors.NewAggregate(errs).Error())
}

// reason returns the cause in a gRPC error, in one line.
func reason(err error) string {
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Message()
	}
	if _, inner, ok := strings.Cut(text, `desc = "`); ok {
		if unquoted, err := strconv.Unquote(`"` + inner); err == nil {
			text = unquoted
		}
	}
	refused := strings.Contains(text, "server preface") || strings.Contains(text, "handshake failed")
	for _, noise := range []string{"transport: ", "Error while dialing: ", "authentication handshake failed: "} {
		text = strings.TrimPrefix(text, noise)
	}
	if refused && !strings.Contains(text, "tls:") { // as if etcd closed the connection
		text += " (does one side only use TLS? endpoints begin with http:// or https://)"
	}
	return strings.Join(strings.Fields(text), " ")
}
