// SPDX-License-Identifier: Apache-2.0

//go:build unix

package kubernetes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

// byHand starts what `bin/kubernetes up` starts, in dir, and returns when its nodes
// have registered.
func byHand(t *testing.T, dir, on string, nodes int) (*cluster, *process) {
	t.Helper()
	for _, tool := range []string{"kubectl", "bash"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	c := &cluster{dir: dir, kubeconfig: filepath.Join(dir, "admin.kubeconfig")}
	up := c.run(t, kubernetes, "up", "--dir="+dir, "--implementation="+on, fmt.Sprintf("--nodes=%d", nodes))
	t.Cleanup(func() {
		if t.Failed() {
			for _, server := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
				log, _ := os.ReadFile(filepath.Join(dir, server+".log"))
				t.Logf("the end of the output of %s:\n%s", server, log[max(0, len(log)-4<<10):])
			}
		}
	})
	registered := fmt.Sprintf("%d nodes have registered", nodes)
	require.Eventually(t, func() bool {
		select {
		case <-up.exited:
			return true
		default:
			return strings.Contains(up.log.String(), registered)
		}
	}, patience, pollInterval)
	require.Contains(t, up.log.String(), registered)
	require.Contains(t, up.log.String(), "export KUBECONFIG="+c.kubeconfig)
	return c, up
}

// processesIn counts the processes that run in a directory. ok is false where only /proc
// would tell.
func processesIn(t *testing.T, dir string) (running []string, ok bool) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Logf("not looking for processes that are left: %s has no /proc", runtime.GOOS)
		return nil, false
	}
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	require.NoError(t, err)
	for _, link := range links {
		if in, _ := os.Readlink(link); in == dir {
			name, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
			running = append(running, strings.ReplaceAll(string(name), "\x00", " "))
		}
	}
	return running, true
}

// TestAClusterByHand rolls a Deployment out over controllers, scheduler and fake nodes,
// and ends the cluster as a person does.
func TestAClusterByHand(t *testing.T) {
	const nodes, replicas = 30, 60
	for _, on := range []string{ours, shipped} {
		t.Run(on, func(t *testing.T) {
			dir, err := filepath.EvalSymlinks(t.TempDir())
			require.NoError(t, err)
			c, up := byHand(t, dir, on, nodes)
			testNodes(t, c, nodes)
			testRollout(t, c, replicas)

			require.Equal(t, "ok", c.sh(t, "kubectl get --raw /readyz/watchcache"))
			out, err := c.try(os.Getenv(kubernetes.Variable) + " up --nodes=1 --dir=" + dir)
			require.Error(t, err)
			require.Contains(t, out, "a cluster runs in "+dir)

			// The command itself and its four servers.
			running, ok := processesIn(t, dir)
			require.True(t, !ok || len(running) == 5, "%q", running)
			up.interrupt(t)
			running, _ = processesIn(t, dir)
			require.Empty(t, running)
			left, err := filepath.Glob(filepath.Join(dir, "etcd-data-*"))
			require.NoError(t, err)
			require.Empty(t, left)

			// A second start in the same place, which begins with nothing.
			c, _ = byHand(t, dir, on, 2)
			require.Equal(t, "2\n", c.sh(t, "kubectl get nodes -o name | wc -l"))
		})
	}
}

// testNodes looks at nodes that are ready and renew their leases.
func testNodes(t *testing.T, c *cluster, nodes int) {
	c.sh(t, "kubectl wait --for=condition=Ready nodes --all --timeout=3m")
	require.Equal(t, strconv.Itoa(nodes)+"\n", c.sh(t, "kubectl get nodes --no-headers | wc -l"))
	c.eventually(t, `echo "$(kubectl -n kube-node-lease get leases -o name | wc -l) leases"`, strconv.Itoa(nodes)+" leases")
	const renewed = "kubectl -n kube-node-lease get lease node-0000 -o jsonpath='{.spec.renewTime}'"
	first := c.sh(t, renewed)
	require.Eventually(t, func() bool { return c.sh(t, renewed) != first }, patience, pollInterval)
}

