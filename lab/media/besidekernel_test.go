package media

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/loopmount"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/sparse"
	"github.com/lanefs/lanefs/lab/faultfs"
	"github.com/lanefs/lanefs/lab/internal/image"
)

// beside is one image that the kernel's ext4, by a loop device, and LaneFS mount in turn, on a medium that fails in the same way.
type beside struct {
	*bench
	base   string // the image as it is before each mount
	dirty  string // as a power cut leaves it: things that are in the journal only, and a file that was open without a name
	kernel bool   // whose turn it is
}

const (
	besideBlock = 4096
	besideData  = 64 << 10 // bytes in the file "data"
)

func besideName(i int) string { return fmt.Sprintf("%03d-%s", i, strings.Repeat("n", 200)) }

func newBeside(t *testing.T) *beside {
	if why := image.KernelMissing(); why != "" {
		t.Skipf("SKIPPED: the kernel's ext4: %s", why)
	}
	b := &beside{bench: newBench(t, build(t), "", "-g", "8192", "-O", "metadata_csum_seed,orphan_file", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"), kernel: true}
	b.base, b.dirty = filepath.Join(b.dir, "base"), filepath.Join(b.dir, "dirty")
	require.NoError(t, b.begin(""))
	populate(t, b.mnt)
	require.NoError(t, b.end())
	b.gone()
	require.NoError(t, sparse.Copy(b.backing, b.base))

	require.NoError(t, b.begin(""))
	f, err := os.Create(b.mnt + "/orphan")
	require.NoError(t, err)
	_, err = f.Write(make([]byte, besideData))
	require.NoError(t, err)
	require.NoError(t, os.Remove(b.mnt+"/orphan"))
	require.NoError(t, os.WriteFile(b.mnt+"/journalled", []byte("journalled"), 0o600))
	require.NoError(t, f.Sync())
	dir, err := os.Open(b.mnt)
	require.NoError(t, err)
	require.NoError(t, unix.Syncfs(int(dir.Fd())))
	require.NoError(t, dir.Close())
	require.NoError(t, sparse.Copy(b.backing, b.dirty))
	require.NoError(t, f.Close())
	require.NoError(t, b.end())
	b.gone()
	return b
}

// populate makes a file or directory for each structure of the format. The inodes of f40 and f63 are in blocks of the table that a mount does not read.
func populate(t *testing.T, m string) {
	for i := range 64 {
		require.NoError(t, os.WriteFile(fmt.Sprintf("%s/f%02d", m, i), []byte("x"), 0o600))
	}
	require.NoError(t, os.Mkdir(m+"/tree", 0o755)) // with an index
	for i := range 150 {
		require.NoError(t, os.Link(m+"/f00", m+"/tree/"+besideName(i)))
	}
	require.NoError(t, os.Mkdir(m+"/flat", 0o755)) // without
	for i := range 5 {
		require.NoError(t, os.Link(m+"/f00", fmt.Sprintf("%s/flat/%d", m, i)))
	}
	require.NoError(t, os.WriteFile(m+"/data", make([]byte, besideData), 0o600))
	require.NoError(t, os.Symlink(strings.Repeat("s", 200), m+"/slow"))
	require.NoError(t, os.WriteFile(m+"/xattr", nil, 0o600))
	require.NoError(t, unix.Setxattr(m+"/xattr", "user.a", make([]byte, 1000), 0))
	f, err := os.Create(m + "/extents")
	require.NoError(t, err)
	for i := range 20 {
		_, err := f.WriteAt(make([]byte, besideBlock), int64(i)*2*besideBlock)
		require.NoError(t, err)
	}
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
}

// begin mounts.
func (b *beside) begin(options string) error {
	under := filepath.Join(b.medium.Dir(), "image")
	if !b.kernel {
		return b.beginLane(under, options)
	}
	img, err := os.OpenFile(under, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer img.Close()
	loop, err := image.Attach(img, false)
	if err != nil {
		return err
	}
	defer loop.Close()
	return unix.Mount(loop.Name(), b.mnt, "ext4", unix.MS_NOATIME, strings.Replace(options, "writeback_cache", "", 1))
}

// beginLane mounts with the binary.
func (b *beside) beginLane(under, options string) error {
	args := []string{under, b.mnt}
	if options != "" {
		args = append([]string{"-o", options}, args...)
	}
	d := b.daemon(args...)
	ended := false
	b.await("the mount", func() bool {
		select {
		case <-d.Ended:
			ended = true
		default:
		}
		return ended || strings.Contains(b.log(), "msg=mounted")
	})
	if ended {
		return errors.New(b.log())
	}
	return nil
}

// end unmounts.
func (b *beside) end() error {
	if b.kernel {
		return loopmount.Unmount(b.mnt)
	}
	if out, err := b.lanefs("umount", b.mnt); err != nil {
		return errors.New(out)
	}
	return nil
}

// gone waits until nobody has the image open.
func (b *beside) gone() {
	b.await("the end of the mount", func() bool { m, err := fs.MountedAt(b.mnt); return err == nil && m == nil })
	b.await("the image is closed", func() bool { return b.medium.Open() == 0 })
}

// asked is the numbers that debugfs or dumpe2fs says of the image, as pattern finds them.
func (b *beside) asked(pattern, program string, args ...string) (all []int64) {
	b.t.Helper()
	out := b.tool(0, program, append(args, b.base)...)
	_, out, _ = strings.Cut(out, "\n") // the first line is the program's version
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(out, -1) {
		n, err := strconv.ParseInt(m[1], 10, 64)
		require.NoError(b.t, err)
		all = append(all, n)
	}
	require.NotEmpty(b.t, all, "%s %q: %s", program, args, out)
	return all
}

// where names blocks of the image.
type where func(b *beside) []int64

func debugfs(pattern, command string) where {
	return func(b *beside) []int64 { return b.asked(pattern, "debugfs", "-R", command) }
}

func bitmaps(kind string) where {
	return func(b *beside) []int64 { return b.asked(kind+` bitmap at (\d+)`, "dumpe2fs") }
}

func table(file string) where     { return debugfs(`located at block (\d+)`, "imap /"+file) }
func blocksOf(file string) where  { return debugfs(`\b(\d+)\b`, "blocks "+file) }
func numbered(n int64) where      { return func(*beside) []int64 { return []int64{n} } }
func (w where) first() where      { return func(b *beside) []int64 { return w(b)[:1] } }
func (w where) afterFirst() where { return func(b *beside) []int64 { return w(b)[1:] } }

var (
	extentNode = debugfs(`ETB0\):(\d+)`, "stat /extents")
	attributes = debugfs(`File ACL: (\d+)`, "stat /xattr")
	log        = blocksOf("<8>").afterFirst()
	logSuper   = blocksOf("<8>").first()
)

// trouble is a way in which a medium fails, and what a program does that meets it.
type trouble struct {
	name    string
	options string
	where   where // these blocks: reads of them are EIO,
	write   bool  // or writes,
	damage  bool  // or they can be read, but are damaged
	fail    func(b *beside)
	begin   bool // it fails before it is mounted, not after
	dirty   bool // the image that a power cut left
	stays   bool // it fails until it is unmounted
	meet    func(dir string) string
	lane    string // what LaneFS does
}

// prepare makes the image of a case. What it returns makes the medium fail.
func (b *beside) prepare(f *trouble) (failed func()) {
	from := b.base
	if f.dirty {
		from = b.dirty
	}
	require.NoError(b.t, sparse.Copy(from, b.backing))
	var at []int64
	if f.where != nil {
		at = f.where(b)
	}
	if f.damage {
		m := disktest.Open(b.t, b.backing)
		for _, n := range at {
			one := m.Block(uint64(n))
			for i := 16; i < len(one); i += 128 {
				one[i] ^= 0xff
			}
			m.SetBlock(uint64(n), one)
		}
		return func() {}
	}
	return func() {
		if f.fail != nil {
			f.fail(b)
		}
		op := faultfs.OpRead
		if f.write {
			op = faultfs.OpWrite
		}
		for _, n := range at {
			b.medium.Add(faultfs.Rule{Op: op, Off: n * besideBlock, Len: besideBlock})
		}
	}
}

// outcome is what each step of a case says.
type outcome struct{ what, how string }

func inWords(all []outcome) string {
	var s []string
	for _, o := range all {
		s = append(s, o.what+"="+o.how)
	}
	return strings.Join(s, " ")
}

// play is one case for one of the two. The steps: mount; meet the trouble, and again; write a new file and an old one, and make them durable; read a third; meet
// it once more when the medium works again; unmount. Then what is on the medium: the mark of an error, its count, whether e2fsck -fn finds nothing;
// and, where there is the mark, what a write to the next mount says.
func (b *beside) play(f *trouble) (all []outcome) {
	say := func(what, how string) { all = append(all, outcome{what, how}) }
	failed := b.prepare(f)
	if f.begin {
		failed()
	}
	err := b.begin(f.options)
	say("mount", well(err))
	if err == nil {
		if !f.begin {
			failed()
		}
		say("meet", f.meet(b.mnt))
		say("again", f.meet(b.mnt))
		say("new", word(writeSynced(b.mnt+"/other", 0, 5)))
		say("old", word(writeSynced(b.mnt+"/f62", 1, 1)))
		_, err = os.ReadFile(b.mnt + "/f01")
		say("read", word(err))
		if !f.stays {
			b.medium.Clear()
			say("healed", f.meet(b.mnt))
		}
		say("umount", well(b.end()))
	}
	b.medium.Clear()
	b.gone()
	sb := disktest.Open(b.t, b.backing).Superblock
	marked := sb.State&disk.StateError != 0
	say("marked", yes(marked))
	say("counted", yes(sb.ErrorCount > 0))
	c := exec.Command("e2fsck", "-fn", b.backing)
	_ = c.Run()
	say("clean", yes(c.ProcessState.ExitCode() == 0))
	if marked {
		if b.begin("") != nil {
			say("next", "refused")
		} else {
			say("next", word(writeSynced(b.mnt+"/later", 0, 5)))
			require.NoError(b.t, b.end())
		}
		b.gone()
	}
	return all
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

// word is an error's errno by name, "ok" without one.
func word(err error) string {
	var e unix.Errno
	if err == nil {
		return "ok"
	}
	if errors.As(err, &e) {
		return strings.Replace(unix.ErrnoName(e), "EFSCORRUPTED", "EUCLEAN", 1)
	}
	return err.Error()
}

// well is "ok", or that mounting or unmounting came to an error, which is an errno or in words.
func well(err error) string {
	if err == nil {
		return "ok"
	}
	return "error"
}

// writeSynced writes n bytes to a file and makes them durable. Its error is the first.
func writeSynced(path string, off, n int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, n), off)
	return errors.Join(err, f.Sync(), f.Close())
}

// lookup, list and so on are what programs do that meet the trouble.
func lookup(name string) func(string) string {
	return func(dir string) string { _, err := os.Lstat(dir + "/" + name); return word(err) }
}

func list(name string) func(string) string {
	return func(dir string) string { _, err := os.ReadDir(dir + "/" + name); return word(err) }
}

func readAll(name string) func(string) string {
	return func(dir string) string { _, err := os.ReadFile(dir + "/" + name); return word(err) }
}

func write(name string, off, n int64) func(string) string {
	return func(dir string) string { return word(writeSynced(dir+"/"+name, off, n)) }
}

// remove removes the first file that is there.
func remove(names ...string) func(string) string {
	return func(dir string) (how string) {
		for _, name := range names {
			if how = word(os.Remove(dir + "/" + name)); how != "ENOENT" {
				break
			}
		}
		return how
	}
}

// link makes a name in a directory that is not there.
func link(dir string) func(string) string {
	n := 0
	return func(m string) string { n++; return word(os.Link(m+"/f01", fmt.Sprintf("%s/%s/new%d", m, dir, n))) }
}

func create(m string) string {
	for i := 0; ; i++ {
		if f, err := os.OpenFile(fmt.Sprintf("%s/new%d", m, i), os.O_CREATE|os.O_EXCL, 0o600); !errors.Is(err, unix.EEXIST) {
			f.Close()
			return word(err)
		}
	}
}

// twoWriters is a write by one of two descriptors of a file, and what fsync then says by each, twice: an error that hits nobody's call is told once to each.
func twoWriters(m string) string {
	var fds [2]*os.File
	for i := range fds {
		var err error
		if fds[i], err = os.OpenFile(m+"/data", os.O_RDWR, 0); err != nil {
			return word(err)
		}
		defer fds[i].Close()
	}
	_, err := fds[0].WriteAt(make([]byte, besideBlock), 0)
	said := []string{word(err)}
	for i := range 4 {
		said = append(said, word(fds[i%2].Sync()))
	}
	return strings.Join(said, ",")
}

func getAttr(m string) string {
	_, err := unix.Getxattr(m+"/xattr", "user.a", make([]byte, 2000))
	return word(err)
}

func setAttr(m string) string { return word(unix.Setxattr(m+"/xattr", "user.b", make([]byte, 300), 0)) }

func readlink(m string) string { _, err := os.Readlink(m + "/slow"); return word(err) }

func chmod(m string) string { return word(os.Chmod(m+"/f40", 0o644)) }

const (
	byName = "errors=remount-ro"
	goOn   = "errors=continue"
)

var troubles = []trouble{
	{name: "inode table", begin: true, where: table("f40"), meet: lookup("f40"),
		lane: "mount=ok meet=EIO again=EIO new=ok old=ok read=ok healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "inode table", options: byName, begin: true, where: table("f40"), meet: lookup("f40"),
		lane: "mount=ok meet=EIO again=EIO new=EROFS old=EROFS read=ok healed=ok umount=ok marked=yes counted=yes clean=no next=EROFS"},
	{name: "inode table", options: goOn, damage: true, where: table("f40"), meet: lookup("f40"),
		lane: "mount=ok meet=EUCLEAN again=EUCLEAN new=ok old=ok read=ok healed=EUCLEAN umount=ok marked=yes counted=yes clean=no next=EROFS"},
	{name: "inode table", options: byName, damage: true, where: table("f40"), meet: lookup("f40"),
		lane: "mount=ok meet=EUCLEAN again=EUCLEAN new=EROFS old=EROFS read=ok healed=EUCLEAN umount=ok marked=yes counted=yes clean=no next=EROFS"},
	{name: "block bitmap", where: bitmaps("Block").first(), meet: write("new", 0, 1<<20),
		lane: "mount=ok meet=ok again=ok new=ok old=ok read=ok healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "block bitmap", options: byName, where: bitmaps("Block").first(), meet: write("new", 0, 1<<20),
		lane: "mount=ok meet=EIO again=EROFS new=EROFS old=EROFS read=ok healed=EROFS umount=ok marked=yes counted=yes clean=no next=EROFS"},
	{name: "block bitmap", options: goOn, damage: true, where: bitmaps("Block").first(), meet: write("new", 0, 1<<20),
		lane: "mount=ok meet=ok again=ok new=ok old=ok read=ok healed=ok umount=ok marked=yes counted=yes clean=no next=EROFS"},
	{name: "block bitmap and removal", where: bitmaps("Block").first(), meet: remove("data"),
		lane: "mount=ok meet=ok again=ENOENT new=ok old=ok read=ok healed=ENOENT umount=ok marked=no counted=yes clean=yes"},
	{name: "all block bitmaps", stays: true, where: bitmaps("Block"), meet: write("new", 0, 1<<20),
		lane: "mount=ok meet=EIO again=EIO new=EIO old=ok read=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "inode bitmap", where: bitmaps("Inode").first(), meet: create,
		lane: "mount=ok meet=ok again=ok new=ok old=ok read=ok healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "inode bitmap", options: goOn, damage: true, where: bitmaps("Inode").first(), meet: create,
		lane: "mount=ok meet=ok again=ok new=ok old=ok read=ok healed=ok umount=ok marked=yes counted=yes clean=no next=EROFS"},
	{name: "inode bitmap and removal", where: bitmaps("Inode").first(), meet: remove("f10", "f11", "f12"),
		lane: "mount=ok meet=EIO again=EIO new=ok old=ok read=ok healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "all inode bitmaps", stays: true, where: bitmaps("Inode"), meet: create,
		lane: "mount=ok meet=EIO again=EIO new=EIO old=ok read=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "descriptors", begin: true, where: numbered(1), meet: lookup("f40"),
		lane: "mount=error marked=no counted=no clean=yes"},
	{name: "descriptors", damage: true, where: numbered(1), meet: lookup("f40"),
		lane: "mount=ok meet=ok again=ok new=EROFS old=EROFS read=ok healed=ok umount=ok marked=no counted=no clean=no"},
	{name: "leaves of a directory", where: blocksOf("/tree").afterFirst(), meet: lookup("tree/" + besideName(7)),
		lane: "mount=ok meet=EIO again=EIO new=ok old=ok read=ok healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "leaves of a directory, listed", where: blocksOf("/tree").afterFirst(), meet: list("tree"),
		lane: "mount=ok meet=EIO again=EIO new=ok old=ok read=ok healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "leaves of a directory, new name", options: goOn, damage: true, where: blocksOf("/tree").afterFirst(), meet: link("tree"),
		lane: "mount=ok meet=EUCLEAN again=EUCLEAN new=ok old=ok read=ok healed=EUCLEAN umount=ok marked=yes counted=yes clean=no next=EROFS"},
	{name: "index of a directory", where: blocksOf("/tree").first(), meet: lookup("tree/" + besideName(7)),
		lane: "mount=ok meet=EIO again=EIO new=ok old=ok read=ok healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "index of a directory", options: goOn, damage: true, where: blocksOf("/tree").first(), meet: lookup("tree/" + besideName(7)),
		lane: "mount=ok meet=ok again=ok new=ok old=ok read=ok healed=ok umount=ok marked=yes counted=yes clean=no next=EROFS"},
	{name: "small directory", where: blocksOf("/flat"), meet: lookup("flat/3"),
		lane: "mount=ok meet=EIO again=EIO new=ok old=ok read=ok healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "small directory", options: byName, where: blocksOf("/flat"), meet: lookup("flat/3"),
		lane: "mount=ok meet=EIO again=EIO new=EROFS old=EROFS read=ok healed=ok umount=ok marked=yes counted=yes clean=no next=EROFS"},
	{name: "small directory, listed", options: goOn, damage: true, where: blocksOf("/flat"), meet: list("flat"),
		lane: "mount=ok meet=EUCLEAN again=EUCLEAN new=ok old=ok read=ok healed=EUCLEAN umount=ok marked=yes counted=yes clean=no next=EROFS"},
	{name: "extent node", options: byName, where: extentNode, meet: readAll("extents"),
		lane: "mount=ok meet=EIO again=EIO new=ok old=ok read=ok healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "extent node, written", where: extentNode, meet: write("extents", 100_000, 10),
		lane: "mount=ok meet=EIO again=EIO new=ok old=ok read=ok healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "extent node", options: goOn, damage: true, where: extentNode, meet: readAll("extents"),
		lane: "mount=ok meet=EUCLEAN again=EUCLEAN new=ok old=ok read=ok healed=EUCLEAN umount=ok marked=yes counted=yes clean=no next=EROFS"},
	{name: "extent node and removal", where: extentNode, meet: remove("extents"),
		lane: "mount=ok meet=EIO again=EIO new=ok old=ok read=ok healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "attribute", options: byName, where: attributes, meet: getAttr,
		lane: "mount=ok meet=EIO again=EIO new=ok old=ok read=ok healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "attribute, new one", where: attributes, meet: setAttr,
		lane: "mount=ok meet=EIO again=EIO new=ok old=ok read=ok healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "attribute", options: goOn, damage: true, where: attributes, meet: getAttr,
		lane: "mount=ok meet=EUCLEAN again=EUCLEAN new=ok old=ok read=ok healed=EUCLEAN umount=ok marked=yes counted=yes clean=no next=EROFS"},
	{name: "symbolic link", options: byName, where: blocksOf("/slow"), meet: readlink,
		lane: "mount=ok meet=EIO again=EIO new=ok old=ok read=ok healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "journal's superblock", begin: true, where: logSuper, meet: lookup("f40"),
		lane: "mount=error marked=no counted=no clean=yes"},
	{name: "journal's superblock", damage: true, where: logSuper, meet: lookup("f40"),
		lane: "mount=error marked=no counted=no clean=no"},
	{name: "log of a dirty volume", begin: true, dirty: true, where: log, meet: lookup("f40"),
		lane: "mount=error marked=no counted=no clean=no"},
	{name: "log of a dirty volume", damage: true, dirty: true, where: log, meet: lookup("f40"),
		lane: "mount=error marked=no counted=no clean=no"},
	{name: "orphan", begin: true, dirty: true, where: table("f63"), meet: lookup("f63"),
		lane: "mount=ok meet=EIO again=EIO new=ok old=EIO read=ok healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "data", where: blocksOf("/data"), meet: readAll("data"),
		lane: "mount=ok meet=EIO again=EIO new=ok old=ok read=ok healed=ok umount=ok marked=no counted=no clean=yes"},
	{name: "data, written", write: true, where: blocksOf("/data"), meet: twoWriters,
		lane: "mount=ok meet=EIO,ok,ok,ok,ok again=EIO,ok,ok,ok,ok new=ok old=ok read=ok healed=ok,ok,ok,ok,ok umount=ok marked=no counted=no clean=yes"},
	{name: "data, write-back", options: "writeback_cache", write: true, where: blocksOf("/data"), meet: twoWriters,
		lane: "mount=ok meet=ok,EIO,EIO,ok,ok again=ok,EIO,EIO,ok,ok new=ok old=ok read=ok healed=ok,ok,ok,ok,ok umount=ok marked=no counted=no clean=yes"},
	{name: "log, written", write: true, where: log, meet: write("data", besideData, 5000),
		lane: "mount=ok meet=EIO again=EROFS new=EROFS old=EROFS read=ok healed=EROFS umount=error marked=yes counted=yes clean=no next=EROFS"},
	{name: "journal's superblock, written", write: true, where: logSuper, meet: write("data", besideData, 5000),
		lane: "mount=ok meet=EIO again=EROFS new=EROFS old=EROFS read=ok healed=EROFS umount=error marked=yes counted=yes clean=no next=EROFS"},
	{name: "superblock, written until the end", write: true, stays: true, where: numbered(0), meet: write("data", besideData, 5000),
		lane: "mount=ok meet=ok again=ok new=ok old=ok read=ok umount=error marked=no counted=no clean=no"},
	{name: "inode table, written until the end", write: true, stays: true, where: table("f40"), meet: chmod,
		lane: "mount=ok meet=ok again=ok new=ok old=ok read=ok umount=error marked=yes counted=yes clean=no next=EROFS"},
	{name: "all", options: "commit=300", fail: func(b *beside) { b.medium.Add(faultfs.Rule{}) }, meet: lookup("f40"),
		lane: "mount=ok meet=EIO again=EIO new=EIO old=EIO read=EIO healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "all, written", options: "commit=300", fail: func(b *beside) { b.medium.Add(faultfs.Rule{}) }, meet: write("f01", 0, 1),
		lane: "mount=ok meet=EIO again=EIO new=EIO old=EIO read=EIO healed=ok umount=ok marked=no counted=yes clean=yes"},
	{name: "write protection", fail: func(b *beside) { b.medium.ReadOnly() }, meet: write("data", besideData, 5000),
		lane: "mount=ok meet=EROFS again=EROFS new=EROFS old=EROFS read=ok healed=EROFS umount=error marked=no counted=no clean=no"},
	{name: "no room", fail: func(b *beside) { b.medium.Room(0) }, meet: write("new", 0, 1<<20),
		lane: "mount=ok meet=ENOSPC again=ENOSPC new=ENOSPC old=ENOSPC read=ok healed=ok umount=ok marked=no counted=no clean=yes"},
}

// deliberate lists the differences that are meant, with their reasons: what step, what the kernel says, and what LaneFS says.
var deliberate = []struct{ steps, kernel, lane, why string }{
	{"meet again healed", "EBADMSG|EIO", "EUCLEAN", "damage has one errno, whatever tells it and whatever it is found in"},
	{"next", "ok", "EROFS", "a volume with the mark of an error is not written before e2fsck has seen it"},
	{"umount", "ok", "error", "an unmount tells that something is lost"},
	{"marked", "yes", "no", "nothing is wrong on the volume where something could not be read, or there was no room"},
	{"counted", "no", "yes", "all metadata that cannot be read is counted"},
	{"meet", "EROFS", "EIO", "the call that meets the error says what it is, and those that follow what became of it"},
	{"meet again new", "ENOSPC", "EIO", "a bitmap that cannot be read does not say that the volume is full"},
	{"meet again", "ok|ENOENT", "EIO", "a file whose inode or blocks cannot be freed keeps its name"},
	{"healed", "ENOENT", "ok", "so it can be removed later"},
	{"clean", "no", "yes", "so nothing is lost until e2fsck finds it; and the journal goes on when there is room"},
	{"mount", "error", "ok", "where the descriptors of groups are damaged files can be read"},
	{"meet again healed", "EBADMSG", "ok", "names are found without an index"},
	{"meet again", "ok,EIO,EIO,ok,ok", "EIO,ok,ok,ok,ok", "a write goes to the device at once, so it can say so itself"},
	{"meet again new old", "EIO", "EROFS", "write protection has an errno"},
	{"again healed", "ok", "EROFS", "it stops the journal until the next mount"}, // again: with an orphan file the kernel takes an overwrite after a log that failed
	{"clean", "yes", "no", "which recovers what it holds"},
	{"old", "EIO", "ENOSPC", "want of room has one, too"},
	{"healed", "EROFS", "ok", "and does not stop the journal"},
	{"counted", "yes", "no", "so it is no error of the volume"},
}

func isDeliberate(step, kernel, lane string) bool {
	for _, d := range deliberate {
		if slices.Contains(strings.Fields(d.steps), step) && slices.Contains(strings.Split(d.kernel, "|"), kernel) && slices.Contains(strings.Split(d.lane, "|"), lane) {
			return true
		}
	}
	return false
}

// TestBesideKernel compares LaneFS with the kernel's ext4 on a medium that fails in the same way. Make test takes every fourth case.
func TestBesideKernel(t *testing.T) {
	b := newBeside(t)
	for i := range troubles {
		f := &troubles[i]
		if !disktest.Turn(i, 4) {
			continue
		}
		name := f.name
		if f.damage {
			name += ", damaged"
		}
		if f.options != "" {
			name += ", -o " + f.options
		}
		t.Run(name, func(t *testing.T) {
			b.t = t
			b.kernel = false
			lane := b.play(f)
			b.kernel = true
			kernel := b.play(f)
			t.Logf("LaneFS: %s", inWords(lane))
			t.Logf("kernel: %s", inWords(kernel))
			want, got := f.lane, inWords(lane)
			if strings.Contains(want, " clean=no") { // e2fsck -fn has something to say, but not all versions do: 1.47.2 says nothing of the mark of an error
				got = strings.Replace(got, " clean=yes", " clean=no", 1)
			}
			require.Equal(t, want, got, "LaneFS")
			for _, k := range kernel {
				for _, l := range lane {
					if l.what == k.what && l.how != k.how && !isDeliberate(k.what, k.how, l.how) {
						t.Errorf("%s: the kernel says %s, LaneFS %s", k.what, k.how, l.how)
					}
				}
			}
		})
	}
}
