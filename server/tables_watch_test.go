// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// agingTables is a storage whose Tables tell who asked, and when.
type agingTables struct {
	*genericregistry.Store
	now *atomic.Int64
}

func (a agingTables) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	table, err := a.Store.ConvertToTable(ctx, object, options)
	if err != nil {
		return nil, err
	}
	for i := range table.Rows {
		table.Rows[i].Cells = []any{table.Rows[i].Cells[0], userOf(ctx), a.now.Load()}
	}
	return table, nil
}

// serveAgingTables serves pods on the shipped cacher, or with both lines of ours.
func serveAgingTables(t *testing.T, ours bool, now *atomic.Int64) (*httptest.Server, *genericregistry.Store) {
	t.Helper()
	r := pods(t)
	etcd := startEtcdFor(t)
	etcd.Codec = r.codecs.LegacyCodec(r.stored)
	var store *genericregistry.Store
	server := newServer(t, func(config *genericapiserver.Config) {
		config.BuildHandlerChainFunc = chainWithUsers
		withoutSchemas(config, r.scheme)
		config.RESTOptionsGetter = getterFor(etcd)
		if ours {
			require.NoError(t, Install(config))
		}
		_, store = r.open(t, config)
	})
	group := genericapiserver.NewDefaultAPIGroupInfo(r.group, r.scheme, runtime.NewParameterCodec(r.scheme), r.codecs)
	group.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{"pods": agingTables{store, now}}
	if ours {
		require.NoError(t, InstallAPIGroup(server, &group))
	} else {
		require.NoError(t, server.InstallAPIGroup(&group))
	}
	served := httptest.NewUnstartedServer(server.Handler)
	served.EnableHTTP2 = true
	served.StartTLS()
	t.Cleanup(served.Close)
	return served, store
}

// REGRESSIONS 124: a watch as a Table has the cells that the server makes for this
// watch at this time, and the columns once, whoever has watched before: the same as
// with the shipped cacher.
func TestWatchesAsTablesKeepNothing(t *testing.T) {
	seen := map[bool][]string{}
	for _, ours := range []bool{false, true} {
		t.Run(fmt.Sprintf("ours=%v", ours), func(t *testing.T) {
			var now atomic.Int64
			served, store := serveAgingTables(t, ours, &now)
			put := func(name string, change int) {
				ctx := request.WithNamespace(request.NewContext(), "ns1")
				_, _, err := store.Update(ctx, name, rest.DefaultUpdatedObjectInfo(testPod("ns1", name, change)), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{})
				require.NoError(t, err)
			}
			root := "/apis/" + example.GroupName + "/v1/pods?"
			version := func() string {
				var list metav1.PartialObjectMetadataList
				require.NoError(t, json.Unmarshal(ask(t, served, root, asJSON, false).body, &list))
				return list.ResourceVersion
			}
			put("x0", 0)
			begin := version()
			for i := range 6 {
				put(fmt.Sprint("x", i), 1)
			}
			watch := func(user, query, encodings string) *streamed {
				return openStream(t, served, root+"watch=1&"+query, http.Header{"Accept": {asTable}, "Accept-Encoding": {encodings}, userHeader: {user}}, true, true)
			}
			// told describes events: whose cells, how old, with columns or without.
			told := func(events []string) {
				for _, e := range events {
					var event struct {
						Type   string
						Object metav1.Table
					}
					require.NoError(t, json.Unmarshal([]byte(e), &event))
					cells := fmt.Sprint(event.Object.Rows[0].Cells)
					if strings.Contains(e, "initial-events-end") {
						cells = "end"
					}
					seen[ours] = append(seen[ours], fmt.Sprintf("%s %s %v", event.Type, cells, len(event.Object.ColumnDefinitions) > 0))
				}
			}
			const state = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
			for _, user := range []string{"ann", "bob", "cid", "dan"} {
				now.Add(1)
				for _, encodings := range []string{"gzip", "identity"} {
					s := watch(user, state, encodings)
					told(s.state())
					s.leave()
					s = watch(user, "resourceVersion=0", encodings)
					told(s.events(6))
					s.leave()
					s = watch(user, "resourceVersion="+begin, encodings)
					told(s.events(6))
					s.leave()
				}
			}
			latest := version()
			var live []*streamed
			for _, user := range []string{"eve", "fay", "guy", "hal"} {
				live = append(live, watch(user, "resourceVersion="+latest, "identity"))
			}
			for change := range 4 {
				now.Add(1)
				put("x1", change+100)
				for i, s := range live {
					var event struct{ Object metav1.Table }
					require.NoError(t, json.Unmarshal([]byte(s.events(1)[0]), &event))
					require.EqualValues(t, now.Load(), event.Object.Rows[0].Cells[2], "the age of this event")
					if ours { // the shipped cacher repeats them to the second watch, and further
						require.Equal(t, change == 0, len(event.Object.ColumnDefinitions) > 0, "watch %d, event %d", i, change)
					}
				}
			}
			// A watch that replays what was dispatched gets its own cells.
			now.Add(1)
			s := watch("ida", "resourceVersion="+latest, "identity")
			told(s.events(4))
		})
	}
	require.NotEmpty(t, seen[true])
	require.Equal(t, seen[false], seen[true])
}
