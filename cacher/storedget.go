// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// getHedgeDelay is how long a GET from storage may take before another one
	// is sent beside it; it doubles with each. getsInFlight bounds them.
	getHedgeDelay = 100 * time.Millisecond
	getsInFlight  = 3
)

// storedGet is a GET that storage is to answer.
type storedGet struct {
	key  string
	opts storage.GetOptions
	into runtime.Object
}

// storedResult is the answer to one of the requests for a storedGet.
type storedResult struct {
	object runtime.Object
	err    error
}

// final reports whether the result is storage's answer, and not a failure of the
// one server that the request went to.
func (r storedResult) final() bool { return r.err == nil || storage.IsNotFound(r.err) }

// hedgedGet reads the object from storage for a client that has waited for the
// cache in vain. The cache may have waited for a server that is paused, and the
// request may go to the same server: another request is sent beside it. The
// first answer counts; a failure counts if no other request is under way. Each
// request has a goroutine of its own, which ends with the answer, the context
// or the engine, and is awaited by Stop.
func (e *engine) hedgedGet(ctx context.Context, get storedGet) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	results := make(chan storedResult, getsInFlight)
	send := func() bool {
		own := get.into.DeepCopyObject()
		return e.tasks.Run(func() {
			err := e.config.Storage.Get(ctx, get.key, get.opts, own)
			results <- storedResult{own, err}
		})
	}
	if !send() {
		return e.readiness.refusal()
	}
	hedge := e.config.Clock.NewTimer(getHedgeDelay)
	defer func() { hedge.Stop() }()
	for sent, underWay := 1, 1; ; {
		select {
		case r := <-results:
			if underWay--; underWay == 0 || r.final() {
				return r.into(get.into)
			}
		case <-hedge.C():
			if sent < getsInFlight && send() {
				hedge = e.config.Clock.NewTimer(getHedgeDelay << sent)
				sent++
				underWay++
			}
		case <-ctx.Done():
			if e.ctx.Err() != nil {
				return e.readiness.refusal()
			}
			return ctx.Err()
		}
	}
}

// into copies the result to the client's object.
func (r storedResult) into(object runtime.Object) error {
	if r.err != nil {
		return r.err
	}
	target, err := conversion.EnforcePtr(object)
	if err != nil {
		return err
	}
	target.Set(reflect.ValueOf(r.object).Elem())
	return nil
}
