// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"fmt"
	"strings"
)

// Apply applies a diff without file names and line numbers, as pages show it, to
// text: the lines of the diff that begin with a blank or a minus must stand in text
// once, one after the other. Lines that are empty in the diff are empty in text.
func Apply(text, diff string) (string, error) {
	var before, after strings.Builder
	for line := range strings.Lines(diff) {
		if line == "\n" {
			line = " \n"
		}
		switch line[0] {
		case ' ':
			before.WriteString(line[1:])
			after.WriteString(line[1:])
		case '-':
			before.WriteString(line[1:])
		case '+':
			after.WriteString(line[1:])
		default:
			return "", fmt.Errorf("a line of the diff begins with neither blank, plus nor minus: %q", line)
		}
	}
	if n := strings.Count(text, before.String()); n != 1 {
		return "", fmt.Errorf("the text has these lines %d times, not once:\n%s", n, before.String())
	}
	return strings.Replace(text, before.String(), after.String(), 1), nil
}
