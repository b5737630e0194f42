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

// An error of storage, or of a function of the resource, may quote an object: a secret of one
// namespace must not reach a client of another, nor the log. Such errors leave the cache
// only through this file. Other packages write texts for clients from fixed words and
// numbers alone. TestNothingOfObjectsLeaves looks at all of them.
//
//   - Clients, Status, the page and metrics get fixed words, numbers and the reason of an
//     error (publicText, reasonOf).
//   - The log also gets keys of objects, and the text of foreign errors up to the first
//     part that may be an object's (withoutContent).

// The package's own errors.
var (
	// errDoubtful refuses a read or a watch that must be right while the cache is
	// known to be wrong.
	errDoubtful = own("the watch cache was found to be wrong and relists")
	// errSilent is why consistent reads are left to storage.
	errSilent = own("three consecutive watches received no events or progress although storage is at a newer version")
	// errInconsistent is why a cache that was found to be wrong lists again.
	errInconsistent = own("the cache differs from storage")
	// errNoProgress refuses a stream of the initial state that could not be
	// brought up to date. Clients fall back to a list on any error.
	errNoProgress = own("storage does not report the progress of its watch, so the initial state can't be streamed; list and watch instead")
	// errStatsUnknown is returned by a sleeping cache that has never computed its
	// stats: after a zero, priority and fairness would take its lists for free.
	errStatsUnknown = own("the watch cache sleeps and has not counted its objects yet")
	// errNotCaughtUp refuses a watch from the most recent state for now.
	errNotCaughtUp = own("the watch cache did not reach storage's version in time: watch again")
	// errNotTaken is why a list came to nothing; the log has more.
	errNotTaken = own("the listed objects could not be used")
	// errNoAnswer is the fault of a storage that lets requests wait.
	errNoAnswer = own("requests get no answer")
	// errAway ends a read that only storage can answer.
	errAway = own("storage has not answered")
	// errOwnTime ends a read whose own deadline is near.
	errOwnTime = own("storage has not answered before the deadline of this request")
	// errNoVersion is shared by all reads that waited for a failed version request,
	// whose own error may name the key of one of them.
	errNoVersion = own("storage returned no resourceVersion")
)

// fault is an error in the cache's own words, perhaps about another error.
type fault struct {
	words string
	// private: the words have the key of an object, and are for the log alone.
	private bool
	// cause is another fault, or an error of storage or of a function of the
	// resource, or nil.
	cause error
}

func own(words string) error { return &fault{words: words} }

// faultf returns a fault without keys of objects and without anything of objects.
func faultf(cause error, format string, args ...any) error {
	return &fault{words: fmt.Sprintf(format, args...), cause: cause}
}

// keyFaultf returns a fault whose words may have keys of objects.
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

// showable are errors of other packages of ours with fixed texts.
var showable = []error{
	tasks.ErrStopped, watchcache.ErrGap, watchcache.ErrBackwards, watchcache.ErrExpired, watchcache.ErrCompacted, watchcache.ErrFuture,
}

// publicText returns the public part of an error: the cache's own words without keys, a
// failed connection to storage, or else the error's reason.
func publicText(err error) string { return textOf(err, false, foreignText) }

// textOf joins the words of faults, private ones or not, and what foreign says of the error
// that has caused them.
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

// reasonOf names the kind of an error, whose text may have the key of an object.
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

// withoutContent returns the error for the log: our own words, and the text of a foreign
// error up to the first part that may be an object's. Keys under the prefix stay.
func withoutContent(err error, prefix string) error {
	return errors.New(inLine(textOf(err, true, func(err error) string { return loggedText(err, prefix) }), 512))
}

// inLine cuts a text to a length fit for a line.
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
		return err.Error() // of a package of ours: numbers and keys
	}
	return cutContent(err.Error(), prefix)
}

var (
	plainKey = regexp.MustCompile(`^[A-Za-z0-9./:_-]+$`)
	userinfo = regexp.MustCompile(`//[^/@\s"]*@`)
)

