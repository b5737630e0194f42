// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
)

// eitherForm is what clients of Kubernetes send by default.
const eitherForm = asProtobuf + ",application/json"

// A client that accepts protobuf as well as JSON gets JSON of objects without protobuf, and
// protobuf of those that have it. One that accepts nothing but protobuf is refused before
// anything is done. Metadata has both forms.
func TestTypesWithoutProtobuf(t *testing.T) {
	const device = `{"apiVersion":"fleet.example.com/v1","kind":"Device","metadata":{"name":"%s"},"spec":{"zone":"z","owner":"o","model":"m"}}`
	const pod = `{"apiVersion":"example.apiserver.k8s.io/v1","kind":"Pod","metadata":{"name":"%s"},"spec":{}}`
	for _, c := range []struct {
		resource *resourceUnderTest
		path     string
		object   string
		has      bool
	}{
		{devices(t), "/apis/fleet.example.com/v1/namespaces/a/devices", device, false},
		{devices(t), "/apis/fleet.example.com/v1beta1/namespaces/a/devices", strings.Replace(device, "/v1", "/v1beta1", 1), false},
		{pods(t), "/apis/example.apiserver.k8s.io/v1/namespaces/a/pods", pod, true},
	} {
		t.Run(c.path, func(t *testing.T) { // each server ends before the next one's etcd looks for goroutines
			s := serveTwins(t, c.resource, auditinternal.LevelNone)
			do := func(method, path, accept, body string) (int, string, string) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				request, err := http.NewRequestWithContext(ctx, method, s.with.URL+path, strings.NewReader(body))
				require.NoError(t, err)
				request.Header.Set("Accept", accept)
				request.Header.Set("Content-Type", "application/json")
				response, err := s.with.Client().Do(request)
				require.NoError(t, err)
				defer response.Body.Close()
				if strings.Contains(path, "watch=1") && response.StatusCode == http.StatusOK {
					first, err := bufio.NewReader(response.Body).ReadByte()
					require.NoError(t, err, "no event comes")
					return response.StatusCode, response.Header.Get("Content-Type"), string(first)
				}
				answered, err := io.ReadAll(response.Body)
				require.NoError(t, err)
				return response.StatusCode, response.Header.Get("Content-Type"), string(answered)
			}
			want := "application/json"
			if c.has {
				want = asProtobuf
			}
			for i, accept := range []string{eitherForm, asProtobuf + ";q=0.9,application/json;q=0.8", asProtobuf + ",*/*"} {
				name := fmt.Sprintf("x%d", i)
				code, form, body := do(http.MethodPost, c.path, accept, fmt.Sprintf(c.object, name))
				require.Equal(t, http.StatusCreated, code, body)
				require.Equal(t, want, form)
				for _, read := range []string{c.path + "/" + name, c.path, c.path + "?resourceVersion=0", c.path + "?watch=1&resourceVersion=0"} {
					code, form, body = do(http.MethodGet, read, accept, "")
					require.Equal(t, http.StatusOK, code, "%s: %s", read, body)
					require.Contains(t, form, want, read)
				}
				code, form, body = do(http.MethodDelete, c.path+"/"+name, accept, "")
				require.Equal(t, http.StatusOK, code, body)
				require.Equal(t, want, form)
				do(http.MethodPost, c.path, "application/json", fmt.Sprintf(c.object, name))
				code, form, body = do(http.MethodDelete, c.path, accept, "")
				require.Equal(t, http.StatusOK, code, body)
				require.Equal(t, want, form)
			}

			code, _, body := do(http.MethodPost, c.path, asProtobuf, fmt.Sprintf(c.object, "only"))
			if c.has {
				require.Equal(t, http.StatusCreated, code, body)
				return
			}
			require.Equal(t, http.StatusNotAcceptable, code, body)
			code, _, body = do(http.MethodGet, c.path+"/only", "application/json", "")
			require.Equal(t, http.StatusNotFound, code, "what is refused has no effect: %s", body)
			do(http.MethodPost, c.path, "application/json", fmt.Sprintf(c.object, "only"))
			for _, at := range []string{c.path, c.path + "/only"} {
				code, _, _ = do(http.MethodDelete, at, asProtobuf, "")
				require.Equal(t, http.StatusNotAcceptable, code)
			}
			code, _, _ = do(http.MethodGet, c.path+"?watch=1", asProtobuf+";stream=watch", "")
			require.Equal(t, http.StatusNotAcceptable, code)
			for at, accept := range map[string]string{
				c.path: asPartialProtobuf, c.path + "/only": strings.Replace(asPartialProtobuf, "List", "", 1),
				c.path + "?watch=1&resourceVersion=0": strings.Replace(asPartialProtobuf, "List", "", 1) + ",application/json",
			} {
				code, form, body := do(http.MethodGet, at, accept, "")
				require.Equal(t, http.StatusOK, code, body)
				require.Contains(t, form, asProtobuf, at)
			}
			code, form, body := do(http.MethodDelete, c.path, asPartialProtobuf+","+eitherForm, "")
			require.Equal(t, http.StatusOK, code, body)
			require.Contains(t, form, asProtobuf, "the deleted ones' metadata")
		})
	}
}
