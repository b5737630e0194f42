// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
)

// spellings are paths that mean a list of all devices, of those of namespace a, one device,
// or nothing at all.
func spellings() []string {
	const group, all, a = "/apis/fleet.example.com/v1", path, devicesA
	paths := []string{
		"/" + all, "/apis//fleet.example.com/v1/devices", group + "//devices", group + "/./devices", group + "/%2e/devices", "/./" + all,
		"/apis/fleet.example.com/v%31/devices", "/%61pis/fleet.example.com/v1/devices", "/apis/fleet%2Eexample.com/v1/devices",
		group + "/namespaces/a//devices", group + "/namespaces/a/./devices", group + "/namespaces//devices", group + "/namespaces/./devices",
		group + "/namespaces/%2e/devices", group + "/namespaces/../devices", group + "/namespaces/%2e%2e/devices", group + "/namespaces/b/../a/devices",
		group + "/namespaces%2fa/devices", group + "/namespaces/a%2fdevices", group + "/namespaces/%61/devices", group + "/namespaces/a%2f/devices",
		group + "/watch/devices", group + "/watch/devices/", group + "/watch/namespaces/a/devices/", group + "/w%61tch/devices", group + "/watch/namespaces/a/devices/x/",
		group + "/namespaces/a/namespaces/b/devices",
	}
	for _, of := range []string{all, a} {
		paths = append(paths, of, of+"/", of+"//", of+"/.", of+"/..", of+"/%2e%2e", of+"%2f", of+"%2F%2f", of+"%20", of+";x",
			strings.Replace(of, "devices", "d%65vices", 1), strings.Replace(of, "devices", "%64%65vices/", 1), strings.Replace(of, "devices", "d%2565vices", 1))
	}
	for _, name := range []string{"/x", "/x/", "//x", "/x//", "/%78", "/%78/", "/./x", "/x/.", "/x/..", "/x%2f", "/x%2f..", "/y/../x", "/%2e%2e%2fb"} {
		paths = append(paths, a+name)
	}
	return append(paths, all+"/x", all+"/x/")
}

// answer is what a client sees of a response: of a watch, the state with which it begins.
type answer struct {
	code  int
	kind  string
	names string
}

// answerTo asks a server with a client.
func answerTo(t *testing.T, config *rest.Config, client *http.Client, path string, headers ...string) answer {
	t.Helper()
	response := begin(within(t), t, client, http.MethodGet, config.Host+path, "", headers...)
	defer func() { _ = response.Body.Close() }()
	got, names, decoder := answer{code: response.StatusCode}, []string{}, json.NewDecoder(response.Body)
	for {
		var o struct {
			Kind, Type string
			Metadata   metav1.ObjectMeta
			Object     *struct {
				Kind     string
				Metadata metav1.ObjectMeta
			}
			Items []struct{ Metadata metav1.ObjectMeta }
			Rows  []struct {
				Object struct{ Metadata metav1.ObjectMeta }
			}
		}
		switch err := decoder.Decode(&o); {
		case err == io.EOF:
			slices.Sort(names)
			got.names = strings.Join(names, " ")
			return got
		case err != nil: // a page for people
			_, _ = io.Copy(io.Discard, response.Body)
			return answer{code: response.StatusCode, kind: "text"}
		}
		name := func(m metav1.ObjectMeta) {
			if m.Name != "" {
				names = append(names, m.Namespace+"/"+m.Name)
			}
		}
		got.kind = o.Kind
		if o.Object != nil {
			got.kind = o.Type + " " + o.Object.Kind
			if o.Type == "BOOKMARK" {
				slices.Sort(names)
				got.names = strings.Join(names, " ")
				return got
			}
			name(o.Object.Metadata)
		}
		name(o.Metadata)
		for _, i := range o.Items {
			name(i.Metadata)
		}
		for _, r := range o.Rows {
			name(r.Object.Metadata)
		}
	}
}

