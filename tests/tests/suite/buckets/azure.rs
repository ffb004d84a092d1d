//! Mistakes in the settings of an Azure container.
//!
//! Must hold: the error names the remedy and shows no key.

use anyhow::{Result, ensure};
use dl_tests::azure::{Azurite, settings};
use dl_tests::scene::Scene;

/// Keeps S-12.
#[test]
fn a_missing_container_and_a_wrong_key_are_reported() -> Result<()> {
    let scene = Scene::new()?;
    let azurite = Azurite::start()?;
    let refused = |url: &str, key: Option<&str>, told: &str| -> Result<()> {
        let mut settings = settings(azurite.address());
        settings.extend(key.map(|key| ("AZURE_STORAGE_ACCOUNT_KEY".to_owned(), key.to_owned())));
        let refused = scene.fails_among(1, &["--store", url], settings)?;
        ensure!(refused.contains(told), "{refused}");
        ensure!(key.is_none_or(|key| !refused.contains(key)), "the error shows the key: {refused}");
        Ok(())
    };
    refused("az://nowhere", None, "there is no bucket nowhere at http://127.0.0.1:")?;
    let wrong = "YW5vdGhlciBrZXk=";
    refused(&azurite.fresh(), Some(wrong), "correct AZURE_STORAGE_ACCOUNT_NAME and")
}
