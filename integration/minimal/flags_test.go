// SPDX-License-Identifier: Apache-2.0

//go:build unix

package minimal

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

// TestBadFlags: a server that can't do what its flags say ends before it serves, with
// one line that names the flag.
func TestBadFlags(t *testing.T) {
	program := filepath.Join(t.TempDir(), "widgets")
	require.NoError(t, child.GoBuild(example, []string{"GOWORK=off"}, "-o", program, "."))
	const etcd = "--etcd-servers=http://127.0.0.1:1"
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--frobnicate"}, "unknown flag: --frobnicate; --help lists the flags"},
		{[]string{"--secure-port=abc"}, `"--secure-port" flag`},
		{[]string{"serve"}, `"serve"`},
		{[]string{"--secure-port=70000"}, "--secure-port 70000"},
		{[]string{"--bind-address=0.0.0.0"}, "--bind-address: 0.0.0.0"},
		{[]string{"--run-dir="}, "--run-dir is required"},
		{[]string{"--authentication-kubeconfig=a"}, "--authentication-kubeconfig a: a server without a cluster has no use for it"},
		{[]string{"--tls-cert-file=a", "--kubeconfig=b"}, "--kubeconfig b"},
		{[]string{"--storage-media-type=text/plain"}, "--storage-media-type"},
		{[]string{"--watch-cache-window=-1s"}, `invalid argument "-1s" for "--watch-cache-window" flag`},
		{[]string{etcd}, etcd[:len("--etcd-servers")] + ": http://127.0.0.1:1"},
		{[]string{etcd, "--run-dir=a"}, "--run-dir a: a server with --etcd-servers has no run directory"},
		{[]string{etcd, "--secure-port=0"}, "--secure-port 0"},
		{[]string{etcd, "--watch-cache-max-fallback-lists=-1"}, `invalid argument "-1" for "--watch-cache-max-fallback-lists" flag`},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			command := exec.CommandContext(ctx, program, test.args...)
			command.Dir = t.TempDir()
			var stdout, stderr bytes.Buffer
			command.Stdout, command.Stderr = &stdout, &stderr
			var exit *exec.ExitError
			require.ErrorAs(t, command.Run(), &exit)
			require.Equal(t, 1, exit.ExitCode(), "%s", &stderr)
			require.Empty(t, stdout.String())
			require.Equal(t, 1, strings.Count(stderr.String(), "\n"), "%s", &stderr)
			require.Contains(t, stderr.String(), test.want)
			left, err := os.ReadDir(command.Dir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}
