#!/bin/sh
# Links libdiesel.so from the static library of the crate dl-capi, and installs it with its headers and diesel.pc:
# install.sh LIBRARY PREFIX [-s for a library without names of functions, -S with them]
set -eu
library=$1 prefix=$2 strip=${3:--s} here=$(dirname "$0")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../Cargo.toml")
full=libdiesel.so.$version
mkdir -p "$prefix/lib/pkgconfig" "$prefix/include"
# The library has threads, so a program never unloads it.
"${CC:-cc}" -shared "-Wl,$strip" -o "$prefix/lib/$full.new" -Wl,-soname,libdiesel.so.0 -Wl,--version-script="$here/diesel.map" \
    -Wl,--gc-sections -Wl,-z,defs -Wl,-z,relro,-z,now,-z,nodelete \
    -Wl,--whole-archive "$library" -Wl,--no-whole-archive -Wl,--as-needed -lgcc_s -lm -lpthread -ldl -lc
mv "$prefix/lib/$full.new" "$prefix/lib/$full"
ln -sf "$full" "$prefix/lib/libdiesel.so.0"
ln -sf libdiesel.so.0 "$prefix/lib/libdiesel.so"
cp "$here/include/diesel.h" "$here/include/diesel.hpp" "$prefix/include/"
sed "s/@VERSION@/$version/" "$here/diesel.pc.in" > "$prefix/lib/pkgconfig/diesel.pc"
