//! Cutting long lists of paths into several requests.
//!
//! Must hold: all items stay, in their order. An item too long for any request goes alone.

use dl_format::FilePath;
use dl_proto::REQUEST_PATH_BYTES;

/// Runs of `items` of at most `most` each, whose paths fit into one request.
pub(crate) fn by_path<'a, T>(
    mut items: &'a [T],
    most: usize,
    path: impl Fn(&T) -> &FilePath + 'a,
) -> impl Iterator<Item = &'a [T]> + 'a {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fit = items.iter().take(most).take_while(|item| {
            bytes += path(item).as_bytes().len();
            bytes <= REQUEST_PATH_BYTES
        });
        let fit = fit.count().max(usize::from(!items.is_empty()));
        let (run, rest) = items.split_at(fit);
        items = rest;
        (!run.is_empty()).then_some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_bounded_in_number_and_bytes_and_complete() {
        let long = FilePath::new([&[b'x'; 250][..]; 16].join(&b'/')).unwrap();
        let short = FilePath::new(&b"a"[..]).unwrap();
        let paths: Vec<_> =
            (0..1000).map(|n| if n < 300 { &long } else { &short }.clone()).collect();
        let runs: Vec<_> = by_path(&paths, 500, |path| path).collect();
        assert_eq!(runs.iter().map(|run| run.len()).collect::<Vec<_>>(), [130, 130, 500, 240]);
        assert_eq!(runs.concat(), paths);
        assert_eq!(by_path(&paths[..0], 500, |path| path).count(), 0);
    }
}
