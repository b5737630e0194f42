// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
	genericfeatures "k8s.io/apiserver/pkg/features"
	apietcd3 "k8s.io/apiserver/pkg/storage/etcd3"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/utils/clock"
)

// ErrClosed is wrapped by the errors of a Backend, and of a store, that was
// closed.
var ErrClosed = errors.New("closed")

// healthTimeout bounds Healthy if its context has no deadline.
const healthTimeout = 2 * time.Second

// Backend is an open etcd. Its methods are safe for concurrent use.
//
// Goroutines: the version check (versions.run), the compactor's, and those of
// the gRPC client. Open starts them, Close ends and awaits them.
type Backend struct {
	cfg      Config
	client   *kubernetes.Client
	versions *versions

	compactor interface {
		apietcd3.Compactor
		Stop()
	}

	// unsafeDelete is the AllowUnsafeMalformedObjectDeletion feature gate.
	unsafeDelete bool

	stop context.CancelFunc // ends the version check
	wg   sync.WaitGroup     // the version check

	closeOnce sync.Once
	closeErr  error
	mu        struct {
		sync.Mutex
		closed bool
		// stores are the open ones; next numbers them.
		stores map[*store]struct{}
		next   uint64
	}
}

// Open connects to an etcd and returns when one of the endpoints has answered.
// It gives up when ctx ends, or after Config.DialTimeout; ctx has no effect
// after Open returned. The error is one line, and nothing is left open.
func Open(ctx context.Context, cfg Config) (*Backend, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("etcd3: not opened: %w", err)
	}
	dialing, err := cfg.clientConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.New(dialing)
	if err != nil {
		return nil, fmt.Errorf("etcd3: Endpoints: %q: %w", cfg.Endpoints, err)
	}
	ask := &asker{cfg: cfg, client: client.Client, dialing: dialing}
	b := &Backend{
		cfg:          cfg,
		client:       client,
		versions:     newVersions(cfg.Endpoints, ask.version, cfg.Logger),
		unsafeDelete: utilfeature.DefaultFeatureGate.Enabled(genericfeatures.AllowUnsafeMalformedObjectDeletion),
	}
	b.mu.stores = make(map[*store]struct{})
	if err := b.connect(ctx); err != nil {
		_ = client.Close()
		return nil, err
	}
	// An API server accounts the time that a request spends in etcd.
	client.KV = apietcd3.NewETCDLatencyTracker(client.KV)
	b.compactor = apietcd3.NewCompactor(client.Client, cfg.CompactionInterval, clock.RealClock{}, nil)
	background, stop := context.WithCancel(context.Background())
	b.stop = stop
	b.wg.Go(func() { b.versions.run(background) })
	return b, nil
}

// connect waits for the first answer.
func (b *Backend) connect(ctx context.Context) error {
	start := time.Now()
	bounded, cancel := context.WithTimeout(ctx, b.cfg.DialTimeout)
	defer cancel()
	errs := b.versions.first(bounded)
	if len(errs) == 0 {
		b.client.ActiveConnection().Connect()
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("etcd3: %w in %v: %w: %w", ErrUnreachable, time.Since(start).Round(time.Millisecond), oneLine(errs), err)
	}
	for _, err := range errs {
		if !errors.Is(err, ErrTLS) {
			return fmt.Errorf("etcd3: %w within %v: %w", ErrUnreachable, b.cfg.DialTimeout, oneLine(errs))
		}
	}
	return fmt.Errorf("etcd3: %w", oneLine(errs))
}

// Client returns the client that all stores share. It belongs to the Backend:
// don't close it.
func (b *Backend) Client() *clientv3.Client { return b.client.Client }

// WatchProgress reports whether RequestWatchProgress can be relied on now:
// each of the endpoints has answered, and runs a version of etcd whose
// progress notifications are true. It costs nothing to ask.
func (b *Backend) WatchProgress() bool { return b.versions.all.Load() }

// Healthy reads a key that does not exist, with etcd's full consistency, and
// says in one line why that failed. It takes two seconds at most if ctx has no
// deadline.
func (b *Backend) Healthy(ctx context.Context) error {
	if b.isClosed() {
		return fmt.Errorf("etcd3: %w", ErrClosed)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, healthTimeout)
		defer cancel()
	}
	start := time.Now()
	_, err := b.client.KV.Get(ctx, path.Join("/", b.cfg.Prefix, "health"))
	if err == nil {
		return nil
	}
	return fmt.Errorf("etcd3: no healthy etcd at %s (tried for %v, connection is %v): %w",
		quoted(b.cfg.Endpoints), time.Since(start).Round(time.Millisecond), b.client.ActiveConnection().GetState(), err)
}

func quoted(endpoints []string) string {
	var s strings.Builder
	for i, ep := range endpoints {
		if i > 0 {
			s.WriteString(", ")
		}
		fmt.Fprintf(&s, "%q", ep)
	}
	return s.String()
}

func (b *Backend) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.closed
}

// Close ends the client, the stores with their watches, and every goroutine
// that the Backend started, and waits for them. Further calls wait for the
// first and return the same. Stop the caches before: see the package comment.
func (b *Backend) Close() error {
	b.closeOnce.Do(func() {
		b.mu.Lock()
		b.mu.closed = true
		stores := b.mu.stores
		b.mu.stores = nil
		b.mu.Unlock()

		b.stop()
		b.compactor.Stop()
		b.wg.Wait()
		if err := b.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
			b.closeErr = fmt.Errorf("etcd3: %w", err)
			b.cfg.Logger.Warn("closing the client failed", zap.Error(err))
		}
		// After the client, so that a watch whose events are being read ends
		// where the client ended, not in between.
		for s := range stores {
			s.Close()
		}
	})
	return b.closeErr
}
