//! Texts that change, are broken, too long or half written, and what holds then.

use dl_runtime::{ManualClock, SystemClock};

use super::*;

fn number(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| "no number".to_owned())
}

#[tokio::test]
async fn a_broken_settings_file_leaves_the_last_good_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("number");
    let open = || {
        let source = Source::parse(path.to_str().unwrap()).unwrap();
        Followed::open("the number", source, Arc::new(SystemClock::new()), number)
    };
    assert!(open().await.unwrap_err().to_string().contains("No such file"));
    std::fs::write(&path, "one").unwrap();
    assert!(open().await.unwrap_err().to_string().ends_with("no number"));
    std::fs::write(&path, "1").unwrap();
    let followed = open().await.unwrap();
    let (mut stream, mut held) = followed.following.lock().unwrap().take().unwrap();
    let mut told = Told::default();
    for (text, now, is_told) in [
        (Some("2"), 2, false),
        (Some("three"), 2, true),
        (None, 2, true),
        (Some("2"), 2, false),
        (Some("4"), 4, false),
    ] {
        match text {
            Some(text) => std::fs::write(&path, text).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let found = stream.next(&SystemClock::new(), Duration::ZERO).await;
        followed.take(found, &mut held, &mut told);
        assert_eq!((*followed.now(), !told.0.is_empty()), (now, is_told), "{text:?}");
        assert_eq!(followed.stale_for().is_zero(), !is_told, "{text:?}");
    }
}

#[tokio::test]
async fn a_file_is_taken_whole_or_refused_for_its_length() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let most = usize::try_from(BYTES_MAX).unwrap();
    let read = async |length| {
        // Cut anywhere, it is a good text.
        std::fs::write(file.path(), "1".repeat(length)).unwrap();
        read(&[file.path().to_owned()]).await.map(|text| text.len())
    };
    assert_eq!(read(most).await, Ok(most));
    assert_eq!(read(most + 1).await, Err("it is longer than 4 MiB".to_owned()));
}

#[tokio::test]
async fn what_is_wrong_with_each_node_is_told_once_until_all_is_well() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "1").unwrap();
    let source = Source::parse(file.path().to_str().unwrap()).unwrap();
    let clock = Arc::new(SystemClock::new());
    let followed = Followed::open("the number", source, clock, number).await.unwrap();
    let (mut held, mut told) = ("1".to_owned(), Told::default());
    let mut take = |found: Result<&str, String>| {
        let before = told.0.len();
        followed.take(found.map(str::to_owned), &mut held, &mut told);
        told.0.len().saturating_sub(before)
    };
    for _ in 0..2 {
        let nodes = ["a: refused", "b: no answer", "c: no leader"].into_iter().cycle().take(60);
        let news = nodes.map(|why| take(Err(why.to_owned())));
        assert_eq!(news.sum::<usize>(), 3);
        assert!(followed.stale_since.lock().unwrap().is_some());
        take(Ok("1"));
        assert!(followed.stale_for().is_zero());
    }
    // Whatever etcd says, the log doesn't fill.
    let news = (0..1_000).map(|turn| take(Err(format!("reason {turn}"))));
    assert_eq!(news.sum::<usize>(), REASONS_MAX);
}

#[tokio::test]
async fn a_text_being_written_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("number");
    let (manual, real) = (ManualClock::new(std::time::UNIX_EPOCH), SystemClock::new());
    let a_while = Duration::from_millis(100);
    std::fs::write(&path, "2").unwrap();
    let mut stream = Stream::Files(vec![path.clone()]);
    let mut next = Box::pin(stream.next(&manual, Duration::ZERO));
    // Each a good text, and none of them what is meant.
    for text in ["23", "234", "2345"] {
        let taken = Deadline::after(&real, a_while).bound(&real, &mut next).await;
        assert!(taken.is_err(), "{taken:?}");
        std::fs::write(&path, text).unwrap();
        manual.advance(SETTLED);
    }
    let text = loop {
        if let Ok(text) = Deadline::after(&real, a_while).bound(&real, &mut next).await {
            break text;
        }
        manual.advance(SETTLED);
    };
    assert_eq!(text.unwrap(), "2345");
}
