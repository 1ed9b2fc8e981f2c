package drive

import (
	"flag"
	"log"
	"os"
	"strings"
)

// ParseFlags parses the command line's flags. Before, each flag takes the value of the environment variable of its name in
// capitals behind prefix, if that is set: -cuts that of CRASH_CUTS. Arguments that are no flags end the program.
func ParseFlags(prefix string) {
	flag.VisitAll(func(f *flag.Flag) {
		name := prefix + strings.ToUpper(f.Name)
		if v := os.Getenv(name); v != "" {
			if err := f.Value.Set(v); err != nil {
				log.Fatalf("%s=%q: %v", name, v, err)
			}
		}
	})
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("%q: only flags are known, see -help", flag.Arg(0))
	}
}

// Memory returns the directory of a file system in memory, "" if there is none: then the default directory for temporary
// files must do.
func Memory() string {
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
		return "/dev/shm"
	}
	return ""
}
