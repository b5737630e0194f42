// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"io"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	apiserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"

	"github.com/kube-watchcache/watchcache/cacher/internal/bytebudget"
	"github.com/kube-watchcache/watchcache/watchcache"
)

func pod(i, rv int) *watchcache.Element {
	object := &example.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: fmt.Sprintf("pod-%05d", i), ResourceVersion: fmt.Sprint(rv),
		Labels:      map[string]string{"app": "a", "tier": "b", "version": "c"},
		Annotations: map[string]string{"text": strings.Repeat("0123456789 text", 200)},
	}}
	return &watchcache.Element{Key: "/pods/ns/" + object.Name, RV: uint64(rv), Object: object}
}

// BenchmarkList encodes lists of 5,000 pods of 3.3 KB, of which so many have
// changed since the list before, with the server's own encoder and with kept bytes.
func BenchmarkList(b *testing.B) {
	scheme := apiruntime.NewScheme()
	for _, add := range []func(*apiruntime.Scheme) error{example.AddToScheme, examplev1.AddToScheme} {
		if err := add(scheme); err != nil {
			b.Fatal(err)
		}
	}
	scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
	scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
	stock := apiserializer.NewCodecFactory(scheme, apiserializer.WithStreamingCollectionEncodingToJSON(), apiserializer.WithStreamingCollectionEncodingToProtobuf())
	for _, mediaType := range []string{apiruntime.ContentTypeJSON, apiruntime.ContentTypeProtobuf} {
		for _, changes := range []int{0, 10, 100, 1000} {
			for _, with := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/changes=%d/kept=%v", strings.TrimPrefix(mediaType, "application/"), changes, with), func(b *testing.B) {
					elements := make([]*watchcache.Element, 5000)
					for i := range elements {
						elements[i] = pod(i, 1)
					}
					var listings Listings
					_, share := bytebudget.New(64 << 20)
					store := NewStore(share)
					info, _ := apiruntime.SerializerInfoForMediaType(stock.SupportedMediaTypes(), mediaType)
					var from apiruntime.NegotiatedSerializer = stock
					if with {
						from = listings.Serializer(stock)
					}
					encoder := from.EncoderForVersion(info.Serializer, examplev1.SchemeGroupVersion).(apiruntime.EncoderWithAllocator)
					var memory apiruntime.Allocator
					round := 1
					encode := func() {
						list := &example.PodList{Items: make([]example.Pod, len(elements))}
						for i, e := range elements {
							list.Items[i] = *e.Object.(*example.Pod)
						}
						listings.Note(list, elements, store)
						if err := encoder.EncodeWithAllocator(list, io.Discard, &memory); err != nil {
							b.Fatal(err)
						}
					}
					encode()
					encode()
					b.ReportAllocs()
					for b.Loop() {
						if changes > 0 {
							b.StopTimer()
							round++
							elements = append([]*watchcache.Element{}, elements...)
							for i := range changes {
								at := (i*7919 + round*101) % len(elements)
								elements[at] = pod(at, round)
							}
							b.StartTimer()
						}
						encode()
					}
				})
			}
		}
	}
}
