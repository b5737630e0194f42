// SPDX-License-Identifier: Apache-2.0

package endpoints_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/internal/endpoints"
)

func TestSame(t *testing.T) {
	given := []string{"https://b:2379", "https://a:2379"}
	for name, tc := range map[string]struct {
		other []string
		same  bool
	}{
		"itself":              {given, true},
		"another order":       {[]string{"https://a:2379", "https://b:2379"}, true},
		"a slash at the end":  {[]string{"https://a:2379/", "https://b:2379"}, true},
		"one of them twice":   {[]string{"https://a:2379", "https://b:2379", "https://a:2379/"}, true},
		"one of them missing": {[]string{"https://a:2379"}, false},
		"another port":        {[]string{"https://a:2379", "https://b:2380"}, false},
		"another scheme":      {[]string{"https://a:2379", "http://b:2379"}, false},
		"none":                {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.same, endpoints.Same(given, tc.other))
			require.Equal(t, tc.same, endpoints.Key(given) == endpoints.Key(tc.other))
		})
	}
	require.Equal(t, []string{"https://b:2379", "https://a:2379"}, given, "the list that is given does not change")
	require.Empty(t, endpoints.Key(nil))
}
