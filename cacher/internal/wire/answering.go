// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/klog/v2"
)

// Answer returns a handler for the requests of next, which answers lists of
// custom resources from kept bytes. asked reports for which requests next would
// answer with a list, in the format that asked returns, that nobody else looks at,
// as an audit log does. Answer stands within everything that looks at the response.
//
// The first list that could be answered so is written by next, and compared, for
// each form. A server that has ever written another one is left alone.
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
		answer := &Answer{Asked: what}
		answer.request = r.WithContext(context.WithValue(r.Context(), answerKey{}, answer))
		if answer.id().table {
			answer.ownRequest()
		}
		held := &answerWriter{ResponseWriter: w, answer: answer}
		before := w.Header().Clone()
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(held), answer.request)
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

// refuse leaves answers of this kind to the server, from now on.
func (j *judgement) refuse(why string) {
	if j.refused.CompareAndSwap(false, true) {
		klog.ErrorS(errors.New(why), "Kept bytes can't be used for lists of one custom resource in one form; each is encoded again for every request. Report it with the definition of the resource, please",
			"form", fmt.Sprintf("%+v", j.id))
	}
}

// answerWriter is the response to a request that a cache may have an Answer for.
type answerWriter struct {
	http.ResponseWriter
	answer *Answer

	begun bool
	made  *answered // nil if the server writes the answer as ever
	// held: the server writes a part of the answer. Nothing of that is passed on. got
	// is what it has written.
	held, broken, answered bool
	got                    []byte
	// compared is the whole list as it should be, if the server writes it whole. wrote
	// is what it has written, if that is compressed or a Table, and zipped if it is
	// compressed.
	compared *comparison
	wrote    *bytes.Buffer
	zipped   bool
	failed   bool // a Write has failed, so that nothing can be compared
}

var _ responsewriter.UserProvidedDecorator = (*answerWriter)(nil)

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// maxProof is the length of the longest list that is compared, if it is compressed
// or a Table.
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
	if w.made = w.answer.outcome(); w.made == nil {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	if w.made.partly {
		w.held = true
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
	switch encoding := w.Header().Get("Content-Encoding"); encoding {
	case "":
	case "gzip":
		w.zipped = true
	default:
		return
	}
	compared := &comparison{}
	if !w.made.table {
		var err error
		if compared, err = comparisonWith(w.made.list.writePlain); err != nil {
			return
		}
	}
	w.compared = compared
	if w.zipped || w.made.table {
		w.wrote = &bytes.Buffer{}
	}
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
	case w.wrote == nil:
		_, _ = w.compared.Write(p) // which notes a difference
	case w.wrote.Len()+len(p) > maxProof:
		w.failed, w.wrote = true, &bytes.Buffer{}
	case !w.failed:
		w.wrote.Write(p)
	}
	return n, err
}

// hold takes what the server writes of a part of the answer. Once that is whole and as
// expected, the answer takes its place.
func (w *answerWriter) hold(p []byte) (int, error) {
	if w.broken || w.answered {
		w.broken = true
		return len(p), nil
	}
	w.got = append(w.got, p...)
	var whole written
	switch {
	case w.made.table:
		if !bytes.HasSuffix(w.got, []byte(afterRows)) {
			return len(p), nil // which is in the middle: no string of JSON has a line feed
		}
		table := w.made.withObjects(w.got)
		if w.broken = table == nil; w.broken {
			break
		}
		whole = table
	case !bytes.HasPrefix(w.made.want, w.got):
		w.broken = true
	case len(w.got) < len(w.made.want):
		return len(p), nil
	default:
		whole = w.made.list
	}
	w.got = nil
	if w.broken {
		return len(p), nil
	}
	w.answered = true
	if err := w.write(whole); err != nil {
		return 0, err
	}
	return len(p), nil
}

// written is an answer about to be written.
type written interface {
	body
	// beginning returns what precedes the items, and the length of the whole.
	beginning() (begin []byte, length int)
}

// write writes the answer to the client, compressed where the server would.
func (w *answerWriter) write(whole written) error {
	begin, length := whole.beginning()
	w.made.list.once = !checkEach
	if !w.answer.Gzip || length <= compressedFrom {
		w.ResponseWriter.WriteHeader(http.StatusOK)
		return whole.writePlain(w.ResponseWriter)
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Add("Vary", "Accept-Encoding")
	w.ResponseWriter.WriteHeader(http.StatusOK)
	member := append(make([]byte, 0, len(begin)+32), gzipHeader[:]...)
	if _, err := w.ResponseWriter.Write(appendStored(member, begin, false)); err != nil {
		return err
	}
	return whole.writeMember(w.ResponseWriter, begin)
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
			w.made.judged.refuse("the server writes a list without items otherwise than expected")
		}
		return w.answered
	}
	if !w.begun {
		made := w.answer.outcome()
		return made == nil || !made.partly
	}
	w.prove()
	return true
}

// prove notes whether the server has written the list as it is put together here.
func (w *answerWriter) prove() {
	if w.compared == nil || w.failed {
		return
	}
	switch same, ended := w.same(); {
	case same:
		w.made.judged.proven.Store(true)
	case ended:
		w.made.judged.refuse("a list put together of kept bytes differs from the same list as the server writes it")
	}
}

// same compares what the server has written. ended is false if the client, or the
// server, may have ended the answer in the middle.
func (w *answerWriter) same() (same, ended bool) {
	wrote := io.Reader(w.wrote)
	if w.zipped {
		unzipped, err := gzip.NewReader(w.wrote)
		if err != nil {
			return false, false
		}
		wrote = unzipped
	}
	if w.made.table {
		whole, err := io.ReadAll(wrote)
		if err != nil || !bytes.HasSuffix(whole, []byte(afterRows)) {
			return false, false
		}
		return w.made.isTable(whole), true
	}
	if w.zipped {
		if _, err := io.Copy(w.compared, wrote); err != nil && !w.compared.differs {
			return false, false
		}
	}
	return w.compared.same(), w.compared.differs
}
