// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// Watches is how nodes watch their pods.
type Watches string

const (
	// EachNode is one watch for each node, by spec.nodeName, as kubelets have it.
	EachNode Watches = "node"
	// Shared is one watch of all pods, for machines that are too small for the other.
	Shared Watches = "shared"
)

// String implements pflag.Value.
func (w *Watches) String() string { return string(*w) }

// Type implements pflag.Value.
func (*Watches) Type() string { return "node|shared" }

// Set implements pflag.Value.
func (w *Watches) Set(name string) error {
	if is := Watches(name); is != EachNode && is != Shared {
		return fmt.Errorf("%q is no way to watch: choose %q or %q", name, EachNode, Shared)
	}
	*w = Watches(name)
	return nil
}

// The defaults of kubelets.
const (
	leaseSeconds   = 40
	renewEvery     = 10 * time.Second
	reportEvery    = 5 * time.Minute
	perConnection  = 50 // nodes; kubelets have a connection each
	workers        = 32
	firstRetry     = 20 * time.Millisecond
	lastRetry      = 5 * time.Second
	requestTimeout = 30 * time.Second
)

// Config is what nodes are made of.
type Config struct {
	// Client is how the nodes reach the cluster.
	Client *rest.Config
	// Count is how many nodes there are: node-0000 and so on.
	Count int
	// Watches is how the nodes watch their pods.
	Watches Watches
}

// Counts is what the nodes have seen since they were started.
type Counts struct {
	// Gone is how many watches ended with 410, Gone.
	Gone atomic.Int64
	// Lists is how often the pods of a node were listed, by a LIST or by a watch with
	// initial events: once for each watch, if nothing goes wrong.
	Lists atomic.Int64
	// Watches is how many watches were opened.
	Watches atomic.Int64
	// Ready is how many pods were reported as ready, Deleted how many were deleted.
	Ready, Deleted atomic.Int64
	// Failed is how many requests of nodes failed and were sent again.
	Failed atomic.Int64
}

// agent is the nodes of one Config.
type agent struct {
	Config
	counts  *Counts
	clients []kubernetes.Interface
	queue   workqueue.TypedRateLimitingInterface[task]
	// pods is what the watches have brought, by task.
	pods sync.Map // of *corev1.Pod
	// logged is when an error was logged last, in Unix seconds.
	logged atomic.Int64
}

// log logs one error of all nodes in so many seconds: a server that is away fails them all.
func (a *agent) log(err error, what string) {
	const seconds = 30
	now := time.Now().Unix()
	if last := a.logged.Load(); now-last >= seconds && a.logged.CompareAndSwap(last, now) {
		klog.ErrorS(err, "Fake nodes go on trying", "for example", what)
	}
}

// task is a pod to look at.
type task struct{ namespace, name, uid string }

// Run registers the nodes and is them until ctx ends. Run returns once all its goroutines
// have ended. Errors of requests are retried, and logged when they last. registered, if
// not nil, is called once all nodes exist.
func Run(ctx context.Context, config Config, counts *Counts, registered func()) error {
	if config.Count < 1 {
		return fmt.Errorf("%d nodes: a cluster needs one or more", config.Count)
	}
	var clients []kubernetes.Interface
	for i := 0; i < config.Count; i += perConnection {
		// Transports are shared by equal Configs; a dialer makes the Config another one.
		own := rest.CopyConfig(config.Client)
		own.Dial = (&net.Dialer{Timeout: requestTimeout, KeepAlive: requestTimeout}).DialContext
		own.UserAgent = "fake-nodes"
		client, err := kubernetes.NewForConfig(own)
		if err != nil {
			return err
		}
		clients = append(clients, client)
	}
	run(ctx, config, clients, counts, registered)
	return nil
}