// A path has the answer that the upstream gives to it, however it is written, and whatever
// selectors come with it. Who may read only what a selector leaves gets nothing else.
func TestPathsHaveTheUpstreamsAnswer(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	for _, name := range []string{"a/x", "a/y", "b/x", "b/y"} {
		d := device(name)
		if d.Name == "y" {
			d.Spec.Owner = "secret"
		}
		create(t, u.direct, d)
	}
	u.allow(func(s authorizationv1.SubjectAccessReviewSpec) bool {
		if s.User == "alice" {
			return true
		}
		return s.ResourceAttributes != nil && s.ResourceAttributes.FieldSelector != nil &&
			slices.ContainsFunc(s.ResourceAttributes.FieldSelector.Requirements, func(r metav1.FieldSelectorRequirement) bool {
				return r.Key == "spec.owner" && (r.Operator == metav1.FieldSelectorOpIn && slices.Equal(r.Values, []string{"o"}) ||
					r.Operator == metav1.FieldSelectorOpNotIn && slices.Equal(r.Values, []string{"secret"}))
			})
	})
	r := u.startRelay(t)
	clientOf := func(config *rest.Config) *http.Client { return apiserver.Connect(t, config) }
	theirs, alices, bobs := u.process.Config, r.config("alice"), r.config("bob")
	upstream, alice, bob := u.process.Connect(t), clientOf(alices), clientOf(bobs)

	const state = "watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
	selectors := []string{"", "spec.owner=o", "spec.owner!=secret", "spec.owner=o,metadata.name=y", "metadata.name!=x", "spec.unknown=o", "spec.unknown!=o", "metadata.name=x,spec.unknown=o"}
	var mu sync.Mutex
	var wrong []string
	allowed, compared := map[string]int{}, 0
	var all sync.WaitGroup
	slots := make(chan struct{}, 4)
	for _, path := range spellings() {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			for _, selector := range selectors {
				for _, query := range []string{"%s", state + "%s", state + "%s&fieldSelector=", "resourceVersion=0%s"} { // the first selector counts
					if strings.Contains(path, "tch/") && !strings.HasPrefix(query, state) {
						continue // a watch without an end
					}
					for _, headers := range [][]string{nil, {asTable}} {
						at := path + "?" + fmt.Sprintf(query, "&fieldSelector="+url.QueryEscape(selector))
						want, got, bobs := answerTo(t, theirs, upstream, at, headers...), answerTo(t, alices, alice, at, headers...), answerTo(t, bobs, bob, at, headers...)
						mu.Lock()
						compared++
						if want.code == http.StatusOK {
							allowed[path]++
						}
						what := fmt.Sprintf("%s %v", at, headers)
						same := got == want || got.code == want.code && got.code != http.StatusOK ||
							got.code == http.StatusMethodNotAllowed && want.code == http.StatusNotFound || // a subresource, if there were one
							want.code == http.StatusInternalServerError && got.code == http.StatusBadRequest // a namespace of dots: the field is refused first
						if !same {
							wrong = append(wrong, fmt.Sprintf("%s: the upstream %v, the relay %v", what, want, got))
						}
						if bobs.code != http.StatusForbidden && bobs != got || strings.Contains(bobs.names, "/y") {
							wrong = append(wrong, fmt.Sprintf("%s: bob %v, alice %v", what, bobs, got))
						}
						mu.Unlock()
					}
				}
			}
		})
	}
	all.Wait()
	slices.Sort(wrong)
	require.Empty(t, len(wrong), strings.Join(wrong[:min(len(wrong), 20)], "\n"))
	t.Logf("%d requests compared, %d of %d paths have an answer", compared, len(allowed), len(spellings()))
	require.Greater(t, len(allowed), 15)
	for _, forwarded := range u.requests() {
		path, _, _ := strings.Cut(forwarded, "?")
		require.NotRegexp(t, `//|/\.|%|/$`, path, "forwarded with the relay's rights")
	}
}
