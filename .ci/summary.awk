# The end of make test, from the whole of `go test -v`: what was skipped and why, what failed, how many passed. The status
# is 1 when anything failed or nothing ran.
/^=== (RUN|NAME|CONT)/ { test = $3; if ($2 == "RUN") delete said[test] }
/^ *--- PASS/          { passed++ }
/^ *--- FAIL/          { failed++; names = names "  " $3 "\n" }
/^ *--- SKIP/          { skipped++ # a subtest's line comes after its parent's end: what it said was long before
                         why = $3 in said ? said[$3] : "no reason given"
                         sub(/^ *[^ ]+\.go:[0-9]+: /, "", why)
                         reasons[why] = reasons[why] " " $3 }
/^ +[^ ]+\.go:[0-9]+: / { said[test] = $0 }
/^FAIL\t/              { broken++; packages = packages "  " $2 " " $3 " " $4 "\n" }
END {
	print ""
	for (why in reasons) { if (!header++) print "skipped:"; print "  " why ":" reasons[why] }
	if (notes != "") print notes
	if (names != "") printf "failed tests:\n%s", names
	if (packages != "") printf "failed packages:\n%s", packages
	printf "%d passed, %d failed, %d skipped\n", passed, failed + (failed ? 0 : broken), skipped
	exit failed || broken || !passed
}
