// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// hidden stands for a value that is not shown.
const hidden = "…"

// selectionOf describes the selection of a watch. prefix is that of the resource's keys.
func selectionOf(prefix, key, label, field string, values bool) Selection {
	s := Selection{Scope: scopeOf(prefix, key, field)}
	if values {
		s.Key, s.Labels, s.Fields = key, label, field
		return s
	}
	s.Labels, s.Fields = hideLabels(label), hideFields(field)
	return s
}

// scopeOf says how much of a resource a key covers. A key prefix ends with "/".
func scopeOf(prefix, key, field string) string {
	rest := strings.Trim(strings.TrimPrefix(key, strings.TrimSuffix(prefix, "/")), "/")
	switch {
	case !strings.HasSuffix(key, "/"), strings.Contains(field, "metadata.name="):
		return "object"
	case rest == "":
		return "all"
	}
	return "namespace"
}

// hideLabels returns a label selector with its keys and without its values.
func hideLabels(selector string) string {
	if selector == "" {
		return ""
	}
	requirements, err := labels.ParseToRequirements(selector)
	if err != nil {
		return hidden
	}
	parts := make([]string, 0, len(requirements))
	for _, r := range requirements {
		key := r.Key()
		switch r.Operator() {
		case selection.Exists:
			parts = append(parts, key)
		case selection.DoesNotExist:
			parts = append(parts, "!"+key)
		case selection.In, selection.NotIn:
			parts = append(parts, key+" "+string(r.Operator())+" ("+hidden+")")
		case selection.GreaterThan:
			parts = append(parts, key+">"+hidden)
		case selection.LessThan:
			parts = append(parts, key+"<"+hidden)
		case selection.NotEquals:
			parts = append(parts, key+"!="+hidden)
		default:
			parts = append(parts, key+"="+hidden)
		}
	}
	return strings.Join(parts, ",")
}

// hideFields returns a field selector with the names of its fields and without
// its values.
func hideFields(selector string) string {
	if selector == "" {
		return ""
	}
	parsed, err := fields.ParseSelector(selector)
	if err != nil {
		return hidden
	}
	parts := []string{}
	for _, r := range parsed.Requirements() {
		operator := "="
		if r.Operator == selection.NotEquals {
			operator = "!="
		}
		parts = append(parts, r.Field+operator+hidden)
	}
	return strings.Join(parts, ",")
}
