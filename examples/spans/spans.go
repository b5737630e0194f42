// SPDX-License-Identifier: Apache-2.0

// Package spans serves each client a subset of the objects, in its own form: policies that a
// controller computes for the nodes in their spans, like Antrea's. An object is stored once, and a
// change costs as much as there are nodes that see it.
//
// # Filter by a value that an object has many times
//
// GetAttrsFunc may return labels that are not part of the object. The cache indexes watches by
// labels, here one per node of the span. REST translates the agents' field selector into a label
// selector. A node leaving the span gets DELETED, a node entering it ADDED.
//
// # Forms
//
// An event's object is a runtime.CacheableObject, which keeps encodings by identifier. A form wraps
// it and appends its name to the identifier, so all clients of the form share one encoding. Here,
// deletions contain only metadata. A form that differs per client shares nothing, and patches are
// impossible, because an event does not contain the previous object. Wrapping costs one goroutine
// per watch.
package spans

import (
	"context"
	"io"
	"maps"
	"slices"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
)

// Policy is enforced by the nodes in its span.
type Policy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Rules             []string `json:"rules,omitempty"`
	Span              []string `json:"-"` // names of nodes
}

// PolicyList is a list of policies.
type PolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Policy `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (p *Policy) DeepCopyObject() runtime.Object {
	out := &Policy{TypeMeta: p.TypeMeta, Rules: slices.Clone(p.Rules), Span: slices.Clone(p.Span)}
	p.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return out
}

// DeepCopyObject implements runtime.Object.
func (l *PolicyList) DeepCopyObject() runtime.Object {
	out := &PolicyList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*Policy))
	}
	return out
}

func inSpan(node string) string { return "span/" + node }

// Attributes is the GetAttrsFunc of policies.
func Attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	policy := obj.(*Policy)
	attributes := labels.Set(maps.Clone(policy.Labels))
	if attributes == nil {
		attributes = labels.Set{}
	}
	for _, node := range policy.Span {
		attributes[inSpan(node)] = ""
	}
	return attributes, fields.Set{"metadata.name": policy.Name, "nodeName": ""}, nil
}

// REST serves an agent with the field selector nodeName=NODE the policies of its node.
type REST struct{ *genericregistry.Store }

// List implements rest.Lister.
func (r REST) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	return r.Store.List(ctx, ofNode(options))
}

// Watch implements rest.Watcher.
func (r REST) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	w, err := r.Store.Watch(ctx, ofNode(options))
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(event watch.Event) (watch.Event, bool) {
		if shared, ok := event.Object.(runtime.CacheableObject); ok && event.Type == watch.Deleted {
			event.Object = metadataOnly{event.Object, shared}
		}
		return event, true
	}), nil
}

// ofNode replaces a selector for nodeName by one for the span.
func ofNode(options *metainternalversion.ListOptions) *metainternalversion.ListOptions {
	if options == nil || options.FieldSelector == nil {
		return options
	}
	node, ok := options.FieldSelector.RequiresExactMatch("nodeName")
	if !ok {
		return options
	}
	out := *options
	out.LabelSelector = labels.SelectorFromSet(labels.Set{inSpan(node): ""})
	if options.LabelSelector != nil {
		requirements, _ := options.LabelSelector.Requirements()
		out.LabelSelector = out.LabelSelector.Add(requirements...)
	}
	out.FieldSelector, _ = options.FieldSelector.Transform(func(field, value string) (string, string, error) {
		if field == "nodeName" {
			return "", "", nil // drops the requirement
		}
		return field, value, nil
	})
	return &out
}

// metadataOnly is the form of a deleted policy, encoded once for all of its watches.
type metadataOnly struct {
	runtime.Object
	shared runtime.CacheableObject
}

// CacheEncode implements runtime.CacheableObject.
func (m metadataOnly) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	return m.shared.CacheEncode(id+"/metadata", func(obj runtime.Object, w io.Writer) error {
		return encode(withoutRules(obj), w)
	}, w)
}

// GetObject implements runtime.CacheableObject.
func (m metadataOnly) GetObject() runtime.Object { return withoutRules(m.shared.GetObject()) }

func withoutRules(obj runtime.Object) runtime.Object {
	return &Policy{TypeMeta: obj.(*Policy).TypeMeta, ObjectMeta: obj.(*Policy).ObjectMeta}
}
