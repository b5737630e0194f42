// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/authority"
)

const (
	devicesA = "/apis/fleet.example.com/v1/namespaces/a/devices"
	asTable  = "Accept:application/json;as=Table;v=v1;g=meta.k8s.io"
	asMeta   = "Accept:application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	oneMeta  = "Accept:application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	// brief is a watch that begins with the state, and ends when that has long been sent.
	brief = "watch=1&resourceVersion=0&timeoutSeconds=5"
)

// form is a way to ask for what a relay serves: from memory, or by a request upstream with
// the relay's credentials.
type form struct {
	path    string
	headers []string
}

// as returns the way to the relay for a user with a token, a certificate, or both.
func (r *relay) as(t *testing.T, by authority.Authority, token, certificate string) *rest.Config {
	t.Helper()
	config := r.config(token)
	if certificate != "" {
		signed, err := by.Sign(certificate, false)
		require.NoError(t, err)
		config.CertData, config.KeyData = signed.CertPEM, signed.KeyPEM
	}
	return config
}

// startKnowing starts a relay and returns when it has the cluster's authority. An API server
// reads it after it has begun to serve, and takes a client with a certificate for anonymous
// until then. Alice may do everything.
func (u *upstream) startKnowing(t *testing.T, flags ...string) *relay {
	t.Helper()
	r := u.startRelay(t, flags...)
	config := r.as(t, u.users, "", "alice")
	until(t, "the relay has the cluster's authority", func() bool {
		code, _ := exchange(t, config, http.MethodGet, path+"?resourceVersion=0", "")
		return code == http.StatusOK
	})
	return r
}

