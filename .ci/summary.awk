# The end of make test, from the whole of `go test -v`: what was skipped and why, what failed, how many passed. The status
# is 1 when anything failed or nothing ran.
/^=== (RUN|NAME|CONT)/ { said = "" }
/^ *--- PASS/          { passed++; skip = "" }
/^ *--- FAIL/          { failed++; names = names "  " $3 "\n"; skip = "" }
/^ *--- SKIP/          { skipped++; skip = $3
                         why = said == "" ? "no reason given" : said
                         sub(/^ *[^ ]+\.go:[0-9]+: /, "", why)
                         reasons[why] = reasons[why] " " skip; next }
/^ +[^ ]+\.go:[0-9]+: / { said = $0 }
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
