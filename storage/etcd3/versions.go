// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/version"
)

const (
	// stragglerTimeout is how long Open waits for other endpoints after the first answer.
	stragglerTimeout = time.Second
	askTimeout       = 5 * time.Second
	// recheckInterval is the time between checks, since a rolling upgrade or downgrade changes the
	// result.
	recheckInterval = 10 * time.Minute
)

// Pauses between requests to a silent endpoint: doubling in Open, constant in the background.
const (
	firstRetry, lastRetry = 50 * time.Millisecond, time.Second
	backgroundRetry       = 2 * time.Second
)

// versions tracks which endpoints answer progress requests reliably.
//
// We must be able to use the other members while one is down, and that one may be of an old version
// when it returns. So trusts decides about each report by its sender.
type versions struct {
	endpoints []string
	// Set before the first call of a method.
	ask    func(ctx context.Context, endpoint string) (member, error)
	logger *zap.Logger

	// reliable is true if an endpoint answered, and all that did are reliable.
	reliable atomic.Bool
	// silent are the endpoints whose silence was logged after their last answer.
	silent sync.Map
	mu     struct {
		sync.Mutex
		// Whether each endpoint and member is reliable, for those that ever answered.
		endpoints map[string]bool
		members   map[uint64]bool
	}
}

// member is the identity of a server, empty for a server other than etcd.
type member struct {
	version string
	id      uint64
}

func newVersions(endpoints []string, lg *zap.Logger) *versions {
	v := &versions{endpoints: endpoints, logger: lg}
	v.mu.endpoints = make(map[string]bool)
	v.mu.members = make(map[uint64]bool)
	return v
}

// trusts reports whether to use a member's answer to a progress request. We reject an unknown
// member until every endpoint has answered, because it may be behind a silent one. After that, it
// is behind a proxy endpoint, whose answer counts for it.
func (v *versions) trusts(id uint64) bool {
	v.mu.Lock()
	reliable, known := v.mu.members[id]
	v.mu.Unlock()
	if known && id != 0 {
		return reliable
	}
	return len(v.unknown()) == 0
}

// first queries all endpoints. It returns nil when one answered and the others did, or after
// stragglerTimeout, or an error for each endpoint.
func (v *versions) first(ctx context.Context) []error {
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan error, len(v.endpoints))
	var wg sync.WaitGroup
	for _, ep := range v.endpoints {
		wg.Go(func() { answers <- v.insist(ctx, ep) })
	}
	defer wg.Wait()
	defer cancel()

	var errs []error
	var patience <-chan time.Time
	for range v.endpoints {
		select {
		case err := <-answers:
			if err != nil {
				errs = append(errs, err)
			} else if patience == nil {
				patience = time.After(stragglerTimeout)
			}
		case <-patience:
			return nil
		}
	}
	if patience != nil {
		return nil
	}
	return errs
}

// insist queries the endpoint until it answers, fails permanently, or ctx ends. It then returns the
// last error other than ctx's.
func (v *versions) insist(ctx context.Context, endpoint string) error {
	var last error
	for delay := firstRetry; ; delay = min(2*delay, lastRetry) {
		err := v.check(ctx, endpoint)
		if err == nil || errors.Is(err, ErrTLS) {
			return err
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			text := reason(last)
			if strings.Contains(text, "context ") { // gRPC's own words for ctx
				text = "no answer"
			}
			return fmt.Errorf("%q: %s", endpoint, text)
		case <-time.After(delay):
		}
	}
}

// check records the endpoint's answer, if any.
func (v *versions) check(ctx context.Context, endpoint string) error {
	who, err := v.ask(ctx, endpoint)
	if err != nil {
		return err
	}
	ok := reliableProgress(who.version)
	v.mu.Lock()
	defer v.mu.Unlock()
	if before, known := v.mu.endpoints[endpoint]; !ok && (!known || before) {
		v.logger.Warn("This etcd does not answer progress requests reliably, as 3.4.31, 3.5.13, 3.6 and later versions do: caches send none, and consistent reads go to etcd",
			zap.String("endpoint", endpoint), zap.String("version", who.version))
	}
	v.mu.endpoints[endpoint] = ok
	v.mu.members[who.id] = ok
	v.silent.Delete(endpoint)
	reliable := true
	for _, ok := range v.mu.endpoints {
		reliable = reliable && ok
	}
	v.reliable.Store(reliable)
	return nil
}

func (v *versions) unknown() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(v.endpoints), func(ep string) bool { _, known := v.mu.endpoints[ep]; return known })
}

// run rechecks endpoints until ctx ends, beginning with those that never answered.
func (v *versions) run(ctx context.Context) {
	for {
		eps, wait := v.unknown(), backgroundRetry
		if len(eps) == 0 {
			eps, wait = v.endpoints, recheckInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		var wg sync.WaitGroup
		for _, ep := range eps {
			wg.Go(func() {
				err := v.check(asking, ep)
				if err == nil || asking.Err() != nil {
					return
				}
				if _, logged := v.silent.LoadOrStore(ep, nil); !logged {
					v.logger.Warn("An etcd endpoint does not answer; it is asked again", zap.String("endpoint", ep), zap.String("reason", reason(err)))
				}
			})
		}
		wg.Wait()
		cancel()
	}
}

// reliableProgress reports whether an etcd of this version sends correct progress reports on
// request: it has the fixes of etcd-io/etcd#15220 and #17507, released in 3.4.31, 3.5.13 and 3.6.
// It returns false for text other than a version.
func reliableProgress(ver string) bool {
	v, err := version.ParseSemantic(ver)
	if err != nil {
		return false
	}
	fixed := "3.6.0-rc" // its alphas and builds may lack the fix, unlike its candidates
	switch {
	case v.Major() == 3 && v.Minor() == 4:
		fixed = "3.4.31"
	case v.Major() == 3 && v.Minor() == 5:
		fixed = "3.5.13"
	}
	return v.AtLeast(version.MustParseSemantic(fixed))
}
