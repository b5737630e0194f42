// SPDX-License-Identifier: Apache-2.0

//go:build unix

// The benchmarks of this package say what an object costs: the heap that a decoded
// one takes and of what it consists, and what it would take as bytes. Times are CPU times of the process, the garbage
// collector's included, since time on the wall says little on a machine with other
// work.

package realistic_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"

	"github.com/kube-watchcache/watchcache/internal/realistic"
)

func kinds(t testing.TB) (all []realistic.Kind) {
	t.Helper()
	for _, size := range []int{4000, 15_000} {
		k, err := realistic.Pods(size)
		require.NoError(t, err)
		all = append(all, k)
	}
	for _, size := range []int{1000, 10_000, 100_000} {
		k, err := realistic.CustomResources(size)
		require.NoError(t, err)
		all = append(all, k)
	}
	return all
}

// Objects have the size that they are said to have, and survive their codec.
func TestSizes(t *testing.T) {
	want := []int{4000, 15_000, 1000, 10_000, 100_000}
	for i, k := range kinds(t) {
		encoded, err := k.Encode(7, 3)
		require.NoError(t, err)
		require.InEpsilon(t, want[i], len(encoded), 0.35, k.Name)
		decoded, err := k.Decode(encoded, 0)
		require.NoError(t, err)
		again, err := apiruntime.Encode(k.Codec, decoded)
		require.NoError(t, err)
		back, err := k.Decode(again, 0)
		require.NoError(t, err)
		require.Equal(t, decoded, back, k.Name)
	}
}

// No two objects have one key: a cache has one object for each.
func TestKeys(t *testing.T) {
	for _, k := range kinds(t) {
		seen := map[string]int{}
		for i := range 200 {
			key, err := realistic.Key(k.Make(i))
			require.NoError(t, err)
			require.NotContains(t, seen, key, "%s %d has the key of another one", k.Name, i)
			seen[key] = i
		}
	}
}

func cpuTime(b *testing.B) int64 {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}

// repeat does f as often as the benchmark wants, and reports its CPU time.
func repeat(b *testing.B, f func() error) {
	b.ReportAllocs()
	before, n := cpuTime(b), 0
	for ; b.Loop(); n++ {
		if err := f(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cpuTime(b)-before)/float64(n), "cpu-ns/op")
}

func decode(t testing.TB, k realistic.Kind, i, updates int) apiruntime.Object {
	t.Helper()
	encoded, err := k.Encode(i, updates)
	require.NoError(t, err)
	object, err := k.Decode(encoded, uint64(i+updates+1))
	require.NoError(t, err)
	return object
}

// form is a way to keep an object as bytes.
type form struct {
	name    string
	encoder apiruntime.Encoder
	decoder apiruntime.Decoder
}

func forms(b *testing.B, k realistic.Kind) []form {
	b.Helper()
	stored := form{"stored", k.Codec, k.Codec}
	if _, ok := k.New().(*unstructured.Unstructured); !ok {
		scheme := apiruntime.NewScheme()
		require.NoError(b, corev1.AddToScheme(scheme))
		jsons := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{})
		cbors := cbor.NewSerializer(scheme, scheme)
		return []form{stored, {"JSON", jsons, jsons}, {"CBOR", cbors, cbors}}
	}
	scheme := apiruntime.NewScheme()
	cbors := cbor.NewSerializer(unstructuredCreater{}, scheme)
	return []form{stored, {"CBOR", cbors, cbors}}
}

// unstructuredCreater makes empty unstructured objects.
type unstructuredCreater struct{ apiruntime.ObjectCreater }

// BenchmarkCold reads an object: one that is decoded, by a copy to the last, and one
// that is kept as bytes, plain or compressed, by decoding. The metric heap-B is what
// it takes meanwhile, without attributes and key.
func BenchmarkCold(b *testing.B) {
	for _, k := range kinds(b) {
		object := decode(b, k, 0, 0)
		heap := heapOf(b, k)
		b.Run(k.Name+"/warm", func(b *testing.B) {
			repeat(b, func() error { object.DeepCopyObject(); return nil })
			b.ReportMetric(heap, "heap-B")
		})
		for _, f := range forms(b, k) {
			var plain bytes.Buffer
			require.NoError(b, f.encoder.Encode(object, &plain))
			read := func(encoded []byte) error {
				_, _, err := f.decoder.Decode(encoded, nil, k.New())
				return err
			}
			b.Run(k.Name+"/cold/"+f.name, func(b *testing.B) {
				repeat(b, func() error { return read(plain.Bytes()) })
				b.ReportMetric(float64(plain.Len()), "heap-B")
			})
			var packed bytes.Buffer
			w, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
			require.NoError(b, err)
			_, err = w.Write(plain.Bytes())
			require.NoError(b, err)
			require.NoError(b, w.Close())
			b.Run(k.Name+"/cold/"+f.name+"-gzip", func(b *testing.B) {
				var r gzip.Reader
				repeat(b, func() error {
					if err := r.Reset(bytes.NewReader(packed.Bytes())); err != nil {
						return err
					}
					encoded, err := io.ReadAll(&r)
					if err != nil {
						return err
					}
					return read(encoded)
				})
				b.ReportMetric(float64(packed.Len()), "heap-B")
			})
		}
	}
}

