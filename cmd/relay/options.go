// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"

	watchcache "github.com/kube-watchcache/watchcache/server"
)

type options struct {
	kubeconfig     string
	resources      []string
	allowSecrets   bool
	passThrough    bool
	maxWatch       time.Duration
	maxInFlight    int
	serving        *genericoptions.SecureServingOptionsWithLoopback
	authentication *genericoptions.DelegatingAuthenticationOptions
	authorization  *genericoptions.DelegatingAuthorizationOptions
	audit          *genericoptions.AuditOptions
	features       *genericoptions.FeatureOptions
	cache          *watchcache.Options
	logs           *logs.Options
}

func newOptions() *options {
	o := &options{
		maxWatch: 10 * time.Minute, maxInFlight: 400,
		serving:        genericoptions.NewSecureServingOptions().WithLoopback(),
		authentication: genericoptions.NewDelegatingAuthenticationOptions(),
		authorization:  genericoptions.NewDelegatingAuthorizationOptions(),
		audit:          genericoptions.NewAuditOptions(),
		features:       genericoptions.NewFeatureOptions(),
		cache:          watchcache.NewOptions(),
		logs:           logs.NewOptions(),
	}
	o.serving.Required, o.serving.BindPort, o.serving.ServerCert.CertDirectory = true, 8443, "relay.local/certificates"
	// The upstream has its own priority and fairness, including its configuration objects.
	o.features.EnablePriorityAndFairness = false
	o.cache.ConsistentGetFromStorage = true
	o.cache.FreshnessTimeout = 6 * time.Second   // enough for two proofs of a quiet resource
	o.cache.ConsistencyCheckInterval = time.Hour // each comparison lists all objects upstream
	return o
}

func (o *options) flags() (sets cliflag.NamedFlagSets) {
	fs := sets.FlagSet("relay")
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "The upstream, and the relay's credentials for it. Empty: the cluster that the relay runs in.")
	fs.StringSliceVar(&o.resources, "resources", o.resources, "What is served: a comma-separated list of RESOURCE, RESOURCE.GROUP or RESOURCE.VERSION.GROUP, as pods,deployments.apps. "+
		"Without a version it is the one that the upstream prefers. Required.")
	fs.BoolVar(&o.allowSecrets, "allow-secrets", o.allowSecrets, "Let --resources name secrets, which the relay then has in its memory.")
	fs.BoolVar(&o.passThrough, "pass-through", o.passThrough, "Forward all other requests to the upstream, with the client's bearer token, which a TokenReview must accept.")
	fs.DurationVar(&o.maxWatch, "max-watch-duration", o.maxWatch, "How long a watch lasts at most, whatever its client asks for: a right that was revoked ends with the watch. At least 10s.")
	fs.IntVar(&o.maxInFlight, "max-requests-inflight", o.maxInFlight, "How many requests but watches are answered at a time, and how many of all kinds are forwarded, a quarter of them for one user. The others get a 429.")
	o.serving.AddFlags(sets.FlagSet("serving"))
	o.authentication.AddFlags(sets.FlagSet("authentication"))
	o.authorization.AddFlags(sets.FlagSet("authorization"))
	o.audit.AddFlags(sets.FlagSet("audit"))
	o.features.AddFlags(sets.FlagSet("features"))
	o.cache.AddFlags(sets.FlagSet("watch cache"))
	logsapi.AddFlags(o.logs, sets.FlagSet("logs"))
	return sets
}

func (o *options) validate() (wrong []error) {
	if len(o.resources) == 0 {
		wrong = append(wrong, errors.New("--resources is required: what to serve, as pods,nodes,deployments.apps"))
	}
	for i, name := range o.resources {
		switch {
		case slices.Contains(o.resources[:i], name):
			wrong = append(wrong, fmt.Errorf("--resources names %q twice", name))
		case name == "" || strings.ContainsAny(name, "/ "):
			wrong = append(wrong, fmt.Errorf("--resources names %q: want RESOURCE, RESOURCE.GROUP or RESOURCE.VERSION.GROUP", name))
		}
	}
	if o.maxWatch < 10*time.Second {
		wrong = append(wrong, fmt.Errorf("--max-watch-duration is %v: want at least 10s", o.maxWatch))
	}
	if o.maxInFlight < 1 {
		wrong = append(wrong, fmt.Errorf("--max-requests-inflight is %d: want at least 1", o.maxInFlight))
	}
	if o.cache.Implementation == watchcache.ImplementationShipped || len(o.cache.Shipped) > 0 || o.cache.Shadow > 0 {
		wrong = append(wrong, errors.New("--watch-cache-implementation, --watch-cache-shipped and --watch-cache-shadow: the shipped cacher can't read another API server"))
	}
	return slices.Concat(wrong, o.serving.Validate(), o.authentication.Validate(), o.authorization.Validate(),
		o.audit.Validate(), o.features.Validate(), o.cache.Validate())
}

// connection returns the upstream's address and the relay's credentials.
func (o *options) connection() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", o.kubeconfig, err)
	}
	config.UserAgent = "watchcache-relay/" + rest.DefaultKubernetesUserAgent()
	config.QPS = -1 // the upstream's priority and fairness limits the rate
	config.Timeout = 0
	return config, nil
}
