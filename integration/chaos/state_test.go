// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
)

// form is one way in which a server encodes a list.
type form struct {
	name, accept, query string
	gzip                bool
	decode              func(body []byte) (rv string, items map[string]judge.Item, err error)
}

var forms = []form{
	{name: "JSON", accept: "application/json", decode: asList},
	{name: "JSON, gzip", accept: "application/json", gzip: true, decode: asList},
	{name: "Table", accept: "application/json;as=Table;v=v1;g=meta.k8s.io", query: "&includeObject=Object", decode: asTable},
	{name: "Table, gzip", accept: "application/json;as=Table;v=v1;g=meta.k8s.io", query: "&includeObject=Object", gzip: true, decode: asTable},
	{name: "metadata", accept: "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", decode: asMetadata(json.Unmarshal)},
	{name: "metadata, protobuf", accept: "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", decode: asMetadata(fromProtobuf)},
}

func asList(body []byte) (string, map[string]judge.Item, error) {
	var list fleetv1.DeviceList
	err := json.Unmarshal(body, &list)
	return list.ResourceVersion, judge.ItemsOf(&list), err
}

func asTable(body []byte) (string, map[string]judge.Item, error) {
	var table metav1.Table
	if err := json.Unmarshal(body, &table); err != nil {
		return "", nil, err
	}
	items := map[string]judge.Item{}
	for _, row := range table.Rows {
		var device fleetv1.Device
		if err := json.Unmarshal(row.Object.Raw, &device); err != nil {
			return "", nil, err
		}
		if len(row.Cells) != len(table.ColumnDefinitions) || row.Cells[0] != device.Name {
			return "", nil, fmt.Errorf("the row of %s has the cells %v", device.Name, row.Cells)
		}
		items[judge.KeyOf(&device)] = judge.ItemOf(&device)
	}
	return table.ResourceVersion, items, nil
}

// asMetadata decodes lists that have no more of an object than its version.
func asMetadata(unmarshal func([]byte, any) error) func([]byte) (string, map[string]judge.Item, error) {
	return func(body []byte) (string, map[string]judge.Item, error) {
		var list metav1.PartialObjectMetadataList
		if err := unmarshal(body, &list); err != nil {
			return "", nil, err
		}
		items := map[string]judge.Item{}
		for _, o := range list.Items {
			items[o.Namespace+"/"+o.Name] = judge.Item{RV: judge.Version(o.ResourceVersion)}
		}
		return list.ResourceVersion, items, nil
	}
}

// compareStates lists everything from each server at one version, in every form,
// twice: the second answer is put together from what was kept of the first.
func (r *run) compareStates(ctx context.Context, at int64) (found judge.Violations) {
	r.t.Helper()
	r.history.Lock()
	want := r.history.StateAt(judge.Selection{}, at)
	r.history.Unlock()
	bare := map[string]judge.Item{}
	for key, item := range want {
		bare[key] = judge.Item{RV: item.RV}
	}
	for _, s := range r.servers {
		client := s.Connect(r.t)
		for _, f := range forms {
			for _, query := range []string{fmt.Sprintf("resourceVersion=%d&resourceVersionMatch=Exact", at), "", ""} {
				r.compare(ctx, &found, client, s, f, query, want, bare, at)
			}
		}
	}
	r.compareInside(ctx, &found, want, at)
	return found
}

// compareInside lists everything from the cache in the test's process.
func (r *run) compareInside(ctx context.Context, found *judge.Violations, want map[string]judge.Item, at int64) {
	for _, options := range []metav1.ListOptions{
		{ResourceVersion: strconv.FormatInt(at, 10), ResourceVersionMatch: metav1.ResourceVersionMatchExact},
		{ResourceVersion: strconv.FormatInt(at, 10)},
		{},
	} {
		ctx, cancel := context.WithTimeout(ctx, patience)
		list, err := r.inside.devices("").List(ctx, options)
		cancel()
		if err != nil {
			found.Add(judge.State, "the cache in the test's process, %q: %v", options.ResourceVersion, err)
			continue
		}
		if items := judge.ItemsOf(list); !maps.Equal(items, want) {
			found.Add(judge.State, "the cache in the test's process, %q: at %s it has %v, where etcd has %v", options.ResourceVersion, list.ResourceVersion, items, want)
		}
		if judge.Version(list.ResourceVersion) < at {
			found.Add(judge.Fresh, "the cache in the test's process, %q: the answer is of %s, and etcd was at %d", options.ResourceVersion, list.ResourceVersion, at)
		}
	}
}

func (r *run) compare(ctx context.Context, found *judge.Violations, client *http.Client, s *server, f form, query string, want, bare map[string]judge.Item, at int64) {
	rv, items, err := f.list(ctx, client, s.Config.Host+"/apis/fleet.example.com/v1/devices?"+query+f.query)
	right := maps.Equal(items, want) || f.isMetadata() && maps.Equal(items, bare)
	switch {
	case err != nil:
		found.Add(judge.State, "server %s, %s, %q: %v", s.name, f.name, query, err)
	case !right:
		found.Add(judge.State, "server %s, %s, %q: at %s it has %v, where etcd has %v", s.name, f.name, query, rv, items, want)
	case query != "" && judge.Version(rv) != at:
		found.Add(judge.State, "server %s, %s, %q: the answer is of %s", s.name, f.name, query, rv)
	case judge.Version(rv) < at:
		found.Add(judge.Fresh, "server %s, %s: the answer is of %s, and etcd was at %d", s.name, f.name, rv, at)
	}
}

func (f form) isMetadata() bool { return f.name == "metadata" || f.name == "metadata, protobuf" }

func (f form) list(ctx context.Context, client *http.Client, url string) (string, map[string]judge.Item, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", nil, err
	}
	request.Header.Set("Accept", f.accept)
	if f.gzip {
		request.Header.Set("Accept-Encoding", "gzip")
	} else {
		request.Header.Set("Accept-Encoding", "identity")
	}
	response, err := client.Do(request)
	if err != nil {
		return "", nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", nil, fmt.Errorf("%s", response.Status)
	}
	body := io.Reader(response.Body)
	if f.gzip {
		if coding := response.Header.Get("Content-Encoding"); coding != "gzip" {
			return "", nil, fmt.Errorf("a large list is encoded as %q", coding)
		}
		if body, err = gzip.NewReader(response.Body); err != nil {
			return "", nil, err
		}
	}
	whole, err := io.ReadAll(body)
	if err != nil {
		return "", nil, err
	}
	return f.decode(whole)
}

// fromProtobuf decodes what Kubernetes wraps.
func fromProtobuf(body []byte, into any) error {
	const magic = "k8s\x00"
	var wrapped runtime.Unknown
	if len(body) < len(magic) || string(body[:len(magic)]) != magic {
		return fmt.Errorf("the answer does not begin with %q", magic)
	}
	if err := wrapped.Unmarshal(body[len(magic):]); err != nil {
		return err
	}
	return into.(interface{ Unmarshal([]byte) error }).Unmarshal(wrapped.Raw)
}
