// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher/internal/freshness"
	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/storage/capability"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// An error of storage, or of a function of the resource, may quote an object. A secret of one
// namespace must not reach clients of another, or the log. Such errors leave the cache only through
// this file; other packages write client texts from fixed words and numbers.
// TestNothingOfObjectsLeaves checks all of them.
//
//   - Clients, Status, the page and metrics get fixed words, numbers and the reason of an
//     error (publicText, reasonOf).
//   - The log also gets keys of objects, and foreign errors up to the first part that may be
//     an object's (withoutContent).

var (
	// errDoubtful refuses a read or a watch that needs a verified state.
	errDoubtful = own("the watch cache was found to be wrong and relists")
	// errSilent explains why storage answers consistent reads.
	errSilent = own("three consecutive watches received no events or progress although storage is at a newer version")
	// errInconsistent ends the watches of a wrong state.
	errInconsistent = own("the cache differs from storage")
	// errNoProgress refuses a streamed list. Clients fall back to a list.
	errNoProgress = own("storage does not report the progress of its watch, so the initial state can't be streamed; list and watch instead")
	// errStatsUnknown is returned by a sleeping cache without stats. Given 0 objects, priority and
	// fairness would treat lists as free.
	errStatsUnknown = own("the watch cache sleeps and has not counted its objects yet")
	// errNotCaughtUp refuses a watch for now.
	errNotCaughtUp = own("the watch cache did not reach storage's version in time: watch again")
	// errNotTaken is returned to the Reflector; the log has the details.
	errNotTaken = own("the listed objects could not be used")
	// errNoAnswer replaces a timeout.
	errNoAnswer = own("requests get no answer")
	// errAway ends a read on a lost storage.
	errAway = own("storage has not answered")
	// errOwnTime ends a read shortly before its deadline.
	errOwnTime = own("storage has not answered before the deadline of this request")
	// errNoVersion replaces the error of a version request, which may contain another reader's key.
	errNoVersion = own("storage returned no resourceVersion")
)

// fault is an error in our own words.
type fault struct {
	words string
	// private is true if the words contain a key, and are for the log only.
	private bool
	// cause is another fault, a foreign error, or nil.
	cause error
}

func own(words string) error { return &fault{words: words} }

// faultf returns a fault whose words contain nothing of objects.
func faultf(cause error, format string, args ...any) error {
	return &fault{words: fmt.Sprintf(format, args...), cause: cause}
}

// keyFaultf returns a fault whose words may contain keys.
func keyFaultf(cause error, format string, args ...any) error {
	return &fault{words: fmt.Sprintf(format, args...), private: true, cause: cause}
}

func (f *fault) Error() string {
	if f.cause == nil {
		return f.words
	}
	return f.words + ": " + f.cause.Error()
}

func (f *fault) Unwrap() error { return f.cause }

var showable = []error{
	tasks.ErrStopped, watchcache.ErrGap, watchcache.ErrBackwards, watchcache.ErrExpired, watchcache.ErrCompacted, watchcache.ErrFuture,
}

// publicText returns an error's public words, followed by the text of a connection error or the
// reason of any other.
func publicText(err error) string { return textOf(err, false, foreignText) }

// textOf joins the words of faults, with private ones if private, and foreign's text for their
// cause.
func textOf(err error, private bool, foreign func(error) string) string {
	var texts []string
	for err != nil {
		f, ok := err.(*fault)
		if !ok {
			texts = append(texts, foreign(err))
			break
		}
		if private || !f.private {
			texts = append(texts, f.words)
		}
		err = f.cause
	}
	return strings.Join(texts, ": ")
}

