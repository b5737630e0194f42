// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericfeatures "k8s.io/apiserver/pkg/features"
	apietcd3 "k8s.io/apiserver/pkg/storage/etcd3"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/utils/clock"
)

// ErrClosed is wrapped by the errors of a closed Backend or store.
var ErrClosed = errors.New("closed")

const (
	// healthTimeout bounds Healthy if its context has no deadline.
	healthTimeout = 2 * time.Second
	// healthReads is the number of reads of one Healthy, each from the next member.
	healthReads = 3
)

// Backend is a connection to an etcd cluster, shared by the stores of all resources. Safe for
// concurrent use. Close awaits all its goroutines.
type Backend struct {
	cfg Config
	// givenPrefix is Config.Prefix without its default.
	givenPrefix string
	client      *kubernetes.Client
	versions    *versions
	watches     *watchConnections
	// checked is the last result of checkConnection.
	checked struct {
		sync.Mutex
		at  time.Time
		err error
	}
	// fewerKeys is the number of keys that a transaction reads if etcd refuses keysPerTxn,
	// otherwise 0.
	fewerKeys atomic.Int64

	compactor interface {
		apietcd3.Compactor
		Stop()
	}

	unsafeDelete bool
	watchList    bool

	stop context.CancelFunc // ends the version check
	wg   sync.WaitGroup     // awaits the version check

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

// Open connects to an etcd and returns when an endpoint answers. It fails when ctx ends, or after
// Config.DialTimeout; ctx has no effect after Open returns. The error is one line, and may wrap
// ErrUnreachable or ErrTLS.
func Open(ctx context.Context, cfg Config) (*Backend, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	givenPrefix := cfg.Prefix
	cfg = cfg.withDefaults()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("etcd3: the context ended before etcd was opened: %w", err)
	}
	versions := newVersions(cfg.Endpoints, cfg.Logger)
	watches := &watchConnections{endpoints: cfg.Endpoints, logger: cfg.Logger}
	watches.mu.limit = streamsPerConnection
	dialing, err := cfg.clientConfig(versions.trusts, watches)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.New(dialing)
	if err != nil {
		return nil, fmt.Errorf("etcd3: Endpoints: %q: %w", cfg.Endpoints, err)
	}
	watches.dial = client.Dial
	b := &Backend{
		cfg:          cfg,
		givenPrefix:  givenPrefix,
		client:       client,
		versions:     versions,
		watches:      watches,
		unsafeDelete: utilfeature.DefaultFeatureGate.Enabled(genericfeatures.AllowUnsafeMalformedObjectDeletion),
		watchList:    utilfeature.DefaultFeatureGate.Enabled(genericfeatures.WatchList),
	}
	versions.ask = b.member
	b.mu.stores = make(map[*store]struct{})
	if err := b.connect(ctx); err != nil {
		_ = client.Close()
		return nil, err
	}
	// API servers record the time that a request spends in etcd.
	client.KV = apietcd3.NewETCDLatencyTracker(client.KV)
	b.compactor = apietcd3.NewCompactor(client.Client, cfg.CompactionInterval, clock.RealClock{}, nil)
	background, stop := context.WithCancel(context.Background())
	b.stop = stop
	b.wg.Go(func() { b.versions.run(background) })
	return b, nil
}

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
		return fmt.Errorf("etcd3: %w in %v: %w: %w", ErrUnreachable, time.Since(start).Round(time.Millisecond), utilerrors.NewAggregate(errs), err)
	}
	if slices.ContainsFunc(errs, func(err error) bool { return !errors.Is(err, ErrTLS) }) {
		return fmt.Errorf("etcd3: %w within %v: %w", ErrUnreachable, b.cfg.DialTimeout, utilerrors.NewAggregate(errs))
	}
	return fmt.Errorf("etcd3: %w", utilerrors.NewAggregate(errs))
}

// Client returns the client shared by all stores. Only Backend.Close may close it.
func (b *Backend) Client() *clientv3.Client { return b.client.Client }

// WatchProgress reports whether RequestWatchProgress is reliable now. See the package comment. It
// reads a flag.
func (b *Backend) WatchProgress() bool { return b.versions.reliable.Load() }

// Healthy makes a few linearizable reads, each from the next member, and returns nil as soon as one
// succeeds, otherwise an error of one line. If ctx has no deadline, it takes at most two seconds.
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
	err := b.askHealth(ctx)
	if err == nil {
		return nil
	}
	return fmt.Errorf("etcd3: no healthy etcd at %s (tried for %v, connection is %v): %w",
		quoted(b.cfg.Endpoints), time.Since(start).Round(time.Millisecond), b.client.ActiveConnection().GetState(), err)
}

// askHealth returns nil as soon as a read succeeds, otherwise the last error. It awaits all reads.
func (b *Backend) askHealth(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan error, healthReads)
	var reads sync.WaitGroup
	defer reads.Wait()
	defer cancel()
	for range healthReads {
		reads.Go(func() {
			_, err := b.client.KV.Get(ctx, path.Join("/", b.cfg.Prefix, "health"))
			answers <- err
		})
	}
	for range healthReads {
		if err = <-answers; err == nil {
			return nil
		}
	}
	return err
}

func quoted(endpoints []string) string {
	all := make([]string, len(endpoints))
	for i, ep := range endpoints {
		all[i] = strconv.Quote(shown(ep))
	}
	return strings.Join(all, ", ")
}

func (b *Backend) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.closed
}

// Close ends and awaits the client, the stores with their watches, and every goroutine of the
// Backend. Every call waits and returns the same error. Stop the caches before.
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
		b.watches.close()
		// After the client, so that a watch whose events are being read ends where the client
		// ended.
		for s := range stores {
			s.Close()
		}
	})
	return b.closeErr
}
