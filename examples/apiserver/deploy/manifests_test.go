// SPDX-License-Identifier: Apache-2.0

// Package deploy holds the tests of the manifests in this folder: each is decoded
// as kube-apiserver would, without fields that it does not know, and the names,
// ports, flags and sizes in them fit each other and the code.
package deploy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// app is the name that the files of this folder have in common.
const app = "fleet-apiserver"

// manifests returns the objects of all files, by kind and name, as in
// "Deployment/fleet-apiserver".
func manifests(t *testing.T) map[string]runtime.Object {
	t.Helper()
	var files []string
	for _, pattern := range []string{"*.yaml", "monitoring/*.yaml"} {
		matches, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, matches)
		files = append(files, matches...)
	}
	objects := map[string]runtime.Object{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		found, err := decode(text)
		require.NoError(t, err, file)
		require.NotEmpty(t, found, "%s holds nothing", file)
		for name, object := range found {
			require.NotContains(t, objects, name, "%s: an object of another file", file)
			objects[name] = object
		}
	}
	return objects
}

// decode returns the objects of a file, or an error if one has a field that its
// type does not have, or has one twice.
func decode(text []byte) (map[string]runtime.Object, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	scheme.AddKnownTypes(schema.GroupVersion{Group: "apiregistration.k8s.io", Version: "v1"}, &APIService{})
	scheme.AddKnownTypes(schema.GroupVersion{Group: "monitoring.coreos.com", Version: "v1"}, &ServiceMonitor{})
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	objects := map[string]runtime.Object{}
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		object, kind, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, err
		}
		accessor, err := meta.Accessor(object)
		if err != nil {
			return nil, err
		}
		objects[kind.Kind+"/"+accessor.GetName()] = object
	}
}

// get returns the object of a name, which must be of type T.
func get[T runtime.Object](t *testing.T, objects map[string]runtime.Object, name string) T {
	t.Helper()
	object, ok := objects[name].(T)
	require.True(t, ok, "%s is a %T", name, objects[name])
	return object
}
