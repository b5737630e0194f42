// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/warning"

	"github.com/kube-watchcache/watchcache/internal/keptlists"
)

const (
	asPartialProtobuf = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	asTableYAML       = "application/yaml;as=Table;v=v1;g=meta.k8s.io"
	// The headers of kubectl, and of client-go's informers of metadata.
	asKubectl  = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
	asInformer = asPartialProtobuf + "," + asPartial + ",application/json"
)

var formsAsked = []string{
	asTable, asPartial, asPartialProtobuf, asKubectl, asInformer,
	"application/json;as=Table;v=v1beta1;g=meta.k8s.io", asTableYAML,
	"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1;pretty=1", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
	"application/json;q=0.5," + asTable, "*/*;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "application/json;as=Other;g=meta.k8s.io;v=v1",
	"application/json;as=Table;g=meta.k8s.io;v=v1;sv=v1", "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1",
	asTable + ";drop=metadata.managedFields", asPartialProtobuf + ";drop=metadata.managedFields",
}

// expectSameForm compares the answers of both servers. Cells tell ages in seconds,
// so that more tries are allowed.
func (s *twins) expectSameForm(t *testing.T, path, accept string, compressed bool) answer {
	t.Helper()
	for try := 0; ; try++ {
		want, got := ask(t, s.without, path, accept, compressed), ask(t, s.with, path, accept, compressed)
		if bytes.Equal(want.body, got.body) || try == 100 {
			requireSame(t, want, got, path, accept, compressed)
			return got
		}
	}
}

// Lists as Tables and as metadata are the same to the byte with InstallAPIGroup
// and without it: of each scope, selector, version and page, compressed or not,
// as the objects change; and so are errors.
func TestFormsAreTheSameToTheByte(t *testing.T) {
	for name, c := range map[string]struct {
		resource *resourceUnderTest
		object   func(namespace, name string, change int) runtime.Object
	}{
		"devices": {devices(t), func(ns, name string, n int) runtime.Object { return testDevice(ns, name, n) }},
		"pods":    {pods(t), func(ns, name string, n int) runtime.Object { return testPod(ns, name, n) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveTwins(t, c.resource, auditinternal.LevelMetadata)
			for i, object := range objectNames(90) {
				s.put(t, c.object([]string{"ns1", "ns2"}[i%2], object, 0))
			}
			var first metav1.PartialObjectMetadataList
			root := "/apis/" + c.resource.group + "/" + c.resource.versions[0] + "/"
			require.NoError(t, json.Unmarshal(ask(t, s.without, root+name, asJSON, false).body, &first))
			for round := range 2 {
				ask(t, s.with, root+name, asJSON, false) // consistent: the cache has all changes now
				for v, version := range c.resource.versions {
					root := "/apis/" + c.resource.group + "/" + version + "/"
					for i, accept := range formsAsked {
						if round > 0 && i >= 5 || name == "devices" && accept == asTableYAML {
							continue // YAML takes so long that ages differ
						}
						asked := append(queries(name, first.ResourceVersion), name+"?includeObject=None", name+"?includeObject=Object",
							name+"?includeObject=Metadata&limit=40", name+"?includeObject=Bad", name+"?limit=bad", name+"?continue=bad",
							name+"?fieldSelector=bad%3Da", name+"?resourceVersion=bad", "namespaces/ns1/"+name+"/none", name+"?includeObject=None&includeObject=Object")
						if i >= 3 || round > 0 || v > 0 {
							asked = asked[:3]
						}
						for j, query := range share(asked) {
							s.expectSameForm(t, root+query, accept, j%2 == 1)
						}
						s.expectSameForm(t, root+name+"?resourceVersion=0", accept, true)
						s.expectSamePagesOfForm(t, root+name+"?limit=30", accept)
					}
				}
				s.put(t, c.object("ns1", "x1", round+1))
				s.put(t, c.object("ns2", fmt.Sprint("new", round), 0))
				require.NoError(t, s.tryRemove("ns1", objectNames(90)[2*round+4]))
			}
			// Forms are written by the group's own encoder, and none was given the list.
			s.encoded.Store(0)
			for range 3 {
				for _, accept := range formsAsked[:5] {
					s.expectSameForm(t, root+name+"?resourceVersion=0", accept, false)
				}
			}
			require.Zero(t, s.encoded.Load())
			require.Positive(t, s.cache.Status().EncodingBytes)
		})
	}
}

// expectSamePagesOfForm follows continue tokens of one server on both.
func (s *twins) expectSamePagesOfForm(t *testing.T, path, accept string) {
	t.Helper()
	first := ask(t, s.without, path, asJSON, false)
	var list metav1.PartialObjectMetadataList
	require.NoError(t, json.Unmarshal(first.body, &list))
	require.NotEmpty(t, list.Continue)
	s.expectSameForm(t, path+"&continue="+list.Continue, accept, false)
}

