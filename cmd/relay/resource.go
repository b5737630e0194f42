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

// selector returns the value of an object's field.
type selector = func(runtime.Object) string

// resource is a served resource.
type resource struct {
	schema.GroupVersionResource
	of       metav1.APIResource
	kind     schema.GroupVersionKind
	listKind schema.GroupVersionKind
	// typed is true if objects have a Go type and protobuf. Otherwise they are unstructured, to
	// keep fields that this program's types lack.
	typed bool
	// fields are the selectable fields other than metadata. Only the upstream evaluates others.
	fields map[string]selector
	store  *upstream.Store
	// watches holds the functions that end open watches.
	watches sync.Map
}

func (r *resource) prefix() string { return "/" + cmp.Or(r.Group, "core") + "/" + r.Resource }

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
		panic(err) // describe checked that it is registered
	}
	return object
}

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

// selectable reports whether the relay can select by field.
func (r *resource) selectable(field string) bool {
	return field == metav1.ObjectNameField || (field == "metadata.namespace" && r.of.Namespaced) || r.fields[field] != nil
}

// field returns a selector for objects of a Go type.
func field[T any](value func(*T) string) func(runtime.Object) string {
	return func(o runtime.Object) string {
		if object, ok := any(o).(*T); ok {
			return value(object)
		}
		return ""
	}
}

// selectors are the selectable fields of built-in types evaluated by the relay.
var selectors = map[schema.GroupResource]map[string]selector{
	{Resource: "pods"}: {
		"spec.nodeName": field(func(p *corev1.Pod) string { return p.Spec.NodeName }),
		"status.phase":  field(func(p *corev1.Pod) string { return string(p.Status.Phase) }),
	},
	{Resource: "nodes"}:      {"spec.unschedulable": field(func(n *corev1.Node) string { return strconv.FormatBool(n.Spec.Unschedulable) })},
	{Resource: "namespaces"}: {"status.phase": field(func(n *corev1.Namespace) string { return string(n.Status.Phase) })},
	{Resource: "secrets"}:    {"type": field(func(s *corev1.Secret) string { return string(s.Type) })},
}

// describe finds the named resources upstream. Its error names all that can't be served.
func (s *server) describe(ctx context.Context, names []string, secrets bool) (map[schema.GroupResource]*resource, error) {
	info, err := s.discovery.ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("the version of the upstream %s: %w", s.upstream.Host, err)
	}
	theirs, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return nil, fmt.Errorf("the version of the upstream %s: %w", s.upstream.Host, err)
	}
	// Our types have all fields of an equal or older upstream; see README.md.
	ours := version.MustParseGeneric(baseversion.DefaultKubeBinaryVersion)
	s.version.Store(info)
	known := theirs.Major() == ours.Major() && theirs.Minor() <= ours.Minor()
	groups, lists, err := s.discovery.ServerGroupsAndResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) { // a failed group matters only if named
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

// define sets the list kind and selectable fields from a custom resource's definition, if readable.
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

// valueAt returns a selector for a string, number or boolean at a path in unstructured objects.
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
