// SPDX-License-Identifier: Apache-2.0

package customresources

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// firstEvent returns the type of the first event of a watch, and the code of its
// status if the type is ERROR.
func (s *server) firstEvent(t *testing.T, path string) (typ string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.config.Host+path, nil)
	require.NoError(t, err)
	response, err := s.http.Do(r)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return "ERROR", response.StatusCode
	}
	line, err := bufio.NewReader(response.Body).ReadBytes('\n')
	require.NoError(t, err)
	event := struct {
		Type   string
		Object struct{ Code int }
	}{}
	require.NoError(t, json.Unmarshal(line, &event))
	return event.Type, event.Object.Code
}

// REGRESSIONS 152, 154: a watch of custom resources that resumes from before the last
// change of their definition gets a 410, also if a new definition has given them another
// kind, and also from a server that starts afterwards: the events before were of
// objects that the definition described otherwise. So does one from before the start
// of a server, because no server knows where that change is (REGRESSIONS 153: their
// history is not decoded at all, and no webhook is called for it).
func TestWatchesFromBeforeADefinition(t *testing.T) {
	f := newFixture(t)
	client, err := clientset.NewForConfig(f.shipped.config)
	require.NoError(t, err)
	definitions := client.ApiextensionsV1().CustomResourceDefinitions()
	none := &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	d := definition("koalas", "Koala", none)
	f.define(t, d)
	f.put(t, "koalas", "Koala", "ns1", "k1", 0)
	version := func(s *server) string {
		list := struct {
			Metadata struct{ ResourceVersion string }
		}{}
		require.NoError(t, json.Unmarshal(s.ask(t, root("v1")+"koalas", asJSON, false).body, &list))
		return list.Metadata.ResourceVersion
	}
	before := version(f.cached)
	f.put(t, "koalas", "Koala", "ns1", "k2", 0)
	watch := root("v1") + "koalas?watch=true&timeoutSeconds=60&resourceVersion=" + before
	typ, _ := f.cached.firstEvent(t, watch)
	require.Equal(t, "ADDED", typ, "nothing has changed yet")

	d, err = definitions.Get(t.Context(), d.Name, metav1.GetOptions{})
	require.NoError(t, err)
	for i := range d.Spec.Versions {
		schema := d.Spec.Versions[i].Schema.OpenAPIV3Schema
		schema.Properties["added"] = apiextensionsv1.JSONSchemaProps{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"yes"`)}}
	}
	_, err = definitions.Update(t.Context(), d, metav1.UpdateOptions{})
	require.NoError(t, err)
	expired := func(s *server, why string) {
		t.Helper()
		typ, code := s.firstEvent(t, watch)
		for code == http.StatusTooManyRequests { // the server has started just now
			typ, code = s.firstEvent(t, watch)
		}
		require.Equal(t, "ERROR", typ, why)
		require.Equal(t, http.StatusGone, code, why)
	}
	shows := func(text string) {
		t.Helper()
		for _, s := range []*server{f.shipped, f.cached} {
			require.Eventually(t, func() bool {
				return strings.Contains(string(s.ask(t, root("v1")+"koalas", asJSON, false).body), text)
			}, patience, patience/1000)
		}
	}
	shows(`"added":"yes"`)
	expired(f.cached, "a property with a default was added")
	expired(serve(t, f.etcd, true), "the server has started after that")

	require.NoError(t, definitions.Delete(t.Context(), d.Name, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := definitions.Get(t.Context(), d.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, patience, patience/1000)
	f.define(t, definition("koalas", "Wombat", none))
	shows(`"kind":"WombatList"`)
	f.put(t, "koalas", "Wombat", "ns1", "w1", 0)
	expired(f.cached, "the definition was made again with another kind")
	expired(serve(t, f.etcd, true), "the server has started after that too")
}
