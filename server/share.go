// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"

	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Share makes every resource whose storage is built from config.RESTOptionsGetter
// use the caches of an earlier Install on installed, with its options, etcd clients,
// metrics and page /debug/watchcache. Share is for servers that pass requests on to one
// another, each with a Config of its own, as the three within a kube-apiserver do:
// call Install on the Config of the server that clients reach, whose handlers are those
// that are called, and Share for each server behind it.
//
// The Config may be a copy of installed that was made before Install or after it, and
// whose getter was then set, as EtcdOptions.ApplyTo sets it. Call Share before config
// is completed. An error leaves config as it was: [ErrInstalled] if config has
// caches already.
func Share(installed, config *genericapiserver.Config) error {
	switch {
	case installed == nil:
		return errors.New("server.Share: installed is nil")
	case config == nil:
		return errors.New("server.Share: config is nil")
	case config.RESTOptionsGetter == nil:
		return errors.New("server.Share: config.RESTOptionsGetter is nil: call server.Share after EtcdOptions.ApplyTo")
	}
	if _, ok := config.RESTOptionsGetter.(*getter); ok {
		return ErrInstalled
	}
	caches, ok := installed.RESTOptionsGetter.(*getter)
	if !ok {
		return errors.New("server.Share: the watch cache is not installed on the first Config: call Install first")
	}
	replaceEtcdChecks(config, caches.installed.pool)
	caches.installed.mark(config)
	config.RESTOptionsGetter = caches.around(config.RESTOptionsGetter)
	return nil
}
