// SPDX-License-Identifier: Apache-2.0

package customresources

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A definition whose conversion webhook can't be reached has objects that nobody can
// read: no list and no watch may say that there are none.
func TestObjectsThatCanNotBeConverted(t *testing.T) {
	f := newFixture(t)
	before := definition("pandas", "Panda", &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter})
	f.define(t, before)
	f.put(t, "pandas", "Panda", "ns1", "p1", 0)

	client, err := clientset.NewForConfig(f.shipped.config)
	require.NoError(t, err)
	definitions := client.ApiextensionsV1().CustomResourceDefinitions()
	d, err := definitions.Get(t.Context(), before.Name, metav1.GetOptions{})
	require.NoError(t, err)
	unreachable := "https://127.0.0.1:1/convert"
	d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &unreachable},
		ConversionReviewVersions: []string{"v1"},
	}}
	d.Spec.Versions[0].Storage, d.Spec.Versions[1].Storage = false, true
	_, err = definitions.Update(t.Context(), d, metav1.UpdateOptions{})
	require.NoError(t, err)
	// v2 is the version that the object is not stored in.
	all := root("v2") + "pandas?"
	for name, s := range map[string]*server{"shipped": f.shipped, "cached": f.cached} {
		require.Eventually(t, func() bool { return s.ask(t, all, asJSON, false).status != http.StatusOK }, patience, patience/1000)
		for _, query := range []string{
			"", "resourceVersion=0", "resourceVersion=0&limit=500", "limit=500", "watch=true&resourceVersion=0",
			"watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan",
		} {
			for _, accept := range []string{asJSON, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"} {
				a := s.ask(t, all+query, accept, false)
				require.GreaterOrEqual(t, a.status, http.StatusBadRequest, "%s: %s as %s: %s", name, query, accept, a.body)
			}
		}
	}
	require.Equal(t, http.StatusOK, f.cached.ask(t, root("v1")+"pandas", asJSON, false).status, "the version that the object is stored in needs no conversion")
}
