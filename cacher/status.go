// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-watchcache/watchcache/cacher/status"
)

// Status describes a cache at one time.
type Status = status.Cache

// Status returns the current status with all watchers. It locks only to copy, and wakes no sleeping
// cache.
func (c *Cacher) Status() Status {
	s, _ := c.StatusPage(status.Query{Limit: -1})
	return s
}

// StatusPage is Status with one page of watchers. The error names an invalid field of the query.
func (c *Cacher) StatusPage(q status.Query) (Status, error) {
	if err := q.Validate(); err != nil {
		return Status{}, err
	}
	s := c.running.status(q)
	s.Resource, s.Shadow = c.config.GroupResource.String(), c.config.shadowFraction
	s.Totals = c.metrics.Totals()
	if s.Errors = c.errors.all(); len(s.Errors) > 0 {
		s.LastError = &s.Errors[0]
	}
	return s, nil
}

func (e *engine) status(q status.Query) Status {
	stats := e.state.Stats()
	s := Status{
		ResourceVersion:       stats.RV,
		OldestResourceVersion: stats.OldestRV,
		Objects:               stats.Objects,
		ObjectBytes:           stats.ObjectBytes,
		WindowEvents:          stats.WindowEvents,
		WindowBytes:           stats.WindowBytes,
		EncodingBytes:         e.encodingBytes(),
		AdaptiveIndexes:       e.indexes.Adaptive(),
		WindowSince:           e.config.Clock.Now().Add(time.Duration(stats.Since) - e.time.Now()),
		Ended:                 e.fanout.Endings(),
	}
	c := e.condition.load()
	now := e.time.Now()
	timeOf := func(d time.Duration) time.Time { return e.config.Clock.Now().Add(d - now) }
	if e.condition.heardAt.Load() > 0 || c.served() {
		s.SilenceSeconds = e.condition.silence().Seconds()
		s.StorageResourceVersion = stats.RV
		s.StorageAgeSeconds = s.SilenceSeconds
		if highest := e.versions.Highest(); highest > stats.RV {
			s.StorageResourceVersion = highest
			s.StorageAgeSeconds = max(0, now-time.Duration(e.storage.rvSeenAt.Load())).Seconds()
		}
	}
	s.Silent = c.silent
	s.Ready = c.served()
	s.Since = timeOf(c.since)
	if why := c.why(); why != nil {
		s.NotReady = publicText(why)
	}
	if c.phase == paused {
		s.Paused = &status.Error{Summary: summaryPaused, Message: publicText(c.err), Time: timeOf(c.pausedSince)}
	}
	if c.contact == lost {
		s.Lost = &status.Error{Summary: summaryLost, Message: publicText(c.outageErr), Time: timeOf(c.outageSince)}
	}
	s.Watchers, s.Watches = e.fanout.Watches(q)
	return s
}

type clientKey struct{}

// WithClient returns a context for whose watches Status shows client, instead of just the context's
// user. server.Install sets it.
func WithClient(ctx context.Context, client status.Client) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

func clientOf(ctx context.Context) status.Client {
	if client, ok := ctx.Value(clientKey{}).(status.Client); ok {
		return client
	}
	if user, ok := apirequest.UserFrom(ctx); ok && user != nil {
		return status.Client{User: user.GetName()}
	}
	return status.Client{}
}
