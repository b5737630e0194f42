// SPDX-License-Identifier: Apache-2.0

package needs

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorder is a test that ends as Program wants it to.
type recorder struct {
	testing.TB
	fatal, skipped []any
}

func (r *recorder) Helper()           {}
func (r *recorder) Name() string      { return "TestPage" }
func (r *recorder) Fatal(args ...any) { r.fatal = args; runtime.Goexit() }
func (r *recorder) Skip(args ...any)  { r.skipped = args; runtime.Goexit() }

func program(pkg string, names ...string) (r *recorder, path string) {
	r = &recorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		path = Program(r, pkg, names...)
	}()
	<-done
	return r, path
}

// A test without its program is named, with the package, in the last lines of make, and
// fails in CI.
func TestProgram(t *testing.T) {
	t.Setenv("CI", "")
	skipped := filepath.Join(t.TempDir(), "skipped")
	t.Setenv("SKIPPED", skipped)
	_, path := program("golang", "no-such-program", "go")
	require.NotEmpty(t, path)
	require.NoFileExists(t, skipped)

	const line = "no no-such-program on the PATH: install the package some-package"
	r, _ := program("some-package", "no-such-program")
	require.Equal(t, []any{line}, r.skipped)
	out, err := exec.CommandContext(t.Context(), "../../hack/skipped.sh", "end").CombinedOutput()
	require.NoError(t, err)
	require.Equal(t, "SKIPPED, for want of a program:\n  TestPage: "+line+"\n", string(out))

	t.Setenv("CI", "true")
	r, _ = program("some-package", "no-such-program")
	require.Equal(t, []any{line}, r.fatal)

	t.Setenv("CI", "")
	t.Setenv("SKIPPED", "")
	r, _ = program("some-package", "no-such-program")
	require.NotEmpty(t, r.skipped)
	require.NoError(t, os.Remove(skipped))
}
