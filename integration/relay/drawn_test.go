// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
)

var (
	drawn = flag.Int("drawn", 600, "how many requests TestDrawnRequests compares")
	seed  = flag.Uint64("drawn-seed", 1, "the seed of TestDrawnRequests")
)

// draw returns a request for devices with a path, a query and an Accept header by chance.
func draw(d *rand.Rand, paths []string) (at string, headers []string) {
	of := func(all ...string) string { return all[d.IntN(len(all))] }
	at = of(paths...)
	if d.IntN(3) == 0 { // another spelling of a byte
		i := 1 + d.IntN(len(at)-1)
		switch d.IntN(4) {
		case 0:
			if at[i] != '%' && (i < 2 || at[i-1] != '%' && at[i-2] != '%') {
				at = at[:i] + fmt.Sprintf("%%%02x", at[i]) + at[i+1:]
			}
		case 1:
			at += "/"
		case 2:
			at = strings.Replace(at, "/v1/", of("/v1//", "/v1beta1/", "/V1/", "/v1/watch/"), 1)
		case 3:
			at += of("/status", "/x", "/x/status", "/x/scale", "?", "/%2e")
		}
	}
	query := url.Values{}
	add := func(one int, name string, values ...string) {
		if d.IntN(one) == 0 {
			query.Add(of(name, name, name, name, strings.ToLower(name), strings.ToUpper(name)), of(values...))
		}
	}
	for range 2 { // a parameter may be there twice
		add(3, "fieldSelector", "spec.owner=o", "spec.owner!=secret", "metadata.name=x", "metadata.name!=x", "metadata.namespace=a", "spec.owner=o,metadata.name=y", "spec.unknown=o", "spec.unknown!=o", "metadata.name", "=", ",")
		add(8, "labelSelector", "name=x", "name!=x", "!name", "name in (x,y)", "name in (", "a,!a")
	}
	add(3, "resourceVersion", "0", "1", "", "abc", "-1", "00", "18446744073709551616")
	add(5, "resourceVersionMatch", "Exact", "NotOlderThan", "exact")
	add(5, "limit", "0", "1", "2", "-1", "x")
	add(12, "continue", "x", "", "e30")
	add(6, "pretty", "true")
	add(8, "allowWatchBookmarks", "true", "x")
	add(8, "sendInitialEvents", "true", "false")
	add(8, "timeout", "5s", "x")
	add(9, "watch", "1", "true", "false", "0", "", "x")
	query.Set("timeoutSeconds", of("1", "1", "1", "2"))
	if accept := of("", "", "application/json", asTable[7:], asTable[7:]+",application/json", "application/json;as=table;v=v1;g=meta.k8s.io", asMeta[7:], oneMeta[7:],
		"application/json;as=Table;v=v1beta1;g=meta.k8s.io", "application/json;as=Table;v=v2;g=meta.k8s.io", "*/*", "text/html", "application/yaml", "application/json;q=0.1,*/*;q=0.5"); accept != "" {
		headers = append(headers, "Accept:"+accept)
	}
	return at + of("?", "?", "?", "?&") + query.Encode(), headers
}

// Requests that a seed draws have the upstream's status, kind and objects, and a user with
// fewer rights gets them or nothing.
func TestDrawnRequests(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	for _, name := range []string{"a/x", "a/y", "b/x", "b/y"} {
		d := device(name, "name="+name[2:])
		if d.Name == "y" {
			d.Spec.Owner = "secret"
		}
		create(t, u.direct, d)
	}
	u.allow(func(s authorizationv1.SubjectAccessReviewSpec) bool {
		return s.User == "alice" || s.ResourceAttributes != nil && s.ResourceAttributes.FieldSelector != nil &&
			slices.ContainsFunc(s.ResourceAttributes.FieldSelector.Requirements, func(r metav1.FieldSelectorRequirement) bool {
				return r.Key == "spec.owner" && (r.Operator == metav1.FieldSelectorOpIn && slices.Equal(r.Values, []string{"o"}) ||
					r.Operator == metav1.FieldSelectorOpNotIn && slices.Equal(r.Values, []string{"secret"}))
			})
	})
	r := u.startRelay(t)
	theirs, alices, bobs := u.process.Config, r.config("alice"), r.config("bob")
	upstream, alice, bob := u.process.Connect(t), apiserver.Connect(t, alices), apiserver.Connect(t, bobs)
	paths, d := append(spellings(), slices.Repeat([]string{path, devicesA, devicesA + "/x", path + "/", devicesA + "/"}, 10)...), rand.New(rand.NewPCG(*seed, 0))
	var mu sync.Mutex
	var wrong []string
	answered, bobsAnswers := 0, 0
	var all sync.WaitGroup
	slots := make(chan struct{}, 8)
	for range *drawn {
		at, headers := draw(d, paths)
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			want, got, his := answerTo(t, theirs, upstream, at, headers...), answerTo(t, alices, alice, at, headers...), answerTo(t, bobs, bob, at, headers...)
			mu.Lock()
			defer mu.Unlock()
			if want.code == http.StatusOK {
				answered++
			}
			if his.code == http.StatusOK {
				bobsAnswers++
			}
			same := got == want || got.code == want.code && got.code != http.StatusOK ||
				got.code == http.StatusMethodNotAllowed && want.code == http.StatusNotFound || // a subresource, if there were one
				got.code == http.StatusNotFound && strings.Contains(at, "v1beta1/") || // which the relay does not serve
				got.code == http.StatusMethodNotAllowed && strings.Contains(at, "/status") ||
				got.kind == "ERROR Status" && strings.Contains(at, "ersion=1&") || // a cache of custom resources has no history before its list
				got.code == http.StatusInternalServerError && want.code == http.StatusNotAcceptable && slices.Equal(headers, []string{asMeta}) || // what an object without a Go type answers
				want.code == http.StatusInternalServerError && got.code == http.StatusBadRequest // a namespace of dots: the field is refused first
			if !same {
				wrong = append(wrong, fmt.Sprintf("%s %v: the upstream %v, the relay %v", at, headers, want, got))
			}
			if his.code != http.StatusForbidden && his != got && !(his.code == got.code && his.code != http.StatusOK) || strings.Contains(his.names, "/y") {
				wrong = append(wrong, fmt.Sprintf("%s %v: bob %v, alice %v", at, headers, his, got))
			}
		})
	}
	all.Wait()
	require.Empty(t, wrong[:min(len(wrong), 20)], "seed %d", *seed)
	require.Greater(t, answered, *drawn/10)
	require.Positive(t, bobsAnswers)
	t.Logf("%d requests by seed %d: %d have objects or none, %d for bob", *drawn, *seed, answered, bobsAnswers)
}
