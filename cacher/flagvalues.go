// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// byteSize is a flag that is a number of bytes, written as Kubernetes writes
// quantities.
type byteSize int64

// String implements pflag.Value.
func (b *byteSize) String() string {
	return resource.NewQuantity(int64(*b), resource.BinarySI).String()
}

// Set implements pflag.Value.
func (b *byteSize) Set(text string) error {
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return fmt.Errorf("want a number of bytes, 134217728 or 128Mi, say: %w", err)
	}
	n := quantity.Value() // rounded, and no more than fits
	if quantity.CmpInt64(n) != 0 {
		return fmt.Errorf("want a whole number of bytes that fits into 64 bits, 134217728 or 128Mi, say")
	}
	*b = byteSize(n)
	return nil
}

// Type implements pflag.Value.
func (b *byteSize) Type() string { return "quantity" }

// labelIndexes is a flag that is a list of RESOURCE[.GROUP]#LABEL.
type labelIndexes struct {
	to *map[schema.GroupResource][]string
	// given is false as long as to has the flag's default, which the first use of
	// the flag replaces.
	given bool
}

// String implements pflag.Value.
func (l *labelIndexes) String() string {
	if l.to == nil { // pflag makes one to look at the zero value
		return ""
	}
	var all []string
	for of, labels := range *l.to {
		for _, label := range labels {
			all = append(all, of.String()+"#"+label)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// Set implements pflag.Value.
func (l *labelIndexes) Set(text string) error {
	indexes := map[schema.GroupResource][]string{}
	if l.given {
		for of, labels := range *l.to {
			indexes[of] = slices.Clone(labels)
		}
	}
	if text == "" { // takes the default away
		*l.to, l.given = indexes, true
		return nil
	}
	for entry := range strings.SplitSeq(text, ",") {
		name, label, _ := strings.Cut(entry, "#")
		if name == "" || label == "" {
			return fmt.Errorf("%q: want RESOURCE[.GROUP]#LABEL, as devices.fleet.example.com#site", entry)
		}
		of := schema.ParseGroupResource(name)
		indexes[of] = append(indexes[of], label)
	}
	*l.to, l.given = indexes, true
	return nil
}

// Type implements pflag.Value.
func (l *labelIndexes) Type() string { return "strings" }
