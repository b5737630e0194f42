// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"errors"
	"fmt"
	"runtime"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// fatal keeps a fatal error of etcd, e.g. a full disk, from ending the process. etcd reports them
// through its logger's Fatal and Panic, on any goroutine. The logger returned by fatal.logger ends
// only that goroutine, and sends the error to the server's owner.
type fatal struct {
	// c holds the first such error. Only report sends on it.
	c chan error
}

func newFatal() *fatal { return &fatal{c: make(chan error, 1)} }

// OnWrite implements zapcore.CheckWriteHook. It does not return.
func (f *fatal) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	f.report(describe(entry.Message, fields))
	runtime.Goexit()
}

func (f *fatal) report(err error) {
	select {
	case f.c <- err:
	default: // caused by the first one
	}
}

// describe turns a log line into an error, with the cause from its fields, if any.
func describe(message string, fields []zapcore.Field) error {
	for _, field := range fields {
		if cause, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			return fmt.Errorf("%s: %w", message, cause)
		}
	}
	return errors.New(message)
}

// logger returns lg, or a silent logger if lg is nil, with f as the hook for fatal errors.
func (f *fatal) logger(lg *zap.Logger) *zap.Logger {
	if lg == nil {
		lg = zap.NewNop()
	}
	return lg.WithOptions(zap.WithFatalHook(f), zap.WithPanicHook(f))
}
