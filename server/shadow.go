// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/storage"
	shipped "k8s.io/apiserver/pkg/storage/cacher"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/server/internal/shadow"
)

// shadowOption serves from the shipped cacher and compares a fraction of its responses with the
// cache's.
func shadowOption(fraction float64) cacher.Option {
	room := &shadow.Room{} // shared by all shadows of the Decorator
	return cacher.InShadow(fraction, func(s cacher.Shadowed) (storage.Interface, func(), error) {
		c := s.Declared
		err := errors.New("its storage needs a Codec")
		var serving *shipped.Cacher
		if c.Codec != nil {
			serving, err = shipped.NewCacherFromConfig(shipped.Config{
				Storage: c.Storage, Versioner: c.Versioner, GroupResource: c.GroupResource,
				EventsHistoryWindow: c.EventsHistoryWindow, ResourcePrefix: c.ResourcePrefix,
				KeyFunc: c.KeyFunc, GetAttrsFunc: c.GetAttrsFunc, IndexerFuncs: c.IndexerFuncs, Indexers: c.Indexers,
				NewFunc: c.NewFunc, NewListFunc: c.NewListFunc, Codec: c.Codec,
			})
		}
		if err != nil {
			return nil, nil, fmt.Errorf("--%s: the shipped cacher of %s: %w", shadowFlag, c.GroupResource, err)
		}
		delegator := shipped.NewCacheDelegator(serving, c.Storage)
		front := shadow.New(shadow.Config{
			Serving: delegator, Shadow: s.Cache, Fraction: fraction, NewFunc: c.NewFunc, NewListFunc: c.NewListFunc,
			Context: s.Context, Room: room, Metrics: s.Metrics, Report: func(d shadow.Difference) { report(s, d) },
		})
		return front, func() {
			front.Stop()
			delegator.Stop()
			serving.Stop()
		}, nil
	})
}

func report(s cacher.Shadowed, d shadow.Difference) {
	values := []any{"kind", d.Kind.String(), "difference", d.What, "shippedVersion", d.Serving, "shadowVersion", d.Shadow,
		"remedy", "do not switch over, and report the difference, please"}
	if d.Stack != "" {
		values = append(values, "stack", d.Stack)
	}
	s.Report("The watch cache in the shadow differs from the shipped cacher, whose answer the client got", d.Kind.String()+": "+d.What, values...)
}
