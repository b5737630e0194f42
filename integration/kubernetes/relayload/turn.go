// SPDX-License-Identifier: Apache-2.0

//go:build unix

package relayload

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// turn is one turn: start, window, kill, resumption, and a look at each informer's state.
func (r *run) turn(ctx context.Context, t *Turn) (err error) {
	server := r.host
	if t.Name == onRelay {
		if r.relayPort, err = freePort(); err != nil {
			return err
		}
		server = "https://127.0.0.1:" + r.relayPort
		if r.relay, err = r.startRelay(ctx); err != nil {
			return err
		}
		defer func() { r.relay.kill(); r.relay = nil }()
	}
	if t.Name == none {
		return r.stage(ctx, t, "window", func() error { return sleep(ctx, r.Window) })
	}
	err = r.stage(ctx, t, "start", func() (err error) {
		if r.fleet, err = r.startFleet(server); err != nil {
			return err
		}
		return r.until(ctx, t, "synced", r.Informers+min(r.Controls, r.Informers), Look{}, r.Patience, func(s Sight) int { return s.Synced })
	})
	if r.fleet == nil {
		return err
	}
	defer func() { r.fleet.stop(); r.fleet = nil }()
	if err != nil {
		return err
	}
	// Events that piled up while informers started do not count in the window.
	synced := int(t.Figures["synced"])
	if err := r.until(ctx, t, "caught up", synced, Look{Since: time.Now()}, min(time.Minute, r.Patience), func(s Sight) int { return s.Since }); err != nil {
		return err
	}
	if err := sleep(ctx, min(5*time.Second, r.Window)); err != nil {
		return err
	}
	if err := r.stage(ctx, t, "window", func() error { return sleep(ctx, r.Window) }); err != nil {
		return err
	}
	if err := r.right(ctx, t, "wrong before the kill"); err != nil {
		return err
	}
	err = r.stage(ctx, t, "resumption", func() error {
		killed := time.Now()
		if err := r.restart(ctx, t); err != nil {
			return err
		}
		t.Figures["down"] = time.Since(killed).Seconds()
		return r.until(ctx, t, "resumed", synced, Look{Since: killed}, r.Patience/2, func(s Sight) int { return s.Since })
	})
	if err != nil {
		return err
	}
	return r.right(ctx, t, "wrong in the end")
}

// restart kills what serves the informers, and starts it again at its address.
func (r *run) restart(ctx context.Context, t *Turn) (err error) {
	if t.Name == onRelay {
		r.relay.kill()
		r.relay, err = r.startRelay(ctx)
		return err
	}
	server := r.cluster.Server("kube-apiserver")
	if err := kill(server.PID()); err != nil {
		return err
	}
	<-server.Exited()
	_ = r.cluster.StopServer(server.Name) // its error says that it was killed
	return r.cluster.StartAPIServer(ctx)
}

