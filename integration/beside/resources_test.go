// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
)

const (
	zoo           = "zoo.example.com"
	administrator = "administrator"
)

// object is JSON.
type object = map[string]any

// at returns the text at the fields of an object, or "".
func at(value any, fields ...string) string {
	for _, field := range fields {
		o, _ := value.(object)
		value = o[field]
	}
	if value == nil {
		return ""
	}
	return fmt.Sprint(value)
}

// resource is one that the steps read and write.
type resource struct {
	group, plural, kind string
	versions            []string
	field               string // that selectors may name
	values              []string
	spec                func(value, text string) object // of the first version
}

var (
	devices = &resource{
		group: fleet.GroupName, plural: "devices", kind: "Device", versions: []string{"v1", "v1beta1"},
		field: "spec.zone", values: []string{"east", "west"},
		spec: func(value, text string) object {
			return object{"zone": value, "owner": "ann", "model": "m-" + text, "firmware": object{"channel": "stable"}}
		},
	}
	pandas = &resource{
		group: zoo, plural: "pandas", kind: "Panda", versions: []string{"v1", "v2"},
		field: "spec.food", values: []string{"bamboo", "cake"},
		spec: func(value, text string) object {
			return object{"food": value, "text": text, "old": "old " + text, "size": 3}
		},
	}
	definitions = &resource{group: zoo, plural: "customresourcedefinitions"}
	resources   = []*resource{devices, pandas}
)

// Names and namespaces sort before, behind and within one another.
var (
	namespaces = []string{"a", "ab", "n"}
	names      = []string{"a", "b", "c", "d", "m", "zz"}
	colors     = []string{"red", "blue", ""}
)

func (r *resource) path(version int, namespace, name string) string {
	if r == definitions {
		return strings.TrimSuffix("/apis/apiextensions.k8s.io/v1/"+r.plural+"/"+name, "/")
	}
	path := "/apis/" + r.group + "/" + r.versions[version]
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	return strings.TrimSuffix(path+"/"+r.plural+"/"+name, "/")
}

// thing is an object that steps write.
type thing struct{ namespace, name, color, value string }

// object returns one of the first version. No color takes the label away from a patched one.
func (t thing) object(of *resource, text string, annotations object) object {
	labels := object{"color": t.color}
	if t.color == "" {
		labels = nil
	}
	return object{"apiVersion": of.group + "/" + of.versions[0], "kind": of.kind, "spec": of.spec(t.value, text),
		"metadata": object{"namespace": t.namespace, "name": t.name, "labels": labels, "annotations": annotations}}
}

// selectFrom draws a scope and selectors, among them those that a registry narrows to a name
// or a namespace, and an object that matches them.
func (s *read) selectFrom(d *rand.Rand) {
	of, namespace := s.resource, ""
	s.match = thing{pick(d, namespaces), "mark", "", of.values[0]}
	if d.IntN(2) == 0 {
		namespace = s.match.namespace
	}
	s.path, s.query = of.path(d.IntN(2), namespace, ""), url.Values{}
	labels := [][2]string{{"color=red", "red"}, {"color=red", "red"}, {"color in (red,blue)", "blue"}, {"color!=red", "blue"}, {"!color", ""}}
	if n := d.IntN(9); n < len(labels) {
		s.query.Set("labelSelector", labels[n][0])
		s.match.color = labels[n][1]
	}
	switch d.IntN(9) {
	case 0:
		s.match.name = pick(d, names)
		s.query.Set("fieldSelector", "metadata.name="+s.match.name)
	case 1, 2:
		s.query.Set("fieldSelector", "metadata.namespace="+s.match.namespace)
	case 3, 4:
		s.match.value = pick(d, of.values)
		s.query.Set("fieldSelector", of.field+"="+s.match.value)
	case 5:
		s.query.Set("fieldSelector", of.field+"!="+of.values[1]+",metadata.name!=zz")
	}
}

func pick[T any](d *rand.Rand, of []T) T { return of[d.IntN(len(of))] }

// definition is that of pandas. Variants differ in a default, a field that is pruned and
// one that is selectable.
func definition(variant int) object {
	text := object{"type": "string"}
	fields := object{"size": object{"type": "integer"}, "text": text, "food": text,
		"home": object{"type": "string", "default": fmt.Sprint("home ", variant)}} // shows which variant is in force
	if variant%2 == 0 {
		fields["old"] = text
	}
	selectable := []any{object{"jsonPath": ".spec.food"}}
	if variant > 1 {
		selectable = append(selectable, object{"jsonPath": ".spec.home"})
	}
	version := func(name string, stored bool, columns ...any) object {
		return object{"name": name, "served": true, "storage": stored, "selectableFields": selectable, "additionalPrinterColumns": columns,
			"schema": object{"openAPIV3Schema": object{"type": "object", "properties": object{"spec": object{"type": "object", "properties": fields}}}}}
	}
	return object{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": object{"name": "pandas." + zoo},
		"spec": object{"group": zoo, "scope": "Namespaced",
			"names":    object{"plural": "pandas", "singular": "panda", "kind": "Panda", "listKind": "PandaList"},
			"versions": []any{version("v1", true, object{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}), version("v2", false)}}}
}
