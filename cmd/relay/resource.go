// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	baseversion "k8s.io/component-base/version"

	"github.com/kube-watchcache/watchcache/storage/upstream"
)

// selector returns the value of a field of an object.
type selector = func(runtime.Object) string

// resource is one that the relay serves.
type resource struct {
	schema.GroupVersionResource
	of       metav1.APIResource
	kind     schema.GroupVersionKind
	listKind schema.GroupVersionKind
	// typed: objects have a Go type, and the protobuf form that belongs to it. The others
	// are unstructured: what no type of this program has may not get lost.
	typed bool
	// fields are the selectable fields beside the metadata's, each with the function for
	// its value in an object. Selectors with others are the upstream's to evaluate.
	fields map[string]selector
	store  *upstream.Store
	// watches are the functions that end the open ones.
	watches sync.Map
}

// prefix is the key prefix of the cache.
func (r *resource) prefix() string { return "/" + cmp.Or(r.Group, "core") + "/" + r.Resource }

// newObject and newList return empty ones.
func (r *resource) newObject() runtime.Object {
	if r.typed {
		return newTyped(r.kind)
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(r.kind)
	return u
}

func (r *resource) newList() runtime.Object {
	if r.typed {
		return newTyped(r.listKind)
	}
	l := &unstructuredList{}
	l.SetGroupVersionKind(r.listKind)
	return l
}

func newTyped(kind schema.GroupVersionKind) runtime.Object {
	object, err := clientscheme.Scheme.New(kind)
	if err != nil {
		panic(err) // describe has looked whether there is one
	}
	return object
}

// attributes returns what selectors see of an object.
func (r *resource) attributes(o runtime.Object) (labels.Set, fields.Set, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, nil, err
	}
	set := fields.Set{metav1.ObjectNameField: m.GetName()}
	if r.of.Namespaced {
		set["metadata.namespace"] = m.GetNamespace()
	}
	for name, value := range r.fields {
		set[name] = value(o)
	}
	return m.GetLabels(), set, nil
}

// selectable reports whether a field can be selected by here.
func (r *resource) selectable(field string) bool {
	return field == metav1.ObjectNameField || (field == "metadata.namespace" && r.of.Namespaced) || r.fields[field] != nil
}

// field makes the function of a field of a Go type.
func field[T any](value func(*T) string) func(runtime.Object) string {
	return func(o runtime.Object) string {
		if object, ok := any(o).(*T); ok {
			return value(object)
		}
		return ""
	}
}

// selectors are the selectable fields of built-in types that are worth an evaluation here.
var selectors = map[schema.GroupResource]map[string]selector{
	{Resource: "pods"}: {
		"spec.nodeName": field(func(p *corev1.Pod) string { return p.Spec.NodeName }),
		"status.phase":  field(func(p *corev1.Pod) string { return string(p.Status.Phase) }),
	},
	{Resource: "nodes"}:      {"spec.unschedulable": field(func(n *corev1.Node) string { return strconv.FormatBool(n.Spec.Unschedulable) })},
	{Resource: "namespaces"}: {"status.phase": field(func(n *corev1.Namespace) string { return string(n.Status.Phase) })},
	{Resource: "secrets"}:    {"type": field(func(s *corev1.Secret) string { return string(s.Type) })},
}

