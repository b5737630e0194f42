// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// front serves a request from the caches, forwards it, or rejects it.
type front struct {
	server   *server
	codecs   runtime.NegotiatedSerializer
	maxWatch time.Duration
	// withOwn uses the relay's credentials, withClients the client's bearer token. withClients is
	// nil without --pass-through.
	withOwn, withClients *forwarder
}

func newFront(s *server, codecs runtime.NegotiatedSerializer, o *options) (*front, error) {
	f := &front{server: s, codecs: codecs, maxWatch: o.maxWatch}
	room, err := newRoom(o.maxInFlight)
	if err != nil {
		return nil, err
	}
	if f.withOwn, err = f.forwarder(s.guarded(false), room, "authorization", "impersonate-", "x-remote-"); err == nil && o.passThrough {
		f.withClients, err = f.forwarder(rest.AnonymousClientConfig(s.upstream), room, "x-remote-")
	}
	return f, err
}

// passedKey is the context key of the client's headers in a passed-through request.
type passedKey struct{}

// upstreamDecides allows passed-through requests, since the upstream authorizes them.
type upstreamDecides struct{ authorizer.Authorizer }

// Authorize implements authorizer.Authorizer.
func (d upstreamDecides) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if ctx.Value(passedKey{}) != nil {
		return authorizer.DecisionAllow, "", nil
	}
	return d.Authorizer.Authorize(ctx, a)
}

// chain builds the handlers that authenticate, audit and count requests, and authorize those not
// passed through.
func (f *front) chain(api http.Handler, c *genericapiserver.Config) http.Handler {
	with := *c
	with.Authorization.Authorizer = upstreamDecides{c.Authorization.Authorizer}
	served := genericapiserver.DefaultBuildHandlerChain(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.serve(api, w, r) }), &with)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer endWrites(f.server.ctx, w, shutdownWrites)()
		if info, err := c.RequestInfoResolver.NewRequestInfo(r); err == nil && f.withClients != nil && f.passes(info, r) {
			r = r.WithContext(context.WithValue(r.Context(), passedKey{}, r.Header.Clone()))
			maps.DeleteFunc(r.Header, func(name string, _ []string) bool { return hasPrefix(name, "impersonate-") }) // left to the upstream
		}
		served.ServeHTTP(w, r)
	})
}

// passes reports whether to pass a request through: the relay can't serve it, but it has a bearer
// token.
func (f *front) passes(info *request.RequestInfo, r *http.Request) bool {
	if !hasPrefix(r.Header.Get("Authorization"), "bearer ") {
		return false
	}
	if info.IsResourceRequest {
		return f.refusal(info) != nil
	}
	top, _, _ := strings.Cut(strings.TrimPrefix(info.Path, "/"), "/")
	return top == "api" || top == "apis" || top == "openapi" || top == "version"
}

func resourceIn(info *request.RequestInfo) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
}

// refusal returns why the relay can't serve a request for a resource, or nil.
func (f *front) refusal(info *request.RequestInfo) *apierrors.StatusError {
	r := f.server.find(resourceIn(info))
	what := fmt.Sprintf("%s in version %q", schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, info.APIVersion)
	ask := fmt.Sprintf("ask the upstream, %s", f.server.upstream.Host)
	if f.withClients != nil { // see passes
		ask += ", or send a bearer token: only requests with one are passed through"
	}
	switch {
	case r == nil && info.Verb == "get" && info.APIGroup == "" && info.Resource == "namespaces": // kubectl gets the namespace of a missing object, and would report this 404 instead
		return refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, fmt.Sprintf("this relay does not serve %s: %s", what, ask))
	case r == nil:
		return refused(http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("this relay does not serve %s: %s", what, ask))
	case info.Subresource != "":
		return refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, fmt.Sprintf("this relay does not serve %s/%s: %s", info.Resource, info.Subresource, ask))
	case info.Verb != "get" && info.Verb != "list" && info.Verb != "watch":
		return refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, fmt.Sprintf("this relay only reads, %q of %s is not for it: %s", info.Verb, what, ask))
	}
	return nil
}

