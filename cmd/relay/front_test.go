// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The scheme knows the fields that a cache evaluates and refuses all others: a selector that
// nobody has sent upstream is an error, and selects nothing wrong.
func TestOnlyFieldsOfTheCacheAreConverted(t *testing.T) {
	gv := schema.GroupVersion{Group: "g", Version: "v1"}
	none := func(runtime.Object) string { return "" }
	for _, c := range []struct {
		namespaced bool
		known      []string
		unknown    []string
	}{
		{true, []string{"metadata.name", "metadata.namespace", "spec.color"}, []string{"spec.owner", "metadata.uid", "", "spec", "spec.color.x"}},
		{false, []string{"metadata.name", "spec.color"}, []string{"metadata.namespace", "spec.owner"}},
	} {
		r := &resource{
			GroupVersionResource: gv.WithResource("things"), kind: gv.WithKind("Thing"), listKind: gv.WithKind("ThingList"),
			of: metav1.APIResource{Namespaced: c.namespaced}, fields: map[string]func(runtime.Object) string{"spec.color": none},
		}
		scheme, err := newScheme(map[schema.GroupResource]*resource{r.GroupResource(): r})
		require.NoError(t, err)
		for _, known := range c.known {
			label, value, err := scheme.ConvertFieldLabel(r.kind, known, "v")
			require.NoError(t, err)
			require.Equal(t, []string{known, "v"}, []string{label, value})
		}
		for _, unknown := range c.unknown {
			_, _, err := scheme.ConvertFieldLabel(r.kind, unknown, "v")
			require.ErrorContains(t, err, "not supported", unknown)
		}
		for selector, upstream := range map[string]bool{"": false, "spec.color=v": false, "metadata.name!=v,spec.color!=v": false, "spec.owner=v": true, "spec.color=v,spec.owner!=v": true} {
			request := httptest.NewRequest("GET", "/apis/g/v1/things", nil)
			require.Equal(t, upstream, forUpstream(r, request, &metainternalversion.ListOptions{FieldSelector: fields.ParseSelectorOrDie(selector)}), selector)
		}
	}
}

// What is forwarded with the relay's rights has one spelling.
func TestCanonical(t *testing.T) {
	const list = "/apis/g/v1/namespaces/a/things"
	for asked, want := range map[string]string{
		list: list, list + "/": list, list + "///": list, "/apis/g/v1/namespaces/%61/th%69ngs": list, "/apis/g/v1/namespaces%2Fa/things": list,
		"/apis/g/v1/namespaces//things": "/apis/g/v1/things", list + "/x:y": list + "/x:y", list + "/%252e%252e": list + "/%252e%252e",
		"/" + list: "", list + "/..": "", list + "/%2e%2e": "", list + "/.": "", list + "//x": "", list + "/x/%2e./y": "", list + "%2f%2e%2e": "",
		"/apis/g/v1//namespaces/a/things": "", "/apis/g/v1/namespaces///things": "", "/apis/g/v1/namespaces/../things": "",
	} {
		request := httptest.NewRequest("GET", asked+"?a=b&a=c", nil)
		known, ok := canonical(request)
		require.Equal(t, want != "", ok, asked)
		if ok {
			require.Equal(t, want+"?a=b&a=c", known.URL.RequestURI(), asked)
		}
		require.Equal(t, asked+"?a=b&a=c", request.URL.RequestURI(), "the client's request stays")
	}
}

// A watch may last as long as a duration can say.
func TestLongestWatch(t *testing.T) {
	for _, most := range []time.Duration{10 * time.Second, math.MaxInt64 - 5*time.Second, math.MaxInt64} {
		for _, seconds := range []int64{0, 1, -1, math.MaxInt64} {
			bound, end := (&front{maxWatch: most}).boundWatch(&resource{}, httptest.NewRequest("GET", "/apis/g/v1/things?watch=1", nil), seconds, true)
			require.NoError(t, bound.Context().Err(), "at most %v, asked for %d s", most, seconds)
			end()
			require.Error(t, bound.Context().Err())
		}
	}
}
