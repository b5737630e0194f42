// SPDX-License-Identifier: Apache-2.0

package pages_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/integration/internal/pages"
)

func TestSection(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	text := "# Title\n\n```sh\nnot this\n```\n\n## One\n\n```sh\n# no heading\na\n```\nprose\n```\nb\n```\n\n### Two\n\n```go\nc\n```\n"
	require.NoError(t, os.WriteFile(page, []byte(text), 0o600))
	blocks, err := pages.Section(page, "One")
	require.NoError(t, err)
	require.Equal(t, []pages.Block{{"sh", "# no heading\na\n"}, {"", "b\n"}}, blocks)
	blocks, err = pages.Section(page, "Two")
	require.NoError(t, err)
	require.Equal(t, []pages.Block{{"go", "c\n"}}, blocks)
	_, err = pages.Section(page, "Three")
	require.ErrorContains(t, err, `no section "Three"`)
}

func TestApply(t *testing.T) {
	const text = "a\n\nb\nc\nb\n"
	for diff, want := range map[string]string{
		" a\n \n+x\n b\n": "a\n\nx\nb\nc\nb\n",
		" a\n\n-b\n+x\n":  "a\n\nx\nc\nb\n",
		" c\n b\n+d\n":    "a\n\nb\nc\nb\nd\n",
	} {
		got, err := pages.Apply(text, diff)
		require.NoError(t, err, diff)
		require.Equal(t, want, got)
	}
	for _, diff := range []string{" b\n+x\n", " a\n b\n", "a\n"} {
		_, err := pages.Apply(text, diff)
		require.Error(t, err, diff)
	}
}
