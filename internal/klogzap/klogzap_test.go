// SPDX-License-Identifier: Apache-2.0

package klogzap

import (
	"bytes"
	"flag"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"k8s.io/klog/v2"
)

// logged returns what f logs at a verbosity, of klog's INFO file, which has all.
func logged(t *testing.T, verbosity string, f func()) string {
	t.Helper()
	defer klog.CaptureState().Restore()
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	require.NoError(t, flags.Set("v", verbosity))
	klog.LogToStderr(false)
	var text bytes.Buffer
	klog.SetOutput(io.Discard)
	klog.SetOutputBySeverity("INFO", &text)
	f()
	klog.Flush()
	return text.String()
}

func TestLoudAndQuiet(t *testing.T) {
	logger := New(zap.WarnLevel, 4, "talker")
	talk := func() {
		logger.Info("an information")
		logger.With(zap.Int("n", 3)).Warn("a warning", zap.Error(io.EOF))
		logger.Named("talker").Error("an error of the talker")
		logger.Named("talker").Named("sub").Error("an error of its part")
		logger.Named("talkers").Error("an error of another one")
	}
	quiet := logged(t, "0", talk)
	require.Contains(t, quiet, `"a warning" error="EOF" n=3`)
	require.Contains(t, quiet, `"an error of another one" logger="talkers"`)
	require.NotContains(t, quiet, "information")
	require.NotContains(t, quiet, "talker\"")
	require.NotContains(t, quiet, "its part")
	loud := logged(t, "4", talk)
	for _, want := range []string{`"an information"`, `"an error of the talker" logger="talker"`, `logger="talker.sub"`} {
		require.Contains(t, loud, want)
	}
}