func foreignText(err error) string {
	for _, known := range showable {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if ofConnection(err) {
		return withoutCredentials(err.Error())
	}
	return fmt.Sprintf("%s (details in the server log)", reasonOf(err))
}

// reasonOf returns the kind of an error, without its text.
func reasonOf(err error) string {
	switch {
	case storage.IsNotFound(err):
		return "NotFound"
	case errors.Is(err, context.Canceled):
		return "Canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "DeadlineExceeded"
	}
	if reason := apierrors.ReasonForError(err); reason != "" {
		return string(reason)
	}
	return "Error"
}

// withoutContent returns the error for the log: our own words, and a foreign text up to the first
// part that may be an object's. Keys under prefix stay.
func withoutContent(err error, prefix string) error {
	return errors.New(inLine(textOf(err, true, func(err error) string { return loggedText(err, prefix) }), 512))
}

// inLine truncates text to most bytes.
func inLine(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

func loggedText(err error, prefix string) string {
	switch {
	case runtime.IsMissingKind(err), runtime.IsMissingVersion(err):
		return "an object could not be decoded: its kind or version is missing"
	case ofConnection(err):
		return withoutCredentials(err.Error())
	case slices.ContainsFunc(showable, func(known error) bool { return errors.Is(err, known) }):
		return err.Error() // from our packages: numbers and keys
	}
	return cutContent(err.Error(), prefix)
}

var (
	plainKey = regexp.MustCompile(`^[A-Za-z0-9./:_-]+$`)
	userinfo = regexp.MustCompile(`//[^/@\s"]*@`)
)

// harmless are words that decoders quote.
var harmless = map[string]bool{"Kind": true, "apiVersion": true, "kind": true}

// cutContent cuts text before the first part that may be an object's, i.e. structured data,
// unprintable characters, or a quoted string other than a key under prefix.
func cutContent(text, prefix string) string {
	letter := false // before i; excludes the ' in "can't"
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == '{', r == '|', r == '\\', r == utf8.RuneError, unicode.IsControl(r) && r != '\t':
			return strings.TrimRight(text[:i], " '\"`") + "..."
		case r == '"', r == '`', r == '\'' && !letter:
			length := strings.IndexRune(text[i+1:], r)
			word := text[i+1 : i+1+max(0, length)]
			if length < 0 || !harmless[word] && !(strings.Contains(word, prefix) && plainKey.MatchString(word)) {
				return strings.TrimRight(text[:i], " ") + "..."
			}
			size = length + 2
		}
		letter = unicode.IsLetter(r)
		i += size
	}
	return text
}

func withoutCredentials(text string) string { return userinfo.ReplaceAllString(text, "//") }

// ofConnection reports whether an error is about the connection to storage or its load. The texts
// contain nothing of objects.
func ofConnection(err error) bool {
	if errors.Is(err, errNoAnswer) {
		return true
	}
	text := strings.TrimPrefix(err.Error(), "Internal error occurred: ")
	return slices.ContainsFunc(connectionErrors, func(known string) bool { return strings.HasPrefix(text, known) })
}

// connectionErrors are prefixes of errors of gRPC, etcd's client and the network.
var connectionErrors = []string{
	"rpc error: code = Unavailable desc = ",
	"rpc error: code = DeadlineExceeded desc = ",
	"rpc error: code = ResourceExhausted desc = ",
	"etcdserver: ",
	"latest balancer error: ",
	"connection error: ",
	"context deadline exceeded",
	"context canceled",
	"dial tcp ",
	"dial unix ",
	"transport is closing",
	"tls: ",
	"x509: ",
}

// API statuses. An invalid request gets the error that storage would return.

func (r *reader) notFoundError(key string, at uint64) error {
	if s, ok := r.config.Storage.(capability.PathPrefixer); ok {
		key = s.PathPrefix() + key
	}
	return storage.NewKeyNotFoundError(key, int64(at))
}

// expiredError (410) rejects a resourceVersion as too old.
func expiredError(err error) error {
	return apierrors.NewResourceExpired("too old resource version: " + err.Error())
}

// tooLargeError (504) rejects a resourceVersion that the cache, at current, has not reached.
func tooLargeError(rv, current uint64) error {
	return storage.NewTooLargeResourceVersionError(rv, current, freshness.RetrySeconds)
}

// refusedError (429) rejects a request for retry seconds. why must contain no foreign text.
func refusedError(why string, retry int) error { return apierrors.NewTooManyRequests(why, retry) }

// selectorRefusal returns the status (400) for an excessive selector. We would evaluate it for
// every object and event.
func selectorRefusal(p *storage.SelectionPredicate) error {
	if n := match.Requirements(p); n > match.MaxRequirements {
		return apierrors.NewBadRequest(fmt.Sprintf("the label and field selectors have %d requirements; at most %d are allowed", n, match.MaxRequirements))
	}
	return nil
}

// awayStatus (504) ends a read while storage is away.
func awayStatus(why error) error {
	return apierrors.NewTimeoutError(why.Error(), freshness.RetrySeconds) // errAway
}

// overStatus (504) rejects a watch past its deadline, e.g. because timeoutSeconds is negative.
func overStatus() error {
	return apierrors.NewTimeoutError("watch timed out before it started: timeoutSeconds is negative, too large, or already elapsed", freshness.RetrySeconds)
}

// undeliverableStatus (500) ends the watches of a paused cache. If storage can't read a deleted
// object, the reason and the words are those of storage's own watch.
func undeliverableStatus(why error) error {
	if apierrors.ReasonForError(why) == metav1.StatusReasonStoreReadError {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: 500, Reason: metav1.StatusReasonStoreReadError,
			Message: "saw a DELETED event, but object data is corrupt; new watches are refused until storage was listed",
		}}
	}
	return apierrors.NewInternalError(errors.New("storage cannot deliver the next change; new watches are refused until it can"))
}

// retryAfter returns 1 s to 30 s, doubling every 12 s of downtime (KEP-4568).
func retryAfter(downtime time.Duration) int {
	return int(math.Min(30, math.Exp2(downtime.Seconds()/12)))
}
