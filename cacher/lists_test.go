// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// Lists keeps what lists were encoded to, for the serializers that it was asked
// for; a cache without it keeps nothing.
func TestLists(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{example.AddToScheme, examplev1.AddToScheme} {
		require.NoError(t, add(scheme))
	}
	scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
	scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
	stock := serializer.NewCodecFactory(scheme)
	for _, lists := range []*cacher.ListEncodings{nil, {}} {
		store := newStore()
		for i := range 40 {
			put(store, poddata.Pod(fmt.Sprintf("a/pod-%d", i)))
		}
		c := start(t, store, func(config *cacher.Config) { config.Lists = lists })
		var serializer runtime.NegotiatedSerializer = stock
		if lists != nil {
			serializer = lists.Serializer(stock)
			assert.True(t, lists.Serializer(serializer) == serializer, "a serializer is wrapped twice")
		}
		info, _ := runtime.SerializerInfoForMediaType(stock.SupportedMediaTypes(), runtime.ContentTypeJSON)
		for range 3 {
			var list example.PodList
			options := storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: storage.Everything}
			ctx := context.Background()
			if lists != nil {
				with, end := lists.Begin(ctx)
				defer end()
				ctx = with
			}
			err := c.GetList(ctx, "/pods/", options, &list)
			require.NoError(t, err)
			require.Len(t, list.Items, 40)
			encoded := func(s runtime.NegotiatedSerializer) string {
				var into bytes.Buffer
				require.NoError(t, s.EncoderForVersion(info.Serializer, examplev1.SchemeGroupVersion).Encode(&list, &into))
				return into.String()
			}
			want, got := encoded(stock), encoded(serializer)
			assert.Equal(t, want, got)
		}
		kept := c.Status().EncodingBytes
		assert.Equal(t, lists != nil, kept > 0, "whether bytes are kept, with %v: %d", lists, kept)
	}
}