// until waits until count is all, or too long, and notes how many it is in the end, and the
// time of the half and of nine tenths of them.
func (r *run) until(ctx context.Context, t *Turn, what string, all int, look Look, patience time.Duration, count func(Sight) int) error {
	began, told := time.Now(), time.Now()
	if !look.Since.IsZero() {
		began = look.Since
	}
	for {
		var s Sight
		if err := r.fleet.Call("Fleet.See", look, &s); err != nil {
			return err
		}
		for name, share := range map[string]int{"half": 50, "most": 90} {
			if _, there := t.Figures[what+" "+name]; !there && count(s)*100 >= all*share {
				t.Figures[what+" "+name] = time.Since(began).Seconds()
			}
		}
		t.Figures[what] = float64(count(s))
		if count(s) >= all || time.Since(began) > patience {
			return nil
		}
		if time.Since(told) > 15*time.Second {
			told = time.Now()
			fmt.Fprintf(r.progress, "  %d of %d have %s after %.0f s: %+v\n", count(s), all, what, time.Since(began).Seconds(), s)
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// right awaits that all informers that have synced have the present state, while nothing is
// written.
func (r *run) right(ctx context.Context, t *Turn, name string) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	want, err := r.present(ctx)
	if err != nil {
		return err
	}
	for began := time.Now(); ; {
		var wrong int
		if err := r.fleet.Call("Fleet.Differ", want, &wrong); err != nil {
			return err
		}
		t.Figures[name] = float64(wrong)
		if wrong == 0 || time.Since(began) > min(time.Minute, r.Patience) {
			return nil
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// stage does a part of a turn, and notes what everybody took for it.
func (r *run) stage(ctx context.Context, t *Turn, name string, do func() error) error {
	fmt.Fprintf(r.progress, "%s: %s\n", t.Name, name)
	_, before, err := r.read(Look{Empty: true})
	if err != nil {
		return err
	}
	if name == "window" {
		r.profile(ctx, t.Name)
	}
	began := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	seconds := time.Since(began).Seconds()
	sight, after, err := r.read(Look{})
	if err != nil {
		return err
	}
	note := func(figure string, value float64) { t.Figures[name+": "+figure] = value }
	note("seconds", seconds)
	for figure, value := range after {
		who, of, _ := strings.Cut(figure, " ")
		switch same := before["="+who+" pid"] == after["="+who+" pid"]; {
		case figure[0] == '=':
			note(figure[1:], value)
		case of != "" && !same: // a process that is new
			note(figure, value)
		default:
			note(figure, value-before[figure])
		}
	}
	if sight.Events > 0 {
		note("p50", sight.P50.Seconds())
		note("p99", sight.P99.Seconds())
	}
	if sight.Error != "" {
		fmt.Fprintf(r.progress, "  the first unexpected answer: %s\n", sight.Error)
	}
	return nil
}

// read returns figures that grow, and others, whose names begin with "=".
func (r *run) read(look Look) (s Sight, figures map[string]float64, err error) {
	figures = map[string]float64{"written": float64(r.written.Load()), "missed": float64(r.missed.Load())}
	pids := map[string]int{"kube-apiserver": r.cluster.Server("kube-apiserver").PID(), "etcd": r.cluster.Server("etcd").PID()}
	if r.relay != nil {
		pids["relay"] = r.relay.cmd.Process.Pid
	}
	if r.fleet != nil {
		pids["informers"] = r.fleet.cmd.Process.Pid
		if err := r.fleet.Call("Fleet.See", look, &s); err != nil {
			return s, nil, err
		}
		figures["lists"], figures["requests"], figures["refused"], figures["failed"] = float64(s.Lists), float64(s.Requests), float64(s.Refused), float64(s.Failed)
		figures["=events"] = float64(s.Events)
	}
	for name, pid := range pids {
		cpu, resident, peak, err := taken(pid)
		if err != nil {
			return s, nil, fmt.Errorf("%s: %w", name, err)
		}
		figures[name+" cpu"], figures["="+name+" pid"] = cpu, float64(pid)
		figures["="+name+" resident"], figures["="+name+" peak"] = resident, peak
	}
	return s, figures, nil
}

// profile takes CPU profiles during a window, if they are to be taken.
func (r *run) profile(ctx context.Context, turn string) {
	if r.Profiles == "" {
		return
	}
	urls := map[string]string{"kube-apiserver": r.host}
	if r.relay != nil {
		urls["relay"] = "https://127.0.0.1:" + r.relayPort
	}
	for name, url := range urls {
		go func() { // ends with the window; the profile is for a person
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", url, max(1, int(r.Window.Seconds())/2)), nil)
			if err != nil {
				return
			}
			response, err := r.admin.Do(request)
			if err != nil {
				return
			}
			defer response.Body.Close()
			if raw, err := io.ReadAll(response.Body); err == nil && response.StatusCode == http.StatusOK {
				_ = os.WriteFile(filepath.Join(r.Profiles, turn+"-"+name+".pprof"), raw, 0o644)
			}
		}()
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
