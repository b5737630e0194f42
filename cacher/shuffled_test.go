// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// identifiers returns those that an API server's encoders have for a media type
// and a group and version: of the object, and of the object within a watch event.
func identifiers(t *testing.T, mediaType string, version schema.GroupVersion) []string {
	t.Helper()
	scheme := runtime.NewScheme()
	codecs := serializer.NewCodecFactory(scheme, serializer.WithSerializer(cbor.NewSerializerInfo))
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
	require.True(t, ok, "nothing encodes %s", mediaType)
	serializer := runtime.UseNondeterministicEncoding(info.Serializer)
	whole := string(codecs.EncoderForVersion(serializer, version).Identifier())
	within := func(id string) string {
		text, err := json.Marshal(map[string]string{"name": "watch", "eventType": "ADDED", "embeddedEncoder": id})
		require.NoError(t, err)
		return string(text)
	}
	return []string{string(serializer.Identifier()), whole, within(whole), within(within(whole))}
}

// An object in shuffled CBOR is encoded for each watch that has it from the window
// or from the state, and once for all that have it as it happens. Any other format
// is encoded once for all, even if the object's group is called as CBOR is.
func TestShuffledReplays(t *testing.T) {
	version := schema.GroupVersion{Group: "cbor", Version: "v1"}
	for mediaType, each := range map[string]bool{
		runtime.ContentTypeCBOR: true, runtime.ContentTypeJSON: false, runtime.ContentTypeYAML: false, runtime.ContentTypeProtobuf: false,
	} {
		for _, id := range identifiers(t, mediaType, version) {
			store := newStore(poddata.Pod("a/one", "color=red"))
			c := start(t, store)
			const watches = 5
			var live []*podWatch
			for range watches {
				live = append(live, watchPods(t, c, "/pods/", "2", selecting("color=red", "")))
			}
			allLive(t, c, watches)
			put(store, poddata.Pod("a/one", "color=red", "size=big"))
			var dispatched, initial, modified, left encoder
			for _, w := range live {
				encodeNext(t, w, id, dispatched.encode)
			}
			for range watches {
				encodeNext(t, watchPods(t, c, "/pods/", "0"), id, initial.encode)
			}
			for range watches {
				encodeNext(t, watchPods(t, c, "/pods/", "2"), id, modified.encode)
			}
			put(store, poddata.Pod("a/one", "color=blue"))
			for _, w := range live {
				encodeNext(t, w, id, left.encode)
			}
			for range watches {
				encodeNext(t, watchPods(t, c, "/pods/", "3", selecting("color=red", "")), id, left.encode)
			}
			got := [4]int64{dispatched.calls.Load(), initial.calls.Load(), modified.calls.Load(), left.calls.Load()}
			want := [4]int64{1, 0, 0, 1}
			if each {
				want = [4]int64{1, watches, watches, 1 + watches}
			}
			assert.Equal(t, want, got, "how often %s is encoded as %s: dispatched, initial, replayed, left", version, id)
		}
	}
}

func allLive(t *testing.T, c *cacher.Cacher, watchers int) {
	t.Helper()
	until(t, "all watchers are live", func() bool {
		live := 0
		for _, w := range c.Status().Watchers {
			if !w.Parked {
				live++
			}
		}
		return live == watchers
	})
}
