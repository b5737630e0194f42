// SPDX-License-Identifier: Apache-2.0

//go:build unix

package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-watchcache/watchcache/integration/kubernetes/local"
	"github.com/kube-watchcache/watchcache/integration/kubernetes/nodes"
)

// Config is the size of a load.
type Config struct {
	Binary, Dir string
	// Implementations are the caches, in the order of their turns: ours, shipped, or kept,
	// which is ours with lists of the built-in APIs from kept bytes.
	Implementations []string
	// APIServer are further flags of the kube-apiserver.
	APIServer   []string
	Rounds      int
	Nodes, Pods int
	Watches     nodes.Watches
	// Deployments share the pods; Rolled of them are rolled out again in the phases
	// rolling and restart, one each Every.
	Deployments, Rolled int
	Every               time.Duration
	// Steady is how long the phase of this name takes, Patience how long any other may.
	Steady, Patience time.Duration
	// Profiles, if set, is the directory for CPU profiles of the phases steady and rolling.
	Profiles string
}

// Validate returns an error that names the first field that can't be.
func (c *Config) Validate() error {
	for name, value := range map[string]int{"nodes": c.Nodes, "pods": c.Pods, "deployments": c.Deployments, "rolled": c.Rolled, "rounds": c.Rounds} {
		if value < 1 {
			return fmt.Errorf("--%s=%d: must be positive", name, value)
		}
	}
	for _, name := range c.Implementations {
		if !slices.Contains(Implementations, name) {
			return fmt.Errorf("--implementations: %q is not one of %q", name, Implementations)
		}
	}
	switch {
	case len(c.Implementations) == 0:
		return errors.New("--implementations: names none")
	case c.Pods < c.Deployments:
		return fmt.Errorf("--pods=%d: each of %d deployments needs one", c.Pods, c.Deployments)
	case c.Rolled > c.Deployments:
		return fmt.Errorf("--rolled=%d: there are %d deployments", c.Rolled, c.Deployments)
	case c.Steady <= 0 || c.Patience <= 0 || c.Every <= 0:
		return fmt.Errorf("--steady=%s, --patience=%s, --every=%s: must be positive", c.Steady, c.Patience, c.Every)
	}
	return nil
}

// Run runs all rounds. It says what happens as it goes. An error comes with the report of
// the rounds before it.
func Run(ctx context.Context, config Config, progress io.Writer) (*Report, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	report := &Report{Config: config}
	for round := range config.Rounds {
		for _, name := range config.Implementations {
			fmt.Fprintf(progress, "round %d of %d on %s\n", round+1, config.Rounds, name)
			phases, err := run(ctx, config, name, round, progress)
			if err != nil {
				return report, fmt.Errorf("on %s: %w", name, err)
			}
			report.Rounds = append(report.Rounds, Round{Implementation: name, Phases: phases})
		}
	}
	return report, nil
}

// namespace has the pods of the load.
const namespace = "load"

// round is one cluster under load.
type round struct {
	Config
	name     string
	number   int
	progress io.Writer
	cluster  *local.Cluster
	client   kubernetes.Interface
	counts   nodes.Counts
	meter    *meter
	probe    *probe
	lists    *lister
}

