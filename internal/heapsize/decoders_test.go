// SPDX-License-Identifier: Apache-2.0

//go:build !race && !invariants

package heapsize_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/install"
	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// decoder makes one object afresh, as a storage does of what it has read.
type decoder func() runtime.Object

// protobufPods returns a decoder of a Pod with so many containers, and how many
// bytes it is encoded in.
func protobufPods(t testing.TB, containers int) (decoder, int) {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	serializer := protobuf.NewSerializer(scheme, scheme)
	pod := aPod(containers)
	pod.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Pod"})
	encoded, err := runtime.Encode(serializer, pod)
	require.NoError(t, err)
	return func() runtime.Object {
		decoded, err := runtime.Decode(serializer, encoded)
		if err != nil {
			panic(err)
		}
		return decoded
	}, len(encoded)
}

// custom returns a decoder of an object of a custom resource that is encoded
// in about so many bytes.
func custom(t testing.TB, size int) (decoder, int) {
	t.Helper()
	content := map[string]any{
		"apiVersion": "example.com/v1", "kind": "Pipeline",
		"metadata": map[string]any{
			"name": "nightly", "namespace": "ci", "resourceVersion": "4711", "labels": map[string]any{"team": "build"},
		},
	}
	var steps []any
	content["spec"] = map[string]any{}
	var encoded []byte
	for len(encoded) < size {
		steps = append(steps, map[string]any{
			"name": fmt.Sprintf("step-%d", len(steps)), "image": "registry.example/ci/step:1.0", "retries": int64(len(steps) % 5),
			"timeout": int64(3600), "ratio": 0.5, "privileged": false, "args": []any{"--verbose", "--out", "/tmp/result", ""},
			"when": []any{map[string]any{"branch": "main", "event": nil}},
		})
		content["spec"].(map[string]any)["steps"] = steps
		var err error
		encoded, err = json.Marshal(content)
		require.NoError(t, err)
	}
	return func() runtime.Object {
		decoded, _, err := unstructured.UnstructuredJSONScheme.Decode(encoded, nil, nil)
		if err != nil {
			panic(err)
		}
		return decoded
	}, len(encoded)
}

// devices returns decoders of a device of the example server, as its internal
// and as its versioned type.
func devices(t testing.TB) (internal, versioned decoder) {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, install.AddToScheme(scheme))
	codecs := serializer.NewCodecFactory(scheme)
	seen := metav1.NewTime(time.Unix(1_700_000_000, 0))
	encoded, err := runtime.Encode(codecs.LegacyCodec(fleetv1.SchemeGroupVersion), &fleet.Device{
		ObjectMeta: metav1.ObjectMeta{
			Name: "scanner-0042", Namespace: "warehouse", UID: "0b6f6cd4-5bd1-4b5e-9d1f-6c9d7f2e1a33", ResourceVersion: "1234567",
			CreationTimestamp: seen, Labels: map[string]string{"site": "north", "floor": "2"},
			ManagedFields: []metav1.ManagedFieldsEntry{managed("fleetctl", "", 2)},
		},
		Spec: fleet.DeviceSpec{
			Zone: "zone-a", Owner: "logistics", Model: "Scanner 9000", Firmware: fleet.Firmware{Channel: fleet.FirmwareStable, Version: "1.17.3"},
		},
		Status: fleet.DeviceStatus{Phase: fleet.DeviceReady, Message: "seen a minute ago", LastSeenTime: &seen, ObservedGeneration: 3},
	})
	require.NoError(t, err)
	// From Kubernetes 1.38 on, objects with equal managed fields share them: each gets its own.
	n := 0
	decodeBy := func(by runtime.Decoder) decoder {
		return func() runtime.Object {
			n++
			decoded, err := runtime.Decode(by, bytes.ReplaceAll(encoded, []byte("container-0"), fmt.Appendf(nil, "container-%d", n)))
			if err != nil {
				panic(err)
			}
			return decoded
		}
	}
	return decodeBy(codecs.UniversalDecoder(fleet.SchemeGroupVersion)), decodeBy(codecs.UniversalDeserializer())
}
