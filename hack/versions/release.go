// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// release puts the tree of a release into a commit on a branch, behind what the
// branch has, and prints the commit. Neither the folder that is checked out nor its
// index changes. The branch must not be checked out.
func (m minor) release(root, branch string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	if status, err := git(root, nil, "status", "--porcelain"); err != nil {
		return err
	} else if status != "" {
		return fmt.Errorf("there are changes that are not committed:\n%s", status)
	}
	head, err := git(root, nil, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "versions-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	tree := filepath.Join(dir, "tree")
	if err := m.tree(root, tree); err != nil {
		return err
	}
	index := []string{"GIT_INDEX_FILE=" + filepath.Join(dir, "index")}
	if _, err := git(root, index, "--work-tree="+tree, "add", "--all", "--force", "."); err != nil {
		return err
	}
	written, err := git(root, index, "write-tree")
	if err != nil {
		return err
	}
	args := []string{"commit-tree", written, "-m", fmt.Sprintf("For Kubernetes %s, from %s", m.kubernetes, head)}
	ref := "refs/heads/" + branch
	before, err := git(root, nil, "for-each-ref", "--format=%(objectname)", ref)
	if err != nil {
		return err
	}
	if before != "" {
		args = append(args, "-p", before)
	}
	commit, err := git(root, nil, args...)
	if err != nil {
		return err
	}
	if _, err := git(root, nil, "update-ref", ref, commit, before); err != nil {
		return err
	}
	fmt.Println(commit)
	return nil
}

// git runs git in a repository that may belong to somebody else, and returns what it
// prints.
func git(root string, env []string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-c", "safe.directory=*"}, args...)...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), env...)
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, failed.String())
	}
	return strings.TrimSpace(string(out)), nil
}
