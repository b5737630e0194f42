// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"hash/maphash"
	"io"
	"maps"
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// CustomResources wraps next, the server of k8s.io/apiextensions-apiserver, and answers lists of
// custom resources from kept bytes. asks returns the list that next would answer a request with,
// and false if others read the response, e.g. an audit log. No handler may filter or change the
// items.
//
// We compare the first list of each user and representation with next's. After a difference, next
// writes all lists.
func (l *Encoder) CustomResources(next http.Handler, asks func(*http.Request) (CustomList, bool)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !l.custom.Load() {
			next.ServeHTTP(w, r)
			return
		}
		list, ok := asks(r)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		request := &customRequest{CustomList: list, listings: l, user: userOf(r.Context())}
		held := &customWriter{ResponseWriter: w, request: request}
		before := w.Header().Clone()
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(held), r.WithContext(context.WithValue(r.Context(), customKey{}, request)))
		held.failed = held.failed || r.Context().Err() != nil
		if held.end() {
			return
		}
		// Nothing was written. The server writes this and all later lists. Keep warnings, which the
		// request's recorder adds only once.
		warnings := w.Header().Values("Warning")
		clear(w.Header())
		maps.Copy(w.Header(), before)
		if len(warnings) > 0 {
			w.Header()["Warning"] = warnings
		}
		next.ServeHTTP(w, r)
	})
}

// EnableCustomResources enables the handlers of CustomResources.
func (l *Encoder) EnableCustomResources() { l.custom.Store(true) }

type customWriter struct {
	http.ResponseWriter
	request *customRequest

	begun bool
	made  *CustomFill // nil if the server writes the response
	// broken is true if the server's bytes differ from the expected empty list, answered if the
	// list with items was sent instead. got counts the received bytes of the empty list.
	broken, answered bool
	got              int
	// compared hashes the list if the server writes it. wrote buffers a compressed one.
	compared *maphash.Hash
	wrote    *bytes.Buffer
	failed   bool // the request ended early, so we can't compare
}

var _ responsewriter.UserProvidedDecorator = (*customWriter)(nil)

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *customWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// maxProof bounds a compressed list that we compare.
const maxProof = 64 << 20

func (w *customWriter) held() bool { return w.made != nil && w.made.Omit }

// WriteHeader implements http.ResponseWriter.
func (w *customWriter) WriteHeader(status int) {
	if !w.begun {
		w.begun, w.made = true, w.request.made.Load()
		encoding := w.Header().Get("Content-Encoding")
		switch {
		case w.held():
			w.broken = status != http.StatusOK || encoding != ""
		case w.made == nil || status != http.StatusOK:
		case encoding == "gzip":
			w.wrote = &bytes.Buffer{}
			fallthrough
		case encoding == "":
			w.compared = newHash()
		}
	}
	if !w.held() {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (w *customWriter) Write(p []byte) (int, error) {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	if w.held() {
		return w.hold(p)
	}
	n, err := w.ResponseWriter.Write(p)
	switch {
	case err != nil:
		w.failed = true
	case w.compared == nil || w.failed:
	case w.wrote == nil:
		_, _ = w.compared.Write(p)
	case w.wrote.Len()+len(p) > maxProof:
		w.failed, w.wrote = true, nil
	default:
		w.wrote.Write(p)
	}
	return n, err
}

// hold receives the server's empty list. Once it is complete and as expected, hold sends the list
// with items.
func (w *customWriter) hold(p []byte) (int, error) {
	rest := w.made.empty[w.got:]
	if w.broken || w.answered || !bytes.HasPrefix(rest, p) {
		w.broken = true
		return len(p), nil
	}
	if w.got += len(p); len(p) < len(rest) {
		return len(p), nil
	}
	w.answered = true
	if err := w.send(); err != nil {
		w.failed = true
		return 0, err
	}
	return len(p), nil
}

func (w *customWriter) send() error {
	list := w.made.whole
	list.sending = true
	if !w.request.Gzip || !list.long {
		w.ResponseWriter.WriteHeader(http.StatusOK)
		return list.writePlain(w.ResponseWriter)
	}
	begin := list.beginning()
	if err := beginGzip(w.ResponseWriter, begin); err != nil {
		return err
	}
	return list.writeMember(w.ResponseWriter, begin)
}

// Flush implements http.Flusher.
func (w *customWriter) Flush() {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	if flusher, ok := w.ResponseWriter.(http.Flusher); ok && (!w.held() || w.answered) {
		flusher.Flush()
	}
}

// end returns false if nothing was sent to the client.
func (w *customWriter) end() bool {
	switch {
	case w.held():
		if (w.broken || !w.answered) && !w.failed {
			w.made.format.refuse(errors.New("the server does not write a list without items as expected"))
		}
		return w.answered
	case !w.begun:
		made := w.request.made.Load()
		return made == nil || !made.Omit
	}
	w.prove()
	return true
}

// prove compares the server's list with the one assembled here.
func (w *customWriter) prove() {
	if w.compared == nil || w.failed {
		return
	}
	if w.wrote != nil {
		unzipped, err := gzip.NewReader(w.wrote)
		if err != nil {
			return
		}
		if _, err := io.Copy(w.compared, unzipped); err != nil {
			return
		}
	}
	expected := newHash()
	switch {
	case w.made.whole.writePlain(expected) != nil:
	case w.compared.Sum64() == expected.Sum64():
		w.made.format.users.Add(w.request.user, nil)
	default:
		w.made.format.refuse(errors.New("a list assembled from kept bytes differs from the list that the server has written"))
	}
}