// many is how many objects the heap is measured of.
const many = 100

// heapOf returns the heap that a decoded object takes.
func heapOf(b *testing.B, k realistic.Kind) float64 {
	b.Helper()
	var encoded [many][]byte
	var objects [many]apiruntime.Object
	for i := range many {
		var err error
		encoded[i], err = k.Encode(i, 0)
		require.NoError(b, err)
	}
	before := inUse()
	for i := range many {
		var err error
		objects[i], err = k.Decode(encoded[i], uint64(i+1))
		require.NoError(b, err)
	}
	after := inUse()
	runtime.KeepAlive(&objects)
	runtime.KeepAlive(&encoded)
	return float64(after-before) / many
}

func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkHeap reports, from a heap profile that has every allocation, of what
// decoded objects consist. The benchmark decodes a number of objects once, whatever
// its time. Managed fields of unstructured objects are among the rest: the
// profile can't tell them apart.
func BenchmarkHeap(b *testing.B) {
	rate := runtime.MemProfileRate
	defer func() { runtime.MemProfileRate = rate }()
	for _, k := range kinds(b) {
		b.Run(k.Name, func(b *testing.B) {
			var encoded [many][]byte
			var objects [many]apiruntime.Object
			for i := range many {
				var err error
				encoded[i], err = k.Encode(i, 0)
				require.NoError(b, err)
			}
			runtime.MemProfileRate = 1
			before := profile()
			for i := range many {
				var err error
				objects[i], err = k.Decode(encoded[i], uint64(i+1))
				require.NoError(b, err)
			}
			after := profile()
			runtime.MemProfileRate = rate
			runtime.KeepAlive(&objects)
			total := 0.0
			for part, bytes := range after {
				each := float64(bytes-before[part]) / many
				total += each
				b.ReportMetric(each, part+"-B")
			}
			b.ReportMetric(total, "all-B")
			b.ReportMetric(float64(len(encoded[0])), "encoded-B")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// profile returns the bytes in use by what they are in.
func profile() map[string]int64 {
	runtime.GC()
	runtime.GC()
	records := make([]runtime.MemProfileRecord, 1000)
	n, ok := runtime.MemProfile(records, false)
	for !ok {
		records = make([]runtime.MemProfileRecord, 2*n)
		n, ok = runtime.MemProfile(records, false)
	}
	parts := map[string]int64{}
	for _, r := range records[:n] {
		parts[partOf(r.Stack())] += r.InUseBytes()
	}
	return parts
}

// partOf returns what an allocation is for, by the functions that asked for it.
func partOf(stack []uintptr) string {
	frames := runtime.CallersFrames(stack)
	part, runtimes := "", true
	for {
		frame, more := frames.Next()
		name := frame.Function
		switch {
		case strings.Contains(name, "FieldsV1") || strings.Contains(name, "ManagedFieldsEntry"):
			return "managed-fields"
		case !runtimes:
		case strings.Contains(name, "runtime/maps.") || strings.Contains(name, "runtime.map") || strings.Contains(name, "runtime.makemap"):
			part = "maps"
		case part != "":
		case strings.Contains(name, "slicebytetostring") || strings.Contains(name, "rawstring") || strings.Contains(name, "concatstring"):
			part = "strings"
		case strings.Contains(name, "convT"):
			part = "boxes"
		case strings.Contains(name, "growslice") || strings.Contains(name, "makeslice") || strings.Contains(name, "growsliceBuf"):
			part = "slices"
		case strings.Contains(name, "newobject"):
			part = "structs"
		}
		runtimes = runtimes && (strings.HasPrefix(name, "runtime.") || strings.HasPrefix(name, "internal/runtime/"))
		if !more {
			break
		}
	}
	if part == "" {
		return "rest"
	}
	return part
}
