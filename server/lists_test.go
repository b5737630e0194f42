// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"fmt"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/apis/example"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	"github.com/kube-watchcache/watchcache/internal/race"
)

const (
	asJSON     = runtime.ContentTypeJSON
	asProtobuf = runtime.ContentTypeProtobuf
	asYAML     = runtime.ContentTypeYAML
	asTable    = "application/json;as=Table;g=meta.k8s.io;v=v1"
	asPartial  = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

func testPod(namespace, name string, change int) *example.Pod {
	return &example.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{"app": []string{"a", "b"}[len(name)%2]},
			Annotations: map[string]string{"text": text(4000), "change": fmt.Sprint(change)},
		},
		Spec: example.PodSpec{NodeName: "node-" + name[len(name)-1:]},
	}
}

func testDevice(namespace, name string, change int) *fleet.Device {
	return &fleet.Device{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{"app": []string{"a", "b"}[len(name)%2]},
			Annotations: map[string]string{"text": text(4000), "change": fmt.Sprint(change)},
		},
		Spec: fleet.DeviceSpec{Zone: "z" + name[len(name)-1:], Owner: "o", Model: "m", Firmware: fleet.Firmware{Channel: fleet.FirmwareStable}},
	}
}

// objectNames are those of the objects that a test begins with; their lengths differ.
func objectNames(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("x%d", i*i*i))
	}
	return all
}

// queries are lists in every way: scope, version, selector, page.
func queries(resource, rv string) (paths []string) {
	paths = append(paths, "namespaces/none/"+resource)
	for _, scope := range []string{resource, "namespaces/ns1/" + resource} {
		for _, query := range []string{
			"", "resourceVersion=0", "resourceVersion=" + rv, "resourceVersionMatch=Exact&resourceVersion=" + rv,
			"labelSelector=app%3Da", "resourceVersion=0&labelSelector=app+in+(a,b)", "labelSelector=app%3Dnone",
			"fieldSelector=metadata.name%3Dx27", "resourceVersion=0&limit=10", "pretty=true&resourceVersion=0",
			"labelSelector=%21%21",
		} {
			paths = append(paths, scope+"?"+query)
		}
	}
	return paths
}

// share returns every fourth of the queries with the race detector, which makes the
// encoders ten times slower; make verify asks all of them in a step without it.
func share(asked []string) (out []string) {
	if !race.Enabled {
		return asked
	}
	for i := 0; i < len(asked); i += 4 {
		out = append(out, asked[i])
	}
	return out
}

// expectSamePages follows continue tokens.
func (s *twins) expectSamePages(t *testing.T, path, accept string, compressed bool) {
	t.Helper()
	token := ""
	for {
		s.expectSame(t, path+"&continue="+url.QueryEscape(token), accept, compressed)
		var list metav1.PartialObjectMetadataList
		page := ask(t, s.without, path+"&continue="+url.QueryEscape(token), asJSON, false)
		require.NoError(t, json.Unmarshal(page.body, &list))
		if token = list.Continue; token == "" {
			return
		}
	}
}

// Every list is the same to the byte with InstallAPIGroup and without it: in each
// format and version, of each scope, selector, version and page, compressed or
// not, as the objects change.
func TestListsAreTheSameToTheByte(t *testing.T) {
	for name, c := range map[string]struct {
		resource *resourceUnderTest
		object   func(namespace, name string, change int) runtime.Object
		accepts  []string
	}{
		"devices": {devices(t), func(ns, name string, n int) runtime.Object { return testDevice(ns, name, n) }, []string{asJSON, asYAML, asPartial}},
		"pods":    {pods(t), func(ns, name string, n int) runtime.Object { return testPod(ns, name, n) }, []string{asJSON, asProtobuf, asTable}},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveTwins(t, c.resource, auditinternal.LevelMetadata)
			for i, object := range objectNames(70) {
				s.put(t, c.object([]string{"ns1", "ns2"}[i%2], object, 0))
			}
			var first metav1.PartialObjectMetadataList
			root := "/apis/" + c.resource.group + "/" + c.resource.versions[0] + "/"
			require.NoError(t, json.Unmarshal(ask(t, s.without, root+name, asJSON, false).body, &first))
			for round := range 2 {
				s.expectSame(t, root+name, asJSON, false) // consistent: the cache has all changes now
				for _, version := range c.resource.versions {
					root := "/apis/" + c.resource.group + "/" + version + "/"
					for _, accept := range c.accepts {
						asked := queries(name, first.ResourceVersion)
						if accept != asJSON && accept != asProtobuf {
							asked = asked[:3] // the server's own encoder does it
						}
						for i, query := range share(asked) {
							s.expectSame(t, root+query, accept, (i+round)%2 == 1)
							s.expectSame(t, root+query, accept, (i+round)%2 == 0)
						}
						s.expectSame(t, root+name+"?resourceVersion=0", accept, true)
						if accept == asJSON || accept == asProtobuf {
							s.expectSamePages(t, root+name+"?limit=30", accept, round%2 == 0)
						}
					}
				}
				s.put(t, c.object("ns1", "x1", round+1))
				s.put(t, c.object("ns2", fmt.Sprint("new", round), 0))
				require.NoError(t, s.tryRemove("ns1", objectNames(70)[2*round+4]))
			}
			s.expectSame(t, root+name, asJSON, false) // consistent: the cache has all changes now
			for _, accept := range c.accepts {
				if accept != asJSON && accept != asProtobuf {
					continue
				}
				for range 3 {
					s.encoded.Store(0)
					s.expectSame(t, root+name+"?resourceVersion=0", accept, false)
				}
				if !race.Invariants { // which encode each list for comparison
					require.Less(t, s.encoded.Load(), int64(4), "only the frame of a repeated list is encoded")
				}
			}
			require.Positive(t, s.cache.Status().EncodingBytes)
		})
	}
}

func TestInstallAPIGroupRefusesWhatDoesNotFit(t *testing.T) {
	server := newServer(t, func(*genericapiserver.Config) {})
	group := genericapiserver.NewDefaultAPIGroupInfo(example.GroupName, pods(t).scheme, nil, pods(t).codecs)
	require.ErrorContains(t, InstallAPIGroup(nil, &group), "server is nil")
	require.ErrorContains(t, InstallAPIGroup(server, nil), "group is nil")
	require.ErrorContains(t, InstallAPIGroup(server, &genericapiserver.APIGroupInfo{}), "NegotiatedSerializer is nil")
	require.ErrorContains(t, InstallAPIGroup(server, &group), "call Install before Config.Complete")
}
