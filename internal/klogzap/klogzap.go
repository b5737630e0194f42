// SPDX-License-Identifier: Apache-2.0

// Package klogzap forwards zap logs to klog, so that a process has a single log.
package klogzap

import (
	"maps"
	"slices"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// New returns a logger. Entries at level loud or above become klog errors. Other entries, and all
// entries of the logger named talker and its children, are logged at -v=quiet. An empty talker
// matches none.
func New(loud zapcore.Level, quiet klog.Level, talker string) *zap.Logger {
	return zap.New(core{loud: loud, quiet: quiet, talker: talker})
}

// core implements zapcore.Core.
type core struct {
	loud   zapcore.Level
	quiet  klog.Level
	talker string
	fields []zapcore.Field
}

func (c core) isLoud(e zapcore.Entry) bool {
	first, _, _ := strings.Cut(e.LoggerName, ".")
	return e.Level >= c.loud && (c.talker == "" || first != c.talker)
}

// Enabled implements zapcore.Core. Check decides.
func (c core) Enabled(zapcore.Level) bool { return true }

func (c core) With(fields []zapcore.Field) zapcore.Core {
	c.fields = slices.Concat(c.fields, fields)
	return c
}

func (c core) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.isLoud(e) || klog.V(c.quiet).Enabled() {
		return to.AddCore(e, c)
	}
	return to
}

func (c core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	encoder := zapcore.NewMapObjectEncoder()
	for _, field := range slices.Concat(c.fields, fields) {
		field.AddTo(encoder)
	}
	var pairs []any
	if e.LoggerName != "" {
		pairs = append(pairs, "logger", e.LoggerName)
	}
	for _, key := range slices.Sorted(maps.Keys(encoder.Fields)) {
		pairs = append(pairs, key, encoder.Fields[key])
	}
	if c.isLoud(e) {
		klog.ErrorS(nil, e.Message, pairs...)
	} else {
		klog.V(c.quiet).InfoS(e.Message, pairs...)
	}
	return nil
}

func (core) Sync() error {
	klog.Flush()
	return nil
}