func run(ctx context.Context, config Config, name string, number int, progress io.Writer) (phases []Phase, err error) {
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, err
	}
	policy, audited := filepath.Join(config.Dir, "audit.yaml"), filepath.Join(config.Dir, "audit.jsonl")
	if err := errors.Join(os.WriteFile(policy, []byte(auditPolicy), 0o600), os.RemoveAll(audited)); err != nil {
		return nil, err
	}
	starting, cancel := context.WithTimeout(ctx, config.Patience)
	defer cancel()
	flags := append([]string{"--audit-policy-file=" + policy, "--audit-log-path=" + audited}, config.APIServer...)
	implementation := name
	if name == kept {
		implementation, flags = ours, append(flags, "--kept-lists")
	}
	cluster, err := local.Start(starting, local.Config{
		Binary: config.Binary, Dir: config.Dir, Implementation: implementation,
		Servers: map[string][]string{"kube-apiserver": flags},
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	r := &round{Config: config, name: name, number: number, progress: progress, cluster: cluster}
	return r.run(ctx, audited)
}

// run is the phases of a round, between the start of the clients and their end.
func (r *round) run(ctx context.Context, audited string) (phases []Phase, err error) {
	admin, err := r.cluster.Client("admin")
	if err != nil {
		return nil, err
	}
	if r.client, err = kubernetes.NewForConfig(admin); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var background group
	defer func() { err = errors.Join(err, background.wait()) }()
	defer cancel()
	r.meter = &meter{cluster: r.cluster, counts: &r.counts}
	background.run(cancel, func() error { return r.meter.follow(ctx) })
	of, err := r.cluster.Client("nodes")
	if err != nil {
		return nil, err
	}
	registered := make(chan struct{})
	background.run(cancel, func() error {
		return nodes.Run(ctx, nodes.Config{Client: of, Count: r.Nodes, Watches: r.Watches}, &r.counts, func() { close(registered) })
	})
	select {
	case <-registered:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	fill, err := r.phase(ctx, "fill", r.fill)
	if err != nil {
		return nil, err
	}
	if r.probe, err = newProbe(ctx, admin); err != nil {
		return nil, err
	}
	if r.lists, err = newLister(admin, r.Deployments, r.Nodes); err != nil {
		return nil, err
	}
	background.run(cancel, func() error { return r.probe.write(ctx) })
	background.run(cancel, func() error { return r.probe.all.observe(ctx) })
	background.run(cancel, func() error { return r.probe.named.observe(ctx) })
	background.run(cancel, func() error { return r.lists.run(ctx) })
	if err := r.probe.await(ctx); err != nil {
		return nil, err
	}
	phases = []Phase{fill}
	for _, p := range []struct {
		name string
		do   func(context.Context) error
	}{{"steady", r.steady}, {"rolling", r.rolling}, {"restart", r.restart}} {
		phase, err := r.phase(ctx, p.name, p.do)
		if err != nil {
			return nil, err
		}
		phases = append(phases, phase)
	}
	cancel()
	return phases, errors.Join(background.wait(), addAudited(audited, phases))
}

// phase does what a phase does, and measures it.
func (r *round) phase(ctx context.Context, name string, do func(context.Context) error) (Phase, error) {
	p := Phase{Name: name, Figures: map[string]float64{}}
	before, err := r.meter.read()
	if err != nil {
		return p, err
	}
	p.From = time.Now()
	bounded, cancel := context.WithTimeout(ctx, r.Patience+r.Steady)
	defer cancel()
	profiled := r.profile(bounded, name)
	err = do(bounded)
	p.To = time.Now()
	if err := errors.Join(err, profiled()); err != nil {
		return p, fmt.Errorf("%s: %w", name, err)
	}
	after, err := r.meter.read()
	if err != nil {
		return p, err
	}
	after.minus(before, p.Figures)
	p.Figures["resident"] = r.meter.peak(p.From, p.To)
	if name == "restart" {
		p.Figures["ready after"] = r.meter.lastStart().Seconds()
	}
	p.Figures["seconds"] = p.To.Sub(p.From).Seconds()
	if r.probe != nil {
		r.probe.figures(&p)
		r.lists.figures(&p)
	}
	fmt.Fprintf(r.progress, "  %s: %.0f s, %.1f s of CPU, %.0f MB resident\n", name, p.Figures["seconds"], p.Figures["cpu"], p.Figures["resident"]/1e6)
	return p, nil
}

// deployment is the name of one.
func deployment(index int) string { return fmt.Sprintf("app-%03d", index) }

// fill creates the Deployments, and returns when all their pods are ready.
func (r *round) fill(ctx context.Context) error {
	if _, err := r.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	for i := range r.Deployments {
		replicas := int32(r.Pods / r.Deployments)
		if i < r.Pods%r.Deployments {
			replicas++
		}
		labels := map[string]string{"app": deployment(i)}
		_, err := r.client.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: deployment(i), Labels: labels},
			Spec: appsv1.DeploymentSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec: corev1.PodSpec{Containers: []corev1.Container{{
						Name: "main", Image: "registry.example.com/app:1",
						Env:            []corev1.EnvVar{{Name: "LOG_LEVEL", Value: "info"}, {Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
						Ports:          []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
						ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}},
					}}},
				},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	for i := range r.Deployments {
		if err := r.rolledOut(ctx, deployment(i), 1); err != nil {
			return err
		}
	}
	return nil
}

// pause is that between two looks at something that is awaited.
const pause = 200 * time.Millisecond

// rolledOut awaits the end of the rollout of a generation, whatever errors a server that
// is away may give.
func (r *round) rolledOut(ctx context.Context, name string, generation int64) error {
	for {
		d, err := r.client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
		if err == nil && d.Status.ObservedGeneration >= generation && d.Status.UpdatedReplicas == *d.Spec.Replicas &&
			d.Status.Replicas == *d.Spec.Replicas && d.Status.AvailableReplicas == *d.Spec.Replicas {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not rolled out: %w", name, errors.Join(ctx.Err(), err))
		case <-time.After(pause):
		}
	}
}

func (r *round) steady(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(r.Steady):
		return nil
	}
}

func (r *round) rolling(ctx context.Context) error { return r.roll(ctx, "rolling", 0, r.Rolled) }

// roll rolls the Deployments from and up to, one each Every, whether the ones before are
// through or not: of two caches, the faster one must not be given more to do.
func (r *round) roll(ctx context.Context, why string, from, to int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var rollouts group
	tick := time.NewTicker(r.Every)
	defer tick.Stop()
	for i := from; i < to && ctx.Err() == nil; i++ {
		rollouts.run(cancel, func() error { return r.rollOne(ctx, deployment(i), why) })
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return rollouts.wait()
}

// rollOne changes the template of a Deployment, as kubectl rollout restart does.
func (r *round) rollOne(ctx context.Context, name, why string) error {
	patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"rolled":%q}}}}}`, why)
	for {
		d, err := r.client.AppsV1().Deployments(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		if err == nil {
			// A read at version 0 may be older than the patch: the generation tells.
			return r.rolledOut(ctx, name, d.Generation)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", name, errors.Join(ctx.Err(), err))
		case <-time.After(pause):
		}
	}
}

// restart rolls half of the Deployments, restarts the kube-apiserver while the others
// are rolled, and returns when these are through.
func (r *round) restart(ctx context.Context) error {
	if err := r.roll(ctx, "restart", 0, r.Rolled/2); err != nil {
		return err
	}
	var rest group
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rest.run(cancel, func() error { return r.roll(ctx, "restart", r.Rolled/2, r.Rolled) })
	err := r.meter.restart(ctx)
	if err != nil {
		cancel()
	}
	return errors.Join(err, rest.wait())
}
