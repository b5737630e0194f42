// SPDX-License-Identifier: Apache-2.0

package script

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Command is one line of a script: a name, bare words, and name=value pairs in order. Double quotes
// allow blanks. Words and pairs that a command does not remove are an error.
type Command struct {
	Name  string
	Words []string
	Pairs [][2]string
}

func parse(line string) (*Command, error) {
	parts, err := split(line)
	if err != nil {
		return nil, err
	}
	c := &Command{Name: parts[0]}
	for _, part := range parts[1:] {
		if name, value, ok := strings.Cut(part, "="); ok {
			c.Pairs = append(c.Pairs, [2]string{name, value})
		} else {
			c.Words = append(c.Words, part)
		}
	}
	return c, nil
}

// split splits a line at unquoted blanks, and removes the quotes.
func split(line string) (parts []string, err error) {
	quoted, open := false, false
	for _, r := range line {
		switch {
		case r == '"':
			quoted = !quoted
		case r == ' ' && !quoted:
			open = false
			continue
		}
		if !open {
			parts, open = append(parts, ""), true
		}
		if r != '"' {
			parts[len(parts)-1] += string(r)
		}
	}
	switch {
	case quoted:
		return nil, errors.New("a quote is not closed")
	case len(parts) == 0:
		return nil, errors.New("there is no command")
	}
	return parts, nil
}

// Word removes and returns the first bare word, or returns "".
func (c *Command) Word() string {
	if len(c.Words) == 0 {
		return ""
	}
	w := c.Words[0]
	c.Words = c.Words[1:]
	return w
}

// WordNumber is Word for a required number.
func (c *Command) WordNumber() (uint64, error) { return strconv.ParseUint(c.Word(), 10, 64) }

// Flag removes a bare word and reports whether it was present.
func (c *Command) Flag(word string) bool {
	for i, w := range c.Words {
		if w == word {
			c.Words = append(c.Words[:i:i], c.Words[i+1:]...)
			return true
		}
	}
	return false
}

// Lookup removes a pair by name, and returns its value and whether it was present.
func (c *Command) Lookup(name string) (string, bool) {
	for i, p := range c.Pairs {
		if p[0] == name {
			c.Pairs = append(c.Pairs[:i:i], c.Pairs[i+1:]...)
			return p[1], true
		}
	}
	return "", false
}

// Take is Lookup that returns "" if the pair is missing.
func (c *Command) Take(name string) string {
	value, _ := c.Lookup(name)
	return value
}

// Number is Take for a number, 0 if missing.
func (c *Command) Number(name string) (uint64, error) {
	text := c.Take(name)
	if text == "" {
		return 0, nil
	}
	return strconv.ParseUint(text, 10, 64)
}

// Duration is Take for a duration, 0 if missing.
func (c *Command) Duration(name string) (time.Duration, error) {
	text := c.Take(name)
	if text == "" {
		return 0, nil
	}
	return time.ParseDuration(text)
}

func (c *Command) leftOver() error {
	if len(c.Words) > 0 || len(c.Pairs) > 0 {
		return fmt.Errorf("left over: %v %v", c.Words, c.Pairs)
	}
	return nil
}
