// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"

	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// QuietGRPC makes the gRPC library log its warnings at -v=2 instead of -v=0. gRPC
// warns of each attempt to connect, so that an etcd that is away for a minute fills
// the log with lines beside the two that say what matters: that a cache has lost its
// storage, and that the storage is back.
//
// gRPC's logger belongs to the process, and must be set before anything connects:
// call QuietGRPC first in main. Install does not, because gRPC may have other users
// in the process.
func QuietGRPC() { grpclog.SetLoggerV2(quietGRPC{}) }

// quietGRPC logs to klog. The depth is that of gRPC's callers.
type quietGRPC struct{}

const (
	grpcDepth    = 4
	grpcWarnings = 2
	grpcDetails  = 5
)

func at(level klog.Level, text func() string) {
	if v := klog.V(level); v.Enabled() {
		v.InfoSDepth(grpcDepth, text(), "logger", "grpc")
	}
}

func line(args []any) func() string { return func() string { return fmt.Sprint(args...) } }

func form(format string, args []any) func() string {
	return func() string { return fmt.Sprintf(format, args...) }
}

func (quietGRPC) Info(args ...any)                    { at(grpcDetails, line(args)) }
func (quietGRPC) Infoln(args ...any)                  { at(grpcDetails, line(args)) }
func (quietGRPC) Infof(format string, args ...any)    { at(grpcDetails, form(format, args)) }
func (quietGRPC) Warning(args ...any)                 { at(grpcWarnings, line(args)) }
func (quietGRPC) Warningln(args ...any)               { at(grpcWarnings, line(args)) }
func (quietGRPC) Warningf(format string, args ...any) { at(grpcWarnings, form(format, args)) }
func (quietGRPC) Error(args ...any)                   { klog.ErrorDepth(grpcDepth, args...) }
func (quietGRPC) Errorln(args ...any)                 { klog.ErrorDepth(grpcDepth, args...) }
func (quietGRPC) Errorf(format string, args ...any)   { klog.ErrorfDepth(grpcDepth, format, args...) }
func (quietGRPC) Fatal(args ...any)                   { klog.FatalDepth(grpcDepth, args...) }
func (quietGRPC) Fatalln(args ...any)                 { klog.FatalDepth(grpcDepth, args...) }
func (quietGRPC) Fatalf(format string, args ...any)   { klog.FatalfDepth(grpcDepth, format, args...) }
func (quietGRPC) V(level int) bool                    { return klog.V(klog.Level(level)).Enabled() }