// A client is whom the upstream takes it for, by its token or a certificate of the
// cluster's authority. Alice may do everything, and nobody else anything.
func TestWhoAsks(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	create(t, u.direct, device("a/x"))
	r := u.startKnowing(t, "--authentication-token-webhook-cache-ttl=1s")
	foreign, err := authority.New()
	require.NoError(t, err)
	const remoteAlice, likeAlice = "X-Remote-User:alice", "Impersonate-User:alice"
	const forbidden, unauthorized = http.StatusForbidden, http.StatusUnauthorized
	for _, c := range []struct {
		what, token, certificate string
		by                       authority.Authority
		headers                  []string
		want                     int
	}{
		{"a token", "alice", "", u.users, nil, http.StatusOK},
		{"a token without rights", "bob", "", u.users, nil, forbidden},
		{"a token that the upstream does not know", "mallory", "", u.users, nil, unauthorized},
		{"nobody", "", "", u.users, nil, forbidden},
		{"a certificate", "", "alice", u.users, nil, http.StatusOK},
		{"a certificate without rights", "", "bob", u.users, nil, forbidden},
		{"a certificate of another authority", "", "alice", foreign, nil, unauthorized},
		{"a token, and a certificate of another authority", "bob", "alice", foreign, nil, forbidden},
		{"the front proxy", "", "front-proxy", u.users, []string{remoteAlice}, http.StatusOK},
		{"the front proxy, for bob", "", "front-proxy", u.users, []string{"X-Remote-User:bob"}, forbidden},
		{"a front proxy of another authority", "", "front-proxy", foreign, []string{remoteAlice}, unauthorized},
		{"the front proxy's headers with a certificate", "", "bob", u.users, []string{remoteAlice}, forbidden},
		{"the front proxy's headers with a token", "bob", "", u.users, []string{remoteAlice, "X-Remote-Group:system:masters"}, forbidden},
		{"the front proxy's headers alone", "", "", u.users, []string{remoteAlice, "X-Remote-Group:system:masters"}, forbidden},
		{"impersonation with a token", "bob", "", u.users, []string{likeAlice}, forbidden},
		{"impersonation with a certificate", "", "bob", u.users, []string{likeAlice}, forbidden},
		{"impersonation by nobody", "", "", u.users, []string{likeAlice}, forbidden},
		{"impersonation of a group", "bob", "", u.users, []string{"Impersonate-User:bob", "Impersonate-Group:system:masters"}, forbidden},
		{"impersonation of one without rights", "alice", "", u.users, []string{"Impersonate-User:bob"}, forbidden},
		{"impersonation by one who may", "alice", "", u.users, []string{likeAlice}, http.StatusOK},
	} {
		for _, f := range []form{
			{path + "?resourceVersion=0", nil},
			{path + "?" + brief, nil},
			{path + "?fieldSelector=spec.owner%3Do", nil},
			{path, []string{asTable}},
			{devicesA + "/x", nil},
		} {
			code, body := exchange(t, r.as(t, c.by, c.token, c.certificate), http.MethodGet, f.path, "", slices.Concat(f.headers, c.headers)...)
			require.Equal(t, c.want, code, "%s: %s as %v: %s", c.what, f.path, f.headers, body)
			require.Equal(t, c.want == http.StatusOK, strings.Contains(body, `"uid"`), "%s: %s as %v: %s", c.what, f.path, f.headers, body)
		}
	}

	// No decision is no right, and neither is a token that has expired.
	const expired = `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","status":{"error":"the token has expired"}}`
	for _, c := range []struct {
		what, review, user string
		code               int
		answer             string
		want, certificate  int
	}{
		{"an expired token", "tokenreviews", `"token":"alice"`, http.StatusCreated, expired, unauthorized, http.StatusOK},
		{"no TokenReview", "tokenreviews", `"token":"alice"`, http.StatusInternalServerError, "", unauthorized, http.StatusOK},
		{"no SubjectAccessReview", "subjectaccessreviews", `"user":"alice"`, http.StatusInternalServerError, "", http.StatusInternalServerError, http.StatusInternalServerError},
	} {
		askAlice := func() int { code, _ := r.ask(t, "alice", path+"?resourceVersion=0"); return code }
		u.intercept(func(w http.ResponseWriter, request *http.Request) bool {
			if !strings.HasSuffix(request.URL.Path, c.review) {
				return false
			}
			body, err := io.ReadAll(request.Body)
			request.Body = io.NopCloser(bytes.NewReader(body))
			if err != nil || !bytes.Contains(body, []byte(c.user)) {
				return false
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(c.code)
			_, _ = io.WriteString(w, c.answer)
			return true
		})
		until(t, c.what, func() bool { return askAlice() == c.want })
		code, _ := exchange(t, r.as(t, u.users, "", "alice"), http.MethodGet, path+"?resourceVersion=0", "")
		require.Equal(t, c.certificate, code, "%s, and a certificate", c.what)
		code, _ = r.ask(t, "bob", path+"?resourceVersion=0")
		require.Equal(t, forbidden, code, "%s of another user", c.what)
		u.intercept(nil)
		until(t, "alice may again", func() bool { return askAlice() == http.StatusOK })
	}
}

// Secrets that are allowed on purpose are served to whom the upstream allows them, and in
// no form to others.
func TestSecrets(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	u.serveCore(t, "Secret", &corev1.Secret{}, &corev1.SecretList{}, func(o runtime.Object) fields.Set {
		return fields.Set{"type": string(o.(*corev1.Secret).Type)}
	})
	client, err := kubernetes.NewForConfigAndClient(u.config("alice"), apiserver.Connect(t, u.config("alice")))
	require.NoError(t, err)
	_, err = client.CoreV1().Secrets("a").Create(within(t), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "login", Namespace: "a"}, Type: "t", Data: map[string][]byte{"password": []byte("swordfish")},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	r := u.startRelay(t, "--resources=secrets", "--allow-secrets")
	const all, one = "/api/v1/secrets", "/api/v1/namespaces/a/secrets/login"
	const protobuf = "Accept:application/vnd.kubernetes.protobuf"
	whole := all + "?includeObject=Object"
	for _, f := range []struct {
		form
		data bool // the form has the content
	}{
		{form{all, nil}, true},
		{form{all + "?resourceVersion=0", nil}, true},
		{form{all + "?fieldSelector=type%3Dt", []string{protobuf}}, true},
		{form{one, nil}, true},
		{form{all + "?" + brief, nil}, true},
		{form{all + "?" + brief, []string{protobuf + ";stream=watch"}}, true},
		{form{all + "?resourceVersion=0", []string{asMeta}}, false},
		{form{one, []string{oneMeta}}, false},
		{form{all + "?" + brief, []string{oneMeta}}, false},
		{form{all, []string{asTable}}, false},
		{form{whole, []string{asTable}}, true},
		{form{whole + "&" + brief, []string{asTable}}, true},
	} {
		for user, want := range map[string]int{"alice": http.StatusOK, "bob": http.StatusForbidden, "": http.StatusForbidden} {
			code, body := r.ask(t, user, f.path, f.headers...)
			require.Equal(t, want, code, "%q: %s as %v: %s", user, f.path, f.headers, body)
			plain := strings.Contains(body, "swordfish") || strings.Contains(body, "c3dvcmRmaXNo")
			require.Equal(t, f.data && want == http.StatusOK, plain, "%q: %s as %v: %s", user, f.path, f.headers, body)
			require.Equal(t, want == http.StatusOK, strings.Contains(body, "creationTimestamp") || plain, "%q: %s as %v: %s", user, f.path, f.headers, body)
		}
	}
}

// A right to one name is one to read the object with that name, in all forms, and no other.
func TestRightsToNames(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	for _, name := range []string{"a/x", "a/y", "b/x", "b/y"} {
		create(t, u.direct, device(name))
	}
	may := map[string]string{"alice": "y", "bob": "x"}
	u.allow(func(s authorizationv1.SubjectAccessReviewSpec) bool {
		a := s.ResourceAttributes
		return a != nil && a.Namespace == "a" && a.Name != "" && a.Name == may[s.User]
	})
	r := u.startRelay(t)
	for user, name := range may {
		other := strings.Trim("xy", name)
		named, others := "?fieldSelector=metadata.name%3D"+name, "?fieldSelector=metadata.name%3D"+other
		for _, headers := range [][]string{nil, {asTable}} {
			for _, query := range []string{
				"/" + name, named, named + "&" + brief, named + "&resourceVersion=0", named + ",metadata.namespace%3Da",
				named + ",spec.owner%3Do",
				named + strings.Replace(others, "?", "&", 1), // the first one counts
			} {
				code, body := r.ask(t, user, devicesA+query, headers...)
				require.Equal(t, http.StatusOK, code, "%s: %s: %s", user, query, body)
				require.NotContains(t, body, fmt.Sprintf(`"name":%q`, other), "%s: %s", user, query)
				require.Contains(t, body, fmt.Sprintf(`"name":%q`, name), "%s: %s", user, query)
			}
			for _, of := range []string{
				devicesA, devicesA + "?watch=1", devicesA + "/" + other, devicesA + others, devicesA + others + "&watch=1",
				devicesA + "?fieldSelector=metadata.name%21%3D" + other, devicesA + others + strings.Replace(named, "?", "&", 1),
				devicesA + "?fieldSelector=spec.owner%3Do", path + named, path + named + ",metadata.namespace%3Da",
				strings.Replace(devicesA, "/a/", "/b/", 1) + named,
			} {
				code, body := r.ask(t, user, of, headers...)
				require.Equal(t, http.StatusForbidden, code, "%s: %s: %s", user, of, body)
			}
		}
	}
}

// A watch ends after --max-watch-duration, whatever it asked for and whoever answers it. A
// client whose right was revoked can't open another one.
func TestRevokedRight(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	u.allow(func(authorizationv1.SubjectAccessReviewSpec) bool { return true })
	r := u.startRelay(t, "--max-watch-duration=10s")
	websocket := []string{"Connection:Upgrade", "Upgrade:websocket", "Origin:https://test", "Sec-WebSocket-Version:13", "Sec-WebSocket-Key:MDEyMzQ1Njc4OWFiY2RlZg=="}
	config := r.config("bob")
	client, opened := apiserver.Connect(t, config), []*http.Response{}
	const upstreams = "&fieldSelector=spec.owner%3Do"
	for _, timeout := range []string{"", "&timeoutSeconds=0", "&timeoutSeconds=3600", "&timeoutSeconds=-9223372037"} {
		for _, f := range []form{{"", nil}, {"", []string{asTable}}, {upstreams, nil}, {"", websocket}, {upstreams, websocket}} {
			response := begin(within(t), t, client, http.MethodGet, config.Host+path+"?watch=1"+f.path+timeout, "", f.headers...)
			require.Contains(t, []int{http.StatusOK, http.StatusSwitchingProtocols}, response.StatusCode, "%s as %v", response.Request.URL, f.headers)
			opened = append(opened, response)
		}
	}
	u.intercept(func(w http.ResponseWriter, r *http.Request) bool { // an upstream that looks at no timeout
		if !strings.Contains(r.URL.RawQuery, "unbounded") {
			return false
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return true
	})
	unbounded := begin(within(t), t, client, http.MethodGet, config.Host+path+"?watch=1&unbounded", "", asTable)
	require.Equal(t, http.StatusOK, unbounded.StatusCode)
	u.allow(nil)
	for _, response := range opened {
		_, _ = finish(t, response)
	}
	_, err := io.Copy(io.Discard, unbounded.Body)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "the watch goes on")
	require.NoError(t, unbounded.Body.Close())
	until(t, "bob's watches are refused", func() bool {
		response := begin(within(t), t, client, http.MethodGet, config.Host+path+"?watch=1", "")
		return response.Body.Close() == nil && response.StatusCode == http.StatusForbidden
	})
	code, body := r.ask(t, "alice", path+"?"+brief)
	require.Equal(t, http.StatusOK, code, body)
}

// exec, attach and port-forward begin with an upgrade, which HTTP/2 does not have.
func TestPassesUpgrades(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	u.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/exec") {
			return false
		}
		connection, buffered, _ := http.NewResponseController(w).Hijack()
		defer connection.Close()
		_, _ = fmt.Fprintf(connection, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n%s", r.Header.Get("Upgrade"), r.Header.Get("Authorization"))
		_, _ = io.Copy(connection, buffered)
		return true
	})
	r := u.startKnowing(t, "--pass-through")
	config := r.as(t, u.users, "alice", "")
	config.NextProtos = []string{"http/1.1"}
	for _, protocol := range []string{"SPDY/3.1", "websocket"} {
		response := begin(within(t), t, apiserver.Connect(t, config), http.MethodPost, config.Host+"/api/v1/namespaces/a/pods/x/exec", "", "Connection:Upgrade", "Upgrade:"+protocol)
		require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode, protocol)
		stream := response.Body.(io.ReadWriteCloser)
		_, err := stream.Write([]byte(" says hello"))
		require.NoError(t, err)
		const want = "Bearer alice says hello"
		got := make([]byte, len(want))
		_, err = io.ReadFull(stream, got)
		require.NoError(t, err)
		require.Equal(t, want, string(got), protocol)
		require.NoError(t, stream.Close())
	}
}

