// SPDX-License-Identifier: Apache-2.0

package slowdisk

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

// syncing makes the test's binary a program that syncs a file for each line that
// it reads, and then writes a line.
const syncing = "WATCHCACHE_TEST_SYNCING"

func TestMain(m *testing.M) {
	if path := os.Getenv(syncing); path != "" {
		if err := syncForEachLine(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func syncForEachLine(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := file.Sync(); err != nil {
			return err
		}
		fmt.Println("synced")
	}
	return lines.Err()
}

// TestDisk has a process that syncs on a quick disk, on one that hangs, and on a
// quick one again, and kills it in the middle of a sync.
func TestDisk(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), syncing+"="+t.TempDir()+"/file")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	answers := bufio.NewScanner(stdout)
	ask := func() {
		_, err := io.WriteString(stdin, "\n")
		require.NoError(t, err)
	}

	disk, err := Run(cmd)
	if errors.Is(err, ErrUnavailable) {
		fmt.Printf("%s: skipped: %v\n", t.Name(), err)
		t.Skip(err)
	}
	require.NoError(t, err)
	ask()
	require.True(t, answers.Scan())
	require.Zero(t, disk.Delayed())

	disk.Delay(time.Hour)
	ask()
	awaitDelayed(t, disk, 1)
	disk.Delay(0)
	require.True(t, answers.Scan(), "the sync goes on waiting on a quick disk")

	disk.Delay(20 * time.Millisecond)
	ask()
	require.True(t, answers.Scan(), "a delay ends by itself")
	require.EqualValues(t, 2, disk.Delayed())

	disk.Delay(time.Hour)
	ask()
	awaitDelayed(t, disk, 3)
	require.NoError(t, cmd.Process.Kill())
	require.ErrorContains(t, disk.Wait(), "killed")
}

// awaitDelayed returns when n calls wait or have waited.
func awaitDelayed(t *testing.T, disk *Disk, n int64) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for disk.Delayed() < n {
		select {
		case <-tick.C:
		case <-disk.Exited():
			require.Fail(t, "the process has ended")
		}
	}
}

// TestOtherChildrenLive: processes that end with the thread which has started them
// outlive one with a slow disk, whose thread ends with it.
func TestOtherChildrenLive(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // threads are used again
	start := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), syncing+"="+t.TempDir()+"/file")
		cmd.SysProcAttr = child.Attributes()
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		t.Cleanup(func() { _ = stdin.Close() })
		return cmd
	}
	for range 10 {
		other := start()
		require.NoError(t, other.Start())
		ended := make(chan error, 1)
		go func() { ended <- other.Wait() }()
		slow := start()
		disk, err := Run(slow)
		if errors.Is(err, ErrUnavailable) {
			fmt.Printf("%s: skipped: %v\n", t.Name(), err)
			require.NoError(t, other.Process.Kill())
			<-ended
			t.Skip(err)
		}
		require.NoError(t, err)
		require.NoError(t, slow.Process.Kill())
		require.Error(t, disk.Wait())
		require.NoError(t, other.Process.Signal(os.Interrupt))
		require.ErrorContains(t, <-ended, "interrupt", "the other process did not end by this signal")
	}
}
