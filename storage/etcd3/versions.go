// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/version"
)

const (
	// stragglerTimeout is how long Open waits for the other endpoints after
	// one has answered. They are asked again in the background.
	stragglerTimeout = time.Second
	// askTimeout bounds one question of the background check.
	askTimeout = 5 * time.Second
	// recheckInterval is how often endpoints that have answered are asked
	// again: a rolling upgrade or downgrade changes the answer.
	recheckInterval = 10 * time.Minute
)

// The delay between questions to an endpoint that does not answer, doubled
// from the first to the second, while Open waits and in the background.
const (
	firstRetry, lastRetry                     = 50 * time.Millisecond, time.Second
	firstBackgroundRetry, lastBackgroundRetry = time.Second, time.Minute
)

// versions knows which endpoints answer progress requests reliably. It learns
// it in first, which Open calls, and in run, which is a goroutine of the
// Backend.
type versions struct {
	endpoints []string
	ask       func(ctx context.Context, endpoint string) (string, error)
	logger    *zap.Logger

	// all is true when each endpoint has answered and is reliable.
	all atomic.Bool
	mu  struct {
		sync.Mutex
		// reliable has an entry for each endpoint that has ever answered.
		reliable map[string]bool
	}
}

func newVersions(endpoints []string, ask func(context.Context, string) (string, error), lg *zap.Logger) *versions {
	v := &versions{endpoints: endpoints, ask: ask, logger: lg}
	v.mu.reliable = make(map[string]bool)
	return v
}

// answer is what one endpoint said, or why it did not.
type answer struct {
	endpoint string
	err      error
}

// first asks all endpoints until one has answered and the others have had
// their chance. Without any answer it returns one error for each endpoint.
func (v *versions) first(ctx context.Context) []error {
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan answer, len(v.endpoints))
	var wg sync.WaitGroup
	for _, ep := range v.endpoints {
		wg.Go(func() { answers <- answer{ep, v.insist(ctx, ep)} })
	}
	defer wg.Wait()
	defer cancel()

	var errs []error
	var patience <-chan time.Time
	for range v.endpoints {
		select {
		case a := <-answers:
			if a.err != nil {
				errs = append(errs, a.err)
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

// insist asks until the endpoint answers, until asking is useless, or until
// ctx ends; then it returns the last reason that was not ctx.
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

// check asks one endpoint once and keeps what it learns. An endpoint that does
// not answer keeps what it said before.
func (v *versions) check(ctx context.Context, endpoint string) error {
	ver, err := v.ask(ctx, endpoint)
	if err != nil {
		return err
	}
	ok := reliableProgress(ver)
	v.mu.Lock()
	defer v.mu.Unlock()
	if before, known := v.mu.reliable[endpoint]; !ok && (!known || before) {
		v.logger.Warn("this etcd does not answer progress requests reliably: they are not used",
			zap.String("endpoint", endpoint), zap.String("version", ver))
	}
	v.mu.reliable[endpoint] = ok
	all := true
	for _, ep := range v.endpoints {
		all = all && v.mu.reliable[ep]
	}
	v.all.Store(all)
	return nil
}

// unknown returns the endpoints that have never answered.
func (v *versions) unknown() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var eps []string
	for _, ep := range v.endpoints {
		if _, known := v.mu.reliable[ep]; !known {
			eps = append(eps, ep)
		}
	}
	return eps
}

// run asks endpoints that have not answered again and again, and all of them
// from time to time. It ends with ctx.
func (v *versions) run(ctx context.Context) {
	retry := firstBackgroundRetry
	for {
		eps, wait := v.unknown(), retry
		if len(eps) == 0 {
			eps, wait, retry = v.endpoints, recheckInterval, firstBackgroundRetry
		} else {
			retry = min(2*retry, lastBackgroundRetry)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		v.round(ctx, eps)
	}
}

// round asks each of eps once, all at the same time.
func (v *versions) round(ctx context.Context, eps []string) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, ep := range eps {
		wg.Go(func() {
			if err := v.check(ctx, ep); err != nil && ctx.Err() == nil {
				v.logger.Warn("this endpoint does not answer", zap.String("endpoint", ep), zap.String("reason", reason(err)))
			}
		})
	}
	wg.Wait()
}

// reliableProgress reports whether an etcd of this version answers a progress
// request with a revision that its watches have really reached: the versions
// with etcd-io/etcd#15220 and #17507 fixed, 3.4.31, 3.5.13 and 3.6. What is
// not a version, and what came before a release that has the fix, does not.
func reliableProgress(ver string) bool {
	v, err := version.ParseSemantic(ver)
	if err != nil {
		return false
	}
	major, minor, patch := v.Major(), v.Minor(), v.Patch()
	var fixed uint // the first release of this minor version that has the fix
	switch {
	case major > 3 || (major == 3 && minor > 6):
		return true
	case major < 3 || minor < 4:
		return false
	case minor == 4:
		fixed = 31
	case minor == 5:
		fixed = 13
	case strings.HasPrefix(v.PreRelease(), "rc"):
		return true // 3.6.0's candidates came after the fix, its alphas and builds may not have
	}
	return patch > fixed || (patch == fixed && v.PreRelease() == "")
}
