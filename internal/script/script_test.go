// SPDX-License-Identifier: Apache-2.0

package script

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// echo prints its words and pairs, and takes all of them.
func echo(c *Command) (string, error) {
	if c.Name != "echo" {
		return "", errors.New("no such command")
	}
	out := strings.Join(c.Words, "+")
	for _, p := range c.Pairs {
		out += " " + p[0] + " is " + p[1]
	}
	c.Words, c.Pairs = nil, nil
	return out, nil
}

func TestPlay(t *testing.T) {
	got, err := play("# prose\necho a b\necho x=y z=\"1 = 2\"\n----\nold output\n\n# more\n\necho\n----\n", echo)
	require.NoError(t, err)
	require.Equal(t, "# prose\necho a b\necho x=y z=\"1 = 2\"\n----\na+b\n x is y z is 1 = 2\n\n# more\n\necho\n----\nnothing\n", got)
	again, err := play(got, echo)
	require.NoError(t, err)
	require.Equal(t, got, again)
}

func TestPlayRefuses(t *testing.T) {
	for script, want := range map[string]string{
		"echo a":           "without a line of dashes",
		"\nshout\n----":    "line 2: shout: no such command",
		"echo \"a\n----\n": "line 1: echo \"a: a quote is not closed",
	} {
		_, err := play(script, echo)
		require.ErrorContains(t, err, want)
	}
	_, err := play("echo a\n----", func(*Command) (string, error) { return "", nil })
	require.ErrorContains(t, err, "left over: [a]")
}

func TestTake(t *testing.T) {
	c, err := parse("do this now count=3 for=2s name=x=y name=z")
	require.NoError(t, err)
	require.True(t, c.Flag("now"))
	require.False(t, c.Flag("now"))
	require.Equal(t, "this", c.Word())
	require.Empty(t, c.Word())
	n, err := c.Number("count")
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
	d, err := c.Duration("for")
	require.NoError(t, err)
	require.Equal(t, 2*time.Second, d)
	require.Equal(t, "x=y", c.Take("name"))
	value, ok := c.Lookup("name")
	require.True(t, ok)
	require.Equal(t, "z", value)
	_, ok = c.Lookup("name")
	require.False(t, ok)
	require.NoError(t, c.leftOver())
}

func TestFirstDifference(t *testing.T) {
	at, _ := firstDifference("a\nb\n", "a\nb\n")
	require.Zero(t, at)
	at, text := firstDifference("a\nb\n", "a\nc\n")
	require.Equal(t, 2, at)
	require.Equal(t, "got\n\tc\n\t\nwant\n\tb\n\t", text)
	at, _ = firstDifference("a", "a\nb")
	require.Equal(t, 2, at)
}
