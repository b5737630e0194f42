// SPDX-License-Identifier: Apache-2.0

//go:build unix

package load

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// profile takes a CPU profile of the kube-apiserver during a phase, if it is to be. The
// function that it returns awaits the profile.
func (r *round) profile(ctx context.Context, phase string) func() error {
	if r.Profiles == "" || phase != "steady" && phase != "rolling" {
		return func() error { return nil }
	}
	var one group
	one.run(func() {}, func() error {
		raw, err := r.client.Discovery().RESTClient().Get().AbsPath("/debug/pprof/profile").
			Param("seconds", fmt.Sprint(max(1, int(r.Steady.Seconds())-1))).SetHeader("Accept", "*/*").DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("profile: %w", err)
		}
		return r.keep(phase, raw)
	})
	return one.wait
}

func (r *round) keep(phase string, profile []byte) error {
	if err := os.MkdirAll(r.Profiles, 0o755); err != nil {
		return err
	}
	name := fmt.Sprintf("%s-%s-%d.pprof", r.name, phase, r.number+1)
	return os.WriteFile(filepath.Join(r.Profiles, name), profile, 0o644)
}
