// SPDX-License-Identifier: Apache-2.0

package listcache

import (
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	apiserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/util/apihelpers"

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
// changed since the list before, with the server's own encoder and with kept
// bytes, by turns. BenchmarkList reports the CPU time of the process for each, and
// their ratio.
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
		for _, changes := range []int{0, 50, 1000, 2500, 5000} {
			b.Run(fmt.Sprintf("%s/changes=%d", strings.TrimPrefix(mediaType, "application/"), changes), func(b *testing.B) {
				elements := make([]*watchcache.Element, 5000)
				for i := range elements {
					elements[i] = pod(i, 1)
				}
				var listings Listings
				_, share := bytebudget.New(64 << 20)
				store := NewStore(share)
				info, _ := apiruntime.SerializerInfoForMediaType(stock.SupportedMediaTypes(), mediaType)
				encode := func(from apiruntime.NegotiatedSerializer) time.Duration {
					encoder := from.EncoderForVersion(info.Serializer, examplev1.SchemeGroupVersion).(apiruntime.EncoderWithAllocator)
					before := processTime(b)
					list := &example.PodList{Items: make([]example.Pod, len(elements))}
					for i, e := range elements {
						list.Items[i] = *e.Object.(*example.Pod)
					}
					ctx, end := listings.Begin(b.Context())
					defer end()
					listings.Note(ctx, list, elements, store)
					memory := apiruntime.AllocatorPool.Get().(*apiruntime.Allocator)
					defer apiruntime.AllocatorPool.Put(memory)
					if err := encoder.EncodeWithAllocator(list, io.Discard, memory); err != nil {
						b.Fatal(err)
					}
					return processTime(b) - before
				}
				kept := listings.Serializer(stock)
				encode(kept)
				encode(kept)
				round := 1
				var with, without time.Duration
				for b.Loop() {
					round++
					elements = append([]*watchcache.Element{}, elements...)
					for i := range changes {
						at := (i*7919 + round*101) % len(elements)
						elements[at] = pod(at, round)
					}
					without += encode(stock)
					with += encode(kept)
				}
				report(b, without, with)
			})
		}
	}
}

// BenchmarkForms writes lists of 5,000 pods of 3.3 KB as Tables and as metadata,
// as the server does and from kept bytes, by turns. Both times have what a
// registry does to make a Table.
func BenchmarkForms(b *testing.B) {
	for _, c := range []struct {
		name    string
		syntax  syntax
		asTable bool
	}{{"Table", jsonSyntax, true}, {"metadata-json", jsonSyntax, false}, {"metadata-protobuf", protobufSyntax, false}} {
		for _, changes := range []int{0, 50, 1000, 5000} {
			b.Run(fmt.Sprintf("%s/changes=%d", c.name, changes), func(b *testing.B) {
				f := newFormed(5000, pod, podList)
				encode := func(kept bool) time.Duration {
					list := f.newList(f.elements)
					form := &Representation{Serializer: apihelpers.GetMetaInternalVersionCodecs()}
					if c.asTable {
						form.Table = f.registryTable
					}
					ctx, end := f.listings.Represent(b.Context(), form)
					if kept {
						f.listings.Note(ctx, list, f.elements, f.store)
					}
					f.listings.Read(ctx, list)
					defer end()
					before := processTime(b)
					if err := f.encoder[c.syntax].Encode(list, io.Discard); err != nil || !form.Written() {
						b.Fatal(err)
					}
					return processTime(b) - before
				}
				encode(true)
				encode(true)
				round := 1
				var with, without time.Duration
				for b.Loop() {
					round++
					f.now++
					f.elements = append([]*watchcache.Element{}, f.elements...)
					for i := range changes {
						at := (i*7919 + round*101) % len(f.elements)
						f.elements[at] = pod(at, round)
					}
					without += encode(false)
					with += encode(true)
				}
				report(b, without, with)
			})
		}
	}
}

func report(b *testing.B, without, with time.Duration) {
	b.Helper()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(without.Microseconds())/float64(b.N), "µs-without/list")
	b.ReportMetric(float64(with.Microseconds())/float64(b.N), "µs-kept/list")
	b.ReportMetric(float64(with)/float64(without), "kept/without")
}

// processTime returns the CPU time that the process has used.
func processTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
