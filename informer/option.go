// SPDX-License-Identifier: Apache-2.0

package informer

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Option narrows what a ListWatch or an informer reads. Of two that set the
// same, the later one counts.
type Option func(*options)

type options struct {
	namespace string
	tweaks    []func(*metav1.ListOptions)
}

func optionsOf(all []Option) (o options) {
	for _, option := range all {
		option(&o)
	}
	return o
}

// InNamespace reads one namespace, as a request below /namespaces/NAME does.
// "" is all of them. The key prefix is what cacher.Config.KeyFunc makes of
// objects in that namespace. Lists and watches of a resource without
// namespaces, or whose keys do not begin with the namespace, fail with a
// BadRequest that says so.
func InNamespace(namespace string) Option {
	return func(o *options) { o.namespace = namespace }
}

// WithTweak changes the options of every list and watch before they are looked
// at: usually to set a selector. Several are called in the order given, and
// must be safe for concurrent use.
func WithTweak(tweak func(*metav1.ListOptions)) Option {
	return func(o *options) { o.tweaks = append(o.tweaks, tweak) }
}
