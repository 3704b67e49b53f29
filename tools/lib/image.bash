# Sourced by tools/package: a container image of the Debian packages.
# shellcheck shell=bash

# Prints the archives of this machine's distribution, as lines for a sources.list. apt's sources may name others, too. Where they name none,
# a Debian system takes TROUPE_DEBIAN_ARCHIVE.
own_archives() {
  local id codename
  id=$(. /etc/os-release && printf '%s' "$ID")
  codename=$(. /etc/os-release && printf '%s' "$VERSION_CODENAME")
  {
    # shellcheck disable=SC2016 # the format is apt's
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null || true
    # Without package lists, apt still prints where it would get them.
    apt-get update --print-uris 2>/dev/null | sed -n "s|^'\(.*\)/dists/\([^/]*\)/\([^/]*\)/binary-.*|\1 \2 \3|p" || true
  } | awk -v codename="$codename" '
    { sub(/\/$/, "", $1) }
    ($2 == codename || $2 == codename "-updates" || $2 == codename "-security") && ($3 == "main" || $3 == "universe") && !seen[$0]++ {
      print "deb", $1, $2, $3; found = 1
    }
    END { exit !found }' && return
  [[ $id == debian && -n ${TROUPE_DEBIAN_ARCHIVE:-} ]] ||
    stop 1 "apt's sources name no archive of this distribution ($id $codename)." \
      "Add it to them, or, on Debian, name it: TROUPE_DEBIAN_ARCHIVE=URL $0"
  printf 'deb %s %s main\n' "${TROUPE_DEBIAN_ARCHIVE%/}" "$codename"
}

# make_root PACKAGES-DIRECTORY TAR LOG: the archive of a minimal root directory in which the package troupe is installed.
make_root() {
  local packages=$1 tar=$2 log=$3 repository codename
  codename=$(. /etc/os-release && printf '%s' "$VERSION_CODENAME")
  repository=$(mktemp -d "${tar%/*}/repository-XXXXXX")
  chmod 755 "$repository" "${tar%/*}"
  cp "$packages"/troupe_*.deb "$repository/"
  (cd "$repository" && dpkg-scanpackages --multiversion . >Packages) 2>>"$log"
  { own_archives && printf 'deb [trusted=yes] copy://%s ./\n' "$repository"; } >"$repository/sources.list"
  # Without devices, which are the container's business, and which only root can unpack.
  # shellcheck disable=SC2016 # for the inner shell
  run_logged "mmdebstrap" "$log" mmdebstrap --variant=essential --include=troupe --skip=output/dev \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --customize-hook='rm -rf "$1"/etc/resolv.conf "$1"/etc/hostname "$1"/etc/apt/sources.list' \
    "$codename" "$tar" "$repository/sources.list"
}

# make_image PACKAGES-DIRECTORY WORK-DIRECTORY: makes PACKAGES-DIRECTORY/troupe-image.tar, an archive in the layout of OCI.
make_image() {
  local packages=$1 work=$2 version
  version=$(dpkg-deb -f "$(printf '%s\n' "$packages"/troupe_*.deb | tail -n 1)" Version)
  # A tag has no tilde.
  version=${version//[^A-Za-z0-9._-]/-}
  say_phase "Making the container image (about two minutes)"
  make_root "$packages" "$work/root.tar" "$work/log"
  local layout=$work/layout
  local -a on=(--image "$layout:$version")
  {
    umoci init --layout "$layout"
    umoci new "${on[@]}"
    umoci raw add-layer "${on[@]}" "$work/root.tar"
    umoci config "${on[@]}" --config.user troupe --config.workingdir /var/lib/troupe \
      --config.env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --config.env TROUPE_KEYS=/var/lib/troupe/keys \
      --config.cmd caf-node --config.stopsignal SIGTERM --os linux --architecture "$(oci_architecture)" \
      --config.label org.opencontainers.image.title=troupe --config.label "org.opencontainers.image.version=$version"
    umoci gc --layout "$layout"
  } >>"$work/log" 2>&1 || {
    show_log "$work/log"
    stop 1 "Making the image failed."
  }
  tar -C "$layout" -cf "$work/troupe-image.tar" .
  mv -f "$work/troupe-image.tar" "$packages/"
  say "$(du -h "$packages/troupe-image.tar" | cut -f 1)  $packages/troupe-image.tar, tag $version: podman load -i, skopeo copy oci-archive:"
}

# As OCI names it.
oci_architecture() {
  case $(dpkg --print-architecture) in
    armhf) printf 'arm' ;;
    i386) printf '386' ;;
    *) dpkg --print-architecture ;;
  esac
}
