// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"testing"

	"github.com/stretchr/testify/require"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// readOnly is that of docs/computed.md.
type readOnly struct {
	rest.Storage
	rest.Scoper
	rest.SingularNameProvider
	rest.Getter
	rest.Lister
	rest.Watcher
}

// strategy is for writes, of which there are none.
type strategy struct{ rest.RESTUpdateStrategy }

func (strategy) NamespaceScoped() bool { return true }

// The registry of an API server serves the store, as docs/computed.md has it, and what
// reads only offers nothing that writes.
func TestRegistry(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Upsert(t.Context(), pod("a/x", "1")))
	config := (&storagebackend.Config{Codec: poddata.Codec()}).ForResource(poddata.Resource)
	pods := &genericregistry.Store{
		NewFunc: poddata.New, NewListFunc: poddata.NewList, DefaultQualifiedResource: poddata.Resource, SingularQualifiedResource: poddata.Resource,
		UpdateStrategy: strategy{}, DeleteStrategy: strategy{},
		TableConvertor: rest.NewDefaultTableConvertor(poddata.Resource),
	}
	require.NoError(t, pods.CompleteWithOptions(&generic.StoreOptions{
		RESTOptions: generic.RESTOptions{
			StorageConfig: config, ResourcePrefix: "/pods",
			Decorator: cacher.Decorator(cacher.WithRawStorage(s.RawStorage)),
		},
		AttrFunc: poddata.Attrs,
	}))
	defer pods.Destroy()
	var served any = readOnly{pods, pods, pods, pods, pods, pods}
	ctx := request.WithNamespace(t.Context(), "a")
	out, err := served.(rest.Lister).List(ctx, &metainternalversion.ListOptions{})
	require.NoError(t, err)
	require.Equal(t, "x", out.(*example.PodList).Items[0].Name)
	require.NotImplements(t, (*rest.Creater)(nil), served)
	require.NotImplements(t, (*rest.Updater)(nil), served)
	require.NotImplements(t, (*rest.GracefulDeleter)(nil), served)
	require.NotImplements(t, (*rest.CollectionDeleter)(nil), served)
}

// A Store is for one resource at one prefix.
func TestRawStorageOfAnother(t *testing.T) {
	s := open(t)
	config := (&storagebackend.Config{}).ForResource(poddata.Resource)
	raw, destroy, err := decoration.Open(s.RawStorage, decoration.Request{Config: config, ResourcePrefix: "/pods"})
	require.NoError(t, err)
	require.Same(t, s, raw)
	destroy()
	_, _, err = decoration.Open(s.RawStorage, decoration.Request{Config: config, ResourcePrefix: "/services"})
	require.EqualError(t, err, `pods at "/services/": the Store is for pods at "/pods/"`)
	config.GroupResource.Resource = "services"
	_, _, err = decoration.Open(s.RawStorage, decoration.Request{Config: config, ResourcePrefix: "/pods"})
	require.ErrorContains(t, err, "services at")
}
