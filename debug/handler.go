// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-watchcache/watchcache/cacher"
)

// Path is the path of the page on a server.
const Path = "/debug/watchcache"

// Config configures a Handler.
type Config struct {
	// Caches returns the server's caches without duplicates, oldest first. The handler calls it for
	// each request. Required.
	Caches func() []*cacher.Cacher
	// Authorizer decides whether a user may list a resource and hence see the names of its objects.
	// If nil, every user may.
	Authorizer authorizer.Authorizer
}

// The page is served as one document, because a client authorized for Path may not be authorized
// for paths below it.
var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string
	//go:embed page.js
	pageJS string
)

// Handler serves the page and its JSON. It must be behind a server's authentication and
// authorization. It is safe for concurrent use.
type Handler struct {
	config Config
	// policy allows only the page's script and style, and requests to its server.
	page, policy string
}

// New returns a Handler.
func New(config Config) *Handler {
	return &Handler{
		config: config,
		page:   strings.NewReplacer("/*STYLE*/", pageCSS, "/*SCRIPT*/", pageJS).Replace(pageHTML),
		policy: "default-src 'none'; connect-src 'self'; script-src " + hash(pageJS) + "; style-src " + hash(pageCSS) +
			"; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	}
}

// hash returns the CSP source expression for an inline script or style.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Vary", "Accept")
	// Responses other than the page load nothing and can't be framed.
	header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the method "+strconv.Quote(r.Method)+" is not allowed: use GET or HEAD")
		return
	}
	q, err := parseQuery(r.URL.Query())
	switch {
	case err != nil:
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
	case !wantsJSON(r):
		header.Set("Content-Type", "text/html; charset=utf-8")
		header.Set("Content-Security-Policy", h.policy)
		_, _ = io.WriteString(w, h.page) // the client may be gone
	default:
		if report := h.report(r.Context(), q); q.resource == "" || len(report.Caches) > 0 {
			answer(w, http.StatusOK, report)
			return
		}
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no cache named "+strconv.Quote(q.resource)+"; omit resource= to list all caches")
	}
}

// refuse responds with a Status, whose message kubectl shows.
func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	answer(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}

func answer(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value) // the client may be gone
}

func (h *Handler) report(ctx context.Context, q query) Report {
	report := Report{Schema: SchemaVersion, Time: time.Now(), Caches: []Cache{}}
	seen := map[string]int{}
	for _, c := range h.config.Caches() {
		id := c.Config().GroupResource.String()
		if seen[id]++; seen[id] > 1 {
			id += "~" + strconv.Itoa(seen[id])
		}
		if q.resource != "" && q.resource != id {
			continue
		}
		status, _ := c.StatusPage(q.watchers) // parseQuery validated the query
		d := description{
			id: id, status: status, now: report.Time, prefix: c.Config().ResourcePrefix,
			details: q.resource != "", values: "hidden",
		}
		if q.values {
			d.values = "forbidden"
			if h.mayList(ctx, c) {
				d.values = "shown"
			}
		}
		report.Caches = append(report.Caches, d.cache())
	}
	return report
}

// mayList reports whether the request's user may list the cache's resource in all namespaces and
// versions.
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

// wantsJSON reports whether the response is JSON, by the parameter or, without it, if the client
// accepts JSON but neither HTML nor everything.
func wantsJSON(r *http.Request) bool {
	if format := r.URL.Query().Get("format"); format != "" {
		return format == "json"
	}
	accepted := strings.Join(r.Header.Values("Accept"), ",")
	return strings.Contains(accepted, "application/json") && !strings.Contains(accepted, "text/html") && !strings.Contains(accepted, "*/*")
}
