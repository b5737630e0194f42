// SPDX-License-Identifier: Apache-2.0

//go:build unix

package load

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A list is a LIST or a watch with initial events, once, and what informers list is told
// from what nodes and clients list.
func TestAuditedRequests(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	phases := []Phase{
		{Name: "first", From: start, To: start.Add(time.Minute), Figures: map[string]float64{}},
		{Name: "second", From: start.Add(time.Minute), To: start.Add(2 * time.Minute), Figures: map[string]float64{}},
	}
	line := func(stage, verb, uri, user, code, at string) string {
		return `{"stage":"` + stage + `","verb":"` + verb + `","requestURI":"` + uri + `","user":{"username":"` + user + `"},"responseStatus":{"code":` + code + `},"stageTimestamp":"2026-01-01T` + at + `Z"}` + "\n"
	}
	path := filepath.Join(t.TempDir(), "audit")
	require.NoError(t, os.WriteFile(path, []byte(
		line("ResponseComplete", "list", "/api/v1/pods", "system:kube-scheduler", "200", "00:00:01.000000")+
			line("ResponseStarted", "watch", "/api/v1/pods?sendInitialEvents=true&watch=true", "system:serviceaccount:kube-system:job-controller", "200", "00:00:02.000000")+
			line("ResponseComplete", "watch", "/api/v1/pods?sendInitialEvents=true&watch=true", "system:serviceaccount:kube-system:job-controller", "200", "00:00:03.000000")+
			line("ResponseStarted", "watch", "/api/v1/pods?watch=true&resourceVersion=7", "system:kube-controller-manager", "200", "00:00:04.000000")+
			line("ResponseComplete", "list", "/api/v1/pods", "admin", "200", "00:00:05.000000")+
			line("ResponseComplete", "watch", "/api/v1/pods?watch=true&resourceVersion=7", "fake-nodes", "410", "00:01:06.000000")+
			line("ResponseComplete", "list", "/api/v1/pods", "system:kube-controller-manager", "200", "00:01:07.000000")+
			line("ResponseComplete", "list", "/api/v1/pods", "system:kube-controller-manager", "200", "00:03:00.000000")), 0o600))
	require.NoError(t, addAudited(path, phases))
	require.Equal(t, map[string]float64{"informers lists": 2, "answers gone": 0}, phases[0].Figures)
	require.Equal(t, map[string]float64{"informers lists": 1, "answers gone": 1}, phases[1].Figures)

	require.NoError(t, os.WriteFile(path, []byte("{\n"), 0o600))
	require.ErrorContains(t, addAudited(path, phases), path)
}
