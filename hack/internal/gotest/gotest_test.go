// SPDX-License-Identifier: Apache-2.0

package gotest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A module of one package: its own test passes, and fails, hangs or does not
// compile with a file replaced.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	write("go.mod", "module example.com/m\n\ngo 1.26.0\n")
	write("a.go", "package m\n\nfunc two() int { return 2 }\n")
	write("a_test.go", "package m\n\nimport \"testing\"\n\nfunc TestTwo(t *testing.T) {\n\tt.Run(\"of one\", func(t *testing.T) {\n\t\tif two() != 2 {\n\t\t\tt.Error()\n\t\t}\n\t})\n}\n")
	for name, c := range map[string]struct {
		body, run string
		want      Outcome
		test      string
	}{
		"as it is":       {"", "TestTwo", Passed, ""},
		"another result": {"func two() int { return 3 }", "TestTwo", Failed, "TestTwo/of_one"},
		"a panic":        {"func two() int { panic(2) }", "TestTwo", Failed, "TestTwo/of_one"},
		"an end":         {"import \"os\"\n\nfunc two() int { os.Exit(3); return 2 }", "TestTwo", Failed, ""},
		"an endless one": {"func two() int { for { } }", "TestTwo", Hung, ""},
		"no code":        {"func two() int { return \"\" }", "TestTwo", Broken, ""},
		"no test":        {"", "TestThree", Broken, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := Run{Dir: dir, Package: ".", Run: Pattern(c.run), Timeout: time.Minute}
			if c.want == Hung {
				r.Timeout = time.Second
			}
			if c.body != "" {
				by := filepath.Join(t.TempDir(), "b.go")
				require.NoError(t, os.WriteFile(by, []byte("package m\n\n"+c.body+"\n"), 0o600))
				r.Replaced = map[string]string{"a.go": by}
			}
			got, err := r.Do(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.want, got.Outcome, "%s", got.Output)
			if c.test != "" {
				require.Equal(t, c.test, got.Test, "%s", got.Output)
			}
		})
	}
}

func TestPattern(t *testing.T) {
	t.Parallel()
	require.Equal(t, "^TestA$", Pattern("TestA"))
	require.Equal(t, "^TestA$|^TestB$/^sub$", Pattern("TestA|TestB/sub"))
}