// describe finds the named resources upstream. An error names each one that can't be served.
func (s *server) describe(ctx context.Context, names []string, secrets bool) (map[schema.GroupResource]*resource, error) {
	info, err := s.discovery.ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("the version of the upstream %s: %w", s.upstream.Host, err)
	}
	theirs, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return nil, fmt.Errorf("the version of the upstream %s: %w", s.upstream.Host, err)
	}
	// The types of this program have the fields of an upstream that is not newer; see README.md.
	ours := version.MustParseGeneric(baseversion.DefaultKubeBinaryVersion)
	s.version.Store(info)
	known := theirs.Major() == ours.Major() && theirs.Minor() <= ours.Minor()
	groups, lists, err := s.discovery.ServerGroupsAndResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) { // a group that is away is missed if it is named
		return nil, fmt.Errorf("the resources of the upstream %s: %w", s.upstream.Host, err)
	}
	found := map[schema.GroupResource]*resource{}
	var wrong []error
	for _, name := range names {
		r, err := find(name, groups, lists)
		if err == nil && r.GroupResource() == corev1.Resource("secrets") && !secrets {
			err = errors.New("secrets need --allow-secrets")
		}
		if err == nil && found[r.GroupResource()] != nil {
			err = errors.New("it is named twice")
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("--resources %s: %w", name, err))
			continue
		}
		r.typed = known && clientscheme.Scheme.Recognizes(r.kind) && clientscheme.Scheme.Recognizes(r.listKind)
		if r.typed {
			r.fields = selectors[r.GroupResource()]
		} else if err := r.define(ctx, s.upstream); err != nil {
			wrong = append(wrong, err)
			continue
		}
		found[r.GroupResource()] = r
	}
	return found, errors.Join(wrong...)
}

// find finds a resource by RESOURCE, RESOURCE.GROUP or RESOURCE.VERSION.GROUP.
func find(name string, groups []*metav1.APIGroup, lists []*metav1.APIResourceList) (*resource, error) {
	versioned, unversioned := schema.ParseResourceArg(name)
	for _, group := range groups {
		versions := []string{group.PreferredVersion.Version}
		for _, v := range group.Versions {
			versions = append(versions, v.Version)
		}
		for _, v := range versions {
			gv := schema.GroupVersion{Group: group.Name, Version: v}
			plain := gv.Group == unversioned.Group
			if !plain && (versioned == nil || versioned.GroupVersion() != gv) {
				continue
			}
			wanted := unversioned.Resource
			if !plain {
				wanted = versioned.Resource
			}
			if of := resourceOf(lists, gv, wanted); of != nil {
				return newResource(gv, *of)
			}
		}
	}
	return nil, errors.New("the upstream does not serve it")
}

func resourceOf(lists []*metav1.APIResourceList, gv schema.GroupVersion, name string) *metav1.APIResource {
	for _, list := range lists {
		if list.GroupVersion != gv.String() {
			continue
		}
		if i := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == name }); i >= 0 {
			return &list.APIResources[i]
		}
	}
	return nil
}

func newResource(gv schema.GroupVersion, of metav1.APIResource) (*resource, error) {
	for _, verb := range []string{"get", "list", "watch"} {
		if !slices.Contains(of.Verbs, verb) {
			return nil, fmt.Errorf("the upstream has no %q for it", verb)
		}
	}
	return &resource{GroupVersionResource: gv.WithResource(of.Name), of: of, kind: gv.WithKind(of.Kind), listKind: gv.WithKind(of.Kind + "List")}, nil
}

// define adds what the definition of a custom resource says: the kind of its lists, and its
// selectable fields. A resource without a definition has none, nor has one whose definition
// the relay may not read.
func (r *resource) define(ctx context.Context, config *rest.Config) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	crd, err := client.Resource(definitions).Get(ctx, r.GroupResource().String(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the definition of %s: %w", r.GroupResource(), err)
	}
	if kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "listKind"); kind != "" {
		r.listKind.Kind = kind
	}
	r.fields = map[string]selector{}
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		version, _ := v.(map[string]any)
		if version["name"] != r.Version {
			continue
		}
		declared, _, _ := unstructured.NestedSlice(version, "selectableFields")
		for _, d := range declared {
			if path, _, _ := unstructured.NestedString(d.(map[string]any), "jsonPath"); path != "" {
				name := strings.TrimPrefix(path, ".")
				r.fields[name] = valueAt(strings.Split(name, "."))
			}
		}
	}
	return nil
}

// valueAt returns the function of the field at a path of unstructured objects: a string, a
// number or a boolean.
func valueAt(path []string) func(runtime.Object) string {
	return func(o runtime.Object) string {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			return ""
		}
		value, found, err := unstructured.NestedFieldNoCopy(u.Object, path...)
		if err != nil || !found || value == nil {
			return ""
		}
		return fmt.Sprint(value)
	}
}
