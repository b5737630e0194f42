// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/klog/v2"
)

// Asked is what a handler of Listings.Answer knows of a request.
type Asked struct {
	Resource schema.GroupVersionResource
	// Gzip: the server, of itself, compresses a long answer.
	Gzip bool
}

// Answer returns a handler for the requests of next, which answers lists of
// custom resources from kept bytes. asked reports for which requests next would
// answer with a list in compact JSON that nobody else looks at, as an audit log
// does. Answer stands within everything that looks at the response.
//
// The first list that could be answered so is written by next, and compared. A
// server that has ever written another one is left alone.
func (l *Listings) Answer(next http.Handler, asked func(*http.Request) (Asked, bool)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !l.answering.Load() {
			next.ServeHTTP(w, r)
			return
		}
		what, ok := asked(r)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		answer := &Answer{resource: what.Resource, gzip: what.Gzip}
		held := &answerWriter{ResponseWriter: w, answer: answer}
		before := w.Header().Clone()
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(held), r.WithContext(context.WithValue(r.Context(), answerKey{}, answer)))
		if held.end() {
			return
		}
		// Nothing was written. The server writes the list itself, now and from now on.
		clear(w.Header())
		maps.Copy(w.Header(), before)
		next.ServeHTTP(w, r)
	})
}

// SwitchOnAnswers makes the handlers of Answer do something.
func (l *Listings) SwitchOnAnswers() { l.answering.Store(true) }

func (s *Store) refuseAnswers(why string) {
	if s.answers.refused.CompareAndSwap(false, true) {
		klog.ErrorS(errors.New(why), "Kept bytes can't be used for lists of one custom resource; each is encoded again for every request. Report it with the definition of the resource, please")
	}
}

// answerWriter is the response to a request that a cache may have an Answer for.
type answerWriter struct {
	http.ResponseWriter
	answer *Answer

	begun bool
	// held: the server writes the list without items. Nothing of that is passed on.
	// got is what it has written, and want what it is expected to.
	held, broken, answered bool
	list                   *assembly
	store                  *Store
	got, want              []byte
	// compared is the whole list as it should be, if the server writes it whole, and
	// zipped is what it has written, if that is compressed.
	compared *comparison
	zipped   *bytes.Buffer
	failed   bool // a Write has failed, so that nothing can be compared
}

var _ responsewriter.UserProvidedDecorator = (*answerWriter)(nil)

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// maxProof is the length of the longest compressed list that is compared.
const maxProof = 64 << 20

// WriteHeader implements http.ResponseWriter.
func (w *answerWriter) WriteHeader(status int) {
	if w.begun {
		if !w.held {
			w.ResponseWriter.WriteHeader(status)
		}
		return
	}
	w.begun = true
	list, omitted, store := w.answer.outcome()
	if list == nil {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.list, w.store = list, store
	if omitted {
		w.held = true
		w.want = append(bytes.Clone(list.frame.head), list.frame.tail...)
		w.broken = status != http.StatusOK || w.Header().Get("Content-Encoding") != ""
		return
	}
	if status == http.StatusOK {
		w.compare()
	}
	w.ResponseWriter.WriteHeader(status)
}

// compare prepares to compare the list that the server writes.
func (w *answerWriter) compare() {
	compared, err := comparisonWith(w.list.writePlain)
	switch encoding := w.Header().Get("Content-Encoding"); {
	case err != nil:
		return
	case encoding == "gzip":
		w.zipped = &bytes.Buffer{}
	case encoding != "":
		return
	}
	w.compared = compared
}

// Write implements http.ResponseWriter.
func (w *answerWriter) Write(p []byte) (int, error) {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	if w.held {
		return w.hold(p)
	}
	n, err := w.ResponseWriter.Write(p)
	switch {
	case err != nil:
		w.failed = true
	case w.compared == nil:
	case w.zipped == nil:
		_, _ = w.compared.Write(p) // which notes a difference
	case w.zipped.Len()+len(p) > maxProof:
		w.failed = true
	default:
		w.zipped.Write(p)
	}
	return n, err
}

// hold takes what the server writes of the list without items. Once that is whole
// and as expected, the list with its items takes its place.
func (w *answerWriter) hold(p []byte) (int, error) {
	w.got = append(w.got, p...)
	if w.answered || w.broken || !bytes.HasPrefix(w.want, w.got) {
		w.broken = true
		w.got = nil
		return len(p), nil
	}
	if len(w.got) < len(w.want) {
		return len(p), nil
	}
	w.answered = true
	w.got = nil
	if err := w.write(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// write writes the list to the client, compressed where the server would.
func (w *answerWriter) write() error {
	begin, length := w.list.beginning()
	w.list.once = !checkEach
	if !w.answer.gzip || length <= compressedFrom {
		w.ResponseWriter.WriteHeader(http.StatusOK)
		return w.list.writePlain(w.ResponseWriter)
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Add("Vary", "Accept-Encoding")
	w.ResponseWriter.WriteHeader(http.StatusOK)
	member := append(make([]byte, 0, len(begin)+32), gzipHeader[:]...)
	if _, err := w.ResponseWriter.Write(appendStored(member, begin, false)); err != nil {
		return err
	}
	return w.list.writeMember(w.ResponseWriter, begin)
}

// Flush implements http.Flusher.
func (w *answerWriter) Flush() {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	if flusher, ok := w.ResponseWriter.(http.Flusher); ok && (!w.held || w.answered) {
		flusher.Flush()
	}
}

// end ends the answer. end returns false if the client has got nothing.
func (w *answerWriter) end() bool {
	if w.held {
		if w.broken || !w.answered {
			w.store.refuseAnswers("the server writes a list without items otherwise than expected")
		}
		return w.answered
	}
	if !w.begun {
		list, omitted, _ := w.answer.outcome()
		return list == nil || !omitted
	}
	w.prove()
	return true
}

// prove notes whether the server has written the list as it is put together here.
func (w *answerWriter) prove() {
	if w.compared == nil || w.failed {
		return
	}
	if w.zipped != nil {
		unzipped, err := gzip.NewReader(w.zipped)
		if err == nil {
			_, err = io.Copy(w.compared, unzipped)
		}
		if err != nil && !w.compared.differs {
			return // the client, or the server, has ended it in the middle
		}
	}
	switch {
	case w.compared.same():
		w.store.answers.proven.Store(true)
	case w.compared.differs:
		w.store.refuseAnswers("a list put together of kept bytes differs from the same list as the server writes it")
	}
}
