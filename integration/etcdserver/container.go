// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Labels of our containers: that they are ours, and whose.
const (
	labelOurs = "io.github.kube-watchcache.etcd"
	labelHost = labelOurs + ".host"
	labelPID  = labelOurs + ".pid"
)

// container runs etcd with the docker command. Its data is in the container's
// own layer and ends with it.
type container struct {
	image  string
	port   int
	cfg    Config
	id     string
	exited chan struct{}
}

func newContainer(ctx context.Context, port int, cfg Config) (runner, string, error) {
	if err := reapOnce(); err != nil {
		return nil, "", fmt.Errorf("leftovers of dead runs: %w", err)
	}
	image := os.Getenv(imageVariable)
	if image == "" {
		var err error
		if image, err = etcdImage(); err != nil {
			return nil, "", err
		}
	}
	return &container{image: image, port: port, cfg: cfg}, "image " + image, nil
}

func (c *container) start(ctx context.Context) (<-chan struct{}, error) {
	if c.id == "" {
		id, err := c.create(ctx)
		if err != nil {
			return nil, err
		}
		c.id = id
	}
	if _, err := docker(ctx, "start", c.id); err != nil {
		return nil, err
	}
	c.await()
	return c.exited, nil
}

func (c *container) create(ctx context.Context) (string, error) {
	labels, err := ownLabels()
	if err != nil {
		return "", err
	}
	args := append([]string{"create", "--entrypoint", "etcd"}, labels...)
	args = append(args, "--publish", fmt.Sprintf("127.0.0.1:%d:2379", c.port), c.image)
	return docker(ctx, append(args, c.cfg.arguments("http://0.0.0.0:2379", "/etcd-data")...)...)
}

// await starts the goroutine that closes exited when the container ends; stop
// and close, which make it end, await it.
func (c *container) await() {
	exited, id := make(chan struct{}), c.id
	c.exited = exited
	go func() {
		defer close(exited)
		_, _ = docker(context.Background(), "wait", id)
	}()
}

func (c *container) stop(ctx context.Context) error {
	if _, err := docker(ctx, "stop", "--time", "30", c.id); err != nil {
		return err
	}
	<-c.exited
	return nil
}

func (c *container) pause(ctx context.Context) error {
	_, err := docker(ctx, "pause", c.id)
	return err
}

func (c *container) resume(ctx context.Context) error {
	_, err := docker(ctx, "unpause", c.id)
	return err
}

func (c *container) close(ctx context.Context) error {
	if c.id == "" {
		return nil
	}
	if _, err := docker(ctx, "rm", "--force", "--volumes", c.id); err != nil {
		return err
	}
	if c.exited != nil {
		<-c.exited
	}
	return nil
}

func (c *container) output(ctx context.Context) string {
	if c.id == "" {
		return ""
	}
	out, err := exec.CommandContext(ctx, "docker", "logs", "--tail", "100", c.id).CombinedOutput()
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// etcdImage builds the image around the compiled etcd, once in a test's
// process. Its tag is made from its content, so that it is built again only
// when etcd has changed, and it is kept.
var etcdImage = sync.OnceValues(func() (string, error) {
	b, err := etcdBinary()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tag := "watchcache-etcd:" + b.hash[:12]
	if _, err := docker(ctx, "image", "inspect", "--format", "{{.Id}}", tag); err == nil {
		return tag, nil
	}
	return tag, buildImage(ctx, b, tag)
})

func buildImage(ctx context.Context, b binary, tag string) error {
	dir, err := os.MkdirTemp("", "watchcache-etcd-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	recipe := "FROM scratch\nCOPY etcd /usr/local/bin/etcd\nLABEL " + labelOurs + "=\"\"\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(recipe), 0o600); err != nil {
		return err
	}
	if err := copyFile(filepath.Join(dir, "etcd"), b.path); err != nil {
		return err
	}
	_, err = docker(ctx, "build", "--quiet", "--tag", tag, dir)
	return err
}

func copyFile(to, from string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}

// Engine asks, once, whether a container engine answers; the error says why not.
func Engine(ctx context.Context) error { return engineErr(ctx) }

// engineErr asks, once, whether a container engine answers.
var engineErr = func() func(context.Context) error {
	ask := sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := docker(ctx, "version", "--format", "{{.Server.Version}}")
		return err
	})
	return func(context.Context) error { return ask() }
}()

// reapOnce removes, once in a test's process, the containers and networks of runs on
// this host that died without removing them.
var reapOnce = sync.OnceValue(func() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return reap(ctx)
})

func reap(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	format := fmt.Sprintf("{{.ID}} {{.Label %q}}", labelPID)
	mine := "label=" + labelHost + "=" + host
	for _, kind := range []struct {
		list, remove []string
		gone         string
	}{
		{[]string{"ps", "--all"}, []string{"rm", "--force", "--volumes"}, "No such container"},
		{[]string{"network", "ls"}, []string{"network", "rm"}, "No such network"},
	} {
		list, err := docker(ctx, append(kind.list, "--no-trunc", "--filter", mine, "--format", format)...)
		if err != nil {
			return err
		}
		for line := range strings.Lines(list) {
			var id string
			var pid int
			if _, err := fmt.Sscan(line, &id, &pid); err != nil {
				return fmt.Errorf("docker %s: %q: %w", kind.list[0], line, err)
			}
			if alive(pid) {
				continue
			}
			if _, err := docker(ctx, append(kind.remove, id)...); err != nil && !strings.Contains(err.Error(), kind.gone) {
				return err
			}
		}
	}
	return nil
}

// alive reports whether there is a process of that number.
func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// docker runs the docker command and gives its output without the line's end.
func docker(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	// The builder that needs no plug-in, and that every engine has.
	cmd.Env = append(os.Environ(), "DOCKER_BUILDKIT=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
