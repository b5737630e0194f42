// SPDX-License-Identifier: Apache-2.0

package source

import (
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// undeliverableAfter is how many judged errors in a row, at the same place,
	// say that the storage has an event that it can't deliver.
	undeliverableAfter = 2
	// judgedWithin is how soon after it was opened a watch comes to the event
	// that broke the one before it.
	judgedWithin = 2 * time.Second
)

// judge decides whether the errors of the storage's watches mean that the storage
// has an event that it can't deliver, and not that the storage is away. An error
// means so only if its watch was opened after the storage had answered a version
// request, if the error came soon after that, if the storage answers another
// version request after the error, and if the watch came no further than those
// before it. An error that is known to be of the connection means nothing.
type judge struct {
	// answered: the storage answered a version request before the watch was
	// opened.
	answered bool
	errors   int
}

// undeliverable judges the failure of the stream's watch.
func (j *judge) undeliverable(s *stream, from *Watch, failure watch.Event) bool {
	if failure == ended || failure == hung || OfConnection(failure) {
		j.answered = false
		return false
	}
	before := j.answered
	soon := s.source.config.Clock.Since(from.opened) < judgedWithin
	j.answered = s.source.Answers(s.ctx)
	switch {
	case !j.answered, !soon, s.furthest.came:
		j.errors = 0
	case before:
		j.errors++
	}
	return j.errors >= undeliverableAfter
}

// OfConnection reports whether a failure is known to be of the connection to
// the storage, of its members or of its load.
func OfConnection(failure watch.Event) bool {
	err := apierrors.FromObject(failure.Object)
	switch {
	case apierrors.IsServiceUnavailable(err), apierrors.IsTooManyRequests(err), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return true
	}
	// etcd's errors come as internal errors with their text.
	text := err.Error()
	for _, known := range connectionErrors {
		if strings.Contains(text, known) {
			return true
		}
	}
	return false
}

// connectionErrors are the texts of the errors that etcd's client and gRPC give
// for what is wrong with members or connections.
var connectionErrors = []string{
	rpctypes.ErrorDesc(rpctypes.ErrGRPCNoLeader),
	rpctypes.ErrorDesc(rpctypes.ErrGRPCNotLeader),
	rpctypes.ErrorDesc(rpctypes.ErrGRPCLeaderChanged),
	rpctypes.ErrorDesc(rpctypes.ErrGRPCStopped),
	rpctypes.ErrorDesc(rpctypes.ErrGRPCTimeout), // and those that it begins
	rpctypes.ErrorDesc(rpctypes.ErrGRPCUnhealthy),
	rpctypes.ErrorDesc(rpctypes.ErrGRPCNotCapable),
	rpctypes.ErrorDesc(rpctypes.ErrGRPCMemberNotFound),
	rpctypes.ErrorDesc(rpctypes.ErrGRPCRequestTooManyRequests),
	"code = Unavailable",
	"code = DeadlineExceeded",
	"code = ResourceExhausted",
	"context deadline exceeded",
	"connection refused",
	"connection reset by peer",
	"transport is closing",
	"no such host",
	"i/o timeout",
}
