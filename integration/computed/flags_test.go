// SPDX-License-Identifier: Apache-2.0

//go:build linux

package computed

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// told is a line that is more than information: the race detector logs that it is there.
var told = regexp.MustCompile(`(?m)^[^I].*$`)

// refused runs a server that must end before it serves, with one line.
func refused(t *testing.T, dir string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Run(), &exit)
	require.Equal(t, 1, exit.ExitCode(), "%s", &stderr)
	require.Empty(t, stdout.String())
	require.Len(t, told.FindAllString(stderr.String(), -1), 1, "%s", &stderr)
	return stderr.String()
}

// TestBadFlags: a server that can't do what its flags say ends with one line that names
// the flag, and leaves nothing behind.
func TestBadFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"unknown flag: --frobnicate; --help lists the flags": {"--frobnicate"},
		"unknown flag: --etcd-servers":                       {"--etcd-servers=http://127.0.0.1:1"},
		`"serve"`:                                            {"serve"},
		"--secure-port 70000":                                {"--secure-port=70000"},
		"--bind-address: 0.0.0.0":                            {"--bind-address=0.0.0.0"},
		"--run-dir is required":                              {"--run-dir="},
		"--authentication-kubeconfig a: a server without a cluster has no use for it": {"--authentication-kubeconfig=a"},
		"--tls-cert-file a: a server without a cluster has no use for it":             {"--tls-cert-file=a"},
	} {
		dir := t.TempDir()
		require.Contains(t, refused(t, dir, args...), want)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// TestSecondServer: neither a directory nor a port has two servers, and the first one goes
// on. Then the next one has the credentials of the first.
func TestSecondServer(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir, "0")
	require.Contains(t, refused(t, dir, "--secure-port=0"), "--run-dir .run: another server runs in this directory")
	require.Contains(t, refused(t, t.TempDir(), "--secure-port="+s.url.Port()), "--secure-port "+s.url.Port())
	config := s.config()
	require.NotEmpty(t, names(t, s, metav1.ListOptions{}))
	require.Equal(t, 0, s.stop(syscall.SIGTERM), s.log.String())
	next := start(t, dir, "0")
	require.Equal(t, config.CAData, next.config().CAData)
	require.NotEmpty(t, names(t, next, metav1.ListOptions{}))
}

var notCode = regexp.MustCompile(`^\s*(//.*)?$`)

// TestLines: the page says how much there is to copy.
func TestLines(t *testing.T) {
	page, err := os.ReadFile(root + "/docs/computed.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "in 250 lines")
	files, err := filepath.Glob(example + "/*.go")
	require.NoError(t, err)
	lines := 0
	for _, name := range files {
		content, err := os.ReadFile(name)
		require.NoError(t, err)
		for line := range strings.Lines(string(content)) {
			if !notCode.MatchString(strings.TrimSuffix(line, "\n")) {
				lines++
			}
		}
	}
	require.Greater(t, lines, 100)
	require.LessOrEqual(t, lines, 250)
}
