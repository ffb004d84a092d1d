//! Sentences about `rm`.

use anyhow::{Result, ensure};

use super::common::Scene;

const FILES: [(&str, &str); 4] = [("a", "1"), ("d/x", "2"), ("d/y/z", "3"), ("dd", "4")];

#[test]
fn rm_deletes_a_file_and_what_is_not_there_ends_with_3() -> Result<()> {
    let scene = Scene::with(&FILES)?;
    scene.dl(["rm", "dl://ds/a"])?.code(0)?;
    scene.dl(["rm", "dl://ds/a"])?.code(3)?;
    scene.dl(["rm", "-r", "dl://ds/none"])?.code(3)?;
    scene.dl(["cat", "dl://ds/a"])?.code(3)?;
    ensure!(scene.listed("dl://ds")? == "d/x\nd/y/z\ndd\n", "{}", scene.listed("dl://ds")?);
    Ok(())
}

#[test]
fn rm_of_a_folder_needs_r_and_then_takes_all_below_it_and_nothing_beside_it() -> Result<()> {
    let scene = Scene::with(&FILES)?;
    scene.dl(["rm", "dl://ds/d"])?.code(1)?;
    ensure!(scene.listed("dl://ds")?.lines().count() == 4, "nothing was deleted");
    scene.dl(["rm", "-r", "dl://ds/d"])?.code(0)?;
    ensure!(scene.listed("dl://ds")? == "a\ndd\n", "{}", scene.listed("dl://ds")?);
    Ok(())
}

#[test]
fn a_deleted_file_can_be_put_again() -> Result<()> {
    let scene = Scene::with(&FILES)?;
    scene.dl(["rm", "-r", "dl://ds"])?.code(0)?;
    ensure!(scene.listed("dl://ds")?.is_empty(), "all was deleted");
    scene.dl(["put", "src", "dl://ds"])?.code(0)?;
    ensure!(scene.listed("dl://ds")?.lines().count() == 4, "and is there again");
    Ok(())
}
