// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const (
	// lookEvery is the interval of looks at the upstream, lookPause the minimum interval.
	lookEvery, lookPause, lookTimeout = time.Minute, time.Second, 10 * time.Second
	// refusedFor is how long /readyz reports a refusal of the relay's credentials, and the minimum
	// interval between logging two.
	refusedFor = time.Minute
)

var errChanged = errors.New("the upstream has changed, and the relay begins again")

// look describes the upstream again. The relay restarts if a resource changed its kind, scope,
// selectable fields, or whether its Go type is complete. It ignores missing resources, which may
// return.
func (s *server) look(ctx context.Context, pause time.Duration) error {
	s.looking.Lock()
	defer s.looking.Unlock()
	if s.changed.Load() {
		return errChanged
	}
	if time.Since(s.looked) < pause {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	names := []string{}
	for _, r := range s.resources {
		names = append(names, fmt.Sprintf("%s.%s.%s", r.Resource, r.Version, r.Group))
	}
	found, err := s.describe(ctx, names, true)
	if found == nil {
		return err
	}
	for name, now := range found {
		if before := s.resources[name]; !before.equals(now) {
			klog.InfoS("The upstream has changed. The relay begins again: its watches end, and clients list", "resource", name,
				"version", s.version.Load().GitVersion, "kind", now.kind.Kind, "listKind", now.listKind.Kind, "namespaced", now.of.Namespaced, "goType", now.typed, "fields", slices.Sorted(maps.Keys(now.fields)))
			s.changed.Store(true)
			s.stop()
			return errChanged
		}
	}
	s.looked = time.Now()
	return nil
}

// equals reports whether the relay serves both descriptions the same way.
func (r *resource) equals(other *resource) bool {
	return r.GroupVersionResource == other.GroupVersionResource && r.kind == other.kind && r.listKind == other.listKind && r.typed == other.typed &&
		r.of.Namespaced == other.of.Namespaced && maps.EqualFunc(r.fields, other.fields, func(_, _ selector) bool { return true })
}

// guard is a transport with the relay's credentials. Before it returns a response of a new
// connection or a reopened watch for decoding, it checks that the upstream still serves the same
// resources.
type guard struct {
	http.RoundTripper
	server  *server
	decodes bool // false if responses are only forwarded
}

func (s *server) guarded(decodes bool) *rest.Config {
	config := rest.CopyConfig(s.upstream)
	config.Wrap(func(t http.RoundTripper) http.RoundTripper { return guard{t, s, decodes} })
	return config
}

// RoundTrip implements http.RoundTripper.
func (g guard) RoundTrip(r *http.Request) (*http.Response, error) {
	var at net.Conn
	traced := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { at = i.Conn }})
	response, err := g.RoundTripper.RoundTrip(r.WithContext(traced))
	if err != nil {
		return nil, err
	}
	_, known := g.server.connections.Load(at)
	query := r.URL.Query()
	resumes := query.Has("watch") && !query.Has("timeoutSeconds") // a cache reopens its watch
	if g.decodes && (!known || resumes || g.server.changed.Load()) {
		pause := time.Duration(0)
		if known {
			pause = lookPause
		}
		if err := g.server.look(r.Context(), pause); err != nil {
			_ = response.Body.Close()
			return nil, fmt.Errorf("what the upstream is: %w", err)
		}
		g.server.connections.Store(at, nil)
	}
	if response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden {
		return g.server.refuses(r, response), nil
	}
	return response, nil
}

// refusal is a refusal of the relay's own credentials.
type refusal struct {
	what string
	at   time.Time
}

// refuses returns a 503, since the upstream refused the relay's credentials, not the client's.
func (s *server) refuses(r *http.Request, response *http.Response) *http.Response {
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	_ = response.Body.Close()
	what := refusal{fmt.Sprintf("%s %s: %s: %s", r.Method, r.URL.Path, response.Status, bytes.TrimSpace(text)), time.Now()}
	s.refusals.Inc()
	if before := s.refused.Load(); before == nil || time.Since(before.at) >= refusedFor {
		klog.ErrorS(nil, "The upstream refuses the relay's own credentials", "request", what.what, "remedy", "give the relay's account the rights that its README lists")
		s.refused.Store(&what)
	}
	status := `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the upstream refuses the credentials of this relay, whose log says what they lack","reason":"ServiceUnavailable","code":503}`
	response.Status, response.StatusCode = "503 Service Unavailable", http.StatusServiceUnavailable
	response.Header = http.Header{"Content-Type": {"application/json"}, "Content-Length": {strconv.Itoa(len(status))}}
	response.ContentLength, response.TransferEncoding, response.Body = int64(len(status)), nil, io.NopCloser(bytes.NewReader([]byte(status)))
	return response
}

// review returns an error with the rights that the relay's account lacks.
func (s *server) review(ctx context.Context) error {
	client, err := authorizationclient.NewForConfig(s.upstream)
	if err != nil {
		return err
	}
	wanted := []authorizationv1.ResourceAttributes{
		{Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"},
		{Verb: "create", Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
	}
	for _, r := range s.resources {
		for _, verb := range []string{"get", "list", "watch"} {
			wanted = append(wanted, authorizationv1.ResourceAttributes{Verb: verb, Group: r.Group, Version: r.Version, Resource: r.Resource})
		}
	}
	var lacks []error
	for _, right := range wanted {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &right}}
		answer, err := client.SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			klog.InfoS("The upstream does not review the relay's rights", "err", err)
			return nil
		}
		if !answer.Status.Allowed {
			lacks = append(lacks, fmt.Errorf("the relay's account lacks the right to %s %s", right.Verb, schema.GroupResource{Group: right.Group, Resource: right.Resource}))
		}
	}
	return errors.Join(lacks...)
}

// answers is the readiness check of the upstream.
func (s *server) answers(r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
	defer cancel()
	if err := s.discovery.RESTClient().Get().AbsPath("/version").MaxRetries(0).Do(ctx).Error(); err != nil {
		return err
	}
	if refused := s.refused.Load(); refused != nil && time.Since(refused.at) < refusedFor {
		return fmt.Errorf("it refuses the relay's own credentials: %s", refused.what)
	}
	return s.look(ctx, 10*lookPause)
}

// watchUpstream looks at the upstream periodically, ends watches of missing resources, and checks
// whether those returned, as a sleeping cache would not. It ends with ctx.
func (s *server) watchUpstream(ctx context.Context) {
	tick, again := time.NewTicker(time.Second), time.NewTicker(lookEvery)
	defer tick.Stop()
	defer again.Stop()
	for {
		select {
		case <-tick.C:
		case <-again.C:
			s.connections.Clear() // including closed ones
			_ = s.look(ctx, 0)
		case <-ctx.Done():
			return
		}
		for _, r := range s.resources {
			if r.store.Missing() {
				r.watches.Range(func(_, end any) bool { end.(context.CancelFunc)(); return true })
				bounded, cancel := context.WithTimeout(ctx, 3*time.Second)
				if _, err := r.store.GetCurrentResourceVersion(bounded); err == nil { // the store notes a response
					_ = s.look(bounded, 0)
				}
				cancel()
			}
		}
	}
}