// The audit log has the lists and forms that clients get.
func TestAuditedForms(t *testing.T) {
	s := serveTwins(t, pods(t), auditinternal.LevelRequestResponse)
	for _, name := range objectNames(40) {
		s.put(t, testPod("ns1", name, 0))
	}
	for _, accept := range []string{asTable, asPartial, asJSON} {
		if accept == asJSON {
			require.Zero(t, s.cache.Status().EncodingBytes, "of forms that are logged nothing is kept")
		}
		for range 3 {
			got := s.expectSameForm(t, "/apis/"+example.GroupName+"/v1/pods", accept, false)
			var logged [2][]byte
			for i := range s.audited {
				require.Eventually(t, func() bool {
					if all := s.audited[i].take(); len(all) > 0 {
						logged[i] = all[len(all)-1]
					}
					return logged[i] != nil
				}, time.Minute, time.Millisecond)
			}
			require.Equal(t, string(logged[0]), string(logged[1]))
			if accept == asJSON {
				require.Equal(t, string(bytes.TrimSpace(got.body)), string(bytes.TrimSpace(logged[0])))
			}
		}
	}
}

// copyingStorage lists what its store lists, in a list of its own, and has Tables
// of its own.
type copyingStorage struct {
	*genericregistry.Store
	fail bool
}

func (c *copyingStorage) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	warning.AddWarning(ctx, "", "these are copies")
	list, err := c.Store.List(ctx, options)
	if err != nil {
		return nil, err
	}
	return list.DeepCopyObject(), nil
}

func (c *copyingStorage) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	warning.AddWarning(ctx, "", "a Table of its own")
	if c.fail {
		return nil, fmt.Errorf("there are no Tables today")
	}
	table, err := c.Store.ConvertToTable(ctx, object, options)
	if err == nil && len(table.Rows) > 10 {
		table.Rows = append(table.Rows[5:], table.Rows[2])
		table.Rows[1].Cells = append(table.Rows[1].Cells, request.NamespaceValue(ctx), "<own>", nil, 1.5, map[string]any{"a": int64(1)})
		table.Rows[2].Conditions = []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Message: `"object":null}`}}
	}
	return table, err
}

// A storage may list and make Tables as it likes.
//
// REGRESSIONS 126: a request that the server is given a second time keeps its warnings.
func TestFormsOfAStorageOfItsOwn(t *testing.T) {
	for _, c := range []struct{ fail, copies bool }{{false, true}, {true, true}, {false, false}, {true, false}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			r := pods(t)
			open := r.open
			r.open = func(t testing.TB, config *genericapiserver.Config) (map[string]rest.Storage, *genericregistry.Store) {
				storages, store := open(t, config)
				if c.copies {
					storages["pods"] = &copyingStorage{store, c.fail}
				} else {
					storages["pods"] = &tablesOfItsOwn{store, &copyingStorage{store, c.fail}}
				}
				return storages, store
			}
			s := serveTwins(t, r, auditinternal.LevelMetadata)
			for _, name := range objectNames(40) {
				s.put(t, testPod("ns1", name, 0))
			}
			for range 4 {
				for _, accept := range []string{asTable, asKubectl, asPartial, asInformer} {
					s.expectSameForm(t, "/apis/"+example.GroupName+"/v1/namespaces/ns1/pods", accept, false)
					got := s.expectSameForm(t, "/apis/"+example.GroupName+"/v1/pods", accept, false)
					wantError := c.fail && (accept == asTable || accept == asKubectl)
					require.Equal(t, wantError, got.status != http.StatusOK)
					require.Equal(t, c.copies, strings.Contains(fmt.Sprint(got.header["Warning"]), "these are copies"))
				}
			}
		})
	}
}

// tablesOfItsOwn lists as its store does.
type tablesOfItsOwn struct {
	*genericregistry.Store
	tables *copyingStorage
}

func (s *tablesOfItsOwn) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return s.tables.ConvertToTable(ctx, object, options)
}

// A handler that flushes a response which is held back sends nothing by that: the answer in
// the wanted representation follows.
func TestFlushOfAHeldResponse(t *testing.T) {
	response := httptest.NewRecorder()
	held := &heldResponse{ResponseWriter: response, wanted: &keptlists.Representation{}}
	held.Flush()
	_, err := held.Write([]byte("{}"))
	require.NoError(t, err)
	require.False(t, response.Flushed)
	require.Empty(t, response.Body.String())
	require.True(t, held.withheld)

	held = &heldResponse{ResponseWriter: response, wanted: &keptlists.Representation{}}
	held.WriteHeader(http.StatusForbidden)
	held.Flush()
	require.True(t, response.Flushed)
	require.Equal(t, http.StatusForbidden, response.Code)
}
