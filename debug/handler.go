// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-watchcache/watchcache/cacher"
)

// Path is where a server has the page.
const Path = "/debug/watchcache"

// Config configures a Handler.
type Config struct {
	// Caches returns the server's caches, each once, in the order in which they
	// were made. Caches is called for each request. Required.
	Caches func() []*cacher.Cacher
	// Authorizer decides whether a user may list a resource and so see the names
	// of its objects. nil: the server authorizes nothing, and every user may.
	Authorizer authorizer.Authorizer
}

// Handler serves the page and its JSON. The handler authenticates nobody, and
// must be behind a server's own authentication and authorization. The handler
// is safe for concurrent use.
type Handler struct {
	config Config
	page   page
}

// New returns a Handler.
func New(config Config) *Handler {
	return &Handler{config: config, page: newPage()}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Vary", "Accept")
	header.Set("Content-Security-Policy", nothing)
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the method "+strconv.Quote(r.Method)+" is not allowed: use GET or HEAD")
		return
	}
	q, err := parseQuery(r.URL.Query())
	switch {
	case err != nil:
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
	case wantsJSON(r):
		h.serveJSON(w, r, q)
	default:
		h.page.serve(w)
	}
}

// refuse answers with a Status of the API, whose message kubectl shows.
func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// A client that is gone needs no answer.
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}

func (h *Handler) serveJSON(w http.ResponseWriter, r *http.Request, q query) {
	report, ok := h.report(r.Context(), q)
	if !ok {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "resource is "+strconv.Quote(q.resource)+", and this server has no such cache: without the parameter the answer names all")
		return
	}
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(true)
	if err := encoder.Encode(report); err != nil {
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "the answer could not be encoded: "+err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	_, _ = w.Write(body.Bytes()) // a client that is gone needs no answer
}

// report describes the caches that a query names. report returns false if the
// query names one that there isn't.
func (h *Handler) report(ctx context.Context, q query) (Report, bool) {
	report := Report{Schema: SchemaVersion, Time: time.Now(), Caches: []Cache{}}
	seen := map[string]int{}
	for _, c := range h.config.Caches() {
		resource := c.Config().GroupResource
		id := resource.String()
		if seen[id]++; seen[id] > 1 {
			id += "~" + strconv.Itoa(seen[id])
		}
		if q.resource != "" && q.resource != id {
			continue
		}
		status, err := c.StatusPage(q.watchers)
		if err != nil {
			continue // the query was validated
		}
		d := description{
			status: status, now: report.Time, prefix: c.Config().ResourcePrefix,
			details: q.resource != "", values: "hidden",
		}
		if q.values {
			d.values = "forbidden"
			if h.mayList(ctx, c) {
				d.values = "shown"
			}
		}
		described := d.cache()
		described.ID = id
		report.Caches = append(report.Caches, described)
	}
	return report, q.resource == "" || len(report.Caches) > 0
}

// mayList reports whether the user of a request may list the cache's resource in
// all namespaces and versions.
func (h *Handler) mayList(ctx context.Context, c *cacher.Cacher) bool {
	if h.config.Authorizer == nil {
		return true
	}
	user, ok := request.UserFrom(ctx)
	if !ok {
		return false
	}
	resource := c.Config().GroupResource
	decision, _, err := h.config.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: user, Verb: "list", APIGroup: resource.Group, APIVersion: "*", Resource: resource.Resource, ResourceRequest: true,
	})
	return err == nil && decision == authorizer.DecisionAllow
}

// wantsJSON reports whether the answer is JSON: the parameter says so, or the client
// accepts JSON and neither HTML nor anything.
func wantsJSON(r *http.Request) bool {
	if format := r.URL.Query().Get("format"); format != "" {
		return format == "json"
	}
	accepted := strings.Join(r.Header.Values("Accept"), ",")
	return strings.Contains(accepted, "application/json") && !strings.Contains(accepted, "text/html") && !strings.Contains(accepted, "*/*")
}

// seconds returns the time from a to b in seconds, 0 if b is before a.
func seconds(a, b time.Time) float64 { return max(0, b.Sub(a).Seconds()) }
