// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestValue(t *testing.T) {
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "# TYPE watchers gauge\nwatchers_old 3\nwatchers 1.2e+01\nbroken x\n")
	}))
	defer page.Close()
	value, err := Value(t.Context(), page.Client(), page.URL, "watchers")
	require.NoError(t, err)
	require.InDelta(t, 12, value, 0)
	_, err = Value(t.Context(), page.Client(), page.URL, "watch")
	require.ErrorContains(t, err, "there is no metric watch")
	_, err = Value(t.Context(), page.Client(), page.URL, "broken")
	require.Error(t, err)
}
