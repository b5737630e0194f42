// SPDX-License-Identifier: Apache-2.0

package child

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
)

// Program is a main package that tests run as a process. The program is
// compiled once in a test's process, and not again in those that the process
// starts.
//
// Compiling has no deadline: on a new machine it takes minutes, the downloads
// included, and that says nothing about what is tested. A test with a deadline
// calls Path before it sets the deadline.
type Program struct {
	// Variable is the environment variable that hands the path on to the
	// processes that the test starts.
	Variable string
	// Compile writes the program somewhere and returns its path.
	Compile func() (string, error)

	once sync.Once
	path string
	err  error
}

// Path returns the compiled program. Path takes as long as it takes.
func (p *Program) Path() (string, error) {
	p.once.Do(func() {
		if p.path = os.Getenv(p.Variable); p.path != "" {
			return
		}
		if p.path, p.err = p.Compile(); p.err == nil {
			p.err = os.Setenv(p.Variable, p.path)
		}
	})
	return p.path, p.err
}

// GoBuild runs go build in dir with env added to the environment.
func GoBuild(dir string, env []string, args ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-buildvcs=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}

// InTempDir calls run, which runs a package's tests, with a new directory for what
// they compile, removes it afterwards, and returns the exit status.
func InTempDir(name string, run func(dir string) int) int {
	dir, err := os.MkdirTemp("", "watchcache-"+name+"-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	return run(dir)
}
