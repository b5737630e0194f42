// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// hidden replaces a value.
const hidden = "…"

func (d *description) selection(key, label, field string) Selection {
	s := Selection{Scope: scopeOf(d.prefix, key, field), Labels: hideLabels(label), Fields: hideFields(field)}
	if d.values == "shown" {
		s.Key, s.Labels, s.Fields = key, label, field
	}
	return s
}

// scopeOf returns the scope of a key. A key prefix ends with "/".
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

// hideLabels returns a label selector without its values.
func hideLabels(selector string) string {
	requirements, err := labels.ParseToRequirements(selector)
	if err != nil {
		return hidden
	}
	var parts []string
	for _, r := range requirements {
		switch operator := r.Operator(); operator {
		case selection.Exists:
			parts = append(parts, r.Key())
		case selection.DoesNotExist:
			parts = append(parts, "!"+r.Key())
		default:
			parts = append(parts, r.Key()+" "+string(operator)+" "+hidden)
		}
	}
	return strings.Join(parts, ",")
}

// hideFields returns a field selector without its values.
func hideFields(selector string) string {
	parsed, err := fields.ParseSelector(selector)
	if err != nil {
		return hidden
	}
	var parts []string
	for _, r := range parsed.Requirements() {
		parts = append(parts, r.Field+" "+string(r.Operator)+" "+hidden)
	}
	return strings.Join(parts, ",")
}
