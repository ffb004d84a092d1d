//! Permissions for each method: a single table for all requests.
//!
//! Must hold: a method without a row has no permitted caller.

use dl_proto::Role;

/// The service of the methods.
pub(crate) const SERVICE: &str = "/diesel.v1.Diesel/";

/// Permission for a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A key; the answer covers only datasets that the caller may read.
    Key,
    /// A role on the dataset in the request; on all datasets when the request names none.
    On(Role),
}

/// All methods.
pub(crate) const RULES: [(&str, Rule); 18] = [
    ("CreateDataset", Rule::On(Role::Write)),
    ("GetDataset", Rule::On(Role::Read)),
    ("ListDatasets", Rule::Key),
    ("DeleteDataset", Rule::On(Role::Admin)),
    ("PutChunk", Rule::On(Role::Write)),
    ("Delete", Rule::On(Role::Write)),
    ("Read", Rule::On(Role::Read)),
    ("Stat", Rule::On(Role::Read)),
    ("GetChunks", Rule::On(Role::Read)),
    ("List", Rule::On(Role::Read)),
    ("GetSnapshot", Rule::On(Role::Read)),
    ("JoinTask", Rule::On(Role::Read)),
    ("ListLeases", Rule::On(Role::Read)),
    ("EndLeases", Rule::On(Role::Read)),
    ("Status", Rule::Key),
    ("Recover", Rule::On(Role::Admin)),
    ("Purge", Rule::On(Role::Admin)),
    ("Verify", Rule::On(Role::Admin)),
];

/// The rule of a method.
pub(crate) fn rule(method: &str) -> Option<Rule> {
    RULES.iter().find(|(name, _)| *name == method).map(|(_, rule)| *rule)
}

/// Methods that change datasets, refused while the servers are read-only; a recovery changes none.
const CHANGES: [&str; 6] =
    ["CreateDataset", "DeleteDataset", "PutChunk", "Delete", "EndLeases", "Purge"];

/// Whether a method changes datasets.
pub(crate) fn is_change(method: &str) -> bool {
    CHANGES.contains(&method)
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::*;

    #[test]
    fn every_method_has_a_rule_and_every_rule_a_method() {
        let described = FileDescriptorSet::decode(dl_proto::DESCRIPTORS).unwrap();
        let services = described.file.iter().flat_map(|file| &file.service);
        let methods = services.flat_map(|service| &service.method);
        let mut methods: Vec<_> = methods.map(|method| method.name()).collect();
        let mut ruled: Vec<_> = RULES.iter().map(|(name, _)| *name).collect();
        methods.sort_unstable();
        ruled.sort_unstable();
        assert!(CHANGES.iter().all(|name| rule(name).is_some()));
        assert_eq!(methods, ruled, "write what each method asks of its caller into RULES");
    }
}