// testRollout rolls a Deployment out, rolls a change of it out, and removes its pods.
func testRollout(t *testing.T, c *cluster, replicas int) {
	c.sh(t, fmt.Sprintf(`kubectl create deployment web --image=web:1 --replicas=%d
		kubectl rollout status deployment web --timeout=3m`, replicas))
	require.Equal(t, strconv.Itoa(replicas)+"\n", c.sh(t, "kubectl get pods -l app=web --field-selector status.phase=Running -o name | wc -l"))
	on := strings.Fields(c.sh(t, "kubectl get pods -l app=web -o jsonpath='{.items[*].spec.nodeName}'"))
	require.Len(t, on, replicas)
	different := map[string]bool{}
	for _, node := range on {
		different[node] = true
	}
	require.Greater(t, len(different), 1, "all pods are on one node")

	c.sh(t, `kubectl set image deployment web web=web:2
		kubectl rollout status deployment web --timeout=3m`)
	c.eventually(t, `kubectl get pods -l app=web -o jsonpath='{.items[*].spec.containers[*].image}' | tr ' ' '\n' | sort | uniq -c`, fmt.Sprintf("%d web:2", replicas))
	c.eventually(t, `echo "$(kubectl get pods -l app=web -o name | wc -l) pods"`, fmt.Sprintf("%d pods", replicas))

	c.sh(t, "kubectl scale deployment web --replicas=0")
	c.eventually(t, `echo "$(kubectl get pods -l app=web -o name | wc -l) pods"`, "0 pods")
}

// TestLoad puts a small load on both caches: every figure is there.
func TestLoad(t *testing.T) {
	binary, err := kubernetes.Path()
	require.NoError(t, err)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	profiles := filepath.Join(dir, "profiles")
	cmd := exec.Command(binary, "load", "--dir="+dir, "--nodes=4", "--pods=12", "--deployments=3", "--rolled=2", "--every=2s", "--steady=5s", "--rounds=1", "--patience="+patience.String(), "--profiles="+profiles)
	cmd.SysProcAttr = child.Attributes()
	var progress strings.Builder
	cmd.Stderr = &progress
	out, err := cmd.Output()
	if runtime.GOOS != "linux" {
		require.Error(t, err)
		t.Skip("the load is measured where there is a /proc")
	}
	require.NoError(t, err, progress.String())
	for _, phase := range []string{"fill", "steady", "rolling", "restart"} {
		require.Contains(t, string(out), "| "+phase+": CPU of the kube-apiserver | ")
	}
	for _, row := range []string{
		"resident memory of the kube-apiserver, at most", "LIST of a deployment's pods, p99", "LIST of a node's pods, rv=0, p99", "LIST of all pods, rv=0, p99",
		"write to event, observer of all pods, p99", "write to event, observer of one pod, p99", "410s that nodes were sent in watches",
		"lists of informers of controllers and scheduler", "range requests to etcd", "transactions of etcd", "messages to etcd's watches", "stop to ready again",
	} {
		require.Contains(t, string(out), "– "+row+" | ", "%s", out)
	}
	for line := range strings.Lines(string(out)) {
		cells := strings.Split(line, "|")
		for _, cell := range cells[3:5] {
			require.Equal(t, strings.TrimSpace(cells[2]) == "–", strings.TrimSpace(cell) == "–", "one cache lacks a figure: %s", line)
		}
	}
	require.Regexp(t, `(?m)^\| – pods made ready \| 12 \| 12 \| 12 \|`, string(out), "of the phase fill")
	for _, name := range []string{"watchcache-steady-1", "watchcache-rolling-1", "watchcache-lists-steady-1", "watchcache-lists-rolling-1", "shipped-steady-1", "shipped-rolling-1"} {
		require.FileExists(t, filepath.Join(profiles, name+".pprof"))
	}
	running, _ := processesIn(t, dir)
	require.Empty(t, running)
}