func refused(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

func (f *front) refuse(w http.ResponseWriter, r *http.Request, err *apierrors.StatusError) {
	responsewriters.ErrorNegotiated(err, f.codecs, schema.GroupVersion{Version: "v1"}, w, r)
}

// serve serves an authenticated and authorized request.
func (f *front) serve(api http.Handler, w http.ResponseWriter, r *http.Request) {
	info, ok := request.RequestInfoFrom(r.Context())
	if header, passed := r.Context().Value(passedKey{}).(http.Header); passed {
		r = r.WithContext(r.Context())
		r.Header = header
		f.withClients.ServeHTTP(w, r)
		return
	}
	if !ok || !info.IsResourceRequest {
		if info != nil && info.Path == "/version" {
			responsewriters.WriteRawJSON(http.StatusOK, f.server.version.Load(), w) // the upstream's, as last seen
			return
		}
		if known, ok := canonical(r); ok && known.URL.Path == info.Path && strings.HasPrefix(info.Path, "/openapi/") && r.Method == http.MethodGet {
			r, api = known, f.withOwn // kubectl validates and explains with these schemas
		}
		api.ServeHTTP(w, r)
		return
	}
	if err := f.refusal(info); err != nil {
		f.refuse(w, r, err)
		return
	}
	of := f.server.find(resourceIn(info))
	if of.store.Missing() {
		f.refuse(w, r, refused(http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("the upstream has no resource %s any more", of.GroupResource())))
		return
	}
	var asked metainternalversion.ListOptions
	if err := metainternalversionscheme.ParameterCodec.DecodeParameters(r.URL.Query(), metav1.SchemeGroupVersion, &asked); err != nil {
		asked = metainternalversion.ListOptions{} // the handler reports the error
	}
	forwarded := forUpstream(of, r, &asked)
	if forwarded {
		r, forwarded = canonical(r)
	}
	if info.Verb == "watch" {
		bound, end := f.boundWatch(of, r, ptr.Deref(asked.TimeoutSeconds, 0), forwarded)
		defer end()
		r = bound
		defer endWrites(r.Context(), w, time.Second)() // the client may not read
	}
	if forwarded {
		f.withOwn.ServeHTTP(w, r)
		return
	}
	api.ServeHTTP(w, r)
}

// forUpstream reports whether only the upstream can serve a request, with its Tables and selectable
// fields. newScheme rejects fields that this misses.
func forUpstream(of *resource, r *http.Request, asked *metainternalversion.ListOptions) bool {
	return strings.Contains(r.Header.Get("Accept"), "Table") || asked.ShardSelector != "" || asked.FieldSelector != nil &&
		slices.ContainsFunc(asked.FieldSelector.Requirements(), func(r fields.Requirement) bool { return !of.selectable(r.Field) })
}

// canonical returns the request with its path as the API server parses it, in a form that proxies
// don't rewrite, so that the upstream sees the authorized path. It returns false without such a
// form; no object has such a path.
func canonical(r *http.Request) (*http.Request, bool) {
	at := *r.URL
	at.RawPath, at.Path = "", strings.TrimRight(strings.Replace(at.Path, "/namespaces//", "/", 1), "/") // an empty namespace means all
	known := r.WithContext(r.Context())
	known.URL = &at
	return known, path.Clean(at.Path) == at.Path
}

// boundWatch returns a watch request that ends after maxWatch, or when its resource disappears.
// Call end afterwards.
func (f *front) boundWatch(of *resource, r *http.Request, seconds int64, forwarded bool) (bound *http.Request, end func()) {
	ctx, cancel := context.WithTimeout(r.Context(), max(f.maxWatch, f.maxWatch+10*time.Second)) // in case the upstream ignores timeoutSeconds
	of.watches.Store(&ctx, cancel)
	bound = r.WithContext(ctx)
	most := int64(f.maxWatch / time.Second)
	// The API's handler limits 0 itself, but may overflow on negative numbers.
	if seconds < 0 || seconds > most || (forwarded && seconds == 0) {
		query := r.URL.Query()
		query.Set("timeoutSeconds", strconv.FormatInt(most, 10))
		at := *r.URL
		at.RawQuery = query.Encode()
		bound.URL = &at
	}
	return bound, func() {
		of.watches.Delete(&ctx)
		cancel()
	}
}