// A request that is passed through has the client's token, and neither the relay's token nor
// its certificate. Requests without a token are not passed through.
func TestPassesTheClientsToken(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	u.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/log") {
			return false
		}
		_, _ = fmt.Fprintf(w, "%q as %q, %q, %d", r.Header.Get("Authorization"), r.Header.Get("Impersonate-User"), r.Header.Get("X-Remote-User"), len(r.TLS.PeerCertificates))
		return true
	})
	r := u.startKnowing(t, "--pass-through")
	withoutToken := "ask the upstream, https://" + u.network.Address() + ", or send a bearer token"
	for _, c := range []struct {
		what, token, certificate string
		headers                  []string
		code                     int
		want                     string
	}{
		{"a token", "alice", "", nil, http.StatusOK, `"Bearer alice" as "", "", 0`},
		{"another token", "bob", "", nil, http.StatusOK, `"Bearer bob" as "", "", 0`},
		{"a token that no TokenReview accepts", "mallory", "", nil, http.StatusUnauthorized, "Unauthorized"},
		{"a token and a certificate", "bob", "alice", nil, http.StatusOK, `"Bearer bob" as "", "", 0`},
		{"impersonation, which the upstream must judge", "bob", "", []string{"Impersonate-User:alice"}, http.StatusOK, `"Bearer bob" as "alice", "", 0`},
		{"the front proxy's headers", "bob", "", []string{"X-Remote-User:alice"}, http.StatusOK, `"Bearer bob" as "", "", 0`},
		{"a token that proxies must not pass on", "bob", "", []string{"Connection:Authorization"}, http.StatusOK, `"" as "", "", 0`},
		{"a certificate", "", "alice", nil, http.StatusNotFound, withoutToken},
		{"a certificate without rights", "", "bob", nil, http.StatusForbidden, `User \"bob\" cannot get resource \"pods/log\"`},
		{"nobody", "", "", nil, http.StatusForbidden, "system:anonymous"},
		{"a password", "", "", []string{"Authorization:Basic YWxpY2U6YWxpY2U="}, http.StatusForbidden, "system:anonymous"},
	} {
		config := r.as(t, u.users, c.token, c.certificate)
		config.NextProtos = []string{"http/1.1"} // the only one with a Connection header
		code, body := exchange(t, config, http.MethodGet, "/api/v1/namespaces/a/pods/x/log?container="+url.QueryEscape(c.what), "", c.headers...)
		require.Equal(t, c.code, code, "%s: %s", c.what, body)
		require.Contains(t, body, c.want, c.what)
	}
	code, body := exchange(t, r.as(t, u.users, "", "alice"), http.MethodPost, devicesA, "{}")
	require.Equal(t, http.StatusMethodNotAllowed, code, body)
	require.Contains(t, body, withoutToken)
}
