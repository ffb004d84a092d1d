//! The committed wire code equals the output of the compiler for `diesel.proto`, so a build needs
//! no protobuf compiler.

use std::fs;
use std::path::Path;

use prost::Message;

/// Messages with a JSON form.
const SHOWN: [&str; 12] = [
    "StatusReply",
    "ServerStatus",
    "ServerCounters",
    "MethodCounters",
    "JobStatus",
    "TaskCounters",
    "MemberStatus",
    "RateStatus",
    "DatasetStatus",
    "SeriesStatus",
    "Line",
    "FailedRequest",
];

/// Set to write the files instead of comparing them.
const WRITE: &str = "DIESEL_WRITE_GENERATED";

#[test]
fn committed_wire_code_is_what_the_proto_file_compiles_to() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors =
        protox::compile([root.join("diesel.proto")], [root]).expect("diesel.proto compiles");
    let out = tempfile::tempdir().expect("a temporary folder");
    let configured = tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::ProtobufCodec")
        .out_dir(out.path());
    // The JSON of pages and of `dlcmd top` is the wire form.
    let configured = SHOWN.iter().fold(configured, |configured, message| {
        configured.message_attribute(format!(".diesel.v1.{message}"), "#[derive(serde::Serialize)]")
    });
    configured.compile_fds(descriptors.clone()).expect("code is made");
    let made = fs::read(out.path().join("diesel.v1.rs")).expect("the code is there");
    for (file, bytes) in [("diesel.v1.rs", made), ("diesel.v1.bin", descriptors.encode_to_vec())] {
        let committed = root.join("src/generated").join(file);
        if std::env::var_os(WRITE).is_some() {
            fs::write(&committed, bytes).expect("the file can be written");
        } else {
            let stored = fs::read(&committed).unwrap_or_default();
            assert!(stored == bytes, "{file} is out of date: run the test with {WRITE}=1");
        }
    }
}
