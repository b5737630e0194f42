// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
)

// kubectl, as tls.sh calls it: a shell script that keeps what it is given as files
// in $STATE, and notes the order in $STATE/calls. A caBundle is kept as what
// kubectl patch was given.
const kubectl = `#!/bin/sh
set -eu
case "$*" in
"get apiservice v1.fleet.example.com -o jsonpath={.spec.caBundle}")
	cat "$STATE/bundle" 2>/dev/null || true ;;
"patch apiservice "*" --type=merge -p "*)
	echo "patch $3" >>"$STATE/calls"
	printf '%s' "$6" >"$STATE/patch.$3"
	printf '%s' "$6" | sed 's/.*"caBundle":"\([^"]*\)".*/\1/' | tr -d '\n' >"$STATE/bundle" ;;
"-n fleet-system create secret tls fleet-apiserver-tls --cert=tls.crt --key=tls.key --dry-run=client -o yaml")
	echo secret; base64 <tls.crt | tr -d '\n'; echo; base64 <tls.key | tr -d '\n'; echo ;;
"-n fleet-system create configmap fleet-apiserver-ca --from-file=ca.crt=bundle.crt --dry-run=client -o yaml")
	echo configmap; base64 <bundle.crt | tr -d '\n'; echo ;;
"apply -f -")
	read -r kind; echo "apply $kind" >>"$STATE/calls"; cat >"$STATE/$kind" ;;
*)
	echo "kubectl $*: not expected" >&2; exit 1 ;;
esac
`

// installed is what a run of tls.sh leaves in the cluster.
type installed struct {
	pair   tls.Certificate
	bundle []byte // PEM
	calls  string
}

// runScript runs tls.sh against the state and returns what the state is then.
func runScript(t *testing.T, state string) installed {
	t.Helper()
	script, err := filepath.Abs("tls.sh")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(state, "calls"), nil, 0o600))
	cmd := exec.Command("bash", script)
	cmd.Env = append(os.Environ(), "STATE="+state, "PATH="+state+string(os.PathListSeparator)+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(state, name))
		require.NoError(t, err)
		return text
	}
	decoded := func(text string) []byte {
		raw, err := base64.StdEncoding.DecodeString(text)
		require.NoError(t, err)
		return raw
	}
	secret := strings.Fields(string(read("secret")))
	require.Len(t, secret, 2)
	pair, err := tls.X509KeyPair(decoded(secret[0]), decoded(secret[1]))
	require.NoError(t, err)
	var patches []string
	for _, version := range []string{"v1", "v1beta1"} {
		var patch struct {
			Spec struct {
				CABundle []byte `json:"caBundle"`
			} `json:"spec"`
		}
		require.NoError(t, json.Unmarshal(read("patch."+version+".fleet.example.com"), &patch))
		patches = append(patches, string(patch.Spec.CABundle))
	}
	require.Equal(t, patches[0], patches[1], "both versions are on the same Service")
	require.Equal(t, patches[0], string(decoded(strings.TrimSpace(string(read("configmap"))))), "Prometheus trusts what kube-apiserver does")
	return installed{pair, []byte(patches[0]), string(read("calls"))}
}

// connect makes a request as a client that trusts the bundle, to a Pod that
// serves the certificate.
func connect(t *testing.T, bundle []byte, pair tls.Certificate) error {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	defer server.Close()
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(bundle))
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: pool, ServerName: app + "." + namespace + ".svc"}}
	conn, err := dialer.DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	if err == nil {
		err = conn.Close()
	}
	return err
}

// openssl makes sure of the commands that tls.sh needs.
func openssl(t *testing.T) {
	t.Helper()
	for _, command := range []string{"bash", "openssl"} {
		if _, err := exec.LookPath(command); err != nil {
			require.NotEqual(t, "true", os.Getenv("CI"), "CI=true: %v", err)
			t.Skip(err)
		}
	}
}

// A second run interrupts nobody: while some Pods have the new certificate and
// others the old one, clients reach both kinds.
func TestSecondCertificate(t *testing.T) {
	openssl(t)
	state := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(state, "kubectl"), []byte(kubectl), 0o700))
	first := runScript(t, state)
	require.NoError(t, connect(t, first.bundle, first.pair))
	second := runScript(t, state)
	require.NotEqual(t, first.pair.Certificate, second.pair.Certificate, "a new certificate")

	require.NoError(t, connect(t, second.bundle, first.pair), "a Pod that has the old file")
	require.NoError(t, connect(t, second.bundle, second.pair), "a Pod that has the new file")
	require.Error(t, connect(t, first.bundle, second.pair), "the test can tell them apart")
	// A client that has not seen the new bundle only meets Pods with the old file:
	// the Secret is the last to change.
	require.Equal(t, "patch v1.fleet.example.com\npatch v1beta1.fleet.example.com\napply configmap\napply secret\n", second.calls)

	third := runScript(t, state)
	for _, run := range []installed{first, second, third} {
		require.NoError(t, connect(t, third.bundle, run.pair))
	}
}

// The server reads the Secret from where tls.sh puts it.
func TestCertificateIsMounted(t *testing.T) {
	deployment := get[*appsv1.Deployment](t, manifests(t), "Deployment/"+app)
	var secrets []string
	for _, volume := range deployment.Spec.Template.Spec.Volumes {
		secrets = append(secrets, volume.Secret.SecretName)
	}
	require.Equal(t, []string{app + "-tls", "fleet-etcd-client"}, secrets)
	script, err := os.ReadFile("tls.sh")
	require.NoError(t, err)
	require.Contains(t, string(script), "namespace="+namespace+"\nservice="+app+"\n")
}
