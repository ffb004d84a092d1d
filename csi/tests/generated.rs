//! The committed wire code equals the output of the compiler, so a build needs no protobuf compiler.

use std::fs;
use std::path::Path;

/// Set to write the files instead of comparing them.
const WRITE: &str = "DIESEL_WRITE_GENERATED";

#[test]
fn committed_wire_code_is_what_the_proto_files_compile_to() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join("proto");
    let files = ["csi.proto", "registration.proto"].map(|file| folder.join(file));
    let descriptors = protox::compile(files, [folder]).expect("the files compile");
    let out = tempfile::tempdir().expect("a temporary folder");
    let configured = tonic_prost_build::configure().out_dir(out.path());
    configured.compile_fds(descriptors).expect("code is made");
    for file in ["csi.v1.rs", "pluginregistration.rs"] {
        let made = fs::read(out.path().join(file)).expect("the code is there");
        let committed = root.join("src/generated").join(file);
        if std::env::var_os(WRITE).is_some() {
            fs::write(&committed, made).expect("the file can be written");
        } else {
            let stored = fs::read(&committed).unwrap_or_default();
            assert!(stored == made, "{file} is out of date: run the test with {WRITE}=1");
        }
    }
}
