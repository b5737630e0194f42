// SPDX-License-Identifier: Apache-2.0

package control

import (
	"os"
	_ "time/tzdata" // schedules of CronJobs name time zones

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// commands are the servers but etcd, which reads its flags itself.
var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          APIServer,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
}

// Run becomes the server that args[0] names, with the flags that follow, and does not
// return. Run returns if args[0] names none.
func Run(args []string) {
	if len(args) == 0 {
		return
	}
	if args[0] == "etcd" {
		os.Args = args
		etcdmain.Main(args)
		os.Exit(0)
	}
	if command := commands[args[0]]; command != nil {
		c := command()
		c.SetArgs(args[1:])
		os.Exit(cli.Run(c))
	}
}
