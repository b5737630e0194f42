// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/internal/source"
	"github.com/kube-watchcache/watchcache/metrics"
)

// The log's advice to a person about an error that the cache recovers from.
const (
	remedyObject  = "repair or delete the object that the error names, or the changed ones if it names none; the cache then recovers by itself"
	remedyStorage = "look at the storage's health; the cache then recovers by itself"
	// remedyDifference is for a cache that has another state than its storage.
	remedyDifference = "look for a proxy or a storage of your own that drops or reorders events, and for writes to etcd's data from outside; otherwise report it, please"
	remedyFunction   = "look at the functions that compute the resource's keys and attributes, or at the object that they fail for"
)

// summaryPaused says what happens when a cache pauses.
const summaryPaused = "Storage cannot deliver the next change. The watch cache is paused: watches are refused, reads that need more than it has go to storage, and it lists storage again and again until that succeeds"

// undeliverable pauses the cache: storage has something that it can't deliver
// though it answers, most likely an object that can't be decoded. Watches end
// with the error, and new ones are refused. Reads are answered from the state as
// far as it is fresh enough for them, and by storage beyond that.
func (e *engine) undeliverable(failure watch.Event) {
	e.metrics.Undeliverable()
	e.relists(metrics.RelistUndeliverable)
	err := apierrors.FromObject(failure.Object)
	e.readiness.pause(err)
	e.waiting.Pause(true)
	e.warn("undeliverable", summaryPaused, err, remedyObject)
	e.fanout.Fail(failure)
}

// follow ends a pause: storage was listed.
func (e *engine) follow() {
	e.fanout.Follow()
	e.waiting.Pause(false)
	e.readiness.follow()
}

// listFailed notes that storage could not be listed: storage is away, or it has
// something that can't be read.
func (e *engine) listFailed(ctx context.Context, err error) {
	err = fmt.Errorf("listing the storage of %s: %w", e.config.GroupResource, err)
	e.metrics.FillFailed()
	e.readiness.failed(err)
	e.contact.failed(e.time.Now(), err)
	failure := source.Failure(err)
	away := source.OfConnection(failure) || source.Expired(failure) || !e.source.Answers(ctx)
	switch {
	case away && e.storageIsLost():
		e.noteError("The storage could not be listed. The watch cache tries again", err)
	case away:
		e.warn("list", "The storage could not be listed. The watch cache tries again", err, remedyStorage)
	case e.readiness.ready():
		e.undeliverable(failure)
	default:
		e.metrics.Undeliverable()
		e.readiness.notListable()
		e.warn("undeliverable", "Storage cannot deliver its objects. The watch cache is not ready, and tries again", err, remedyObject)
	}
}

// watchBroke notes that a watch of storage ended and is to be resumed.
func (e *engine) watchBroke(err error) {
	e.metrics.WatchBroken()
	err = fmt.Errorf("watching the storage of %s: %w", e.config.GroupResource, err)
	e.readiness.failed(err)
	e.contact.failed(e.time.Now(), err)
	e.noteError("A watch of the storage ended. The watch cache resumes it", err)
}

// watchStaysBroken notes that watches of storage have failed for some time.
func (e *engine) watchStaysBroken(err error) {
	if e.storageIsLost() {
		return // the log has it, and watchBroke has noted the error
	}
	e.warn("watch", "The storage cannot be watched. The watch cache goes on with what it has and tries again", err, remedyStorage)
}

// withoutContent returns err without what may be an object's content, which the
// errors of decoders quote: it may be a secret. The result ends before the
// first part that may be content.
func withoutContent(err error) error {
	if runtime.IsMissingKind(err) || runtime.IsMissingVersion(err) {
		return errContent
	}
	text := err.Error()
	end := strings.IndexFunc(text, func(r rune) bool {
		return r == '{' || r == '|' || r == '\\' || r == unicode.ReplacementChar || (unicode.IsControl(r) && r != '\t')
	})
	const most = 512
	switch {
	case end >= 0 && end <= most:
		text = strings.TrimRight(text[:end], " '\"") + "..."
	case len(text) > most:
		text = strings.ToValidUTF8(text[:most], "") + "..."
	default:
		return err
	}
	return errors.New(text)
}