// harmless are words that decoders quote and that are no content.
var harmless = map[string]bool{"Kind": true, "apiVersion": true, "kind": true}

// cutContent cuts a text before the first part that may come from an object: a quoted
// string that is no key under the prefix, structured data, or unprintable characters.
func cutContent(text, prefix string) string {
	letter := false // before i: the ' of "can't" quotes nothing
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

// withoutCredentials removes user and password from the URLs in a text.
func withoutCredentials(text string) string { return userinfo.ReplaceAllString(text, "//") }

// ofConnection reports whether an error is one of the connection to storage, of its
// members or of their load, whose text has nothing of an object.
func ofConnection(err error) bool {
	if errors.Is(err, errNoAnswer) {
		return true
	}
	text := strings.TrimPrefix(err.Error(), "Internal error occurred: ")
	return slices.ContainsFunc(connectionErrors, func(known string) bool { return strings.HasPrefix(text, known) })
}

// connectionErrors begin the errors of gRPC, of etcd's client and of the network.
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

// The API statuses that requests are answered with. A request that is wrong gets the error
// that storage would return.

// notFoundError says that there was no object with the key at a resourceVersion.
func (e *engine) notFoundError(key string, at uint64) error {
	if s, ok := e.config.Storage.(capability.PathPrefixer); ok {
		key = s.PathPrefix() + key
	}
	return storage.NewKeyNotFoundError(key, int64(at))
}

// expiredError (410) answers a resourceVersion that is too old.
func expiredError(err error) error {
	return apierrors.NewResourceExpired("too old resource version: " + err.Error())
}

// tooLargeError (504, "too large resource version") answers a resourceVersion
// that the cache, at current, has not reached.
func tooLargeError(rv, current uint64) error {
	return storage.NewTooLargeResourceVersionError(rv, current, freshness.RetrySeconds)
}

// refusedError (429) answers a request that must be tried again after some seconds. why
// is a text of the cache's own.
func refusedError(why string, retry int) error { return apierrors.NewTooManyRequests(why, retry) }

// selectorRefusal returns the status (400) for selectors that are too long to be of use, nil
// for others. What one costs, it costs for each object and each event.
func selectorRefusal(p *storage.SelectionPredicate) error {
	if n := match.Requirements(p); n > match.MaxRequirements {
		return apierrors.NewBadRequest(fmt.Sprintf("the label and field selectors have %d requirements; at most %d are allowed", n, match.MaxRequirements))
	}
	return nil
}

// awayStatus (504) answers a read that only storage can answer, while storage is
// away.
func awayStatus(why error) error {
	return apierrors.NewTimeoutError(why.Error(), freshness.RetrySeconds) // errAway
}

// overStatus (504) answers a watch whose time is over before it begins, as that of a
// timeoutSeconds that is negative or doesn't fit.
func overStatus() error {
	return apierrors.NewTimeoutError("watch timed out before it started: timeoutSeconds is negative, too large, or already elapsed", freshness.RetrySeconds)
}

// undeliverableStatus (500) ends the watches of a cache that is paused. An object that
// was deleted though storage could not read it has the reason and the words of
// storage's own watch.
func undeliverableStatus(why error) error {
	if apierrors.ReasonForError(why) == metav1.StatusReasonStoreReadError {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: 500, Reason: metav1.StatusReasonStoreReadError,
			Message: "saw a DELETED event, but object data is corrupt; new watches are refused until storage was listed",
		}}
	}
	return apierrors.NewInternalError(errors.New("storage cannot deliver the next change; new watches are refused until it can"))
}

// retryAfter is the Retry-After, in seconds, of a refusal for a reason that has
// lasted for so long: from 1 s to 30 s, doubling about every 12 s (KEP-4568).
func retryAfter(downtime time.Duration) int {
	return int(math.Min(30, math.Exp2(downtime.Seconds()/12)))
}
