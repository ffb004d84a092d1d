#!/usr/bin/env bash
# Makes a base for the image out of Debian's packages, without a registry of images: the C library, the certificates
# of public authorities, and the folders that the programs write to. Prints the image's id.
#   deploy/image/base.sh FOLDER      keeps the packages in FOLDER
set -euo pipefail
folder=$1
packages=(libc6 libgcc-s1 ca-certificates)

mkdir -p "$folder/packages"
cd "$folder/packages"
for package in "${packages[@]}"; do
    compgen -G "${package}_*.deb" > /dev/null || apt-get download -qq "$package"
done
root=$(mktemp -d "$folder/root.XXXXXX")
trap 'rm -rf "$root"' EXIT
for package in "${packages[@]}"; do
    dpkg -x "${package}"_*.deb "$root"
done
# What the certificates' package does when it is configured.
mkdir -p "$root/etc/ssl/certs"
find "$root/usr/share/ca-certificates" -name '*.crt' | sort | xargs cat > "$root/etc/ssl/certs/ca-certificates.crt"
rm -rf "$root"/usr/share/{doc,man,locale,lintian} "$root"/usr/lib/x86_64-linux-gnu/{gconv,audit}
install -d -m 1777 "$root/tmp"
install -d -m 700 -o 65532 -g 65532 "$root/var/lib/diesel"
install -d "$root/usr/local/bin" "$root/proc" "$root/sys" "$root/dev"
echo 'diesel:x:65532:65532::/tmp:/usr/sbin/nologin' > "$root/etc/passwd"
echo 'diesel:x:65532:' > "$root/etc/group"
find "$root" -exec touch -h -d @0 {} +
tar -C "$root" --sort=name --numeric-owner -c . | podman import --quiet - diesel-base
