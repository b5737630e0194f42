// SPDX-License-Identifier: Apache-2.0

//go:build unix

package relayload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-watchcache/watchcache/integration/kubernetes/local"
	"github.com/kube-watchcache/watchcache/internal/realistic"
)

// FleetCommand is the argument with which Config.Binary is a fleet.
const FleetCommand = "relay-informers"

// The turns.
const (
	none    = "none"
	onRelay = "relay"
	direct  = "direct"
)

// Turns are all of them, in the order in which one kube-apiserver's memory shows what
// each of them needs.
var Turns = []string{none, onRelay, direct}

// Config is the size of a load.
type Config struct {
	Binary, Relay, Dir string
	// Implementation is the watch cache of the kube-apiserver, as its flag names it.
	Implementation string
	RelayFlags     []string
	Turns          []string
	// Informers is how many light informers there are, PerConnection how many share a
	// connection, and Controls how many informers of client-go's there are beside them.
	Informers, PerConnection, Controls int
	// Pods is how many there are, of so many Bytes of protobuf; Changes of them are
	// written in a second.
	Pods, Bytes, Changes int
	// Window is how long the steady changes are measured, Patience how long anything else
	// may take.
	Window, Patience time.Duration
	// Profiles, if set, is the directory for CPU profiles of the windows.
	Profiles string
}

// run is a cluster under load.
type run struct {
	Config
	progress io.Writer
	cluster  *local.Cluster
	pods     kubernetes.Interface
	admin    *http.Client
	host     string
	ca       []byte
	token    string
	numbers  map[string]int
	names    []types.NamespacedName
	// writing is held to hold the writer back, while it is asked what the state is.
	writing         sync.RWMutex
	written, missed atomic.Int64
	relay           *process
	relayPort       string
	fleet           *fleet
}

// Run has all turns and returns what they have shown. An error comes with the turns before
// it.
func Run(ctx context.Context, config Config, progress io.Writer) (report *Report, err error) {
	if config.Informers < 1 || config.PerConnection < 1 || config.Pods < 1 || config.Changes < 1 || config.Window <= 0 {
		return nil, errors.New("--informers, --per-connection, --pods, --changes and --window must be positive")
	}
	if config.Dir, err = filepath.Abs(config.Dir); err != nil {
		return nil, err
	}
	report = &Report{Config: config}
	r := &run{Config: config, progress: progress}
	if r.cluster, err = local.Start(ctx, local.Config{
		Binary: config.Binary, Dir: config.Dir, Implementation: config.Implementation, Alone: true,
		// There is no controller that would make the accounts of the pods.
		Servers: map[string][]string{"kube-apiserver": {"--disable-admission-plugins=ServiceAccount"}},
	}); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.cluster.Stop()) }()
	if err := r.prepare(ctx); err != nil {
		return nil, fmt.Errorf("preparing: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	writer := make(chan struct{})
	go func() { // ends with ctx, and is awaited below
		defer close(writer)
		r.write(ctx)
	}()
	defer func() { cancel(); <-writer }()
	for _, name := range config.Turns {
		t := Turn{Name: name, Figures: map[string]float64{}}
		if err := r.turn(ctx, &t); err != nil {
			return report, fmt.Errorf("%s: %w", name, err)
		}
		report.Turns = append(report.Turns, t)
	}
	return report, nil
}

// prepare makes the pods, and the account of the informers.
func (r *run) prepare(ctx context.Context) error {
	config, err := r.cluster.Client("admin")
	if err != nil {
		return err
	}
	r.host = config.Host
	if r.pods, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if r.admin, err = rest.HTTPClientFor(config); err != nil {
		return err
	}
	if r.ca, err = os.ReadFile(filepath.Join(r.Dir, "ca.crt")); err != nil {
		return err
	}
	if err := r.account(ctx); err != nil {
		return err
	}
	kind, err := realistic.Pods(r.Bytes)
	if err != nil {
		return err
	}
	r.numbers = map[string]int{}
	spaces := map[string]bool{}
	for i := range r.Pods {
		pod := kind.Make(i).(*corev1.Pod)
		r.names = append(r.names, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
		r.numbers[pod.Name] = i
		if !spaces[pod.Namespace] {
			spaces[pod.Namespace] = true
			if _, err := r.pods.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace}}, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
	}
	return each(r.Pods, 16, func(i int) error {
		pod := kind.Make(i).(*corev1.Pod)
		status := pod.Status
		pod.ManagedFields = nil
		made, err := r.pods.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		if err == nil {
			made.Status = status
			_, err = r.pods.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{})
		}
		return err
	})
}

// account makes a service account that may read pods: its token is good on both.
func (r *run) account(ctx context.Context) error {
	of := metav1.ObjectMeta{Name: "informers"}
	_, err := r.pods.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: of, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"},
	}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = r.pods.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: of, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: of.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceDefault, Name: of.Name}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	accounts := r.pods.CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: of}, metav1.CreateOptions{}); err != nil {
		return err
	}
	request, err := accounts.CreateToken(ctx, of.Name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(24 * 3600))}}, metav1.CreateOptions{})
	if err == nil {
		r.token = request.Status.Token
	}
	return err
}

// each calls do for each number below n, some at a time, and returns the errors.
func each(n, atOnce int, do func(int) error) error {
	var all sync.WaitGroup
	errs := make([]error, atOnce)
	for w := range atOnce {
		all.Go(func() {
			for i := w; i < n && errs[w] == nil; i += atOnce {
				errs[w] = do(i)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// write changes pods in turn, at the times of the rate, until ctx ends. A change that can't
// be made, or not in time, is given up and counted.
func (r *run) write(ctx context.Context) {
	tick := time.NewTicker(time.Second / time.Duration(r.Changes))
	defer tick.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	room := make(chan struct{}, 16)
	for i := 0; ; i = (i + 7) % len(r.names) {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		select {
		case room <- struct{}{}:
		default:
			r.missed.Add(1)
			continue
		}
		r.writing.RLock()
		all.Go(func() {
			defer func() { r.writing.RUnlock(); <-room }()
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, writtenKey, time.Now().UnixNano())
			if _, err := r.pods.CoreV1().Pods(r.names[i].Namespace).Patch(ctx, r.names[i].Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				r.missed.Add(1)
				return
			}
			r.written.Add(1)
		})
	}
}

// present returns the versions of all pods, by number.
func (r *run) present(ctx context.Context) ([]uint64, error) {
	list, err := r.pods.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	versions := make([]uint64, len(r.numbers))
	for _, pod := range list.Items {
		if versions[r.numbers[pod.Name]], err = strconv.ParseUint(pod.ResourceVersion, 10, 64); err != nil {
			return nil, err
		}
	}
	return versions, nil
}
