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
	// stragglerTimeout is how long Open waits for the other endpoints after one
	// has answered. Endpoints that have not answered by then are asked again in
	// the background.
	stragglerTimeout = time.Second
	// askTimeout bounds one request of the background check.
	askTimeout = 5 * time.Second
	// recheckInterval is how often endpoints that have answered are asked
	// again: a rolling upgrade or downgrade changes the answer.
	recheckInterval = 10 * time.Minute
)

// The delay between requests to an endpoint that does not answer: while Open waits,
// doubled each time from the first value up to the last, and in the background.
const (
	firstRetry, lastRetry = 50 * time.Millisecond, time.Second
	backgroundRetry       = 2 * time.Second
)

// versions keeps track of which endpoints answer progress requests reliably.
// The endpoints are asked by first, which Open calls, and by run, which is a
// goroutine of the Backend.
//
// A member that is down must not prevent the use of the others, and may be of
// an old version when it comes back. So trusts decides about each report by the
// member that sent it.
type versions struct {
	endpoints []string
	// ask is set before the first call of a method.
	ask    func(ctx context.Context, endpoint string) (member, error)
	logger *zap.Logger

	// reliable is true when an endpoint has answered and each one that has is
	// reliable.
	reliable atomic.Bool
	// silent are the endpoints whose silence was logged since their last answer.
	silent sync.Map
	mu     struct {
		sync.Mutex
		// endpoints and members have an entry for each endpoint and member that has
		// ever answered: whether it is reliable.
		endpoints map[string]bool
		members   map[uint64]bool
	}
}

// member is the identity of a server: its version of etcd and its member ID.
// Both are empty for a server that is not etcd.
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

// trusts reports whether a member's answer to a progress request counts. If the
// member's version is not known, the answer does not count as long as some
// endpoint has never answered, because the member may be behind that endpoint,
// which run asks every other second. (When all endpoints have answered, an
// unknown member is behind an endpoint that is a proxy, and the proxy's answer
// counts for it.)
func (v *versions) trusts(id uint64) bool {
	v.mu.Lock()
	reliable, known := v.mu.members[id]
	v.mu.Unlock()
	if known && id != 0 {
		return reliable
	}
	return len(v.unknown()) == 0
}

// first asks all endpoints until one has answered and the others have had
// stragglerTimeout to answer. Without any answer first returns one error for
// each endpoint.
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

// insist asks the endpoint until it answers, until the error can't go away by
// asking again, or until ctx ends; then insist returns the last error that was
// not ctx's.
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

// check asks one endpoint once and records the answer. For an endpoint that
// does not answer, the last answer stays.
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

// unknown returns the endpoints that have never answered.
func (v *versions) unknown() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(v.endpoints), func(ep string) bool { _, known := v.mu.endpoints[ep]; return known })
}

// run asks endpoints that have not answered again and again, and all of them from time to
// time once they have. run ends with ctx.
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

// reliableProgress reports whether an etcd of this version answers a progress
// request with a revision that its watches have really reached: the versions
// with etcd-io/etcd#15220 and #17507 fixed, 3.4.31, 3.5.13 and 3.6. For text
// that is not a version, and for builds from before the release with the fix,
// the result is false.
func reliableProgress(ver string) bool {
	v, err := version.ParseSemantic(ver)
	if err != nil {
		return false
	}
	fixed := "3.6.0-rc" // its candidates came after the fix, its alphas and builds may not have
	switch {
	case v.Major() == 3 && v.Minor() == 4:
		fixed = "3.4.31"
	case v.Major() == 3 && v.Minor() == 5:
		fixed = "3.5.13"
	}
	return v.AtLeast(version.MustParseSemantic(fixed))
}
