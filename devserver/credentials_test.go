// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func TestMain(m *testing.M) {
	// Any server's health check for its log leaves this one.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.Forever"))
}

var (
	loopback = net.IPv4(127, 0, 0, 1)
	now      = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
)

func TestCheckLoopback(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "127.8.9.1", "::1"} {
		require.NoError(t, CheckLoopback(net.ParseIP(address)), address)
	}
	for _, address := range []string{"0.0.0.0", "::", "10.0.0.1", "192.168.1.2", "2001:db8::1"} {
		require.ErrorContains(t, CheckLoopback(net.ParseIP(address)), address)
	}
	require.Error(t, CheckLoopback(nil))
}

// TestCredentialsAreUsedAgain: a client that read the kubeconfig before a restart
// still gets in after it.
func TestCredentialsAreUsedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	first, err := loadOrCreate(dir, loopback, now)
	require.NoError(t, err)
	second, err := loadOrCreate(dir, loopback, now.Add(validity-renewBefore-time.Hour))
	require.NoError(t, err)
	require.Equal(t, first, second)
}

func TestCredentialsAreMadeAnew(t *testing.T) {
	other, err := create(loopback, now)
	require.NoError(t, err)
	for name, test := range map[string]struct {
		damage  func(t *testing.T, dir string)
		address net.IP
		later   time.Duration
	}{
		"soon expired":         {later: validity - renewBefore + time.Hour},
		"made in the future":   {later: -time.Hour},
		"another address":      {address: net.IPv4(127, 0, 0, 9)},
		"no authority":         {damage: remove("ca.crt")},
		"no serving key":       {damage: remove("serving.key")},
		"no client":            {damage: remove("client.crt")},
		"another authority":    {damage: replace("ca.crt", other.ca)},
		"another serving pair": {damage: replace("serving.key", other.servingKey)},
		"garbage":              {damage: replace("client.key", []byte("garbage"))},
		"client as server": {damage: func(t *testing.T, dir string) {
			creds, err := load(dir)
			require.NoError(t, err)
			creds.servingCert, creds.servingKey = creds.clientCert, creds.clientKey
			require.NoError(t, creds.write(dir))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "pki")
			first, err := loadOrCreate(dir, loopback, now)
			require.NoError(t, err)
			if test.damage != nil {
				test.damage(t, dir)
			}
			address := loopback
			if test.address != nil {
				address = test.address
			}
			second, err := loadOrCreate(dir, address, now.Add(test.later))
			require.NoError(t, err)
			require.NotEqual(t, first.ca, second.ca)
			require.NoError(t, second.check(address, now.Add(test.later)))
			onDisk, err := load(dir)
			require.NoError(t, err)
			require.Equal(t, second, onDisk)
		})
	}
}

func remove(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, name))) }
}

func replace(name string, content []byte) func(*testing.T, string) {
	return func(t *testing.T, dir string) { require.NoError(t, writeFile(filepath.Join(dir, name), content)) }
}

// TestOnlyTheOwnerMayRead: whatever the umask and whatever was there before.
func TestOnlyTheOwnerMayRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "client.key"), []byte("old"), 0o644))
	creds, err := loadOrCreate(dir, loopback, now)
	require.NoError(t, err)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	for name := range creds.files() {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), name)
	}
}

// TestCredentialsThatOthersMayHave: valid ones that somebody else may read or replace
// are refused, and not used.
func TestCredentialsThatOthersMayHave(t *testing.T) {
	for name, mode := range map[string]os.FileMode{
		"client.key": 0o644, "serving.key": 0o640, "ca.crt": 0o602, ".": 0o755,
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "pki")
			_, err := loadOrCreate(dir, loopback, now)
			require.NoError(t, err)
			require.NoError(t, os.Chmod(filepath.Join(dir, name), mode))
			_, err = loadOrCreate(dir, loopback, now)
			require.ErrorContains(t, err, filepath.Join(dir, name)+" is ")
			require.ErrorContains(t, err, "Remove "+dir)
			require.NoError(t, os.RemoveAll(dir), "the remedy")
			_, err = loadOrCreate(dir, loopback, now)
			require.NoError(t, err)
		})
	}
}

// TestTheAuthorityCannotSignAgain: no file holds its key.
func TestTheAuthorityCannotSignAgain(t *testing.T) {
	creds, err := create(loopback, now)
	require.NoError(t, err)
	for name, key := range map[string][]byte{"serving": creds.servingKey, "client": creds.clientKey} {
		_, err := tls.X509KeyPair(creds.ca, key)
		require.Error(t, err, name)
	}
}

func TestAllowClient(t *testing.T) {
	for _, test := range []struct {
		user user.Info
		want authorizer.Decision
	}{
		{&user.DefaultInfo{Name: clientUser, Groups: []string{clientGroup}}, authorizer.DecisionAllow},
		{&user.DefaultInfo{Name: clientUser}, authorizer.DecisionDeny},
		{&user.DefaultInfo{Name: "bob", Groups: []string{clientGroup}}, authorizer.DecisionDeny},
		{&user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}, authorizer.DecisionDeny},
		{&user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}, authorizer.DecisionDeny},
		{nil, authorizer.DecisionDeny},
	} {
		got, _, err := allowClient(context.Background(), authorizer.AttributesRecord{User: test.user, Path: "/livez"})
		require.NoError(t, err)
		require.Equal(t, test.want, got, "%v", test.user)
	}
}
