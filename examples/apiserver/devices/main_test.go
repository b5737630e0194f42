// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/install"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/validation"
)

// manifests gives n devices as they are printed.
func manifests(t *testing.T, n int) []byte {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, write(&out, n))
	return out.Bytes()
}

// read decodes devices as the server does, each of which must be valid.
func read(t *testing.T, from []byte) []*fleet.Device {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, install.AddToScheme(scheme))
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(fleet.SchemeGroupVersion)
	var devices []*fleet.Device
	for documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(from))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return devices
		}
		require.NoError(t, err)
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		device := &fleet.Device{}
		require.NoError(t, runtime.DecodeInto(decoder, document, device), "%s", document)
		require.Empty(t, validation.ValidateDevice(device), "%s", document)
		devices = append(devices, device)
	}
}

// TestDevicesAreValid: as many as asked for, and no two of one name.
func TestDevicesAreValid(t *testing.T) {
	const n = 200
	names := map[string]bool{}
	for _, device := range read(t, manifests(t, n)) {
		names[device.Namespace+"/"+device.Name] = true
	}
	require.Len(t, names, n)
	require.Empty(t, manifests(t, 0))
}

// TestManifestHasTheFirstDevices compares examples/apiserver/devices.yaml with what
// is printed.
func TestManifestHasTheFirstDevices(t *testing.T) {
	manifest, err := os.ReadFile("../devices.yaml")
	require.NoError(t, err)
	require.True(t, bytes.HasSuffix(manifest, manifests(t, len(kinds))), "go run ./examples/apiserver/devices %d prints other devices", len(kinds))
}
