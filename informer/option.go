// SPDX-License-Identifier: Apache-2.0

package informer

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Option changes the requests of a ListWatch or an informer. If two options set
// the same, the later one counts.
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

// InNamespace restricts requests to one namespace, as a request below
// /namespaces/NAME does. "" means all namespaces. The key prefix is that of the
// keys that cacher.Config.KeyFunc returns for objects in the namespace. If the
// resource has no namespaces, or its keys do not begin with the namespace,
// lists and watches fail with a BadRequest.
func InNamespace(namespace string) Option {
	return func(o *options) { o.namespace = namespace }
}

// WithTweak calls tweak with the options of every list and watch before they
// are checked, usually to set a selector. Several tweaks are called in the
// order given. They must be safe for concurrent use.
func WithTweak(tweak func(*metav1.ListOptions)) Option {
	return func(o *options) { o.tweaks = append(o.tweaks, tweak) }
}