// run is Run with a client for each perConnection nodes.
func run(ctx context.Context, config Config, clients []kubernetes.Interface, counts *Counts, registered func()) {
	a := &agent{Config: config, clients: clients, counts: counts, queue: workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[task](firstRetry, lastRetry))}
	var group sync.WaitGroup
	defer group.Wait()
	defer a.queue.ShutDown()
	for range workers {
		group.Go(func() { a.work(ctx) })
	}
	if config.Watches == Shared {
		group.Go(func() { a.watch(ctx, a.clients[0], "") })
	}
	var registering sync.WaitGroup
	slots := make(chan struct{}, workers)
	for i := range config.Count {
		n := &node{agent: a, index: i, name: Name(i), client: a.clients[i/perConnection]}
		registering.Add(1)
		group.Go(func() {
			slots <- struct{}{}
			ok := n.retry(ctx, "register", n.register)
			<-slots
			registering.Done()
			if ok {
				n.live(ctx, &group)
			}
		})
	}
	registering.Wait()
	if ctx.Err() == nil && registered != nil {
		registered()
	}
	<-ctx.Done()
}

// Name is the name of a node.
func Name(index int) string { return fmt.Sprintf("node-%04d", index) }

// node is one node.
type node struct {
	*agent
	index  int
	name   string
	client kubernetes.Interface
}

// live renews the lease and reports the status until ctx ends.
func (n *node) live(ctx context.Context, group *sync.WaitGroup) {
	if n.Watches == EachNode {
		group.Go(func() { n.watch(ctx, n.client, n.name) })
	}
	lease := &leaseHolder{node: n}
	renew := time.NewTimer(rand.N(renewEvery))
	report := time.NewTimer(rand.N(reportEvery))
	defer renew.Stop()
	defer report.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-renew.C:
			n.retry(ctx, "renew the lease", lease.renew)
			renew.Reset(renewEvery)
		case <-report.C:
			n.retry(ctx, "report the status", n.report)
			report.Reset(reportEvery)
		}
	}
}

// retry calls do until it succeeds, and reports whether it did before ctx ended.
func (n *node) retry(ctx context.Context, what string, do func(context.Context) error) bool {
	pause := firstRetry
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			return do(ctx)
		}()
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		n.counts.Failed.Add(1)
		if pause == lastRetry {
			n.log(err, n.name+" can't "+what)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
		pause = min(2*pause, lastRetry)
	}
}

// gone reports whether an error is of a pod that is not there any more, or is another
// one by now.
func gone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }

// work does what the queue has, until the queue is shut down.
func (a *agent) work(ctx context.Context) {
	for {
		t, down := a.queue.Get()
		if down {
			return
		}
		err := a.sync(ctx, t)
		a.queue.Done(t)
		switch {
		case err == nil || gone(err):
			a.queue.Forget(t)
		case ctx.Err() != nil:
		default:
			a.counts.Failed.Add(1)
			if a.queue.NumRequeues(t) == 10 {
				a.log(err, "the pod "+t.namespace+"/"+t.name+" waits")
			}
			a.queue.AddRateLimited(t)
		}
	}
}

// sync does for a pod what its state asks for.
func (a *agent) sync(ctx context.Context, t task) error {
	value, ok := a.pods.Load(t)
	if !ok {
		return nil
	}
	pod := value.(*corev1.Pod)
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	client := a.clientOf(pod.Spec.NodeName)
	switch {
	case pod.DeletionTimestamp != nil:
		return a.end(ctx, client, pod)
	case pod.Status.Phase == corev1.PodPending || pod.Status.Phase == "":
		return a.run(ctx, client, pod)
	}
	return nil
}

// clientOf returns the client of the node with the name.
func (a *agent) clientOf(name string) kubernetes.Interface {
	return a.clients[min(indexOf(name)/perConnection, len(a.clients)-1)]
}

// indexOf is the inverse of Name, and 0 for what no fake node is called.
func indexOf(name string) int {
	digits, _ := strings.CutPrefix(name, "node-")
	index, err := strconv.Atoi(digits)
	if err != nil || index < 0 {
		return 0
	}
	return index
}
