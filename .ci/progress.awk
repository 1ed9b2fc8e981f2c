# What a person wants to see while tests run: failures with what they printed, and one line a package.
/^=== (RUN|PAUSE|CONT|NAME)/ { held = ""; next }
/^ *--- (PASS|SKIP)/         { held = ""; show = 0; next }
/^ *--- FAIL/                { printf "%s", held; held = ""; print; show = 1; next }
/^(ok|FAIL|\?|panic:)/       { if (!/no test files/ && $0 != "FAIL") print; if (/^panic/) show = 1; else { held = ""; show = 0 }; next }
/WARNING: DATA RACE/         { show = 1 }
/^#/                         { show = 1 } # a package that does not build
show                         { print; next }
/^(PASS|coverage:)/          { held = ""; next }
                             { if (length(held) < 100000) held = held $0 "\n" }
