// Package made keeps what compilers make for tests, by what it is made of, in the user's cache, outside the checkout: many tests need the same stand-in, library or program, and
// few commits change its sources. Only what was made without an error is kept. What was not used for two weeks goes.
package made

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// unused is how long what nobody uses stays in the cache.
const unused = 14 * 24 * time.Hour

// packages is what Debian's package manager changes with each package: compilers read headers and libraries of others.
const packages = "/var/lib/dpkg/status"

// Key is a number of what something is made of: the programs of tools as they are installed, and words. Of a word that names a file, of what follows -I in one, and of a folder, the content
// counts and not the name. Of a folder's that are its files and those of its folders; of that of a file or of -I, the headers, too, which a source finds beside itself.
func Key(tools []string, words ...string) (string, error) {
	h := sha256.New()
	for _, tool := range tools {
		path, err := exec.LookPath(tool)
		if err != nil {
			return "", err
		}
		if err := stamp(h, path); err != nil {
			return "", err
		}
	}
	if err := stamp(h, packages); err != nil {
		fmt.Fprintf(h, "%v\n", err)
	}
	for _, word := range words {
		name, include := strings.CutPrefix(word, "-I")
		st, err := os.Stat(name)
		switch {
		case err != nil:
			fmt.Fprintf(h, "word %q\n", word)
			continue
		case include:
			err = headers(h, name)
		case st.IsDir():
			err = filepath.WalkDir(name, func(path string, d fs.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() {
					return err
				}
				return content(h, path)
			})
		default:
			if err = content(h, name); err == nil && filepath.Ext(name) != ".a" {
				err = headers(h, filepath.Dir(name))
			}
		}
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// hash is what Key adds to.
type hash interface{ Write([]byte) (int, error) }

// stamp adds a file by what shows that it is another one.
func stamp(h hash, path string) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	fmt.Fprintf(h, "stamp %q %d %d\n", path, st.Size(), st.ModTime().UnixNano())
	return nil
}

// headers adds the headers of a folder.
func headers(h hash, dir string) error {
	all, err := filepath.Glob(filepath.Join(dir, "*.h"))
	if err != nil {
		return err
	}
	for _, path := range all {
		if err := content(h, path); err != nil {
			return err
		}
	}
	return nil
}

// content adds a file's name in its folder, and its bytes.
func content(h hash, path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	fmt.Fprintf(h, "file %q %x\n", filepath.Base(path), sha256.Sum256(b))
	return nil
}

// In returns a folder with what do makes in an empty one, which is kept under key. Nobody may write there: others have it, too.
func In(key string, do func(dir string) error) (string, error) {
	all, err := folder()
	if err != nil {
		return "", err
	}
	return in(all, key, do)
}

// folder is where all of it is: in the user's cache, or for this process only where there is none.
func folder() (string, error) {
	if base, err := os.UserCacheDir(); err == nil {
		if all := filepath.Join(base, "lanefs", "made"); os.MkdirAll(all, 0o755) == nil {
			return all, nil
		}
	}
	return own()
}

var own = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "lanefs-made-") })

func in(all, key string, do func(dir string) error) (string, error) {
	dir, now := filepath.Join(all, key), time.Now()
	if os.Chtimes(dir, now, now) == nil {
		return dir, nil
	}
	if err := forget(all, now.Add(-unused)); err != nil {
		return "", err
	}
	next, err := os.MkdirTemp(all, "next-") // in the same file system, to be renamed when it is whole
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(next)
	if err := os.Chmod(next, 0o755); err != nil {
		return "", err
	}
	if err := do(next); err != nil {
		return "", err
	}
	if err := os.Rename(next, dir); err != nil {
		if _, other := os.Stat(dir); other != nil { // else another process was faster
			return "", err
		}
	}
	return dir, nil
}

// forget removes what was not used since.
func forget(all string, since time.Time) error {
	entries, err := os.ReadDir(all)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if st, err := e.Info(); err == nil && st.ModTime().Before(since) {
			if err := os.RemoveAll(filepath.Join(all, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// Compile runs a compiler, or has what it has made of the same before: out is the file that it makes of args. Other files that it reads, which args do not name, are in also.
// With -g the working directory counts, too: it is in what is made.
func Compile(out string, also []string, cc string, args ...string) error {
	words := append(append([]string{"compile"}, args...), also...)
	if slices.Contains(args, "-g") {
		dir, err := os.Getwd()
		if err != nil {
			return err
		}
		words = append(words, "in "+dir)
	}
	return compiled(out, words, nil, cc, args)
}

// Of runs a compiler in a folder with the files of sources, embedded in a program, or has what it has made of the same before: out is the library or the program that it makes of args.
func Of(sources fs.FS, out, cc string, args ...string) error {
	words := slices.Clone(args)
	err := fs.WalkDir(sources, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(sources, path)
		words = append(words, path, string(b))
		return err
	})
	if err != nil {
		return err
	}
	return compiled(out, words, sources, cc, args)
}

// compiled has a compiler make out, or what it has made of the same words before: in a folder with the files of sources, or where the program is if that is nil.
func compiled(out string, words []string, sources fs.FS, cc string, args []string) error {
	key, err := Key([]string{cc}, words...)
	if err != nil {
		return err
	}
	dir, err := In(key, func(dir string) error {
		c := exec.Command(cc, append([]string{"-o", filepath.Join(dir, "out")}, args...)...)
		if sources != nil {
			if err := os.CopyFS(dir, sources); err != nil {
				return err
			}
			c.Dir = dir
		}
		if said, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %q: %w: %s", cc, args, err, said)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return Copy(filepath.Join(dir, "out"), out)
}

// Copy copies a program or a library, which all may execute.
func Copy(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}
