// SPDX-License-Identifier: Apache-2.0

package server

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

var logsOnce sync.Once

// ConfigureLogs sends to stderr what the verbosity asks for. At 0 these are the
// warnings and errors; klog's own default would say more than a person who just
// starts a server wants to know. Logs belong to the process, so only the first call
// has an effect.
func ConfigureLogs(verbosity int) error {
	var err error
	logsOnce.Do(func() { err = configureLogs(verbosity) })
	return err
}

func configureLogs(verbosity int) error {
	settings := map[string]string{"v": strconv.Itoa(verbosity)}
	if verbosity == 0 {
		settings["logtostderr"] = "false"
		settings["stderrthreshold"] = "WARNING"
		klog.SetOutput(io.Discard)
		// gRPC warns of every attempt to connect; what matters comes back as an error.
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr))
	}
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	for name, value := range settings {
		if err := flags.Set(name, value); err != nil {
			return fmt.Errorf("-v %d: %w", verbosity, err)
		}
	}
	return nil
}

// etcdLogger returns where the etcd inside the process logs: nowhere by default,
// for it talks a lot; its errors come back as errors.
func etcdLogger(verbosity int) *zap.Logger {
	if verbosity < 2 {
		return zap.NewNop()
	}
	config := zap.NewProductionConfig()
	config.Level = zap.NewAtomicLevelAt(zapcore.InfoLevel)
	logger, err := config.Build()
	if err != nil {
		return zap.NewNop()
	}
	return logger.Named("etcd")
}
