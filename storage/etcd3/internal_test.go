// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

func TestReliableProgress(t *testing.T) {
	for version, want := range map[string]bool{
		"3.7.3": true, "3.6.0": true, "3.6.0-rc.1": true, "3.7.0-alpha.0": true, "4.0.0": true,
		"3.5.13": true, "v3.5.13": true, "3.5.21": true, "3.5.13+vendor.1": true, "3.5.14-rc.0": true,
		"3.4.31": true, "3.4.40": true,
		"3.6.0-alpha.0": false, "3.6.0-pre": false,
		"3.5.13-rc.0": false, "3.5.12": false, "3.5.0": false, "3.5.0-rc.1": false,
		"3.4.31-rc.0": false, "3.4.30": false, "3.3.27": false, "2.3.8": false,
		"": false, "3": false, "3.5": false, "unknown": false, "git": false, "3.5.x": false,
	} {
		require.Equal(t, want, reliableProgress(version), "version %q", version)
	}
}

// Every field that ends up in the etcd client's configuration.
func TestClientConfig(t *testing.T) {
	lg := zap.NewExample()
	cfg := Config{
		Endpoints:        []string{"a:1"},
		DialTimeout:      1 * time.Second,
		KeepAliveTime:    12 * time.Second,
		KeepAliveTimeout: 3 * time.Second,
		Logger:           lg,
	}.withDefaults()
	got, err := cfg.clientConfig(nil, nil)
	require.NoError(t, err)
	require.Equal(t, cfg.Endpoints, got.Endpoints)
	require.Equal(t, 1*time.Second, got.DialTimeout)
	require.Equal(t, 12*time.Second, got.DialKeepAliveTime)
	require.Equal(t, 3*time.Second, got.DialKeepAliveTimeout)
	require.Equal(t, lg.Core(), got.Logger.Core())
	require.Nil(t, got.TLS)

	got, err = Config{Endpoints: []string{"a:1"}}.withDefaults().clientConfig(nil, nil)
	require.NoError(t, err)
	require.Equal(t, DefaultDialTimeout, got.DialTimeout)
	require.Equal(t, DefaultKeepAliveTime, got.DialKeepAliveTime)
	require.Equal(t, DefaultKeepAliveTimeout, got.DialKeepAliveTimeout)
	require.False(t, got.Logger.Core().Enabled(zap.FatalLevel), "the default logger must be silent")
}

// scriptedEtcds answers for endpoints by name; "" does not answer.
type scriptedEtcds struct {
	mu    sync.Mutex
	vers  map[string]string
	asked map[string]int
}

func (s *scriptedEtcds) ask(_ context.Context, ep string) (member, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[ep]++
	if v := s.vers[ep]; v != "" {
		return member{version: v, id: numberOf(ep)}, nil
	}
	return member{}, errors.New("down")
}

// numberOf is the number of the member at an endpoint.
func numberOf(ep string) uint64 { return uint64(ep[0]) }

// versions asks s.
func (s *scriptedEtcds) versions(endpoints ...string) *versions {
	v := newVersions(endpoints, zap.NewNop())
	v.ask = s.ask
	return v
}

func (s *scriptedEtcds) set(ep, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vers[ep] = version
}

func (s *scriptedEtcds) count(ep string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[ep]
}

// elapse lets virtual time pass; it is called in a bubble only.
func elapse(d time.Duration) { <-time.After(d) }

func TestVersionsOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcds := &scriptedEtcds{vers: map[string]string{"a": "3.6.1"}, asked: map[string]int{}}
		v := etcds.versions("a", "b")

		// As in Open: one answers, and the other is waited for, but not for long.
		start := time.Now()
		require.Empty(t, v.first(t.Context()))
		require.Equal(t, stragglerTimeout, time.Since(start))
		require.Greater(t, etcds.count("b"), 1)
		require.True(t, v.reliable.Load(), "b, which has not answered, keeps nobody from relying on a")

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			v.run(ctx)
		}()
		// Only the unknown endpoint is asked again.
		asked := etcds.count("b")
		elapse(time.Minute)
		require.Equal(t, 1, etcds.count("a"))
		require.InDelta(t, time.Minute/backgroundRetry, etcds.count("b")-asked, 1)
		require.True(t, v.reliable.Load())

		// The second endpoint comes up.
		etcds.set("b", "3.5.13")
		elapse(backgroundRetry)
		synctest.Wait()
		require.True(t, v.reliable.Load())

		// For a known endpoint that is down for a while, the last answer stays.
		etcds.set("a", "")
		asked = etcds.count("a")
		elapse(3 * recheckInterval)
		synctest.Wait()
		require.Equal(t, 3, etcds.count("a")-asked)
		require.True(t, v.reliable.Load())

		// The endpoint comes back as an older version, and later as a newer one.
		etcds.set("a", "3.5.9")
		elapse(recheckInterval)
		synctest.Wait()
		require.False(t, v.reliable.Load())
		etcds.set("a", "3.5.21")
		elapse(recheckInterval)
		synctest.Wait()
		require.True(t, v.reliable.Load())

		cancel()
		<-done
	})
}

func TestFirstAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcds := &scriptedEtcds{vers: map[string]string{"a": "3.6.1", "b": "3.6.1"}, asked: map[string]int{}}
		v := etcds.versions("a", "b")
		start := time.Now()
		require.Empty(t, v.first(t.Context()))
		require.Zero(t, time.Since(start), "all have answered: nothing to wait for")
		require.True(t, v.reliable.Load())

		// If no endpoint answers: all errors, when the time is over.
		none := etcds.versions("x", "y")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start = time.Now()
		errs := none.first(ctx)
		require.Len(t, errs, 2)
		require.Equal(t, time.Minute, time.Since(start))
		require.Contains(t, errs[0].Error()+errs[1].Error(), `"x": down`)

		// Errors that waiting does not cure are returned at once.
		hopeless := newVersions([]string{"x"}, zap.NewNop())
		hopeless.ask = func(context.Context, string) (member, error) { return member{}, ErrTLS }
		start = time.Now()
		require.Len(t, hopeless.first(t.Context()), 1)
		require.Zero(t, time.Since(start))
	})
}

func TestReason(t *testing.T) {
	for text, want := range map[string]string{
		`plain`:                           "plain",
		"two\nlines":                      "two lines",
		`connection error: desc = "x"`:    "x",
		`last: desc = "a \"quoted\" one"`: `a "quoted" one`,
		`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`: "dial tcp 127.0.0.1:1: connect: connection refused",
	} {
		require.Equal(t, want, reason(errors.New(text)))
	}
}
