# Sourced. Debian packages of other releases, by an apt configuration of our own: the system's sources, lists and cache
# are never touched.
#
#   $cache   set by the caller: where everything lies

archive_keyring=/usr/share/keyrings/debian-archive-keyring.gpg
archive_mirror=${LANEFS_LAB_MIRROR:-http://deb.debian.org/debian}

# archive_open NAME "SUITE..." [ARCH] prepares the apt configuration NAME over the suites, of packages for ARCH, and fetches their lists.
archive_open() {
	archive=$cache/apt/$1
	mkdir -p "$archive/lists/partial" "$archive/archives/partial" "$archive/etc/parts"
	: >"$archive/sources"
	: >"$archive/status"
	for suite in $2; do
		echo "deb [signed-by=$archive_keyring] $archive_mirror $suite main" >>"$archive/sources"
	done
	cat >"$archive/conf" <<-END
		Dir::Etc::SourceList "$archive/sources";
		Dir::Etc::SourceParts "$archive/etc/parts";
		Dir::Etc::Preferences "$archive/etc/preferences";
		Dir::Etc::PreferencesParts "$archive/etc/parts";
		Dir::State "$archive";
		Dir::State::Lists "$archive/lists";
		Dir::State::Status "$archive/status";
		Dir::Cache "$archive";
		Dir::Cache::Archives "$archive/archives";
		Dir::Cache::PkgCache "$archive/pkgcache.bin";
		Dir::Cache::SrcPkgCache "$archive/srcpkgcache.bin";
		APT::Sandbox::User "root";
		Acquire::Languages "none";
		${3:+APT::Architecture "$3"; APT::Architectures "$3";}
		Acquire::Retries "3";
	END
	APT_CONFIG=$archive/conf apt-get -qq update
}

# archive_newest 'REGEX' prints "PACKAGE VERSION" of the newest package whose name matches.
archive_newest() {
	APT_CONFIG=$archive/conf apt-cache --generate pkgnames 2>/dev/null | grep -Ex "$1" | sort -V | tail -1 |
		while read -r package; do
			echo "$package $(APT_CONFIG=$archive/conf apt-cache show "$package" | sed -n 's/^Version: //p' | sort -V | tail -1)"
		done
}

# archive_unpack PACKAGE DIR downloads the package and unpacks it into DIR.
archive_unpack() {
	(
		cd "$archive/archives" &&
			rm -f ./"$1"_*.deb &&
			APT_CONFIG=$archive/conf apt-get -qq download "$1" &&
			mkdir -p "$2" &&
			dpkg-deb --extract ./"$1"_*.deb "$2" &&
			rm -f ./"$1"_*.deb
	)
}
